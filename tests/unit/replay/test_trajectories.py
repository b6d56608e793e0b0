"""Items that writers describe: append, history, create_item, patterns."""

import numpy as np
import pytest
from harness.waiting import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm import Replay, SpecMismatchError, Table, TcpTransport
from echo_shm.replay import Column, Fifo, Pattern, Queue, RemoteWriter, ReplayClient, Sequence, Trajectory
from echo_shm.replay.history import History, Signature
from echo_shm.ring.inbox import Heads
from echo_shm.spec import Spec

EXAMPLE = {"obs": np.zeros(2, np.float32), "act": np.zeros((), np.int64)}

#: Of each column the leaf, and how many steps.
SIGNATURE = {"few": Column("obs", 3), "one": Column("act"), "acts": Column("act", 2)}


def step(number):
    """Step number so-and-so."""
    return {"obs": np.full(2, number, np.float32), "act": np.int64(number)}


def opened(keep=10, **options):
    """A replay with a table of such items, from which each comes once and in order, and another table."""
    tables = [Table("free", rate_limiter=Queue(1000), item=Trajectory(SIGNATURE, keep)), Table("plain", Fifo())]
    return Replay(EXAMPLE, 1000, tables, **options)


def next_item(replay):
    """The leaves of the oldest item: numbers of steps."""
    data = replay.sample(1, "free", 0.0).data
    assert (data["few"][0, :, 0] == data["few"][0, :, 1]).all()
    return data["few"][0, :, 0].tolist(), int(data["one"][0]), data["acts"][0].tolist()


#: What a writer does: it appends, ends an episode with or without the history, or makes an item of the steps at these
#: places of its history: the first of three, their stride, one, and the first of two.
MOVES = st.lists(
    st.one_of(
        st.sampled_from(["append", "append", "append", "end", "go on"]),
        st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(0, 12), st.integers(0, 12)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(MOVES)
def test_items_are_the_steps_that_were_named(moves):
    """Of any history, strides and overlaps; what is not there, or not kept, is refused, and nothing is sent."""
    with opened(keep=10) as replay, ReplayClient(replay.handle).writer() as writer:
        history, wanted, number, h = [], [], 0, writer.history
        for move in moves:
            if move == "append":
                writer.append(step(number))
                history.append(number)
                number += 1
            elif isinstance(move, str):
                writer.end_episode(clear=move == "end")
                history = [] if move == "end" else history
            else:
                few, stride, one, acts = move
                there = max(few + 2 * stride, one, acts + 1) < len(history)
                try:
                    item = {
                        "few": h["obs"][few : few + 2 * stride + 1 : stride],
                        "one": h["act"][one],
                        "acts": h["act"][acts : acts + 2],
                    }
                    writer.create_item("free", None, item)
                except (ValueError, IndexError):
                    assert not there or len(history) - min(few, one, acts) > 10
                else:
                    assert there
                    wanted.append(
                        (history[few : few + 2 * stride + 1 : stride], history[one], history[acts : acts + 2])
                    )
        assert replay.info("free").size == len(wanted)
        assert replay.info("plain").size == 0
        assert [next_item(replay) for _ in wanted] == wanted


@given(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 3)), min_size=3, max_size=3), st.data())
def test_the_common_case_makes_the_same_head(places, data):
    """C makes the head of an item byte for byte as Python does, or leaves it to Python, which refuses it or not."""
    spec, heads = Spec.from_example(EXAMPLE), Heads((("free", (0.6,), (), ("", 3)), ("plain", (), (), None)))
    history = History(heads, spec)
    signature = Signature(0, "free", Trajectory(SIGNATURE, 10), spec, 2, (0.6,))
    for _ in range(12):
        heads.count_one()
    history.first = data.draw(st.integers(0, 3))
    h, priority = history.tree, data.draw(st.sampled_from([0.0, 1.5, 1e6]))
    (few, stride), (one, _), (acts, wrong) = places
    try:
        item = {
            "few": h["obs"][few : few + 2 * stride + 1 : stride or 1],
            "one": h["act"][one],
            "acts": h["obs" if wrong == 3 else "act"][acts : acts + 2],
        }
    except IndexError:
        return
    heads.item_head[:] = 255
    written = signature.write(history, heads, item, priority, heads.item_head)
    by_c = heads.item_head.tobytes()
    try:
        made = signature.item(history, item, priority)
    except ValueError:
        assert not written
        assert by_c == b"\xff" * len(by_c), "nothing was written"
    else:
        assert written
        heads.item(*made)
        assert heads.item_head.tobytes() == by_c


