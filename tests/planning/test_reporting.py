"""What an engine says of itself to other processes, and what ``ls``, ``top``, ``metrics`` and ``gc`` make of it."""

import asyncio
import json
import os
import struct
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from harness.text_games import Counting
from harness.token_backbone import TokenBackbone
from harness.waiting import until

from echo_shm import SegmentError
from echo_shm.cli import console, metrics, rollouts_top
from echo_shm.cli import main as cli
from echo_shm.planning.backbones.limits import Limiter, RemoteLimits
from echo_shm.planning.backbones.protocol import Completion
from echo_shm.planning.rollouts.config import RolloutConfig
from echo_shm.planning.rollouts.engine import RolloutEngine
from echo_shm.ring import rollouts

SHM = Path("/dev/shm")


def play(conn, name):
    """Runs four rollouts, then two that do not end and three that wait for them; says what it has counted."""

    async def run():
        backbone = TokenBackbone(num_blocks=300)
        config = RolloutConfig(max_action_tokens=6, max_concurrent_rollouts=2)
        async with RolloutEngine(backbone, config=config, name=name) as engine:
            results = await asyncio.gather(*[engine.submit("A prompt of some tokens", seed=i) for i in range(4)])
            answered = sum(len(turn.action_tokens) for result in results for turn in result.turns)
            backbone.gate.clear()
            tasks = [asyncio.create_task(engine.submit("A prompt")) for _ in range(5)]
            while len(engine._running) < 2:
                await asyncio.sleep(0)
            conn.send((answered, asdict(engine.tracker.snapshot()), 300 - engine.free_blocks))
            await asyncio.to_thread(conn.recv)
            backbone.gate.set()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    asyncio.run(run())


def run_cli(capsys, *words):
    """A command's status, and what it printed."""
    status = cli.main([*words])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def values_of(name):
    """What ``metrics`` says, by names without the prefix and labels."""
    found = {}
    for family in metrics.registry(metrics.Source(name)).collect():
        for sample in family.samples:
            labels = tuple(value for label, value in sample.labels.items() if label != "name")
            found[(sample.name.removeprefix("echo_shm_"), *labels)] = sample.value
    return found


@pytest.fixture
def board(name):
    """A board's name, of which nothing is left."""
    yield f"{name}.rollouts"
    for path in SHM.glob(f"echo_shm_rollouts*{name}*"):
        path.unlink()


def test_an_engine_is_seen_from_another_process(board, act, capsys):
    """What it counts comes out of each command while it lives; it is garbage once it is killed, and gc removes it."""
    process = act(play, board.removesuffix(".rollouts"))
    answered, counted, used = process.hear()
    until(lambda: rollouts.look(board).figures.waiting == 3)
    figures = rollouts.look(board).figures
    assert (figures.pid, figures.running, figures.finished, figures.submitted) == (process.pid, 2, 4, 9)
    assert (figures.tokens, figures.blocks) == (answered, 300)
    assert figures.blocks - figures.blocks_free >= used > 0
    assert 0 <= figures.longest_wait <= figures.wait_bound
    assert {field: getattr(figures, field) for field in counted if field != "seconds"} == {
        field: value for field, value in counted.items() if field != "seconds"
    }
    said = json.loads(run_cli(capsys, "ls", "--json")[1])
    (said,) = [one for one in said if one["name"] == board]
    assert (said["kind"], said["state"], said["figures"]["waiting"]) == ("rollouts", "in use", 3)
    values = values_of(board)
    assert (values["up",], values["rollouts_alive",], values["rollouts_running",]) == (1, 1, 2)
    assert (values["rollouts_ended_total", "finished"], values["rollouts_tokens_total",]) == (4, answered)
    assert values["rollouts_context_tokens_total",] == counted["context_tokens"] > 0
    status, shown = run_cli(capsys, "top", board, "--once", "--interval", "0.3")
    assert status == 0
    for words in ("running 2 waiting 3 finished 4", f"{300 - figures.blocks_free} of 300", f"process {process.pid}"):
        assert words in " ".join(shown.split())
    status, shown = run_cli(capsys, "gc", board)
    assert (status, shown) == (1, f"in use   {board}\n")

    process.kill()
    status, shown = run_cli(capsys, "top", board, "--once", "--interval", "0.001")
    assert f"process {process.pid} dead: `echo-shm gc` removes this" in shown
    assert values_of(board)["rollouts_alive",] == 0
    row = next(line for line in run_cli(capsys, "ls")[1].splitlines() if line.startswith(board))
    assert row.split()[1:] == [str(process.pid), "dead", "2", "3", "4", "0", "garbage"]
    assert run_cli(capsys, "gc", board, "--dry-run")[1] == f"garbage  {board}: would be removed\n"
    assert run_cli(capsys, "gc")[1].count(f"removed  {board}\n") == 1
    assert not list(SHM.glob(f"echo_shm_rollouts*{board}"))
    assert run_cli(capsys, "top", board)[0] == 1


