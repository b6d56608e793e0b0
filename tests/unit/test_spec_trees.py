"""Structures: which ones attach by name alone, which need an example, and the errors when they differ."""

import collections
import dataclasses
import pickle
from typing import NamedTuple

import numpy as np
import optree
import pytest
from optree.registry import __GLOBAL_NAMESPACE as GLOBAL

from echo_shm import Server, ShmClient, SpecMismatchError

A, B = np.zeros(2, np.float32), np.zeros((), np.int64)


class Point(NamedTuple):
    """A namedtuple of leaves."""

    x: np.ndarray
    y: np.ndarray


@optree.dataclasses.dataclass(namespace=GLOBAL)
class Step:
    """A dataclass that optree knows."""

    obs: np.ndarray
    act: np.ndarray


class Box:
    """A node registered by hand."""

    def __init__(self, *parts):
        self.parts = parts


optree.register_pytree_node(
    Box, lambda box: (box.parts, len(box.parts)), lambda n, parts: Box(*parts), namespace=GLOBAL
)


def fill(tree, start):
    """The tree with numbers start, start+1, ... in its leaves."""
    count = iter(range(start, start + 100))
    return optree.tree_map(lambda leaf: np.full(leaf.shape, next(count), leaf.dtype), tree)


PLAIN = {
    "leaf": A,
    "dict": {"b": B, "a": A},
    "int keys": {2: A, 10: B, -1: A},
    "mixed keys": {"a": A, 1: B},
    "awkward keys": {"it's": A, 'a"b\\': B, "\n{0}": A, "": B, "\N{SNOWMAN}": A, "None": B},
    "huge int key": {2**80: A},
    "list": [A, B],
    "tuple": (A, (B,), ()),
    "none": {"a": A, "n": None, "l": [None, B]},
    "empties": {"a": A, "d": {}, "l": [], "t": ()},
    "deep": [[[[[[[[[[[[A]]]]]]]]]]], {"x": ({"y": [B]},)}],
    "OrderedDict": collections.OrderedDict([("z", A), ("a", {"b": B})]),
}

SPECIAL = {
    "namedtuple": Point(A, B),
    "defaultdict": collections.defaultdict(list, {"z": A, "a": B}),
    "deque": collections.deque([A, B], maxlen=3),
    "dataclass": Step(A, B),
    "registered": {"box": Box(A, [B])},
    "tuple keys": {("a", 1): A, ("b", 2): B},
    "bool keys": {True: A, False: B},
    "float keys": {0.5: A},
}


def leaves_of(tree):
    """The leaves as lists of Python values."""
    return [leaf.tolist() for leaf in optree.tree_leaves(tree)]


def check_roundtrip(server, client, tree):
    """Sends by every way, and compares structure and content."""
    samples = [fill(tree, 10 * i) for i in range(4)]
    client.send(samples[0])
    client.send_many(optree.tree_map(lambda leaf: leaf[None], samples[1]))
    client.bind(samples[2]).send()
    with client.reserve() as slot:
        assert optree.tree_structure(slot) == optree.tree_structure(tree)
        optree.tree_map_(lambda to, value: to.__setitem__(..., value), slot, samples[3])
    batch = server.sample(5).batch
    assert optree.tree_structure(batch) == optree.tree_structure(tree)
    expected = optree.tree_map(lambda *leaves: np.stack(leaves), *samples)
    assert leaves_of(batch) == leaves_of(expected)


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_trees_by_name(kind):
    """Trees of dict (str and int keys), list, tuple and None attach by name, without an example."""
    with (
        Server(PLAIN[kind], 4) as server,
        ShmClient(server.name) as client,
        Server.attach(server.name) as learner,
    ):
        check_roundtrip(learner, client, PLAIN[kind])


@pytest.mark.parametrize("kind", SPECIAL)
def test_other_nodes_need_an_example_or_the_handle(kind):
    """Other node types attach by handle, pickled or not, or by name with an example; by name alone is an error."""
    tree = SPECIAL[kind]
    with Server(tree, 4) as server:
        for attach in (ShmClient, Server.attach):
            with pytest.raises(SpecMismatchError, match=rf"pass an example, .*{server.name}.* or the server's handle"):
                attach(server.name)
        for args in (
            (server.handle,),
            (pickle.loads(pickle.dumps(server.handle)),),
            (server.name, tree),
            (server.handle, tree),
        ):
            with ShmClient(*args) as client, Server.attach(*args) as learner:
                check_roundtrip(learner, client, tree)