@pytest.mark.parametrize("priority", [1, np.float32(1), True, -0.5, float("nan"), float("inf"), 1e300, "1"])
def test_uncommon_priorities_are_left_to_python(priority):
    """Only a float that any selector can raise to its exponent is common."""
    heads = Heads((("free", (0.6,), (), ("", 1)),))
    spec = Spec.from_example(EXAMPLE)
    history = History(heads, spec)
    heads.count_one()
    signature = Signature(0, "free", Trajectory(Column("act")), spec, 1, (0.6,))
    for one, common in ((priority, False), (None, True), (1e6, True), (1.01e6, False)):
        assert signature.write(history, heads, history.tree["act"][-1], one, heads.item_head) is common


def test_a_step_in_parts():
    """Items may refer to what is there of a step; what is not there is named."""
    with opened() as replay, ReplayClient(replay.handle).writer() as writer:
        for number in range(3):
            writer.append(step(number))
        h = writer.history
        writer.append({"obs": np.full(2, 3, np.float32)}, partial=True)
        assert len(h["obs"]) == 4
        with pytest.raises(SpecMismatchError, match=r"leaf \['obs'\] was appended to this step already"):
            writer.append({"obs": np.zeros(2, np.float32)})
        with pytest.raises(ValueError, match=r"\['one'\]: leaf \['act'\] of step 3 of the history was not appended"):
            writer.create_item("free", 1.0, {"few": h["obs"][-3:], "one": h["act"][-1], "acts": h["act"][:2]})
        writer.create_item("free", 1.0, {"few": h["obs"][-3:], "one": h["act"][2], "acts": h["act"][1:3]})
        with pytest.raises(ValueError, match="appended in part: append the rest of it first"):
            writer.add(step(0))
        assert replay.info("free").size == 0, "it follows the step"
        writer.append({"act": np.int64(3)})
        assert next_item(replay) == ([1, 2, 3], 2, [1, 2])
        writer.append({"obs": np.full(2, 4, np.float32)}, partial=True)
        writer.create_item("free", 1.0, {"few": h["obs"][-3:], "one": h["act"][3], "acts": h["act"][2:4]})
        writer.end_episode(clear=False)
        assert next_item(replay) == ([2, 3, 4], 3, [2, 3])
        writer.append(step(5))
        with pytest.raises(ValueError, match=r"column \['acts'\]: leaf \['act'\] of step 4 of the history was not"):
            writer.create_item("free", 1.0, {"few": h["obs"][-3:], "one": h["act"][-1], "acts": h["act"][-2:]})
        writer.end_episode()
        assert len(h["obs"]) == 0
        with pytest.raises(SpecMismatchError, match=r"steps have no 'reward'"):
            writer.append({"reward": 1}, partial=True)
        assert replay.num_steps == 6


