"""The wire as bytes: the formats of both versions, and other bytes."""

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from fuzz import wire_play
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm import WireError
from echo_shm.net import wire
from echo_shm.net.bridge.decoder import Bye, Decoder, DecoderV1
from echo_shm.net.wire import Accept, Frame, Greeting, Hello
from echo_shm.ring.updates import UPDATE_SPEC
from echo_shm.spec import Spec

SPEC = Spec.from_example({"a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.int64)})
KEY = b"a key that nobody knows"
GREETING = Greeting(True, bytes(range(32)))
HELLO = Hello(b"c" * 16, 77, b"n" * 32, wire.spec_hash(SPEC.schema))
ACCEPT = Accept(b"r" * 16, 4096, True, SPEC.schema, 70)


def exactly(data):
    """A read function over bytes."""
    at = [0]

    def read(n):
        at[0] += n
        assert at[0] <= len(data)
        return data[at[0] - n : at[0]]

    return read


def feed(decoder, data, cuts=()):
    """Every event that comes of data, cut into pieces of those sizes."""
    events = []
    wire_play.feed(decoder, data, iter(cuts), events)
    return events


def test_version_1_is_id_echos():
    """A version 1 greeting, byte by byte: magic, version, then item size, dimensions and shape of each array."""
    expected = b"ECHO\x01" + struct.pack("<I", 2) + struct.pack("<IIII", 4, 2, 2, 3) + struct.pack("<II", 8, 0)
    assert wire.greeting_v1(SPEC) == expected
    assert wire.read_version(exactly(expected), "peer") == 1
    assert wire.read_specs_v1(exactly(expected[5:])) == [(4, (2, 3)), (8, ())]


@pytest.mark.parametrize("specs", [struct.pack("<I", 65537), struct.pack("<III", 1, 4, 65)])
def test_version_1_greetings_are_bounded(specs):
    """A version 1 greeting that is too long is refused at once."""
    with pytest.raises(WireError, match="more than"):
        wire.read_specs_v1(exactly(specs))


def test_unknown_starts():
    """A peer that is no echo server, and one of a later version, get different errors."""
    with pytest.raises(ValueError, match=r"Unexpected handshake magic b'HTTP' from h:1; is the peer an echo server\?"):
        wire.read_version(exactly(b"HTTP"), "h:1")
    with pytest.raises(WireError, match="Unsupported echo wire version 9 from h:1"):
        wire.read_version(exactly(b"ECHO\x09"), "h:1")


def test_version_2_handshake():
    """Each message of a handshake is read as it was written."""
    assert GREETING.to_bytes()[:5] == b"ECHO\x02"
    assert Greeting.from_bytes(GREETING.to_bytes()) == GREETING
    assert Hello.from_bytes(HELLO.to_bytes()) == HELLO
    assert HELLO.spec == hashlib.sha256(SPEC.schema).digest()
    for key in (None, KEY):
        data = ACCEPT.to_bytes(key, GREETING, HELLO)
        header = wire.read_server_header(data[: wire.HEADER_BYTES])
        assert header.length == len(data) - wire.HEADER_BYTES
        assert Accept.from_bytes(header, data[wire.HEADER_BYTES :], key, GREETING, HELLO) == ACCEPT


def accepted(data, key, hello):
    """What a client reads in an answer."""
    header = wire.read_server_header(data[: wire.HEADER_BYTES])
    if header.kind is not Frame.ACCEPT:
        raise WireError("refused")
    return Accept.from_bytes(header, data[wire.HEADER_BYTES :], key, GREETING, hello)


def test_proofs_bind_everything():
    """A proof is good for one key, one greeting, one hello and one answer, unchanged in any bit."""
    signed = HELLO.signed(KEY, GREETING)
    assert signed.is_signed(KEY, GREETING)
    assert not HELLO.is_signed(KEY, GREETING)
    assert not signed.is_signed(KEY + b"!", GREETING)
    assert not signed.is_signed(KEY, GREETING._replace(nonce=bytes(32)))
    assert not signed._replace(acknowledged=78).is_signed(KEY, GREETING)
    data = ACCEPT.to_bytes(KEY, GREETING, signed)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            accepted(bytes(changed), KEY, signed)
    header = wire.read_server_header(data[: wire.HEADER_BYTES])
    for other in (HELLO, signed._replace(client=b"d" * 16)):
        with pytest.raises(WireError, match="does not know the authkey"):
            Accept.from_bytes(header, data[wire.HEADER_BYTES :], KEY, GREETING, other)


def test_a_clients_proof_is_no_servers():
    """A client's proof, sent back to it, does not prove that the server knows the key."""
    signed = HELLO.signed(KEY, GREETING)
    body = ACCEPT.to_bytes(None, GREETING, signed)
    forged = body[: wire.HEADER_BYTES] + signed.proof + body[wire.HEADER_BYTES + 32 :]
    header = wire.read_server_header(forged[: wire.HEADER_BYTES])
    with pytest.raises(WireError, match="does not know the authkey"):
        Accept.from_bytes(header, forged[wire.HEADER_BYTES :], KEY, GREETING, signed)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 2**62), max_size=2)), max_size=8),
    st.lists(st.integers(1, 50), max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_version_2_in_any_pieces(frames, cuts):
    """A connection's frames are the same however TCP cuts them. Samples have the last version before them."""
    size, number, stream, expected, version = SPEC.sample_bytes, 77, HELLO.to_bytes(), [HELLO], 0
    for count, versions in frames:
        data = bytes(i % 251 for i in range(count * size))
        for version in versions:
            stream += wire.version_header(version)
        stream += wire.samples_header(count, number) + data
        expected.append((count, number, data, version))
        number += count
    stream += wire.bye(number, "that was all")
    assert feed(Decoder(size, 9 * size), stream, cuts) == [*expected, Bye("that was all")]


@given(st.integers(1, 20), st.lists(st.integers(1, 70), max_size=60))
@settings(max_examples=200, deadline=None)
def test_version_1_in_any_pieces(count, cuts):
    """Samples are put together from whatever pieces come; each block's number follows from the last."""
    size = SPEC.sample_bytes
    data = bytes(i % 251 for i in range(count * size))
    decoder = DecoderV1(size, 3 * size)
    decoder.begin()
    events = feed(decoder, data, cuts)
    assert b"".join(piece for _, _, piece, _ in events) == data
    assert [number for _, number, _, _ in events] == [sum(n for n, *_ in events[:i]) for i in range(len(events))]


def _after_hello(data):
    return feed(Decoder(4, 400), HELLO.to_bytes() + data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (wire.samples_header(101, 0), "a frame of 101 samples, expected 1 to 100"),
        (wire.samples_header(0, 0), "a frame of 0 samples"),
        (wire.samples_header(2**32 - 1, 0), "a frame of 4294967295 samples"),
        (wire.ack(3), "a client sends no ACK"),
        (struct.pack("<BBHIQ", Frame.BYE, 0, 0, wire.MAX_TEXT + 1, 0), "a client sends no BYE frame of 4097 bytes"),
        (struct.pack("<BBHIQ", 99, 0, 0, 0, 0), "no frame starts with"),
        (struct.pack("<BBHIQ", Frame.VERSION, 0, 0, 1, 3), "a client sends no VERSION frame of 1 bytes"),
        (wire.version_header(2**62 + 1), "no sample has the number"),
        (wire.samples_header(1, 2**62 + 1), "no sample has the number 4611686018427387905"),
        (struct.pack("<BBHIQ", Frame.SAMPLES, 1, 0, 1, 0), "no frame starts with"),
        (struct.pack("<BBHIQ", Frame.SAMPLES, 0, 1, 1, 0), "no frame starts with"),
    ],
)
def test_bad_frames(data, message):
    """A frame that no client sends is refused at its header, before its body has come."""
    with pytest.raises(WireError, match=message):
        _after_hello(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET / HTTP/1.1\r\n", r"unexpected magic b'GET ', expected b'ECHO'"),
        (HELLO.to_bytes().replace(b"ECHO\x02", b"ECHO\x03", 1), "unsupported wire version 3"),
        (HELLO._replace(acknowledged=2**63).to_bytes(), "no sample has the number 9223372036854775808"),
        (HELLO.to_bytes().replace(b"ECHO\x02\x00", b"ECHO\x02\x01", 1), "unsupported wire version 2"),
    ],
)
def test_bad_hellos(data, message):
    """A peer that does not speak the protocol is refused at its first wrong byte."""
    with pytest.raises(WireError, match=message):
        feed(Decoder(4, 400), data)