def test_a_killed_engines_name_is_free_and_a_living_ones_is_not(board, act):
    """The next engine of the name replaces what the dead one has left."""
    process = act(play, board)
    process.hear()

    async def run():
        async with RolloutEngine(TokenBackbone(), name=board) as engine:
            return rollouts.look(engine.name).figures.pid

    with pytest.raises(SegmentError, match=f"is process {process.pid}'s: choose another name"):
        asyncio.run(run())
    process.kill()
    assert asyncio.run(run()) == os.getpid()
    assert board not in rollouts.names()


def test_workers_and_their_faults_are_counted(board):
    """How many processes there are, and what attempts failed by."""

    async def run():
        config = RolloutConfig(max_action_tokens=6, retries=0)
        options = {"what": "raise", "when": 1}
        async with RolloutEngine(
            TokenBackbone(num_blocks=300), Counting, workers=1, config=config, context="forkserver", name=board
        ) as engine:
            await engine.submit("")
            await asyncio.gather(engine.submit("", options=options), return_exceptions=True)
            return engine._figures()

    figures = asyncio.run(run())
    assert (figures.workers, figures.workers_max, figures.episodes, figures.successes) == (1, 1, 1, 1)
    assert figures.attempts_failed == {"worker": 0, "environment": 1, "backbone": 0}
    assert figures.ended == {"finished": 1, "failed": 1, "timed_out": 0, "cancelled": 0, "closed": 0}


class Server:
    """A remote backbone that answers at once, for money."""

    def __init__(self):
        self.limiter = Limiter(RemoteLimits(input_cost=1e6, output_cost=1e6), lambda error: None)

    async def complete(self, messages, *, max_tokens, temperature):
        """Two tokens for three."""

        async def ask():
            return Completion("yes", 3, 2)

        return await self.limiter.complete(messages, max_tokens, ask)

    async def close(self):
        """Nothing to end."""


def test_a_remote_backbones_money_is_shown(board):
    """Requests, tokens and cost; and no blocks, which it does not have."""

    async def run():
        async with RolloutEngine(Server(), name=board) as engine:
            await engine.submit("x")
            engine._reporter._board.write(engine._figures())
            watch = rollouts_top.RolloutsWatch(board)
            terminal = console.open_console()
            with terminal.capture() as captured:
                terminal.print(watch.render(10))
            return rollouts.look(board).figures, values_of(board), captured.get()

    figures, values, shown = asyncio.run(run())
    assert (figures.requests, figures.input_tokens, figures.tokens, figures.remote_cost) == (1, 3, 2, 5.0)
    assert (figures.blocks, figures.longest_wait) == (None, None)
    assert values["rollouts_remote_cost",] == 5.0
    assert ("rollouts_blocks",) not in values
    assert "requests 1 repeated 0 tokens sent 3 money 5" in " ".join(shown.split())


