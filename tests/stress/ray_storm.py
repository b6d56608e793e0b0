"""Workers, shards, the directory, a learner, raylets and whole nodes are killed at random, and links are cut.

By hand, in ``tests/``: ``python -m stress.ray_storm [seconds [seed]]``. It needs root; see
:func:`harness.ray_cluster.why_not`. The account is in :mod:`stress.ray_account`.
"""

import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import ray
from harness import stamped
from harness.leftovers import SHM
from harness.ray_cluster import Cluster, Node, cluster, why_not
from harness.threads import Background
from harness.waiting import LONG, until

from echo_shm import Table
from echo_shm.adapters.ray import RayReplay, nodes
from echo_shm.replay import Prioritized, Queue
from stress import ray_actors as actors
from stress.ray_account import Account

#: Nodes besides the head, workers, and steps that a shard may have that the queue's learners have not had.
NODES, WORKERS, AHEAD = 3, 4, 500

#: Mean time between two events (seconds).
_PAUSE = 2.5

#: For how long a link is cut, at most (seconds): Ray does not notice, or takes the node for dead.
_SHORT, _LONG = 4.0, 20.0

#: What a slow link takes, and for how long, at most (seconds).
_RATE, _SLOW = "2mbit", 8.0

#: If learners get nothing for so long, they hang (seconds).
_HANG = 120.0

#: How long what a dead process had may stay in shared memory, before a guard removes it (seconds).
_PATIENCE = 40.0

#: Ray takes a silent node for dead after about ten seconds.
_CONFIG = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 6,
}

#: What Ray calls processes, by what they are here.
_TITLES = {
    "worker": "ray::Worker",
    "shard": "ray::Shard",
    "directory": "ray::Directory",
    "learner": "ray::StormLearner",
}

#: What happens, and how often to each other.
_EVENTS = {
    "kills of a worker": 6,
    "kills of a shard": 4,
    "kills of the directory": 1,
    "kills of the learner": 2,
    "kills of a raylet": 1,
    "kills of a node": 1,
    "cuts of a link": 3,
    "long cuts of a link": 1,
    "slow links": 2,
    "new publishers": 1,
}


class _Learner:
    """A learner of table ``drawn`` in a thread of this process, and its pauses."""

    def __init__(self, replay: RayReplay, folder: Path) -> None:
        self.pauses: list[tuple[float, float]] = []
        self.last = [time.monotonic()]
        self.thread = Background(actors.draw, replay, folder, self.last, self.pauses)

    def check(self) -> None:
        """Fails if it has failed, or hangs."""
        if not self.thread.runs:
            self.thread.result()
        pause = time.monotonic() - self.last[0]
        assert pause < _HANG, f"there has been no batch for {pause:.0f} s"