def test_batches_keep_node_types():
    """A batch is made of the example's own node types."""
    with Server({"p": Point(A, B), "s": Step(A, B)}, 1) as server:
        server.submit({"p": Point(A, B), "s": Step(A, B)})
        batch = server.sample(1).batch
        assert type(batch["p"]) is Point
        assert type(batch["s"]) is Step
        assert dataclasses.is_dataclass(batch["s"])


def test_key_order_does_not_matter():
    """A dict sent in another insertion order lands in the right leaves."""
    with Server({"a": B, "b": B}, 1) as server:
        server.submit({"b": np.int64(2), "a": np.int64(1)})
        batch = server.sample(1).batch
        assert (batch["a"].tolist(), batch["b"].tolist()) == ([1], [2])


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": A},
        {"a": A, "b": [B], "c": None, "d": A},
        {"a": A, "b": (B,), "c": None},
        {"a": A, "b": [B, B], "c": None},
        {"a": A, "b": [], "c": None},
        {"a": A, "b": [B], "c": A},
        {"a": A, "b": B, "c": None},
        {"a": None, "b": [B], "c": None},
        {"a": {"x": A}, "b": [B], "c": None},
        {"A": A, "b": [B], "c": None},
        [A, [B], None],
        A,
        None,
        Point(A, B),
    ],
    ids=repr,
)
def test_wrong_structures(wrong):
    """A sample of another structure is refused with both structures, and nothing is sent."""
    with Server({"a": A, "b": [B], "c": None}, 1) as server:
        for send in (server.submit, server._writer.send_many):
            with pytest.raises(SpecMismatchError):
                send(wrong)
        with pytest.raises((SpecMismatchError, TypeError)):
            server._writer.bind(wrong)
        with pytest.raises(TimeoutError, match="sent or being written: 0"):
            server.sample(0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": A}, r"\['b'\]\[0\] is missing; expected"),
        ({"a": A, "b": [B, B], "c": A}, r"'[^']+': \['b'\]\[1\], \['c'\] are not expected; expected PyTreeSpec"),
        ({"a": A, "c": [B]}, r"\['b'\]\[0\] is missing; \['c'\]\[0\] is not expected; expected PyTreeSpec"),
        ({"a": A, "b": (B,)}, r"the containers differ: got .*\(\*,\).*; expected .*\[\*\]"),
        (A, r"\['a'\], \['b'\]\[0\] are missing; one leaf alone is not expected; expected PyTreeSpec"),
        ([A] * 9, r"are missing; \[0\], \[1\], \[2\], \[3\], \[4\] and 4 more are not expected; expected PyTreeSpec"),
    ],
)
def test_wrong_structure_message(wrong, message):
    """The message names the paths that are missing and those that are not expected; the first few of many."""
    with Server({"a": A, "b": [B]}, 1) as server, pytest.raises(SpecMismatchError, match=message):
        server.submit(wrong)


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        ({"a": A, "b": [B, np.zeros(3)]}, r"got \['b'\]\[1\]: float64\[3\], expected \['b'\]\[1\]: float64\[2\]"),
        ({"a": A.astype("f8"), "b": [B, np.zeros(3)]}, r"got \['a'\]: float64\[2\], expected \['a'\]: float32\[2\]"),
        ({"a": A, "b": [B]}, r"got 2 leaves, expected 3; only the segment has \['b'\]\[1\]"),
        ({"a": A, "b": [B, np.zeros(2), B]}, r"got 4 leaves, expected 3; only the example has \['b'\]\[2\]"),
        ({"A": A, "b": [B, np.zeros(2)]}, r"got \['A'\].*expected \['a'\]"),
        ({"a": A, "b": (B, np.zeros(2))}, "the containers differ"),
        ({"a": A, "b": [B, np.zeros(2), None]}, "the containers differ"),
    ],
)
def test_a_mismatch_names_the_first_leaf_that_differs(mine, message):
    """Attaching with an example that does not fit names the first difference, and the segment."""
    with Server({"a": A, "b": [B, np.zeros(2)]}, 1) as server:
        for attach in (ShmClient, Server.attach):
            with pytest.raises(SpecMismatchError, match=message) as caught:
                attach(server.name, mine)
            assert server.name in str(caught.value)
        with ShmClient(server.name) as client:
            client.send({"a": A, "b": [B, np.zeros(2)]})
        assert server.sample(1).info.active_connections == 0


def test_many_leaves():
    """All of 400 leaves are sent."""
    tree = {f"k{i:03}": np.full((), i, np.int32) for i in range(400)}
    with Server(tree, 1) as server, ShmClient(server.name) as client:
        client.send(tree)
        batch = server.sample(1).batch
        assert [batch[f"k{i:03}"][0] for i in range(400)] == list(range(400))
