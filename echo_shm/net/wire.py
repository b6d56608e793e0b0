"""Both versions of the protocol as bytes, without any I/O. WIRE.md, beside this file, specifies them.

What comes from a peer is validated here and, for what learners of a replay send and get, in learner_wire.py. Anything
that is not allowed raises :class:`WireError`.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from echo_shm.errors import WireError
from echo_shm.spec import Spec

MAGIC = b"ECHO"

#: The longest text, and the longest schema that a client reads unless its own is longer (bytes).
MAX_TEXT = 1 << 12
MAX_SCHEMA = 1 << 20

#: Most bytes of weights in a frame. Other frames of the connection go between two of them.
MAX_PIECE = 1 << 18

#: A server repeats its acknowledgement at least every HEARTBEAT seconds. If a server is silent for SILENCE seconds,
#: the client takes the connection for lost.
HEARTBEAT, SILENCE = 5.0, 60.0

#: The highest number of a sample.
MAX_NUMBER = 1 << 62

#: The acknowledgement of one sample in version 1.
ACK_V1 = b"\x01"

_MAGIC_AND_VERSION = len(MAGIC) + 1
_GREETING = struct.Struct("<4sBBH32s")
_HELLO = struct.Struct("<4sBBH16sQ32s32s16s32s")
_HEADER = struct.Struct("<BBHIQ")
_ACCEPT = struct.Struct("<32s16sIBBH")
_PROOF_BYTES = 32

HEADER_BYTES = _HEADER.size
HELLO_BYTES = _HELLO.size
#: Bytes of a version 2 greeting after magic and version.
GREETING_REST = _GREETING.size - _MAGIC_AND_VERSION

_NO_PROOF = bytes(_PROOF_BYTES)
NO_RING = bytes(16)


class Frame(IntEnum):
    """The type of a version 2 frame."""

    ACCEPT = 1
    REFUSE = 2
    SAMPLES = 3
    ACK = 4
    BYE = 5
    TAKEN = 6
    INFO = 7
    ASK = 8
    WANT = 9
    DONE = 10
    RING = 11
    BATCH = 12
    END = 13
    RECALL = 14
    GIVE_BACK = 15
    VERSION = 16
    SUBSCRIBE = 17
    NEWS = 18
    NEED = 19
    PIECE = 20
    FULL = 21


class Refusal(IntEnum):
    """Why a server refuses a client. FULL may pass, BUSY will soon; all others are final."""

    OTHER = 0
    SPEC = 1
    KEY = 2
    FULL = 3
    BUSY = 4
    CLOSED = 5
    PROTOCOL = 6
    FORGOTTEN = 7


class Header(NamedTuple):
    """The header of a frame.

    length: samples, items, or bytes of the body. number: a sample's or a batch's, a count, or a refusal's code.
    """

    kind: Frame
    length: int
    number: int

    def to_bytes(self) -> bytes:
        """The header as bytes."""
        return _HEADER.pack(self.kind, 0, 0, self.length, self.number)

    def within(self, limits: dict[Frame, int], who: str) -> "Header":
        """The header, if ``who`` may send such a frame here. limits: the longest frame of each kind."""
        if self.length > limits.get(self.kind, -1):
            raise WireError(f"a {who} sends no {self.kind.name} frame of {self.length} bytes here")
        return self


def spec_hash(schema: bytes) -> bytes:
    """SHA-256 of a schema. Two specs are the same exactly if their hashes are."""
    return hashlib.sha256(schema).digest()


# --- version 1, which is id-echo's ----------------------------------------------


def greeting_v1(spec: Spec) -> bytes:
    """The server's greeting: magic, version, and for each leaf its item size, number of dimensions and dimensions."""
    parts = [MAGIC, b"\x01", struct.pack("<I", len(spec.leaves))]
    for leaf in spec.leaves:
        parts.append(struct.pack(f"<II{len(leaf.shape)}I", leaf.dtype.itemsize, len(leaf.shape), *leaf.shape))
    return b"".join(parts)


def read_specs_v1(read: Callable[[int], bytes]) -> list[tuple[int, tuple[int, ...]]]:
    """Reads the rest of a version 1 greeting: (item size, shape) of each leaf. ``read(n)`` returns exactly n bytes."""

    def words(n: int) -> tuple[int, ...]:
        return struct.unpack(f"<{n}I", read(4 * n))

    (count,) = words(1)
    if count > 65536:
        raise WireError(f"the server's greeting has {count} arrays, more than 65536")
    specs = []
    for _ in range(count):
        size, dims = words(2)
        if dims > 64:
            raise WireError(f"the server's greeting has an array of {dims} dimensions, more than 64")
        specs.append((size, words(dims)))
    return specs


