"""Subscribers to the weights of a learner on another host: :class:`TcpSubscriber`."""

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import NoReturn

import numpy as np

from echo_shm.errors import ConnectionClosedError, EchoShmError, SpecMismatchError
from echo_shm.net.client.feed import Version
from echo_shm.net.client.sender import Sender
from echo_shm.spec import Tree
from echo_shm.timeouts import check_timeout
from echo_shm.weights.leaves import flat, spec_of
from echo_shm.weights.subscription import Subscription, check_min_version, writable_arrays

#: What a subscriber has got that is to take the long way at its next look.
_NOTHING = Version(0, [], 0)


class TcpSubscriber(Subscription):
    """Gets the weights that a learner on another host publishes; :meth:`TcpClient.subscriber` makes it.

    The server sends a version when it is asked for one, over the client's connection and between its samples. It is
    asked for the next one when somebody has got the last one: so a version is mostly there before it is looked for,
    and those that nobody looks for are not sent. :meth:`latest` and :meth:`lease` ask for the latest one, if it is not
    here, and wait for it.

    A lost connection does not end it: what has come stays, and the client asks again when it is connected. If the
    learner was started anew, or its publisher was, :attr:`version` is 0 again, and the new one's versions count from 1.

    Threads may share it; each version that one of them gets is news to none of the others. A forked child must not use
    its parent's.
    """

    def __init__(
        self, client: object, sender: Sender, example: Tree, timeout: float | None, *, leaves: bool = False
    ) -> None:
        self._sender, self._feed, self._timeout = sender, sender.feed, timeout
        self._client = client  # it is not collected, and so not closed, while this lives
        self._what = f"the weights of {sender.peer}"
        self._described = self._spec = sender.subscribe()
        if leaves:  # as a tuple, whatever the structure is
            self._spec = flat(self._described)
        if example is not None:
            self._spec = spec_of(example)
            self._spec.check_same(self._described, self._what)
        if self._spec.treespec is None:
            raise SpecMismatchError(
                f"{self._what} have node types beyond dict, list, tuple and None: pass an example with their structure"
            )
        self._got: Version | None = _NOTHING  # what poll() finds if there is no news
        self._version = self._publisher = 0
        self._is_closed = False
        self._feed.note_user()
        _subscribers.add(self)

    @property
    def version(self) -> int:
        """The version that this subscriber got last; 0 before the first one of the publisher that there is now."""
        return self._version if self._publisher == self._feed.publishers else 0

    @property
    def latest_version(self) -> int:
        """The version that was published last, as the server has said; 0 when there is none.

        It may be on its way. When :meth:`wait` returns, it has come.
        """
        return self._feed.latest

    def latest(self) -> Tree:
        """The latest version, as a private copy: a pytree of new numpy arrays.

        It waits for a version that is on its way, as long as the client's ``timeout`` and its connection last. While
        the connection is lost, it is the newest version that has come.

        Raises:
            EchoShmError: Nothing was published yet.
            TimeoutError: The server was too slow.
            SpecMismatchError: Another learner is there now, and its weights differ.
            ConnectionClosedError: This subscriber or the client is closed, or the connection is lost for good.
            ForkedError: Called in a child of the process that connected.

        """
        version = self._latest()
        arrays = [array.copy() for array in version.arrays]
        self._take(version)
        return self._spec.structure.unflatten(arrays)

    def poll(self, into: Tree = None) -> bool:
        """Whether a version has come that is newer than the one that this subscriber got last.

        It never waits. Without news it costs about as much as an attribute.

        Args:
            into: As for :meth:`Subscriber.poll`.

        Raises:
            SpecMismatchError: The structure, a dtype or a shape differs. The message names the first leaf that does.
            ValueError: A leaf cannot be written to.
            ConnectionClosedError, ForkedError: As :meth:`latest`.

        """
        held = self._feed.held
        if held is self._got:
            return False
        self._refuse()
        if held is None:
            return False
        if into is not None:
            arrays = writable_arrays(self._spec, into, self._what)
            for array, new in zip(arrays, held.arrays, strict=True):
                np.copyto(array, new)
            self._take(held)
        return True

    def wait(self, min_version: int, timeout: float | None = None) -> int:
        """Sleeps until that version, or a later one, has come.

        Args:
            min_version: The least version.
            timeout: Seconds; None: no limit.

        Returns:
            The newest version that has come.

        Raises:
            TimeoutError: No such version has come in time.
            ConnectionClosedError: The publisher has closed, so there will be none, or another one counts from 1; or as
                :meth:`latest`.
            SpecMismatchError, ForkedError: As :meth:`latest`.

        """
        check_min_version(min_version)
        check_timeout(timeout)
        self._refuse()
        return self._feed.await_version(min_version, timeout, self._refuse)

    @contextlib.contextmanager
    def lease(self) -> Iterator[Tree]:
        """The latest version without a copy: a pytree of read-only arrays, which nobody overwrites.

        They lie in this process's memory, so a lease takes none of the publisher's ``max_leases``.

        Raises:
            EchoShmError, TimeoutError, ConnectionClosedError, ForkedError: As :meth:`latest`.

        """
        version = self._latest()
        self._take(version)
        yield self._spec.structure.unflatten([array[...] for array in version.arrays])

    def close(self) -> None:
        """Ends it. The client goes on. Idempotent."""
        self._is_closed, self._got = True, _NOTHING

    def __repr__(self) -> str:
        return f"<TcpSubscriber of {self._sender.peer}, version {self.version} of {self.latest_version}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a TcpSubscriber belongs to its process: connect in the other process, and subscribe there")

    # -- what the calls share

    def _refuse(self) -> None:
        """Raises if nothing more can be got."""
        self._sender.raise_if_forked()
        if self._is_closed:
            raise ConnectionClosedError(f"this subscriber to {self._what} is closed")
        self._sender.raise_if_ended()
        if self._feed.spec is not self._described:
            raise SpecMismatchError(f"{self._what} are others now: another learner is there. Make another subscriber")

    def _latest(self) -> Version:
        self._refuse()
        version = self._feed.await_latest(self._timeout, self._refuse)
        if version is None:
            raise EchoShmError(
                f"{self._what} have no version yet: the learner calls publisher.publish(params) before its workers "
                "start, or the worker waits: subscriber.wait(1, timeout)"
            )
        self._refuse()
        return version

    def _take(self, version: Version) -> None:
        self._version, self._publisher, self._got = version.number, version.publisher, version
        self._feed.note_taken(version)


_subscribers: "weakref.WeakSet[TcpSubscriber]" = weakref.WeakSet()


def _forget_in_child() -> None:
    """In a forked child: the next poll() takes the long way, which raises."""
    for subscriber in list(_subscribers):
        subscriber._got = _NOTHING


os.register_at_fork(after_in_child=_forget_in_child)
