"""The replay buffer against cpprb, TorchRL and what the machine does at best.

Every contender has a process of its own. Its buffer is full when the clock starts, so each new step evicts one, and all
store the same contents. They take turns: in each repetition every one is measured once, while the others sleep. One
element of each array of a batch is read.
"""

import contextlib
import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import echo_shm
from bench.replay_peers import CPPRB, MACHINE, OWN, TORCHRL, Library, Program, ProgramError, installed
from bench.replay_program import BATCH_SIZE, EXTENDED, PACE, RFC_BATCH_SIZE, RFC_STORED, WORKERS, Sizes
from bench.scale import Scale
from bench.table import Figure, Floor


@dataclass(frozen=True)
class Contender:
    """Who is measured, at what.

    Attributes:
        library: Whose program is asked.
        row: The row of that program.
        floor: What our ratio to it has to reach; None where nothing is demanded.
        note: What it is called behind its name and version.

    """

    library: Library
    row: str
    floor: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Measured:
    """A contender's values.

    Attributes:
        name: With the version.
        floor: The contender's.
        repetitions: The values of each measurement. Most rows have one.

    """

    name: str
    floor: Floor | None
    repetitions: list[list[float]]

    def values(self, which: int = 0) -> list[float]:
        """One of the values, of each repetition."""
        return [values[which] for values in self.repetitions]


_TORCHRL_STORAGES = ("LazyTensorStorage", "LazyMemmapStorage", "ListStorage")
_SAMPLE = f"`Replay.sample({BATCH_SIZE})`"
_PRIORITIZED = f"{_SAMPLE} and `update`, prioritized"

#: Path, unit, our row, and the others, of the rows in one process.
EMBEDDED = (
    (
        "`Replay.add`, CartPole",
        "steps/s",
        "add cartpole",
        (Contender(CPPRB, "add cartpole", 8), Contender(TORCHRL, "add cartpole", 30)),
    ),
    (
        "`Replay.add`, Atari",
        "steps/s",
        "add atari",
        (Contender(CPPRB, "add atari", 4), Contender(TORCHRL, "add atari")),
    ),
    (
        f"`Replay.extend` of {EXTENDED}, Atari",
        "steps/s",
        "extend atari",
        (Contender(MACHINE, "memcpy", 0.85), Contender(CPPRB, "extend atari"), Contender(TORCHRL, "extend atari")),
    ),
    (
        f"{_SAMPLE}, CartPole",
        "batches/s",
        "sample cartpole",
        (
            Contender(CPPRB, "sample cartpole", 5),
            Contender(TORCHRL, "sample cartpole", 5),
            Contender(MACHINE, "take cartpole"),
            Contender(MACHINE, "accesses cartpole"),
        ),
    ),
    (
        f"{_SAMPLE}, Atari",
        "batches/s",
        "sample atari",
        (
            Contender(MACHINE, "take atari", 0.95),
            Contender(TORCHRL, "sample atari", 3),
            Contender(CPPRB, "sample atari"),
        ),
    ),
    (
        f"{_PRIORITIZED}, CartPole",
        "batches/s",
        "prioritized",
        (
            Contender(CPPRB, "prioritized", 10),
            Contender(TORCHRL, "prioritized", 12),
            Contender(MACHINE, "accesses prioritized"),
        ),
    ),
    (
        f"`Replay.sample({RFC_BATCH_SIZE})` of {RFC_STORED:,} arrays of 3\N{MULTIPLICATION SIGN}4",
        "batches/s",
        "rfc",
        (*(Contender(TORCHRL, f"rfc {name}", 3, name) for name in _TORCHRL_STORAGES), Contender(CPPRB, "rfc")),
    ),
)

#: The rows with worker processes: they give steps a second and batches a second.
WITH_WORKERS = (
    Contender(CPPRB, "workers", 8),
    Contender(TORCHRL, "workers", 8, "`shared=True`, which is uniform"),
    Contender(TORCHRL, "remote workers", 8, "remote"),
)

#: What costs more when more is stored: path, our row, how much more it may be, and the machine's own row.
GROWTH = (
    (_SAMPLE, "sample cartpole", 2, "accesses cartpole"),
    (_PRIORITIZED, "prioritized", 2, "accesses prioritized"),
    ("`Replay.add`", "add cartpole", 1.2, None),
    ("`Replay.add`, prioritized", "add prioritized", 1.2, None),
)

#: Bytes of memory a step beyond its data: path, our row.
MEMORY = (("default table", "bytes"), ("prioritized table", "bytes prioritized"))


def take_turns(contenders: Sequence[tuple[Contender, Sizes]], repetitions: int, alone: bool = False) -> list[Measured]:
    """What each contender measured. One of another library that fails is left out, and a line says so.

    Args:
        contenders: Who, and how much each stores.
        repetitions: How often each is measured.
        alone: End each program after a measurement: the processes that it starts would disturb the others.

    Raises:
        ProgramError: Our own program failed.

    """
    values: dict[tuple[Contender, Sizes], list[list[float]]] = {contender: [] for contender in contenders}
    programs: dict[tuple[Contender, Sizes], Program] = {}
    names: dict[tuple[Contender, Sizes], str] = {}
    with contextlib.ExitStack() as stack:
        for _ in range(repetitions):
            for key in list(values):
                contender, sizes = key
                try:
                    if key not in programs:
                        programs[key] = stack.enter_context(
                            contextlib.closing(Program(contender.library, contender.row, sizes))
                        )
                        names[key] = ", ".join(filter(None, (programs[key].version, contender.note)))
                    values[key].append(programs[key].measure())
                except ProgramError as error:
                    if contender.library is OWN:
                        raise
                    del values[key]
                    print(f"left out: {error}", file=sys.stderr)
                finally:
                    if alone and key in programs:
                        programs.pop(key).close()
    return [
        Measured(names[key], None if key[0].floor is None else Floor(key[0].floor), measurements)
        for key, measurements in values.items()
    ]