class Storm:
    """A cluster, its replay, and what happens to them."""

    def __init__(self, seed: int, made: Cluster, replay: RayReplay, folder: Path) -> None:
        self._rng, self._cluster, self._replay, self._folder = random.Random(seed), made, replay, folder
        self.events: Counter[str] = Counter()
        self.log: list[tuple[float, str]] = []
        #: Nodes that are to die, or have died: their shards' steps may be lost.
        self._dead: set[str] = set()
        self._cut: dict[Node, float] = {}
        self._slow: dict[Node, float] = {}
        self._publisher = replay.publisher(actors.PARAMS)
        self._version = self._publisher.publish({"w": np.full(100, 1.0)})
        self._workers = replay.spawn(actors.write, WORKERS, [folder] * WORKERS, restart=True)
        self._learner = actors.StormLearner.remote()
        self._learning = [self._learner.run.remote(replay, folder)]
        self._own = Background(actors.learn, replay, folder)
        self._draws = _Learner(replay, folder)

    def run(self, seconds: float) -> None:
        """Disturbs for so long. Then it lets everything come to an end, and settles the account."""
        until(lambda: {one.worker for one in actors.Notes.all(self._folder) if one.confirmed} == set(range(WORKERS)),
              "every worker has stored steps", 4 * LONG)  # fmt: skip
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (event,) = self._rng.choices(list(_EVENTS), list(_EVENTS.values()))
            self._cause(event)
            self._wait(self._rng.expovariate(1 / _PAUSE))
        self._end()

    def _wait(self, seconds: float) -> None:
        """Lets so much time go by, with weights, and looks at everybody."""
        end = time.monotonic() + seconds
        while True:
            self._check()
            now = time.monotonic()
            for node in [one for one, until_when in self._cut.items() if now > until_when]:
                self._restore(node)
            for node in [one for one, until_when in self._slow.items() if now > until_when]:
                self._hurry(node)
            self._version = self._publisher.publish({"w": np.full(100, float(self._publisher.version + 1))})
            if time.monotonic() > end:
                return
            time.sleep(0.05)

    def _check(self) -> None:
        self._draws.check()
        if not self._own.runs:
            self._own.result()
        for group in self._replay._groups:
            group.check()

    # -- events

    def _cause(self, event: str) -> None:
        self._replace_ended()
        others = [one for one in self._cluster.nodes[1:] if one not in self._cut and one.id not in self._dead]
        node = self._rng.choice(others) if others else None
        if event.startswith("kills of") and (kind := event.rpartition(" ")[2]) in _TITLES:
            found = list(self._processes(kind))
            if not found:
                return  # it is being started
            self._rng.choice(found).kill()
        elif event == "new publishers":
            self._publisher.close()
            self._publisher = self._replay.publisher(actors.PARAMS)
            if not self._cut:  # what the last one published just now, nobody may have; a shard may be being started
                had = max(one.version for one in actors.Notes.all(self._folder))
                until(lambda: self._publisher.version >= had, "the next version is above what workers have")
        elif node is None:
            return
        elif event == "kills of a raylet":
            self._dead.add(node.id)
            with contextlib.suppress(ProcessLookupError):  # a cut link has ended it just now
                os.kill(node.raylet, signal.SIGKILL)
            until(lambda: not list(self._actors_of(node)), "actors and workers end with their raylet", 2 * LONG)
            self._cluster.add(num_cpus=2)  # guards live on, and remove what is left of the old one
        elif event == "kills of a node":
            self._dead.add(node.id)
            self._cluster.kill(node)
            self._cluster.add(num_cpus=2)
        else:
            with self._unless_ended(node):
                self._disturb_link(event, node)
                self._say(event)
            return
        self._say(event)

    def _disturb_link(self, event: str, node: Node) -> None:
        now = time.monotonic()
        if event == "cuts of a link":
            node.cut()
            self._cut[node] = now + self._rng.uniform(0.2, _SHORT)
        elif event == "slow links":
            node.delay(rate=_RATE)
            self._slow[node] = now + self._rng.uniform(0.0, _SLOW)
        else:
            node.cut()
            self._cut[node] = now + self._rng.uniform(_SHORT, _LONG)

    def _replace_ended(self) -> None:
        """Other nodes for those that have ended themselves: this machine is slow, and Ray has taken them for dead."""
        for node in self._cluster.nodes[1:]:
            if node.id not in self._dead and node not in self._cut and self._has_ended(node):
                self.events["nodes that ended themselves"] += 1
                self._dead.add(node.id)
                self._cluster.add(num_cpus=2)

    @staticmethod
    def _has_ended(node: Node) -> bool:
        return not any(node.processes())

    @contextlib.contextmanager
    def _unless_ended(self, node: Node) -> Iterator[None]:
        """Leaves what is done with a link, if the node has ended itself just now, and its link is gone."""
        try:
            yield
        except AssertionError:
            if not self._has_ended(node):
                raise

    def _say(self, event: str) -> None:
        self.events[event] += 1
        self.log.append((time.monotonic(), event))

    def _processes(self, kind: str) -> Iterator[psutil.Process]:
        for node in self._cluster.nodes:
            yield from self._actors_of(node, _TITLES[kind])

    @staticmethod
    def _actors_of(node: Node, title: str = "ray::") -> Iterator[psutil.Process]:
        """Processes of a node that Ray has given such a title."""
        for process in node.processes():
            with contextlib.suppress(psutil.Error):
                if (process.cmdline() or [""])[0].startswith(title):
                    yield process

    def _restore(self, node: Node) -> None:
        """Ends a cut. A node that Ray has taken for dead meanwhile ends itself then, and another one comes."""
        del self._cut[node]
        is_dead = self._has_ended(node) or node.id not in nodes.alive()
        if not self._has_ended(node):
            with self._unless_ended(node):
                node.restore()
        if is_dead:
            self.events["nodes that died of a cut"] += 1
            self._dead.add(node.id)
            self._cluster.add(num_cpus=2)

    def _hurry(self, node: Node) -> None:
        """Ends the slowness of a link, unless its node is dead."""
        del self._slow[node]
        if node in self._cluster.nodes and node.id not in self._dead and not self._has_ended(node):
            with self._unless_ended(node):
                node.delay()

    # -- the end

    def _end(self) -> None:
        for node in list(self._cut):
            self._restore(node)
        for node in list(self._slow):
            self._hurry(node)
        folder, replay = self._folder, self._replay
        until(lambda: not {one.node for one in replay._look().roster.places} & self._dead, "losses are known", 4 * LONG)
        (folder / "stop").touch()
        self._workers.join(8 * LONG)
        # Two learners may each have some of a batch that is not full, and what they give back is taken last.
        self._while_steps_come(2 * actors.QUEUED - 1, lambda: self._wait(1.0))
        (folder / "end").touch()
        self._own.result()
        batches = self._draws.thread.result()
        ray.get(self._learning, timeout=2 * LONG)
        log = actors.Log(folder)
        self._while_steps_come(1, lambda: actors.take_rest(replay, log))
        self._publisher.close()
        account = Account(folder)
        # Ray may have taken nodes for dead since the last event: they are dead if it says so.
        self._dead |= {one.id for one in self._cluster.nodes} - nodes.alive().keys()
        nodes_lost = {loss.node for loss in replay.losses}
        assert nodes_lost <= self._dead, f"shards of nodes that live were lost: {nodes_lost - self._dead}"
        assert len({loss.number for loss in replay.losses}) == len(replay.losses)
        doubts = self.events["kills of a shard"] + self.events["cuts of a link"] + self.events["long cuts of a link"]
        self.figures = account.settle(self._lost(), self.events["kills of the learner"] + len(self._dead), doubts)
        self.figures |= {
            "losses said": sum(max(0, loss.tables["queued"]) for loss in replay.losses if loss.tables),
            "shards lost": len(replay.losses),
            "batches drawn": batches,
            "versions": self._version,
        }

    def _while_steps_come(self, least: int, take: Callable[[], None]) -> None:
        """Calls this again and again, until fewer confirmed steps are missing, or none comes any more.

        A shard that is being started again may have what is missing: nothing is given up before all shards are there.
        """
        account, still, deadline = Account(self._folder), 0, time.monotonic() + 8 * LONG
        while account.missing_elsewhere(self._lost()) >= least and still < 20:
            assert time.monotonic() < deadline, f"{account.missing_by_shards()}; shards that are away: {self._away()}"
            take()
            now = Account(self._folder)
            still = 0 if now.came != account.came or self._away() else still + 1
            account = now

    def _away(self) -> set[int]:
        """The shards of which nothing is heard."""
        look = self._replay._look()
        return {one.number for one in look.roster.places} - {one.number for one in look.present}

    def _lost(self) -> set[int]:
        return {loss.number for loss in self._replay.losses}

    def __str__(self) -> str:
        events = ", ".join(f"{what} {count:,}" for what, count in sorted(self.events.items()))
        figures = ", ".join(f"{what} {count:,}" for what, count in self.figures.items())
        return f"{events}\n{figures}\n{self._longest()}"

    def _longest(self) -> str:
        """The longest pauses of the draws, and what had happened before each."""
        found = sorted(self._draws.pauses, key=lambda one: -one[1])[:3]
        before = [[what for at, what in self.log if when - long - 5 < at < when] for when, long in found]
        return "longest pauses of the draws: " + "; ".join(
            f"{long:.1f} s ({', '.join(what)})" for (_, long), what in zip(found, before, strict=True)
        )


def run(seed: int, seconds: float) -> Storm:
    """Runs a storm for so long. It fails if a step is lost, doubled or torn, or if anything is left."""
    RayReplay._patience = _PATIENCE
    tables = [Table("queued", rate_limiter=Queue(AHEAD)), Table("drawn", Prioritized(0.6, 0.4), max_size=4000)]
    with tempfile.TemporaryDirectory() as name, cluster(NODES, isolated=True, config=_CONFIG) as made:
        folder = Path(name)
        with RayReplay(stamped.example(), 40_000, tables, seed=seed, mass_age=0.5) as replay:
            storm = Storm(seed, made, replay, folder)
            try:
                storm.run(seconds)
            except BaseException:
                traceback.print_exc()
                print(dict(storm.events), storm.log[-8:], flush=True)
                raise
        print(storm, flush=True)
        prefix = replay._setup.name
        until(lambda: not [one.name for one in SHM.iterdir() if prefix in one.name], "nothing is left", 3 * _PATIENCE)
    return storm


if __name__ == "__main__":
    if why := why_not():
        sys.exit(f"no cluster can be made here: {why}")
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    logging.basicConfig(format="%(asctime)s %(message)s")
    run(seed, seconds)