def test_an_engine_without_a_board_runs(monkeypatch, caplog):
    """If it wants none; and if it can have none, unless it was asked for one by name."""

    def refuse(name):
        raise SegmentError("no room")

    async def run(**how):
        async with RolloutEngine(TokenBackbone(), **how) as engine:
            await engine.submit("x")
            return engine.name

    assert asyncio.run(run(board=False)) is None
    monkeypatch.setattr("echo_shm.planning.rollouts.reporting.RolloutsBoard", refuse)
    asyncio.run(run())
    assert "no board, so `echo-shm` does not show these rollouts: no room" in caplog.text
    with pytest.raises(SegmentError, match="no room"):
        asyncio.run(run(name="run"))
    with pytest.raises(ValueError, match="name='run' with board=False"):
        RolloutEngine(TokenBackbone(), name="run", board=False)
    with pytest.raises(ValueError, match="bad rollouts name"):
        RolloutEngine(TokenBackbone(), name="a/b")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda said: said | {"version": 2}, "are of version 2, and this echo_shm reads version 1"),
        (lambda said: said | {"running": "\x1b[2J"}, "figure 'running' is no number that it can be"),
        (lambda said: said | {"running": 10**400}, "figure 'running' is no number that it can be"),
        (lambda said: said | {"running": 0.5}, "figure 'running' is no number that it can be"),
        (lambda said: said | {"eta": True}, "figure 'eta' is no number that it can be"),
        (lambda said: {field: value for field, value in said.items() if field != "steps"}, "figure 'steps'"),
        (lambda said: said | {"time": float("-inf")}, "figure 'time' is not finite"),
        (lambda said: [said], "says nothing that can be read"),
    ],
)
def test_a_board_that_is_none_is_named(board, change, told, capsys):
    """Whatever is in the file, every command says what is wrong with it, and gc removes it."""

    async def run():
        async with RolloutEngine(TokenBackbone(), name=board) as engine:
            return engine._figures()

    said = change({"version": 1, **asdict(asyncio.run(run()))})
    text = json.dumps(said).encode()
    (SHM / f"echo_shm_rollouts.{board}").write_bytes(struct.pack("<QQ", 2, len(text)) + text)
    (SHM / f"echo_shm_rollouts_locks.{board}").touch()
    seen = rollouts.look(board)
    assert seen.figures is None
    assert not seen.alive
    assert told in seen.fault
    status, shown = run_cli(capsys, "top", board)
    assert (status, told in shown) == (1, True)
    assert set(values_of(board)) == {("up",)}
    assert run_cli(capsys, "ls")[0] == 0
    assert run_cli(capsys, "gc", board)[1] == f"removed  {board}\n"


def test_an_engine_ends_though_its_board_is_gone_or_anothers(board):
    """It looks whose files they are. Its workers end."""

    async def run():
        async with RolloutEngine(TokenBackbone(), Counting, name=board) as engine:
            await engine.submit("x")
            pids = engine.pids
            for file in SHM.glob(f"echo_shm_rollouts*.{board}"):
                file.unlink()
            other = rollouts.RolloutsBoard(board)
        assert pids
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert rollouts.look(board).alive
        (SHM / f"echo_shm_rollouts.{board}").unlink()
        other.remove()
        other.remove()

    asyncio.run(run())
    assert not list(SHM.glob(f"*{board}"))


def test_figures_that_are_no_numbers_are_shown(board):
    """A reward that is not finite spoils nothing but what is made of it."""

    async def run():
        async with RolloutEngine(TokenBackbone(), name=board) as engine:
            engine.tracker.record_rollout_step(float("inf"), 4)
            engine._reporter._board.write(engine._figures())
            watch = rollouts_top.RolloutsWatch(board)
            assert watch.look()
            terminal = console.open_console()
            with terminal.capture() as captured:
                terminal.print(watch.render(10))
            return captured.get()

    shown = " ".join(asyncio.run(run()).split())
    assert "reward inf" in shown
    assert "eta nan" in shown