def figures_of(path: str, unit: str, measured: Sequence[Measured], which: int = 0) -> list[Figure]:
    """A figure for each peer; without any, ours by itself."""
    ours, *peers = measured
    return [Figure(path, unit, ours.values(which), peer.name, peer.values(which), peer.floor) for peer in peers] or [
        Figure(path, unit, ours.values(which))
    ]


class Run:
    """Measures. Libraries that cannot be installed are left out."""

    def __init__(self, scale: Scale, libraries: Sequence[Library]) -> None:
        self.scale = scale
        self.sizes = Sizes(scale.seconds, scale.replay_steps, scale.replay_frames)
        self._there = [OWN, MACHINE, *filter(installed, libraries)]

    def is_there(self, contender: Contender) -> bool:
        """Whether it can be measured."""
        return contender.library in self._there

    def against(self, row: str, peers: Sequence[Contender], alone: bool = False) -> list[Measured]:
        """What our row measured, and then what each peer did that can be measured."""
        contenders = [Contender(OWN, row), *filter(self.is_there, peers)]
        sized = [(contender, self.sizes) for contender in contenders]
        return take_turns(sized, self.scale.repetitions, alone)


class _Run(Run):
    """The rows of single steps."""

    def embedded(self) -> list[Figure]:
        """In the learner's process."""
        figures = []
        for path, unit, row, peers in EMBEDDED:
            figures += figures_of(path, unit, self.against(row, peers))
        return figures

    def growth(self) -> list[Figure]:
        """More steps against fewer."""
        few, many = self.scale.replay_growth
        figures = []
        for path, row, bound, limit in GROWTH:
            contenders = [Contender(OWN, row), *([] if limit is None else [Contender(MACHINE, limit)])]
            sized = [(one, replace(self.sizes, cartpole=n)) for one in contenders for n in (many, few)]
            measured = take_turns(sized, self.scale.repetitions)
            large, small, *bare = ([1e6 / rate for rate in m.values()] for m in measured)
            stored, fewer = f"{path}, {many:,} stored", f"{few:,} stored"
            figures.append(Figure(stored, "µs", large, fewer, small, Floor(bound)))
            if bare:
                figures.append(Figure(stored, "µs", large, measured[2].name, bare[0]))
                figures.append(Figure(f"{stored}: {measured[2].name}", "µs", bare[0], fewer, bare[1]))
        return figures

    def memory(self) -> list[Figure]:
        """Bytes, measured once, for they do not vary."""
        figures = []
        for path, row in MEMORY:
            (ours,) = take_turns([(Contender(OWN, row), self.sizes)], 1)
            path = f"Memory of a CartPole step beyond its data, {path}"
            figures.append(Figure(path, "bytes", ours.values(), floor=Floor(160, of="value")))
        return figures

    def recovery(self) -> list[Figure]:
        """How long it takes to go on after a death."""
        many = self.scale.replay_growth[1]
        sized = [(Contender(OWN, "recovery"), replace(self.sizes, cartpole=many))]
        (ours,) = take_turns(sized, self.scale.repetitions)
        path = f"`Replay.attach` to {many:,} steps in a prioritized table"
        return [Figure(path, "s", ours.values(), floor=Floor(10, of="value"))]

    def elsewhere(self) -> list[Figure]:
        """A learner in a process of its own, which only takes; in the replay's process it draws, too."""
        path = f"`ReplayClient.dataset_iter({BATCH_SIZE})` in another process, prioritized"
        return figures_of(path, "batches/s", self.against("elsewhere", [Contender(OWN, "sample prioritized")]))

    def workers(self) -> list[Figure]:
        """Processes that add while the learner samples and updates."""
        *measured, paced = self.against("workers", [*WITH_WORKERS, Contender(OWN, "paced workers")], alone=True)
        path, then = f"{WORKERS} workers add", f"the learner repeats {_PRIORITIZED}"
        slow = [replace(one, floor=None) for one in measured if one.name.endswith(", remote")]
        return [
            *figures_of(f"{path}, {then}: steps", "steps/s", measured, 0),
            *figures_of(f"{path}, {then}: batches", "batches/s", measured, 1),
            *figures_of(f"{path} {PACE} steps/s each, {then}: batches", "batches/s", [paced, *slow], 1),
        ]

    def owner(self) -> list[Figure]:
        """What a step of the workers costs the process that has the replay."""
        counts = self.scale.replay_workers
        sized = [(Contender(OWN, "owner's cpu"), replace(self.sizes, workers=count)) for count in counts]
        values = [measured.values() for measured in take_turns(sized, self.scale.repetitions, alone=True)]
        path = "The replay's CPU time for a step of {} worker{}"
        figures = [Figure(path.format(counts[0], "s" * (counts[0] > 1)), "µs", values[0])]
        for count, costs in zip(counts[1:], values[1:], strict=True):
            figures.append(Figure(path.format(count, "s"), "µs", costs, f"{counts[0]} worker", values[0], Floor(1.5)))
        return figures


def replay(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """All rows."""
    run = _Run(scale, (CPPRB, TORCHRL))
    figures = [*run.embedded(), *run.growth(), *run.memory()]
    if not hasattr(echo_shm.Replay, "spawn"):
        print("no rows with workers: Replay has no spawn()", file=sys.stderr)
        return figures
    return [*figures, *run.recovery(), *run.elsewhere(), *run.workers(), *run.owner()]
