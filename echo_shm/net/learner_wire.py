"""The frames between a replay's bridge and a learner, as bytes, without any I/O. WIRE.md specifies them.

What comes from a peer is validated here and in wire.py, and only there.
"""

import hashlib
import struct
from typing import NamedTuple

from echo_shm.errors import WireError
from echo_shm.net.wire import MAX_SCHEMA, MAX_TEXT, NO_RING, Frame, Header, read_header

#: What a learner's hello has in place of the hash of its samples' schema.
LEARNER = hashlib.sha256(b"echo_shm learner 1").digest()

#: Most bytes of the answer to INFO.
MAX_INFO = 1 << 16

#: Most items of a batch: a frame's length has four bytes.
MAX_ITEMS = (1 << 32) - 1

_ASK = struct.Struct("<IIII16s")

#: Why no more batches come: the learner has its share of the ring; or it has the place that is filled next.
SHARE, BLOCKING = WHY_FULL = b"\0", b"\1"

#: The longest body of ASK.
MAX_ASK = 1 << 16

#: Most batches that a learner may have that it was not told were heard to be done.
MAX_HAS = (MAX_ASK - _ASK.size) // 8


class Ask(NamedTuple):
    """What a learner asks for, once on each connection.

    n: items of a batch. buffers: how many batches the ring is to hold if it is made now. ring: the uuid of the ring of
    ``has``; zeros at first. has: the numbers of the batches that the learner has had from it, and has not
    been told that its DONE was heard. rank, world_size: which member of a group it is; 0 and 0: of none.
    """

    table: int
    n: int
    buffers: int
    ring: bytes = NO_RING
    has: tuple[int, ...] = ()
    rank: int = 0
    world_size: int = 0

    def to_bytes(self) -> bytes:
        """The frame."""
        body = _ASK.pack(self.table, self.buffers, self.rank, self.world_size, self.ring)
        body += struct.pack(f"<{len(self.has)}Q", *self.has)
        return Header(Frame.ASK, len(body), self.n).to_bytes() + body

    @classmethod
    def from_bytes(cls, n: int, body: bytes) -> "Ask":
        """Reads the frame's body."""
        count, rest = divmod(len(body) - _ASK.size, 8)
        if count < 0 or rest:
            raise WireError(f"an ASK frame of {len(body)} bytes")
        table, buffers, rank, world_size, ring = _ASK.unpack_from(body)
        if not (1 <= n <= MAX_ITEMS and buffers >= 1):
            raise WireError(f"asked for {buffers} batches of {n} items, expected 1 or more of 1 to {MAX_ITEMS}")
        if rank >= max(1, world_size):
            raise WireError(f"asked for the batches of rank {rank} of {world_size}")
        return cls(table, n, buffers, ring, struct.unpack_from(f"<{count}Q", body, _ASK.size), rank, world_size)


def info(body: bytes = b"") -> bytes:
    """The frame that asks for the tables' figures, and the one that has them."""
    return Header(Frame.INFO, len(body), 0).to_bytes() + body


def want(count: int) -> bytes:
    """The frame that allows the server to send so many batches on this connection, in all."""
    return Header(Frame.WANT, 0, count).to_bytes()


def done(number: int) -> bytes:
    """The frame that acknowledges a batch."""
    return Header(Frame.DONE, 0, number).to_bytes()


def recall(number: int) -> bytes:
    """The frame that asks a learner to give a batch back, if its user does not have it yet."""
    return Header(Frame.RECALL, 0, number).to_bytes()


def give_back(number: int) -> bytes:
    """The frame that gives a batch back."""
    return Header(Frame.GIVE_BACK, 0, number).to_bytes()


def ring(uuid: bytes, schema: bytes) -> bytes:
    """The frame that says what the batches that follow are like."""
    return Header(Frame.RING, len(uuid) + len(schema), 0).to_bytes() + uuid + schema


def batch_header(n: int, number: int) -> bytes:
    """The header of a batch of n items."""
    return Header(Frame.BATCH, n, number).to_bytes()


def full(count: int, why: bytes) -> bytes:
    """The frame that says that no more batches come before the learner, so far done with so many, is done with more."""
    return Header(Frame.FULL, len(why), count).to_bytes() + why


def end() -> bytes:
    """The frame that says that no batch will come any more."""
    return Header(Frame.END, 0, 0).to_bytes()


def read_learner_header(data: bytes | memoryview) -> Header:
    """As :func:`read_header`, but only accepts what a learner may send."""
    header = read_header(data)
    limits = {Frame.INFO: 0, Frame.ASK: MAX_ASK, Frame.WANT: 0, Frame.DONE: 0, Frame.GIVE_BACK: 0}
    limits[Frame.BYE] = MAX_TEXT
    return header.within(limits, "learner")


def read_batch_header(data: bytes | memoryview, n: int) -> Header:
    """As :func:`read_header`, but only accepts what a server may send to a learner that has asked for n items a batch.

    n is 0 if it has not asked.
    """
    header = read_header(data)
    limits = {Frame.ACK: 0, Frame.BYE: MAX_TEXT, Frame.INFO: MAX_INFO, Frame.REFUSE: MAX_TEXT, Frame.END: 0}
    if n:
        limits |= {Frame.RING: len(NO_RING) + MAX_SCHEMA, Frame.BATCH: n, Frame.RECALL: 0, Frame.FULL: 1}
    if header.kind is Frame.BATCH and header.length != n:
        raise WireError(f"a batch of {header.length} items, expected {n}")
    return header.within(limits, "server")