def named(h, **others):
    """An item's tree, with other columns in place of some."""
    return {"few": h["obs"][-3:], "one": h["act"][-1], "acts": h["act"][-2:], **others}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda h: {"few": h["obs"][-3:]}, "the item's tree is not that of its signature"),
        (lambda h: named(h, few=h["obs"][-2:]), r"column \['few'\]: got 2 steps of"),
        (lambda h: named(h, few=h["act"][-3:]), r"expected 3 steps of leaf \['obs'\] \(float32\[2\]\)"),
        (
            lambda h: named(h, few=h["obs"][:3]),
            "step 0 of the history is not kept any more: of 12 steps the .* last 10",
        ),
    ],
)
def test_items_that_cannot_be(make, text):
    """The message says which column, what was got, and what was expected."""
    with opened() as replay, ReplayClient(replay.handle).writer() as writer:
        for number in range(12):
            writer.append(step(number))
        with pytest.raises(ValueError, match=text):
            writer.create_item("free", 1.0, make(writer.history))
        good = named(writer.history)
        for table, priority, text2 in [
            ("plain", 1.0, "table 'plain' makes its items itself; those that take items of Trajectory"),
            ("other", 1.0, "no table is named 'other'|unknown table|'other'"),
            ("free", -1.0, "priority"),
        ]:
            with pytest.raises(ValueError, match=text2):
                writer.create_item(table, priority, good)
        with pytest.raises(TypeError, match=r"column \['few'\]: got 3, expected 3 steps of leaf \['obs'\]"):
            writer.create_item("free", 1.0, {**good, "few": 3})
        writer.end_episode()
        with pytest.raises(ValueError, match=r"it refers to a step before the last end_episode\(\)"):
            writer.create_item("free", 1.0, good)
        assert replay.info("free").size == 0


def test_patterns():
    """Every second step from the third on, and once at the end of an episode."""
    with opened() as replay, ReplayClient(replay.handle).writer() as writer:
        writer.patterns = [
            Pattern("free", named, min_steps=3, every=2),
            Pattern("free", lambda h: named(h, one=h["act"][0]), min_steps=4, at_end=True),
        ]
        for number in range(6):
            writer.append(step(number))
        writer.end_episode()
        for number in range(3):
            writer.append(step(10 + number))
        writer.end_episode()
        got = [next_item(replay) for _ in range(replay.info("free").size)]
    assert got == [
        ([0, 1, 2], 2, [1, 2]),
        ([2, 3, 4], 4, [3, 4]),
        ([3, 4, 5], 0, [4, 5]),
        ([10, 11, 12], 12, [11, 12]),
    ]


def test_flush_waits_for_all_but_the_last_items():
    """A limiter holds back what comes third, and whoever leaves that pending does not wait."""
    tables = [Table("free", rate_limiter=Queue(2), item=Trajectory({"a": Column("act")}))]
    with Replay(EXAMPLE, 4, tables, thread=True) as replay, ReplayClient(replay.handle).writer() as writer:
        for number in range(6):
            writer.append(step(number))
            writer.create_item("free", None, {"a": writer.history["act"][-1]})
        with pytest.raises(TimeoutError, match="limiter of table 'free'"):
            writer.flush(0.2)
        writer.flush(LONG, pending=3)
        assert [int(replay.sample(1, "free", LONG).data["a"][0]) for _ in range(6)] == list(range(6))
        writer.flush(LONG)


def test_beside_other_tables():
    """add() makes items of the other tables, and its steps are in the history, too. An episode's end clears it."""
    tables = [Table("free", item=Trajectory({"a": Column("act", 2)}, keep=3)), Table("seq", item=Sequence(2, pad=None))]
    with Replay(EXAMPLE, 100, tables) as replay, ReplayClient(replay.handle).writer() as writer:
        writer.add(step(0), {"seq": 1.0})
        writer.append(step(1))
        writer.add(step(2), {"seq": 1.0})
        writer.create_item("free", None, {"a": writer.history["act"][-3::2]})
        assert replay.sample(1, "free").data["a"].tolist() == [[0, 2]]
        assert replay.info("seq").size == 0, "two steps were complete with one that is no item"
        writer.add(step(3), {"seq": 1.0}, terminated=True)
        assert replay.info("seq").size == 1
        assert len(writer.history["act"]) == 0


def test_from_another_host():
    """A remote writer makes the same items."""
    with (
        opened(transport=TcpTransport(port=0), thread=True) as replay,
        RemoteWriter("127.0.0.1", replay.port, EXAMPLE) as writer,
    ):
        for number in range(4):
            writer.append(step(number))
        h = writer.history
        writer.create_item("free", 2.0, {"few": h["obs"][:3], "one": h["act"][-1], "acts": h["act"][-2:]})
        writer.flush(LONG)
        assert next_item(replay) == ([0, 1, 2], 3, [2, 3])
