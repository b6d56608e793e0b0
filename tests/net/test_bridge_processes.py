"""The bridge's process and its clients' processes: forked, ended, reaped, interrupted, and bridges that fail."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import psutil
import pytest
from harness.peers import EXAMPLE, greet, numbers, said, sample
from harness.processes import in_child
from harness.programs import run, run_python
from harness.waiting import until

from echo_shm import ConnectionClosedError, EchoShmError, Server, TcpClient, TcpTransport
from echo_shm.net import wire
from echo_shm.net.bridge import supervisor
from echo_shm.net.bridge.admission import Settings
from echo_shm.net.bridge.bridge import Bridge
from echo_shm.ring.segment import Segment

_WORKERS = """
import multiprocessing
import sys

import numpy as np

from echo_shm import TcpClient


def work(port):
    global client
    client = TcpClient("127.0.0.1", port, np.zeros((), np.int64))
    for n in range(4000):
        client.send(np.int64(n))


if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=(int(sys.argv[1]),))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


def _bridge(server):
    return server._transports[0]._supervisors[0]


def _fork_unseen():
    """A fork from C, which Python does not notice."""
    libc = ctypes.PyDLL(None)
    pid = libc.fork()
    if pid == 0:
        libc.sleep(60)
        libc._exit(0)
    return pid


def _fork():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid


@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize("fork", [_fork, _fork_unseen])
def test_a_forked_child(serve, client, tls, with_tls, fork, monkeypatch):
    """A forked child of the learner that lives on keeps neither the bridge nor the port."""
    monkeypatch.setattr("echo_shm.net.bridge.supervisor._END_TIME", 50)  # the bridge is told to end, and not killed
    options = ({"tls": tls[0]}, {"tls": tls[1], "host": "localhost"}) if with_tls else ({}, {})
    server = serve(1, **options[0])
    one, port, pid = client(server, **options[1]), server.port, fork()
    try:
        bridge = _bridge(server).pid
        server.close()
        assert one._closed.wait(20)
        with pytest.raises(ConnectionClosedError, match="the server was closed"):
            one.send(sample(0))
        until(lambda: not psutil.pid_exists(bridge))
        with Server(EXAMPLE, 1, transport=TcpTransport(port)) as other:
            other.start()
            TcpClient("127.0.0.1", port, EXAMPLE).close()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_forked_child_that_closes(serve, client):
    """A forked child that closes its inherited server does not end its parent's bridge."""
    server = serve(1)
    in_child(server._transports[0].shutdown)
    one = client(server)
    one.send(sample(1))
    assert numbers(server.sample(timeout=20).batch) == [1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGABRT])
def test_a_bridge_that_is_ended(serve, client, number):
    """When a signal ends a bridge, another one takes its place, and its clients go on."""
    server = serve(1)
    one, bridge = client(server), _bridge(server).pid
    one.send(sample(1))
    one.wait()
    os.kill(bridge, number)
    one.send(sample(2))
    assert [numbers(server.sample(timeout=20).batch) for _ in range(2)] == [[1], [2]]
    assert until(lambda: _bridge(server).pid not in (-1, bridge))


@pytest.mark.parametrize("told", [False, True])
def test_a_bridge_whose_server_was_killed(background, told):
    """It tells no client that the server was closed, because the next one may serve it; but does so when it is told."""
    with Server(EXAMPLE, 1) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        bridge = Bridge(Segment.attach(server.name), [listener], Settings(None, 2, 8), None)
        control, other = os.pipe()
        bridge.watch(control)
        serving = background(bridge.run)
        with socket.create_connection(listener.getsockname(), timeout=20) as sock:
            greet(server, sock)
            if told:
                os.write(other, b"\n")
            os.close(other)
            assert said(sock) == (wire.bye(0, "the server was closed") if told else b"")
        assert serving.result() is False
        os.close(control)


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_bridge_that_somebody_else_reaps(certificate, with_tls):
    """Where SIGCHLD is ignored a bridge's exit status is unknown; another one is started all the same."""
    run_python(
        """
import os, signal, ssl, sys, time
import numpy as np
from echo_shm import Server, TcpClient, TcpTransport
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
cert, key, with_tls = sys.argv[1:]
server_side = client_side = None
if with_tls == "True":
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=cert)
    server_side.load_cert_chain(cert, key)
with Server(np.zeros(3), 1, transport=TcpTransport(0, tls=server_side)) as server:
    server.start()
    with TcpClient("localhost", server.port, np.zeros(3), tls=client_side) as client:
        for _ in range(3):
            os.kill(server._transports[0]._supervisors[0].pid, signal.SIGKILL)
            client.send(np.zeros(3))
            assert server.sample(timeout=30) is not None
            while server._transports[0]._supervisors[0].pid < 0: time.sleep(0.01)
""",
        *map(str, certificate),
        str(with_tls),
    )


def test_a_forked_bridge_is_its_own(certificate):
    """A bridge that is forked, for TLS, keeps neither the learner's signal handlers nor its other listeners."""
    run_python(
        """
import os, signal, socket, ssl, sys, time
import numpy as np
from echo_shm import Server, TcpTransport
signal.signal(signal.SIGTERM, lambda *_: print("the learner's handler", flush=True))
listener = socket.create_server(("127.0.0.1", 0))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(*sys.argv[1:])
with Server(np.zeros(3), 1, transport=TcpTransport(0, tls=context)) as server:
    server.start()
    address = listener.getsockname()
    listener.close()
    try:
        socket.create_connection(address)
    except ConnectionRefusedError:
        pass
    else:
        sys.exit("somebody listens there")
    pid = server._transports[0]._supervisors[0].pid
    os.kill(pid, signal.SIGTERM)
    while server._transports[0]._supervisors[0].pid in (pid, -1): time.sleep(0.01)
""",
        *map(str, certificate),
    )


