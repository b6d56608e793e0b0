"""Weights for the workers of all nodes: each version goes to each node once, and from there through shared memory.

The learner's process publishes in shared memory of its own, which a bridge with keys of its own serves. On each node
a :class:`Relay`, a thread in the actor of the node's shard, follows the newest learner, and publishes what it gets
under the name of the shard's replay. There workers find it as on one machine: ``writer.subscriber()``.

A version has the number that its learner gave it. A relay passes on what is newer than all that its node has had, and
so numbers never go backwards on a node, whoever dies. A learner goes on from the highest number that any node has:
before it publishes, the relays of all shards that are there follow it, and so get no more of the one before. One that
was away then, and has a higher number, is heard of later: the next version is above that.
"""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from echo_shm.adapters.ray import guard, nodes
from echo_shm.adapters.ray.asking import ask
from echo_shm.adapters.ray.keys import Keys
from echo_shm.closing import Closing
from echo_shm.errors import ConnectionClosedError, EchoShmError, SpecMismatchError
from echo_shm.net.client.client import TcpClient
from echo_shm.net.transport import TcpTransport
from echo_shm.ring.handle import Handle
from echo_shm.ring.segment import Segment
from echo_shm.server import Server
from echo_shm.spec import Spec, Tree
from echo_shm.weights import Publisher, Subscriber
from echo_shm.weights.leaves import spec_of
from echo_shm.weights.segment import segment_name
from echo_shm.weights.subscription import Subscription

_log = logging.getLogger("echo_shm")

#: What the ring would hold whose bridge serves the weights: nobody sends into it.
_NOTHING = np.zeros((), np.uint8)

#: A publisher says so often that it is there, for a directory that was started again (seconds).
_EVERY = 1.0

#: A relay tries to reach its learner again after so many seconds: at first, and at most.
_SOONEST, _LATEST = 0.1, 2.0

#: How long a new publisher waits until all nodes follow it, and between two looks (seconds).
_FOLLOWED, _NAP = 5.0, 0.05

#: How long connecting to a learner may take, and closing the connection (seconds).
_CONNECTING, _CLOSING = 10.0, 1.0


@dataclass(frozen=True)
class Offer:
    """A learner's weights: where they are. It pickles.

    Attributes:
        number: Of the publisher: a newer one has a higher number. 0: it has none yet.
        node: The id of its node.
        host, port: Where its bridge listens.
        keys: Of the bridge; the public part.
        weights: Its segment on its own node.
        schema: What the weights look like.
        version: The latest that it had published then.

    """

    number: int
    node: str
    host: str
    port: int
    keys: Keys
    weights: Handle
    schema: bytes
    version: int


class Offers:
    """What a directory knows of publishers: part of that actor."""

    def __init__(self) -> None:
        self._newest: Offer | None = None
        self._version = 0
        self._follows: dict[int, int] = {}

    def announce(self, offer: Offer, shards: Iterable[int] = ()) -> tuple[int, int, bool]:
        """A publisher's word: at first, with number 0, and then now and then.

        Args:
            offer: Its own.
            shards: The numbers of those that are there.

        Returns:
            The number of the newest publisher, which is its own at first; the highest version that anybody has; and
            whether all shards follow the newest publisher, so that nobody gets a higher one of those before.

        Raises:
            SpecMismatchError: The weights of the one before look different.

        """
        newest = self._newest
        if newest is not None and not offer.number:
            mine, theirs = (Spec.from_schema(one.schema, "an offer") for one in (offer, newest))
            mine.check_same(theirs, f"the weights that a learner on {newest.host} has published before")
        if not offer.number:
            # Numbers grow even if a directory was started again, and has not heard of the last one.
            offer = replace(offer, number=max(time.time_ns(), newest.number + 1 if newest else 0))
        # What one that has a successor publishes reaches nobody.
        self._note(offer, 0 if newest is not None and offer.number < newest.number else offer.version)
        assert self._newest is not None
        number = self._newest.number
        return number, self._version, all(self._follows.get(shard) == number for shard in shards)

    def report(self, shard: int, offer: Offer | None, version: int) -> Offer | None:
        """A shard's word: what its relay follows, and its latest version. Returns what it is to follow."""
        self._follows[shard] = 0 if offer is None else offer.number
        self._note(offer, version)
        return self._newest

    def _note(self, offer: Offer | None, version: int) -> None:
        self._version = max(self._version, version)
        if offer is not None and (self._newest is None or offer.number >= self._newest.number):
            self._newest = offer


# --- on each node ---------------------------------------------------------------


