"""Versions of weights in a bridge's own memory, from which they are sent to clients."""

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.segment import Segment
from echo_shm.spec import Array
from echo_shm.weights.segment import check_holds_weights

#: Most copies. Clients that are slow can hold so many versions, and no more.
_MOST = 4


class Copy:
    """One version, for all clients that it is sent to.

    Attributes:
        version: Its number.
        data: The bytes of all leaves, one behind the other.
        readers: To how many clients it is being sent.

    """

    def __init__(self, version: int, memory: Array) -> None:
        self.version, self._memory = version, memory
        self.data = memory.data
        self.readers = 0


class Source:
    """A bridge's attachment to weights. A slow client delays no publisher and takes no lease: it is sent a copy.

    Args:
        segment: The segment with the weights, mapped with its lock file.

    Attributes:
        schema: What the weights look like.
        closed: Whether their publisher had closed them at the last :meth:`look`.
        latest: The latest version at that time.

    """

    def __init__(self, segment: Segment) -> None:
        check_holds_weights(segment)
        self.schema = segment.spec.schema
        self._sizes = [leaf.nbytes for leaf in segment.spec.leaves]
        self._attachment = Attachment(segment, lib.ES_ROLE_PRODUCER, f"weights {segment.name!r}")
        self._ring = self._attachment.ring
        self._copies: list[Copy] = []  # the newest last
        self._spare: Array | None = None
        self.closed, self.latest = False, 0
        self.look()

    def look(self) -> None:
        """Finds out what was published."""
        # The flag first: a version that came just before the close counts.
        self.closed = self.closed or self._attachment.ring_closed()
        self.note_latest()

    def note_latest(self) -> bool:
        """Finds out the latest version alone. Returns whether it is a newer one. It costs next to nothing."""
        before, self.latest = self.latest, int(lib.es_weights_latest(self._ring))
        return self.latest > before

    @property
    def newest(self) -> Copy | None:
        """The copy of the newest version that there is a copy of."""
        return self._copies[-1] if self._copies else None

    @property
    def in_use(self) -> list[Copy] | None:
        """The copies that are being sent, if there can be no other one beside them."""
        used = [copy for copy in self._copies if copy.readers]
        return used if len(used) >= _MOST else None

    def copy(self) -> Copy:
        """Copies the latest version. A publisher that overtakes this is no hindrance: there is a later version then."""
        for copy in [one for one in self._copies if not one.readers]:
            self.drop(copy)
        memory, self._spare = self._spare, None
        if memory is None:
            memory = np.empty(sum(self._sizes), np.uint8)
        starts = np.cumsum([0, *self._sizes[:-1]])
        pointers = ffi.new("void *[]", [ffi.cast("uint8_t *", memory.ctypes.data + int(start)) for start in starts])
        while (version := int(lib.es_weights_copy(self._ring, pointers))) == lib.ES_LAPPED:
            pass
        self._attachment.check(version)
        self.latest = max(self.latest, version)
        self._copies.append(Copy(version, memory))
        return self._copies[-1]

    def drop(self, copy: Copy) -> None:
        """Nobody is to be sent that copy any more."""
        self._copies.remove(copy)
        self._spare = copy._memory

    def detach(self) -> None:
        """Leaves the weights."""
        self._attachment.detach()