@pytest.mark.parametrize("with_tls", [False, True])
def test_ctrl_c_while_a_server_starts(certificate, with_tls):
    """Wherever Ctrl-C interrupts start() or close(), nothing is left, and only KeyboardInterrupt is raised."""
    done = run_python(
        """
import contextlib, os, random, signal, ssl, sys, threading, time
import numpy as np, psutil
from echo_shm import Server, TcpTransport
cert, key, with_tls = sys.argv[1:]
context = None
if with_tls == "True":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
taken, end = 0, time.monotonic() + 20
for turn in range(9):
    if taken > 5 and time.monotonic() > end:  # a slow machine: fewer turns
        break
    transport = TcpTransport(0, tls=context, processes=2)
    server = Server(np.zeros(3), 1, transport=transport)
    timer = threading.Timer(random.random() * 0.3, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        server.start()
        server.close()
        timer.join()
        time.sleep(0.01)
    except KeyboardInterrupt:
        taken += 1
    server.close()
    transport.shutdown()
    left = [thread for thread in threading.enumerate() if thread.is_alive() and "supervisor" in thread.name]
    assert not left, left
assert taken > 5
children = [c for c in psutil.Process().children(recursive=True) if c.status() != psutil.STATUS_ZOMBIE]
assert not children, children
""",
        *map(str, certificate),
        str(with_tls),
    )
    # Ctrl-C in a finalizer that the garbage collector runs: Python says so, and goes on.
    ignored = r"Exception ignored in: <finalize object .*\nTraceback .*\n(?:  .*\n)*KeyboardInterrupt: *\n"
    assert re.sub(ignored, "", done.stderr) == ""


def test_shutdown_while_another_thread_starts():
    """start() and shutdown() from two threads, in any order: after a last shutdown() nothing is left."""
    with Server(EXAMPLE, 1) as server:
        for turn in range(6):
            transport = TcpTransport(0, processes=2)
            starting = threading.Thread(target=transport.start, args=(server.handle,))
            starting.start()
            time.sleep(turn * 0.01)
            transport.shutdown()
            starting.join(30)
            transport.shutdown()
            assert not starting.is_alive()
            assert transport._listeners == transport._supervisors == []


def test_a_bridge_that_fails(background):
    """A bridge that fails tells no client that the server was closed: clients connect again, to the next bridge."""
    with Server(EXAMPLE, 1) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        bridge = Bridge(Segment.attach(server.name), [listener], Settings(None, 2, 8), None)
        running = background(bridge.run)
        with socket.create_connection(address, timeout=20) as sock:
            greet(server, sock)
            with mock.patch.object(bridge._ingest, "put", side_effect=RuntimeError("a fault")):
                sock.sendall(wire.samples_header(1, 0) + bytes(32))
                with pytest.raises(RuntimeError, match="a fault"):
                    running.result()
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(1)
        bridge.close()


def test_a_bridge_that_cannot_be_started(serve, client, monkeypatch):
    """When no bridge can be started in place of a dead one, that is tried again."""
    server = serve(1)
    one, fails = client(server), iter([True, True])
    start = subprocess.Popen

    def popen(*args, **kwargs):
        if next(fails, False):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", popen)
    os.kill(_bridge(server).pid, signal.SIGKILL)
    one.send(sample(1))
    assert numbers(server.sample(timeout=20).batch) == [1]
    assert next(fails, None) is None


def test_a_bridge_that_does_not_end(serve, monkeypatch, caplog):
    """A bridge that has not even ended after it was killed keeps close() only for a while, and is logged."""
    over, wait = threading.Event(), supervisor._BridgeProcess.wait
    monkeypatch.setattr(supervisor, "_END_TIME", 0.2)
    monkeypatch.setattr(supervisor._BridgeProcess, "wait", lambda one: (over.wait(30), wait(one))[1])
    server = serve(1)
    watching, pid = server._transports[0]._supervisors[0], _bridge(server).pid
    server.close()
    assert f"the bridge process {pid} was killed 0.2 s ago, and has not ended" in caplog.text
    assert not over.is_set()
    over.set()
    watching._thread.join(20)
    assert not watching._thread.is_alive()


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_bridge_that_never_begins(tls, with_tls, capfd, monkeypatch):
    """A bridge that fails before it serves is an error of start(), with the cause on stderr, and nothing is left."""
    monkeypatch.setattr(
        "echo_shm.net.bridge.process.serve", mock.Mock(side_effect=RuntimeError("a fault"))
    )  # if forked
    monkeypatch.setattr("echo_shm.net.bridge.supervisor._PROGRAM", "raise RuntimeError('a fault')")  # if not
    transport = TcpTransport(0, tls=tls[0] if with_tls else None)
    with Server(EXAMPLE, 1, transport=transport) as server:
        with pytest.raises(EchoShmError, match="ended with status 1 before it served"):
            server.start()
        assert transport._listeners == []
    assert "RuntimeError: a fault" in capfd.readouterr().err


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_exits_delivers(serve, tmp_path, method):
    """A multiprocessing process that ends without close() delivers what it sent."""
    server = serve(100, 40, np.zeros((), np.int64))
    script = tmp_path / "workers.py"
    script.write_text(_WORKERS)
    run(sys.executable, str(script), str(server.port), method)
    assert [n for _ in range(40) for n in server.sample(timeout=20).batch.tolist()] == list(range(4000))