class Relay:
    """Publishes on a node what the newest learner publishes, wherever that is. It has a thread.

    If its process is killed, the next relay of that name goes on: subscribers need not attach again, and get no version
    twice.

    Args:
        name: Of the replay of the node's shard.
        node: The id of this node.
        max_leases, max_subscribers: As for :class:`Publisher`.

    """

    def __init__(self, name: str, node: str, *, max_leases: int = 8, max_subscribers: int = 1024) -> None:
        self._name, self._node = name, node
        self._room = max_leases, max_subscribers
        self._changed = threading.Condition()
        self._copying = threading.Lock()  # a lease ends when its source closes: held while a leased version is read
        self._offer: Offer | None = None
        self._source: contextlib.ExitStack | None = None
        self._publisher: Publisher | None = None
        self._spec: Spec | None = None
        self._left = _left_by_another(name)
        self._stopped = False
        self._thread = nodes.thread(self._run, "weights")
        self._thread.start()

    @property
    def offer(self) -> Offer | None:
        """What it follows."""
        return self._offer

    @property
    def version(self) -> int:
        """The latest version on this node, also of a relay that was killed; 0: none."""
        publisher = self._publisher
        return self._left if publisher is None else publisher.version

    def follow(self, offer: Offer | None) -> None:
        """Follows that publisher from now on, unless it is an older one than it follows already, or None."""
        with self._changed:
            current = 0 if self._offer is None else self._offer.number
            if offer is not None and offer.number > current and not self._stopped:
                self._offer = offer
                self._drop_source()

    def stop(self) -> None:
        """Ends it, and removes the weights from this node. Idempotent. Subscribers keep what they have."""
        with self._changed:
            self._stopped = True
            self._drop_source()
        self._thread.join()
        if self._publisher is not None:
            self._publisher.close()

    def _drop_source(self) -> None:
        """Ends a wait for the next version, with the lock held. No version is published from then on."""
        self._changed.notify_all()
        if self._source is not None:
            with self._copying, contextlib.suppress(ConnectionClosedError):
                self._source.close()
            self._source = None

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._offer is not None)
                if self._stopped or self._offer is None:
                    return
                offer = self._offer
            self._keep_to(offer)

    def _keep_to(self, offer: Offer) -> None:
        """Follows one publisher until there is another one."""
        pause = _SOONEST
        while self._is_newest(offer):
            try:
                self._relay(offer)
            except SpecMismatchError as error:
                _log.error("%s: no weights of the learner on %s: %s", self._name, offer.host, error)
                pause = threading.TIMEOUT_MAX
            except (EchoShmError, OSError) as error:  # the learner is gone, or cut off: it may come back
                _log.debug("%s: no weights of the learner on %s: %s", self._name, offer.host, error)
            with self._changed:
                self._changed.wait_for(lambda: not self._is_newest(offer), pause)
            pause = min(2 * pause, _LATEST)

    def _is_newest(self, offer: Offer) -> bool:
        return self._offer is offer and not self._stopped

    def _relay(self, offer: Offer) -> None:
        """Passes versions on, until there is another offer, or the learner is gone."""
        with contextlib.ExitStack() as source:
            weights, spec = _subscribe(offer, self._node, source)
            publisher = self._publisher_of(spec)
            with self._changed:
                if not self._is_newest(offer):
                    return
                self._source = source
            while self._is_newest(offer):
                weights.wait(publisher.version + 1)
                with weights.lease() as leaves, self._copying:
                    if not self._is_newest(offer):  # this version is late, and the lease may be over
                        return
                    if weights.version > publisher.version:
                        publisher.publish(leaves, weights.version)

    def _publisher_of(self, spec: Spec) -> Publisher:
        if self._publisher is None:
            self._publisher, self._spec = Publisher._of_leaves(spec, self._name, *self._room), spec
        assert self._spec is not None
        spec.check_same(self._spec, f"the weights of {self._name!r}, which an earlier learner has published")
        return self._publisher


def _left_by_another(name: str) -> int:
    """The latest version that a relay of that name has left on this node; 0: there is none."""
    with contextlib.suppress(EchoShmError):
        segment = Segment.attach(segment_name(name))
        with Subscriber._of_leaves(Handle(segment.name, segment.uuid, None)) as left:
            return left.latest_version
    return 0


