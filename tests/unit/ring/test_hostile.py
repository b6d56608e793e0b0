"""Damaged and foreign segments: each is an error at attach, none a crash."""

import contextlib
import dataclasses
import json
import os
import posixpath

import numpy as np
import optree
import pytest
from harness.programs import run_python
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo_shm import SegmentError, Server, ShmClient, SpecMismatchError
from echo_shm.ring import segment
from echo_shm.ring.creation import create_segment
from echo_shm.ring.segment import Geometry
from echo_shm.spec import Spec

EXAMPLE = {"a": np.zeros(3, np.float32), "b": [np.zeros((), np.int64)]}
GEOMETRY = Geometry(2, 2, 4, "fifo", False, 0.1)
NAME = f"test-hostile-{os.getpid()}"  # another run has another name
PATH = posixpath.join("/dev/shm", f"echo_shm.{NAME}")


@pytest.fixture(scope="module")
def image():
    """The bytes of a good, empty segment."""
    with Server(EXAMPLE, 2, num_buffers=2, max_producers=4, name=NAME), open(PATH, "rb") as file:
        return file.read()


@contextlib.contextmanager
def planted(content):
    """A segment of these bytes, with a lock file."""
    with open(PATH, "wb") as file, open(PATH.replace("echo_shm.", "echo_shm_locks."), "wb"):
        file.write(content)
    try:
        yield
    finally:
        for path in (PATH, PATH.replace("echo_shm.", "echo_shm_locks.")):
            os.chmod(path, 0o600)
            os.unlink(path)


def attach_all():
    """Attaches in every way, and uses what could be attached."""
    for attach in (ShmClient, Server.attach):
        with attach(NAME) as user:
            (user.submit if isinstance(user, Server) else user.send)(EXAMPLE, timeout=0)
    segment.listing(NAME)


def test_a_handle_of_other_leaves():
    """A handle whose tree has more or fewer leaves than the segment's schema is refused."""
    with Server(EXAMPLE, 2) as server:
        for leaves in (1, 3):
            handle = dataclasses.replace(server.handle, treespec=optree.tree_structure([0] * leaves))
            for attach in (ShmClient, Server.attach):
                with pytest.raises(SegmentError, match=f"its schema has 2 leaves, .* have {leaves}"):
                    attach(handle)


def refused(content, message):
    """Asserts that every way to attach raises SegmentError with that message."""
    with planted(content):
        for attach in (ShmClient, Server.attach):
            with pytest.raises(SegmentError, match=message) as caught:
                attach(NAME)
            assert NAME in str(caught.value)
        assert segment.listing(NAME).fault != ""
        assert segment.listing(NAME).segment is None


def test_a_good_image_attaches(image):
    """The undamaged image of the other tests attaches."""
    with planted(image):
        attach_all()


def test_half_initialised(image):
    """A magic number of 0, and an empty file, mean that the creator has not finished."""
    refused(bytes(8) + image[8:], "has not finished initialising")
    refused(b"", "has not finished initialising")
    refused(bytes(len(image)), "has not finished initialising")


def test_foreign(image):
    """Another magic number is not ours."""
    refused(b"\x7fELF" * 2 + image[8:], "not an echo_shm segment")
    refused(os.urandom(7) * 1000, "not an echo_shm segment")


@pytest.mark.parametrize("cut", [1, 7, 8, 100, 4095, -1, -4096, 0.5])
def test_truncated(image, cut):
    """A segment cut anywhere, or grown, is refused by its size."""
    end = int(cut * len(image)) if isinstance(cut, float) else cut
    refused(image[:end], "size is not the one")
    refused(image + bytes(4096), "size is not the one")


def test_another_version(image):
    """A segment of another layout version is refused; the error says that both sides must run the same version."""
    refused(image[:8] + b"\x63" + image[9:], "incompatible version.*same version")


@pytest.mark.parametrize("word", range(16))
@pytest.mark.parametrize("value", [0, 1, 0xFF, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_each_header_field(image, word, value):
    """Any other value of any 8-byte word from the magic to the offsets is refused; what follows is identity."""
    changed = image[: 8 * word] + value.to_bytes(8, "little") + image[8 * word + 8 :]
    if changed != image:
        refused(changed, "cannot be used")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_fuzzed_headers(image, data):
    """Random bytes anywhere in header, leaf table and schema are refused, or harmless; never another error."""
    changed = bytearray(image)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(0, 143), st.integers(0, 1023)))
        changed[at] = data.draw(st.integers(0, 255))
    with planted(changed), contextlib.suppress(SegmentError, TimeoutError, ConnectionError, SpecMismatchError):
        attach_all()


def test_fuzzed_rings_never_crash(image, tmp_path):
    """A ring whose words, owners and hints are random is attached to and looked at without a crash."""
    (tmp_path / "image").write_bytes(image)
    run_python(
        """
import sys, os, random, contextlib
import numpy as np
from echo_shm import ShmClient, Server, EchoShmError
from echo_shm.ring import metrics, segment
image, name = open(sys.argv[1], "rb").read(), sys.argv[2]
rng = random.Random(1)
for i in range(60):
    bad = bytearray(image)
    for _ in range(rng.choice([1, 5, 200])):
        bad[rng.randrange(192, len(bad))] = rng.choice([0, 1, 2, 255, rng.randrange(256)])
    with open("/dev/shm/echo_shm." + name, "wb") as f: f.write(bad)
    open("/dev/shm/echo_shm_locks." + name, "wb").close()
    with contextlib.suppress(EchoShmError):
        seen = segment.listing(name)
        if seen.segment is not None:
            view = metrics.RingView(seen.segment); view.owners(); view.snapshot()
    os.unlink("/dev/shm/echo_shm." + name); os.unlink("/dev/shm/echo_shm_locks." + name)
""",
        str(tmp_path / "image"),
        NAME,
    )


