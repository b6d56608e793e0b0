"""What a replay's bridge serves beside the inbox: the ring of updates, and learners."""

import numpy as np

from echo_shm.errors import EchoShmError
from echo_shm.net import learner_wire, wire
from echo_shm.net.bridge.ingest import Ingest
from echo_shm.net.bridge.learners import Learners
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.lockfile import INBOX, UPDATES
from echo_shm.ring.segment import Segment
from echo_shm.ring.updates import UPDATE_BLOCK, UPDATE_SPEC, ask_for_batches

_UPDATES = wire.spec_hash(UPDATE_SPEC.schema)


class ReplaySide:
    """The ring of updates, which is joined once a client needs it, and the learners.

    Args:
        inbox: The segment of the replay's inbox, mapped with its lock file.

    Attributes:
        welcome: What their hellos have in place of the hash of the inbox's schema.
        updates: Puts updates into their ring; None before somebody needs it.
        learners: The learners.

    """

    welcome = frozenset({learner_wire.LEARNER, _UPDATES})

    def __init__(self, inbox: Segment) -> None:
        self._inbox = inbox
        self._block = np.zeros((), UPDATE_BLOCK)
        self.updates: Ingest | None = None
        self.learners = Learners(inbox, self._ask)

    def open(self, spec: bytes) -> Ingest | None:
        """What puts the samples of such a client into a ring. None: it is a learner, or the replay is closed."""
        return self._open_updates() if spec == _UPDATES else None

    @property
    def nap(self) -> float:
        """The longest time until there may be something to do (seconds)."""
        return self.learners.nap

    def _open_updates(self) -> Ingest | None:
        if self.updates is None:
            name = self._inbox.name.removesuffix(INBOX) + UPDATES
            try:
                Segment.attach(self._inbox.name, self._inbox.uuid, read_only=True)  # it may be another replay's by now
                self.updates = Ingest(Segment.attach(name))
            except EchoShmError:
                return None
        return self.updates

    def _ask(self, one: BatchRing, num_batches: int) -> bool:
        """Asks the replay for a ring of batches. False: it cannot hear it now."""
        updates = self._open_updates()
        ask_for_batches(self._block, one, num_batches)
        return updates is not None and updates.put_own(self._block)

    def leave(self) -> None:
        """Leaves all rings. What learners have not acknowledged is given back."""
        self.learners.leave()
        if self.updates is not None:
            self.updates.detach()
