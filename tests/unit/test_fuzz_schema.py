"""Random schemas, most of them nearly right, are attached to or refused; nothing worse happens."""

import json
import os
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
from fuzz import schema_play
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm import SegmentError, Server, ShmClient
from echo_shm._core import lib
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.creation import create_segment
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.spec import Spec

EXAMPLE = {"a": np.zeros(3, np.float32), "b": np.zeros((), np.int64)}


@pytest.fixture
def seed():
    """The seed of the random schemas. The report of a failure has it, and SCHEMA_SEED repeats the run."""
    chosen = int(os.environ.get("SCHEMA_SEED", random.SystemRandom().getrandbits(32)))
    yield chosen
    print(f"SCHEMA_SEED={chosen}")


def test_random_schemas_are_read_or_refused(seed):
    """Reading a random schema raises SegmentError or nothing, takes little memory and runs no code."""
    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    read = [schema_play.parse(schema_play.draw_schema(rng.randrange)) is not None for _ in range(2000)]
    assert 200 < sum(read) < 1800  # else it tries too little of one or the other


def test_random_segments_are_attached_to_or_refused(seed):
    """The same for attaching, sending and taking, on segments with the right hash and perhaps other leaves."""
    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    attached = [schema_play.attach(schema_play.draw_schema(rng.randrange), rng.randrange) for _ in range(150)]
    assert 5 < sum(attached) < 145


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_schemas_shrunk_when_they_fail(data):
    """The same with fewer schemas, which Hypothesis draws: it reduces a failure to a small schema."""
    warnings.simplefilter("ignore")

    def below(n):
        return data.draw(st.integers(0, n - 1))

    schema_play.attach(schema_play.draw_schema(below), below)


def planted(schema):
    """A segment with the leaves of the example and this schema."""
    spec = Spec.from_example(EXAMPLE)
    return create_segment(
        f"fuzzed-{os.getpid()}", Spec(spec.treespec, spec.leaves, schema), Geometry(2, 2, 2, "fifo", False, 0.1)
    )


@pytest.mark.parametrize("count", [1, 3, 40])
def test_leaves_that_are_not_the_segments(count):
    """A schema with fewer or more leaves than the segment is refused before a leaf is touched."""
    leaves = b",".join([b'{"path":"","dtype":"<f4","shape":[3]}', b'{"path":"","dtype":"<i8","shape":[]}'] * 20)
    entries = leaves.replace(b"},{", b"}|{").split(b"|")[:count]
    tree = b'{"list":[' + b",".join([b'"leaf"'] * count) + b"]}"
    made = planted(b'{"leaves":[' + b",".join(entries) + b'],"tree":' + tree + b"}")
    try:
        for attach in (ShmClient, Server.attach):
            with pytest.raises(SegmentError, match="does not fit its layout"):
                attach(made.name)
    finally:
        made.unlink()


def test_a_header_changed_while_attaching():
    """A header that changes between Python's and the core's reading is refused: the core's map gives a mask's size."""
    spec = Spec.from_example(EXAMPLE)
    shapes = [Geometry(batch_size, 16 // batch_size, 2, "fifo", False, 0.1) for batch_size in (4, 16)]
    made = [create_segment(f"fuzzed-{os.getpid()}-{g.batch_size}", spec, g) for g in shapes]
    try:
        one, other = (Path("/dev/shm", f"echo_shm.{segment.name}") for segment in made)
        assert one.stat().st_size == other.stat().st_size
        mapped = Segment.attach(made[0].name)
        with one.open("r+b") as file:
            file.write(other.read_bytes()[:192])
        with pytest.raises(SegmentError, match="header was changed"):
            Attachment(mapped, lib.ES_ROLE_LEARNER)
    finally:
        for segment in made:
            segment.unlink()


@pytest.mark.parametrize("shape", [[0, 2**62], [2, 2**61, 0], [2**41]])
def test_a_shape_that_only_its_zero_makes_small(shape):
    """A leaf may not have dimensions that no array can have, even if it has no bytes."""
    dtype = "<f4" if 0 in shape else "|S0"
    schema = json.dumps({"leaves": [{"path": "", "dtype": dtype, "shape": shape}], "tree": "leaf"}).encode()
    with pytest.raises(SegmentError, match="schema is damaged"):
        Spec.from_schema(schema, "segment 'x'")


@pytest.mark.parametrize(
    "dtype", ["(2Y,)f4", "(2,)f4", "('__import__(\"os\")',)f4", "3f4", "f4,f4", "{", "\n", "<f4\n"]
)
def test_dtypes_that_numpy_would_parse(dtype):
    """A dtype is what numpy itself writes for it; strings with repeats, lists or tuples are refused unread."""
    schema = json.dumps({"leaves": [{"path": "", "dtype": dtype, "shape": []}], "tree": "leaf"}).encode()
    with pytest.raises(SegmentError, match="schema is damaged"):
        Spec.from_schema(schema, "segment 'x'")


def test_a_huge_dtype_without_items():
    """A leaf without items costs no memory, however large its dtype is."""
    schema = json.dumps({"leaves": [{"path": "", "dtype": "|V2147483647", "shape": [0]}], "tree": "leaf"}).encode()
    assert schema_play.attach(schema, lambda n: n - 1)


@pytest.mark.parametrize("depth", [150, 250])
def test_containers_nested_deeply(depth):
    """A sample may be nested more deeply than Python's compiler can handle."""
    tree = np.zeros(2)
    for _ in range(depth):
        tree = [tree]
    with Server(tree, 1) as server, ShmClient(server.name) as client:
        client.send(tree)
        batch = server.sample(timeout=5).batch
        for _ in range(depth):
            (batch,) = batch
        assert batch.shape == (1, 2)