# --- version 2: handshake -------------------------------------------------------


class Greeting(NamedTuple):
    """The first message of a version 2 server."""

    needs_key: bool
    nonce: bytes

    def to_bytes(self) -> bytes:
        """The message as bytes."""
        return _GREETING.pack(MAGIC, 2, self.needs_key, 0, self.nonce)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Greeting":
        """Reads a whole greeting, including the magic."""
        magic, version, flags, zero, nonce = _GREETING.unpack(data)
        if (magic, version) != (MAGIC, 2) or zero != 0 or flags > 1:
            raise WireError(f"the server's greeting is damaged: {data!r}")
        return cls(bool(flags), nonce)


def read_version(read: Callable[[int], bytes], peer: str) -> int:
    """Reads the magic and the version, which a server sends first. Returns the version."""
    magic = read(len(MAGIC))
    if magic != MAGIC:
        raise WireError(f"Unexpected handshake magic {magic!r} from {peer}; is the peer an echo server?")
    version = read(1)[0]
    if version not in (1, 2):
        raise WireError(f"Unsupported echo wire version {version} from {peer} (this client supports 1 and 2)")
    return version


class Hello(NamedTuple):
    """The first message of a version 2 client.

    acknowledged: the number of the client's first sample that is not acknowledged. doubt: the uuid of the ring that
    may hold that sample or later ones; zeros if none of them was sent.
    """

    client: bytes
    acknowledged: int
    nonce: bytes
    spec: bytes
    doubt: bytes = NO_RING
    proof: bytes = _NO_PROOF

    def to_bytes(self) -> bytes:
        """The message as bytes."""
        return _HELLO.pack(MAGIC, 2, 0, 0, *self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Hello":
        """Reads a whole hello."""
        magic, version, flags, zero, *fields = _HELLO.unpack(data)
        if magic != MAGIC:
            raise WireError(f"unexpected magic {magic!r}, expected {MAGIC!r}")
        if version != 2 or flags != 0 or zero != 0:
            raise WireError(f"unsupported wire version {version}, expected 2")
        hello = cls(*fields)
        if not any(hello.client):
            raise WireError("a client's id may not be all zeros")
        if hello.acknowledged > MAX_NUMBER:
            raise WireError(f"no sample has the number {hello.acknowledged}")
        return hello

    def signed(self, key: bytes, greeting: Greeting) -> "Hello":
        """A copy with the proof that the client knows the key."""
        return self._replace(proof=self._proof(key, greeting))

    def is_signed(self, key: bytes, greeting: Greeting) -> bool:
        """Whether the client has proved that it knows the key."""
        return hmac.compare_digest(self.proof, self._proof(key, greeting))

    def _proof(self, key: bytes, greeting: Greeting) -> bytes:
        text = b"echo_shm 2 client" + greeting.to_bytes() + self._replace(proof=_NO_PROOF).to_bytes()
        return hmac.digest(key, text, "sha256")


class Accept(NamedTuple):
    """The answer of a version 2 server that accepts a client.

    ring: the segment's uuid. max_frame: most bytes of samples in a frame. known: True if the server remembers the
    client, and ``committed`` is what it has in the ring; False if the client is new to the server.
    """

    ring: bytes
    max_frame: int
    known: bool
    schema: bytes
    committed: int

    def to_bytes(self, key: bytes | None, greeting: Greeting, hello: Hello) -> bytes:
        """The answer as a frame, with the proof that the server knows the key."""
        body = _ACCEPT.pack(_NO_PROOF, self.ring, self.max_frame, self.known, 0, 0) + self.schema
        header = Header(Frame.ACCEPT, len(body), self.committed).to_bytes()
        return header + _server_proof(key, greeting, hello, header + body) + body[_PROOF_BYTES:]

    @classmethod
    def from_bytes(cls, header: Header, body: bytes, key: bytes | None, greeting: Greeting, hello: Hello) -> "Accept":
        """Reads the frame's body. If there is a key, the server must have proved that it knows it."""
        if len(body) < _ACCEPT.size:
            raise WireError(f"the server's answer has {len(body)} bytes, fewer than {_ACCEPT.size}")
        proof, ring, max_frame, known, *zeros = _ACCEPT.unpack_from(body)
        signed = header.to_bytes() + _NO_PROOF + body[_PROOF_BYTES:]
        if not hmac.compare_digest(proof, _server_proof(key, greeting, hello, signed)):
            raise WireError("the server does not know the authkey")
        if zeros != [0, 0] or known > 1:
            raise WireError("the server's answer is damaged")
        return cls(ring, max_frame, bool(known), body[_ACCEPT.size :], header.number)


def _server_proof(key: bytes | None, greeting: Greeting, hello: Hello, accept: bytes) -> bytes:
    if key is None:
        return _NO_PROOF
    return hmac.digest(key, b"echo_shm 2 server" + greeting.to_bytes() + hello.to_bytes() + accept, "sha256")


# --- version 2: frames ----------------------------------------------------------


def refuse(code: Refusal, text: str) -> bytes:
    """The frame that refuses a client."""
    return _text_frame(Frame.REFUSE, code, text)


def refuse_spec(schema: bytes) -> bytes:
    """The frame that refuses a client whose samples are not those of ``schema``."""
    return Header(Frame.REFUSE, len(schema), Refusal.SPEC).to_bytes() + schema


def bye(number: int, text: str = "") -> bytes:
    """The last frame of a connection: its sender sends no more samples, or accepts no more."""
    return _text_frame(Frame.BYE, number, text)


def printable(body: bytes) -> str:
    """A peer's text, with every character that is not printable replaced by ``?``."""
    text = body[:MAX_TEXT].decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text)