def with_schema(schema):
    """A segment with this schema, and a header that fits it, hash included."""
    spec = Spec.from_example(EXAMPLE)
    return create_segment(NAME, Spec(spec.treespec, spec.leaves, schema), GEOMETRY)


def leaf(dtype="<f4", shape=(3,), path="['a']"):
    """A leaf's entry in a schema."""
    return {"path": path, "dtype": dtype, "shape": list(shape)}


TWO = {"dict": [["a", "leaf"], ["b", {"list": ["leaf"]}]]}
B = leaf("<i8", (), "['b'][0]")
SCHEMAS = {
    "no JSON": b"\xff\xfe{",
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "NaN": b"NaN",
    "no leaves": json.dumps({"tree": TWO}).encode(),
    "too few leaves": json.dumps({"tree": TWO, "leaves": [leaf()]}).encode(),
    "too many leaves": json.dumps({"tree": TWO, "leaves": [leaf(), B, B]}).encode(),
    "leaf without shape": json.dumps({"tree": TWO, "leaves": [{"path": "", "dtype": "<f4"}, B]}).encode(),
    "negative shape": json.dumps({"tree": TWO, "leaves": [leaf(shape=(-3,)), B]}).encode(),
    "wrong size": json.dumps({"tree": TWO, "leaves": [leaf(shape=(4,)), B]}).encode(),
    "huge shape of size 0": json.dumps({"tree": TWO, "leaves": [leaf(shape=(0, 2**70)), B]}).encode(),
    "huge shape": json.dumps({"tree": TWO, "leaves": [leaf(shape=(2**70,)), B]}).encode(),
    "65 dimensions": json.dumps({"tree": TWO, "leaves": [leaf(shape=(1,) * 64 + (3,)), B]}).encode(),
    "string shape": json.dumps({"tree": TWO, "leaves": [{**leaf(), "shape": "x"}, B]}).encode(),
    "object dtype": json.dumps({"tree": TWO, "leaves": [leaf(), leaf("|O", ())]}).encode(),
    "hidden object dtype": json.dumps(
        {"tree": TWO, "leaves": [leaf(), leaf({"names": ["o"], "formats": ["|O"], "offsets": [0], "itemsize": 8}, ())]}
    ).encode(),
    "string dtype": json.dumps({"tree": TWO, "leaves": [leaf("|T16", ()), B]}).encode(),
    "unknown dtype": json.dumps({"tree": TWO, "leaves": [leaf("<f77"), B]}).encode(),
    "dtype that is code": json.dumps({"tree": TWO, "leaves": [leaf("__import__('os')"), B]}).encode(),
    "extension of elsewhere": json.dumps({"tree": TWO, "leaves": [leaf({"extension": "os"}), B]}).encode(),
    "extension that is no dtype": json.dumps({"tree": TWO, "leaves": [leaf({"extension": "finfo"}), B]}).encode(),
    "overlapping fields": json.dumps(
        {
            "tree": TWO,
            "leaves": [leaf({"names": ["a"], "formats": ["<f8"], "offsets": [8], "itemsize": 12}, ()), B],
        }
    ).encode(),
    "unknown node": json.dumps({"tree": {"set": ["leaf", "leaf"]}, "leaves": [leaf(), B]}).encode(),
    "two kinds": json.dumps({"tree": {"list": ["leaf"], "tuple": ["leaf"]}, "leaves": [leaf(), B]}).encode(),
    "unhashable key": json.dumps({"tree": {"dict": [[["x"], "leaf"]]}, "leaves": [leaf()]}).encode(),
    "doubled key": json.dumps({"tree": {"dict": [["a", "leaf"], ["a", "leaf"]]}, "leaves": [leaf(), B]}).encode(),
    "deep": b'{"leaves":[],"tree":' + b'{"list":[' * 5000 + b"]}" * 5000 + b"}",
    "deep numbers": b'{"leaves":[],"tree":' + b"[" * 100000 + b"]" * 100000 + b"}",
    "a long number": b'{"leaves":[],"tree":' + b"9" * 10000 + b"}",
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_hostile_schemas(kind):
    """A false schema in a segment with the right hash is a SegmentError; nothing in it is run."""
    try:
        made = with_schema(SCHEMAS[kind])
    except SegmentError as error:
        assert "schema is damaged" in str(error)  # noqa: PT017
        return
    try:
        for attach in (ShmClient, Server.attach):
            with pytest.raises(SegmentError, match=r"cannot be used: its schema"):
                attach(NAME)
    finally:
        made.unlink()


@pytest.mark.parametrize("key", ["'); raise SystemExit('injected') #", "]\nimport os", "\\'", '{}"""'])
def test_keys_are_not_code(key):
    """A dict key from a schema is data, whatever it looks like."""
    with Server({key: np.zeros(2), "z": np.zeros(1)}, 1) as server, ShmClient(server.name) as client:
        client.send({key: np.ones(2), "z": np.zeros(1)})
        assert server.sample(1).batch[key].tolist() == [[1, 1]]
