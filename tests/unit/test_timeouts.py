"""Timeouts that are no numbers of seconds."""

import numpy as np
import pytest

from echo_shm import Server, ShmClient, TcpTransport

EXAMPLE = np.zeros(2)


@pytest.mark.parametrize("wrong", [float("nan"), "1", -1, -0.5, True, [1]], ids=repr)
def test_what_is_no_timeout(wrong):
    """Each call that takes a timeout refuses what is none, whether or not it would have to wait."""
    with Server(EXAMPLE, 1, num_buffers=2) as server, ShmClient(server.handle) as client:
        bound, transport = client.bind(EXAMPLE.copy()), TcpTransport(0)
        calls = [
            server.sample,
            server.lease,
            transport.wait,
            lambda timeout: server.submit(EXAMPLE, timeout),
            lambda timeout: server.submit_many(EXAMPLE[None], timeout),
            lambda timeout: client.send(EXAMPLE, timeout),
            lambda timeout: client.send_many(EXAMPLE[None], timeout),
            bound.send,
        ]
        for full in (False, True):
            for call in calls:
                with pytest.raises(ValueError, match=r"timeout=.*: use seconds, 0 or more, or None"):
                    call(wrong)
            for _ in range(2 - 2 * full):
                client.send(EXAMPLE)
        with pytest.raises(ValueError, match=r"timeout=.*: use seconds"), client.reserve(wrong):
            pass
    with pytest.raises(ValueError, match=r"learner_grace=.*: use seconds"):
        ShmClient("no-such-segment", learner_grace=wrong)


def test_whole_and_infinite_timeouts():
    """Integers, numpy's numbers and infinity are possible."""
    with Server(EXAMPLE, 1) as server:
        for timeout in (1, np.float32(1), np.int64(1), float("inf")):
            server.submit(EXAMPLE, timeout)
            assert server.sample(timeout) is not None
