"""A replay by its name alone: what a client finds, and what it is told where there is none."""

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.actors import cast

from echo_shm import Replay, ReplayClient, SegmentError, Server, SpecMismatchError, Table
from echo_shm.replay import Prioritized, listing
from echo_shm.replay.described import about_items
from echo_shm.replay.new_store import create_store
from echo_shm.replay.table import lay_out_table, table_config
from echo_shm.spec import Spec

SHM = Path("/dev/shm")

STEP = {"x": np.zeros(2, np.float32), "n": np.zeros((), np.int64)}
TABLES = [Table("a", Prioritized(4.0)), Table("b")]


@pytest.fixture
def name(name: str) -> Iterator[str]:
    """A name; what is left of its replay is removed after the test."""
    yield name
    for file in SHM.glob(f"echo_shm*{name}*"):
        file.unlink()


@pytest.mark.parametrize("shm", [True, False])
def test_a_name_is_as_good_as_the_handle(name: str, shm: bool) -> None:
    """Tables with their exponents, rings and structure are those of the handle, and steps arrive."""
    options: dict[str, Any] = {"store": "shm", "name": name} if shm else {}
    with Replay(STEP, 10, TABLES, **options) as replay:
        handle = replay.handle  # a replay in its process's own memory has rings from here on
        with ReplayClient(handle.name) as client, client.writer() as writer:
            assert client._way.handle == handle
            writer.add(STEP, {"b": 2.0})
            assert replay.num_steps == 1
            with pytest.raises(ValueError, match="too large for table 'a'"):
                writer.add(STEP, 1e300)
            client.delete(replay.sample(1, "b").key, "b")
            assert (replay.num_steps, client.tables) == (1, ("a", "b"))


def test_a_name_in_memory(name: str) -> None:
    """One replay at a time has it, and only while it lives. Nobody can go on with it."""
    with Replay(STEP, 10, TABLES, name=name) as replay, ReplayClient(name) as client, client.writer() as writer:
        writer.add(STEP)
        assert (replay.name, replay.num_steps) == (name, 1)
        for store in ("memory", "shm"):
            with pytest.raises(SegmentError, match="belongs to a process that is alive"):
                Replay(STEP, 10, store=store, name=name)  # type: ignore[arg-type]
        with pytest.raises(SegmentError, match="no replay is named"):
            Replay.attach(name)
        writer.add(STEP)
        assert replay.num_steps == 2
    assert list(SHM.glob(f"echo_shm*{name}*")) == []


def test_steps_of_other_nodes_need_an_example(name: str) -> None:
    """A name alone does not tell what node types beyond dict, OrderedDict, list, tuple and None are."""
    step = collections.defaultdict(None, b=np.zeros(2), a=np.zeros(()))
    with Replay(step, 10, store="shm", name=name) as replay:
        with pytest.raises(SpecMismatchError, match="pass an example, ReplayClient"):
            ReplayClient(name)
        with pytest.raises(SpecMismatchError, match=r"fit replay .*: got \['b'\]: float64\[3\], expected \['b'\]"):
            ReplayClient(name, collections.defaultdict(None, b=np.zeros(3), a=np.zeros(())))
        with ReplayClient(name, step) as client, client.writer() as writer:
            writer.add(step)
            assert replay.num_steps == 1


def test_what_is_no_replay(name: str) -> None:
    """No such name; a ring; a ring of a replay; something that is no name."""
    with Replay(STEP, 10, store="shm", name=name), Server(STEP, 1, name=f"{name}-ring"):
        with pytest.raises(SegmentError, match=f"no replay is named '{name}-no': there are .*'{name}'.*store='shm'"):
            ReplayClient(f"{name}-no")
        with pytest.raises(SegmentError, match=rf"is a ring, and no replay: ShmClient\('{name}-ring'\) sends to it"):
            ReplayClient(f"{name}-ring")
        for ring in ("inbox", "updates"):
            with pytest.raises(SegmentError, match=rf"is a ring of replay '{name}': ReplayClient\('{name}'\)"):
                ReplayClient(f"{name}.{ring}")
    with pytest.raises(ValueError, match=r"bad replay name '\.\./x'"):
        ReplayClient("../x")
    with pytest.raises(TypeError, match=r"takes a replay's name or address, or replay.handle, not int 3"):
        ReplayClient(3)  # type: ignore[arg-type]


def hold(conn: Any, name: str | None) -> None:
    """An actor: has a replay."""
    with Replay(STEP, 10, store="shm" if name else "memory", name=name) as replay:
        conn.send(replay.handle.name)
        conn.recv()


def test_a_replay_whose_process_is_dead(name: str) -> None:
    """The error says whether somebody can go on with it."""
    with cast() as make:
        for given, message in [(name, f"Replay.attach\\('{name}'\\) goes on with it"), (None, "what it held is gone")]:
            actor = make(hold, given)
            known = actor.hear()
            actor.kill()
            with pytest.raises(SegmentError, match=f"the process of replay '{known}' is dead: {message}"):
                ReplayClient(known)
            listing.remove(known)


def test_a_replay_without_rings(name: str) -> None:
    """A store whose process has made no rings yet."""
    spec = Spec.from_example(STEP, about_items([table.item for table in TABLES]))
    layouts = [lay_out_table(table, spec) for table in TABLES]
    configs = [table_config(table, layout, 10) for table, layout in zip(TABLES, layouts, strict=True)]
    outputs = [output for layout in layouts for output in layout.outputs]
    store = create_store("shm", name, spec, 10, 10, 0, configs, outputs)
    with pytest.raises(SegmentError, match=f"replay '{name}' has no rings yet"):
        ReplayClient(name)
    store.remove()