@given(st.binary(max_size=600), st.booleans(), st.lists(st.integers(1, 50), max_size=20))
@settings(max_examples=500, deadline=None)
def test_garbage(data, greeted, cuts):
    """Any bytes give events, a WireError, or nothing yet; never another error, or more memory than one frame."""
    decoder = Decoder(4, 400)
    try:
        for event in feed(decoder, (HELLO.to_bytes() if greeted else b"") + data, cuts):
            assert isinstance(event, Hello | Bye) or 1 <= event[0] <= 100
    except WireError:
        pass
    assert len(decoder._buffer) <= max(wire.HELLO_BYTES, wire.HEADER_BYTES + max(400, wire.MAX_TEXT))


@given(st.sampled_from(Frame), st.integers(0, 2**32 - 1), st.integers(0, wire.MAX_NUMBER))
@settings(max_examples=500, deadline=None)
def test_lengths_from_a_server(kind, length, number):
    """A client reads a bounded body, or nothing."""
    try:
        header = wire.read_server_header(wire.Header(kind, length, number).to_bytes())
    except WireError:
        return
    assert header == (kind, length, number)
    assert length <= wire.MAX_SCHEMA + 100


def test_frames_hold_at_least_a_sample():
    """A frame has about the wanted length, in whole samples; one sample if that is longer."""
    assert wire.frame_limit(10, 95) == 90
    assert wire.frame_limit(100, 95) == 100
    assert wire.frame_limit(0, 95) == 0
    assert wire.samples_per_frame(90, 10) == 9
    assert wire.samples_per_frame(0, 0) > 1


def test_the_page_has_the_schema_of_updates():
    """A client of another make needs it to the letter."""
    page = Path(wire.__file__).with_name("WIRE.md").read_text()
    assert UPDATE_SPEC.schema.decode() in page.replace("\n", "")