def _text_frame(kind: Frame, number: int, text: str) -> bytes:
    body = text.encode()[:MAX_TEXT]
    return Header(kind, len(body), number).to_bytes() + body


def ack(committed: int) -> bytes:
    """The frame that says that every sample below this number is in the ring."""
    return Header(Frame.ACK, 0, committed).to_bytes()


def taken(number: int) -> bytes:
    """The frame that says that every sample below this number was taken out of the ring."""
    return Header(Frame.TAKEN, 0, number).to_bytes()


# --- version 2: samples ---------------------------------------------------------


def samples_header(count: int, number: int) -> bytes:
    """The header of a frame of ``count`` samples, the first of which has that number."""
    return Header(Frame.SAMPLES, count, number).to_bytes()


def version_header(version: int) -> bytes:
    """The frame that says which version of the weights the samples behind it were made with."""
    return Header(Frame.VERSION, 0, version).to_bytes()


def read_header(data: bytes | memoryview) -> Header:
    """Reads the header of a frame."""
    kind, flags, zero, count, number = _HEADER.unpack_from(data)
    if flags != 0 or zero != 0 or kind not in Frame._value2member_map_:
        raise WireError(f"no frame starts with {bytes(data[:HEADER_BYTES])!r}")
    if number > MAX_NUMBER:
        raise WireError(f"no sample has the number {number}")
    return Header(Frame(kind), count, number)


def read_server_header(data: bytes, schema: bytes = b"") -> Header:
    """As :func:`read_header`, but only accepts what a server may send to a client with that schema."""
    header = read_header(data)
    most = _ACCEPT.size + max(MAX_SCHEMA, len(schema))
    limits = {Frame.ACCEPT: most, Frame.REFUSE: most, Frame.BYE: MAX_TEXT, Frame.ACK: 0, Frame.TAKEN: 0}
    limits |= {Frame.SUBSCRIBE: MAX_SCHEMA, Frame.NEWS: 0, Frame.PIECE: MAX_PIECE, Frame.END: 0}
    limit = limits.get(header.kind, -1)
    if header.length > limit:
        raise WireError(f"a server sends no {header.kind.name} frame of {header.length} bytes")
    return header


def frame_limit(sample_bytes: int, target: int) -> int:
    """Bytes of samples in the largest frame: about ``target``, but at least one sample."""
    return max(sample_bytes, target - target % sample_bytes) if sample_bytes else 0


#: Most samples in a frame if a sample has no bytes: every leaf is empty.
_MAX_EMPTY = 1 << 16


def samples_per_frame(limit: int, sample_bytes: int) -> int:
    """How many samples fit into a frame of that many bytes."""
    return limit // sample_bytes if sample_bytes else _MAX_EMPTY