def _subscribe(offer: Offer, node: str, source: contextlib.ExitStack) -> tuple[Subscription, Spec]:
    """The weights of an offer, as a tuple of leaves, and what they look like. ``source`` ends it."""
    spec = Spec.from_schema(offer.schema, "an offer")
    if offer.node == node:
        return source.enter_context(Subscriber._of_leaves(offer.weights)), spec
    client = TcpClient(
        offer.host,
        offer.port,
        _NOTHING,
        authkey=offer.keys.authkey,
        tls=offer.keys.client_context(),
        reconnect=False,  # the thread above tries again, and with the newest offer
        timeout=_CONNECTING,
        close_timeout=_CLOSING,
    )
    source.callback(client.close)
    return source.enter_context(client._subscriber_of_leaves()), spec


# --- the learner ----------------------------------------------------------------


class RayPublisher(Closing):
    """Publishes weights to the workers of all nodes: what :meth:`RayReplay.publisher` returns.

    Versions count from 1, or on from the highest one that a node has of an earlier publisher. To make one takes about
    as long as ``mass_age``: until the shards of all nodes follow it, or for 5 seconds. If there is a newer publisher,
    nobody gets what this one publishes.

    A context manager that closes on exit. If its process is killed, workers keep what they have, and the next publisher
    goes on.

    Args:
        params: As for :class:`Publisher`.
        name: Of its ring on this node, which nothing else has.
        node: The id of this node.
        host: The address that other nodes reach it at.
        announce: Tells the directory: :meth:`Offers.announce`.

    Raises:
        TypeError, ValueError, SegmentError: As for :class:`Publisher`.
        SpecMismatchError: The weights of an earlier publisher look different.

    """

    def __init__(
        self,
        params: Tree,
        name: str,
        node: str,
        host: str,
        announce: Callable[[Offer], tuple[int, int, bool]],
    ) -> None:
        spec, keys = spec_of(params), Keys.make()
        self._announce = announce
        self._lock, self._closed = threading.Lock(), threading.Event()
        bridge = TcpTransport(0, host=host, authkey=keys.authkey, tls=keys.pem())
        guard.watch(name)  # before there is anything: this process may be killed while it makes it
        self._ring = Server(_NOTHING, 1, bridge, num_buffers=1, name=name)
        try:
            # Bridges copy, and take no lease. The relay of this node has one at a time.
            self._publisher = self._ring.publisher(params, max_leases=1)
            self._ring.start()
            weights = replace(self._publisher.handle, treespec=None)  # its node types may be known here alone
            self._offer = Offer(0, node, host, self._ring.port, keys.public(), weights, spec.schema, 0)
            number, self._base, is_followed = announce(self._offer)
            self._offer = replace(self._offer, number=number)
            until = time.monotonic() + _FOLLOWED
            while not is_followed and time.monotonic() < until:
                time.sleep(_NAP)
                _, self._base, is_followed = announce(self._offer)
            if not is_followed:
                _log.warning("%r begins above version %d: a node that does not answer may have more", name, self._base)
        except BaseException:
            self._ring.close()
            raise
        self._thread = nodes.thread(self._tell, "publisher")
        self._thread.start()

    @property
    def version(self) -> int:
        """The latest version, also an earlier publisher's; 0 when nothing was published."""
        return max(self._publisher.version, self._base)

    def publish(self, params: Tree) -> int:
        """Publishes a version. It waits for nobody.

        Args:
            params: As the example: the same structure, dtypes and shapes. It is copied.

        Returns:
            The version's number.

        Raises:
            SpecMismatchError, ConnectionClosedError, ForkedError: As for :meth:`Publisher.publish`.

        """
        with self._lock:
            return self._publisher.publish(params, self.version + 1)

    def _tell(self) -> None:
        """Says that this publisher is there. A directory that was started again learns of it so."""
        told = False
        while not self._closed.wait(_EVERY):
            with contextlib.suppress(EchoShmError):  # it is away: again the next time
                newest, highest, _ = self._announce(replace(self._offer, version=self.version))
                if newest == self._offer.number:
                    self._base = max(self._base, highest)  # of a node that was away before
                elif not told:
                    _log.warning("%r has a successor: what it publishes reaches nobody", self)
                    told = True

    def close(self) -> None:
        """Ends it. Idempotent. Workers keep the latest version."""
        self._closed.set()
        self._ring.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "open"
        return f"<RayPublisher on {self._offer.host}, version {self.version}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RayPublisher belongs to its process: pickle the RayReplay, and call publisher() there")


def announcing(directory: Any) -> Callable[[Offer], tuple[int, int, bool]]:
    """Tells a directory's actor of offers. If it is being started again, that is waited for."""
    return functools.partial(ask, directory, "announce")
