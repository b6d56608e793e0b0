"""When a writer, or its subscriber, goes on with another shard, and when not. No cluster is needed."""

import threading
from types import SimpleNamespace

import pytest
from harness.packages import need

need("ray")

import ray  # noqa: E402

from echo_shm import ConnectionClosedError  # noqa: E402
from echo_shm.adapters.ray import nodes, silence  # noqa: E402
from echo_shm.adapters.ray.directory import Roster  # noqa: E402
from echo_shm.adapters.ray.subscriber import RaySubscriber  # noqa: E402
from echo_shm.adapters.ray.writers import RayWriter  # noqa: E402

HERE, ELSEWHERE = "here", "elsewhere"


@pytest.mark.parametrize(
    ("said", "is_gone"),
    [
        ((Roster(2, (HERE,)), {}), False),
        ((Roster(2, (ELSEWHERE,)), {}), True),
        ((Roster(0, ()), {}), False),  # it was started again just now, and knows of nobody
        (ray.exceptions.ActorUnavailableError("", None), False),
        (ray.exceptions.GetTimeoutError(), False),
        (ray.exceptions.ActorDiedError(), True),
        (ValueError("no such actor"), False),
    ],
)
def test_what_the_directory_says(monkeypatch, said, is_gone):
    """A shard that is silent is gone if the directory has it elsewhere, or is itself gone for good."""

    def get(_, timeout):
        if isinstance(said, Exception):
            raise said
        return said

    setup = SimpleNamespace(directory=SimpleNamespace(look=SimpleNamespace(remote=object)))
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(nodes, "is_connected", lambda node: node == "a")
    assert silence._is_gone(setup, "a", HERE) is is_gone
    assert not silence._is_gone(setup, "b", HERE)  # this process has left Ray: it asks nobody


class Weights:
    """What is subscribed to by way of a shard. It ends when it is told to, and so may the shard."""

    def __init__(self, version):
        self.version = self.latest_version = version
        self.ended, self.ring_closed = False, False

    def subscriber(self, example, timeout):
        """Itself."""
        if self.ended:
            raise ConnectionClosedError("the weights have ended")
        return self

    def wait(self, version, timeout=None):
        """The version."""
        return self.subscriber(None, timeout).latest_version

    def close(self):
        """Does nothing."""


class Moving:
    """A writer of two shards, in turn."""

    def __init__(self, *shards):
        self._writer, *self.others = shards

    def _move(self, failed, error):
        assert failed is self._writer
        self._writer = self.others.pop(0)


def test_a_subscriber_goes_on_with_its_writer():
    """Also while it waits for the first version."""
    shards = [Weights(version) for version in range(1, 5)]
    shards[0].ended = shards[0].ring_closed = True
    subscriber = RaySubscriber(Moving(*shards), None, 1.0)
    assert subscriber.wait(1) == 2
    shards[1].ended = shards[1].ring_closed = True
    assert subscriber.wait(1) == 3


@pytest.mark.parametrize("is_first", [True, False])
def test_weights_that_end_alone(is_first):
    """The writer stays with its shard."""
    shards = [Weights(1), Weights(2)]
    writer = Moving(*shards)
    subscriber = None if is_first else RaySubscriber(writer, None, 1.0)
    shards[0].ended = True
    with pytest.raises(ConnectionClosedError, match="the weights have ended"):
        RaySubscriber(writer, None, 1.0) if subscriber is None else subscriber.wait(1)
    assert writer.others == shards[1:]


def test_a_writer_that_is_being_closed():
    """Another thread's call that fails moves nothing: what was sent is being delivered."""
    writer, seen = RayWriter.__new__(RayWriter), []
    writer._lock, writer._closed, writer._closer = threading.RLock(), False, None

    class Closing:
        _left = None

        def close(self):
            if not seen:
                thread = threading.Thread(target=self.fail)
                thread.start()
                thread.join()

        def fail(self):
            seen.append("began")
            try:
                writer._move(self, ConnectionClosedError("not attached"))
            except Exception as error:
                seen.append(repr(error))

    writer._writer = Closing()
    writer.close()
    assert seen == ["began", "ConnectionClosedError('not attached')"]
    assert writer.ring_closed
