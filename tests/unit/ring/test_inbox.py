"""The samples of a replay's inbox, and what their schema says, whoever has written it."""

import collections
import json

import numpy as np
import pytest

from echo_shm import Server, ShmClient, SpecMismatchError
from echo_shm.ring.inbox import Heads, inbox_spec, inbox_that_takes, step_spec, tables_of
from echo_shm.spec import Spec, canonical

TABLES = (("train", (0.6, 0.6), (0,), None), ("\N{SNOWMAN} 'b'", (), (), ('["trajectory"]', 3)))

STEPS = {
    "an array": np.zeros((2, 3), np.float32),
    "a dict": {"a": np.zeros(3), "b": [np.zeros((), np.int64), None]},
    "a tuple": (np.zeros(3), (np.zeros(2),)),
    "another node": collections.defaultdict(None, z=np.zeros(3), a=np.zeros(())),
}


@pytest.mark.parametrize("kind", STEPS)
def test_an_inbox_says_what_it_brings(kind):
    """Tables and steps are found in the schema alone, and the steps' leaves have their own paths."""
    step = Spec.from_example(STEPS[kind])
    spec = inbox_spec(step, TABLES)
    for seen in (spec, Spec.from_schema(spec.schema, "x")):
        assert tables_of(seen) == TABLES
        assert step_spec(seen).schema == step.schema
        assert inbox_that_takes(step, seen.schema).schema == spec.schema
    assert step_spec(spec).treespec == step.treespec
    assert inbox_that_takes(Spec.from_example(np.zeros(77)), spec.schema) is None
    assert inbox_that_takes(step, step.schema) is None


@pytest.mark.parametrize(
    "change",
    [
        {"about": None},
        {"about": {}},
        {"about": {"server": [["a", [], [], None]]}},
        {"about": {"replay": []}},
        {"about": {"replay": [["a", [0.5], [], None], ["b", [], [], None]]}},  # the head has room for one
        {"about": {"replay": [[1, [0.5], [], None]]}},
        {"about": {"replay": [["a", [1], [], None]]}},
        {"about": {"replay": [["a", [float("inf")], [], None]]}},
        {"about": {"replay": [["a", 3, [], None]]}},
        {"about": {"replay": [[["a"], [], [], None]]}},
        {"about": {"replay": [["a", [], []]]}},
        {"about": {"replay": [["a", [0.5], [1], None]]}},  # a step has one leaf
        {"about": {"replay": [["a", [0.5], [False], None]]}},
        {"about": {"replay": [["a", [0.5], [0], ["[]"]]]}},
        {"about": {"replay": [["a", [0.5], [0], ["[]", 0]]]}},
        {"about": {"replay": [["a", [0.5], [0], ["[]", 1]]]}},  # the head has no room for columns
        {"about": {"replay": [["a", [0.5], [0], [1, "[]"]]]}},
        {"about": "replay"},
        {"tree": {"list": ["leaf", "leaf"]}},
        {"tree": {"tuple": ["leaf", None, "leaf"]}},
    ],
)
def test_a_damaged_schema_is_no_inbox(change):
    """Nothing but what an inbox has is taken for one."""
    data = json.loads(inbox_spec(Spec.from_example(np.zeros(3)), (("a", (0.5,), (0,), None),)).schema)
    assert step_spec(Spec.from_schema(canonical(data), "x")) is not None
    assert step_spec(Spec.from_schema(canonical(data | change), "x")) is None


def test_what_else_a_schema_says_must_be_the_same():
    """Samples with the same leaves for something else are refused, with both texts."""
    example = np.zeros(3)
    mine, theirs = Spec.from_example(example, {"a": 1}), Spec.from_example(example, {"a": 2})
    with pytest.raises(SpecMismatchError, match=r'what else is said of them differs: got {"a": 1}, expected {"a": 2}'):
        mine.check_same(theirs, "segment 'x'")
    with pytest.raises(SpecMismatchError, match=r'got null, expected {"a": 2}'):
        Spec.from_example(example).check_same(theirs, "segment 'x'")
    with Server(example, 1) as server, ShmClient(server.name, example):
        assert b"about" not in server._segment.spec.schema


def test_heads_of_a_stream():
    """Numbers and episodes go on over single steps, blocks, blocks that were sent in part, and ends by hand."""
    heads, told = Heads(TABLES), []

    def tell(rows, sent):
        words, halves = rows.view("<u8"), rows[:, 20:32].view("<u4")
        assert (words[:, 0] == heads.stream).all()
        assert (rows[:, 32:48].view("<f8") == 3.0).all()
        told.extend(zip(words[:sent, 1].tolist(), halves[:sent, 1].tolist(), halves[:sent, 2].tolist(), strict=True))

    for ends in (0, 1, 0):
        tell(heads.one(ends, (3.0, 3.0))[None], 1)
        heads.sent(1, ends)
    ends = np.array([0, 2, 0, 1, 1], np.uint8)
    tell(heads.many(5, ends, 3.0), 4)
    heads.sent(4, ends)
    heads.end_episode()  # the last step that was sent has ended one
    tell(heads.many(2, None, 3.0), 2)
    heads.sent(2, None)
    heads.sent(0, None)
    heads.end_episode()
    heads.end_episode()
    tell(heads.one(0, (3.0, 3.0))[None], 1)
    episodes = [0, 0, 1, 1, 1, 2, 2, 3, 3, 4]
    assert told == list(zip(range(10), episodes, [0, 1, 0, 0, 2, 0, 1, 0, 0, 0], strict=True))
