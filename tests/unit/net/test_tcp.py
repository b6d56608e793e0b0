"""The TCP options of a bridge's connections."""

import socket

from echo_shm.net import tcp


def test_a_silent_peer_is_given_up_after_a_minute():
    """A peer that is gone without a word is noticed within 60 s, with data on its way to it and without."""
    with socket.socket() as sock:
        tcp.set_options(sock)
        tcp.set_send_timeout(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval, count, in_flight = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        )
    assert idle + interval * count == 60
    assert in_flight == 60_000


def test_little_waits_between_two_processes_of_one_host():
    """What waits in such a connection has room in the caches. Elsewhere the system sizes the buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        tcp.set_options(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 1 << 20
    with socket.socket() as sock:
        before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        tcp.set_options(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before
