"""Items of several steps against cpprb, TorchRL, Reverb, and what the machine does at best.

As in :mod:`bench.replay`: every contender has a process of its own, the buffers are full, and they take turns.
"""

import ctypes
from dataclasses import replace

from bench.items_own import PERIOD
from bench.replay import Contender, Measured, Run, figures_of, take_turns
from bench.replay_peers import CPPRB, MACHINE, OWN, REVERB, TORCHRL
from bench.replay_program import BATCH_SIZE, LENGTH, NSTEP, PAIRS, SEQUENCES, STACK
from bench.scale import Scale
from bench.table import Figure, Floor

_STACKED = f'`NStep(1, stack={{"obs": {STACK}}})`'
_N_STEP = f"`NStep({NSTEP})`, `sample({BATCH_SIZE})`"
_SEQUENCE = f"`Sequence({LENGTH}, {PERIOD})`, `sample({SEQUENCES})`"
_PAIR = "`append` and `create_item`"
_CACHED = "`cache_values=True`, for a buffer that stays as it is"


class _Run(Run):
    """Measures. Libraries that cannot be installed are left out."""

    def stacks(self) -> list[Figure]:
        """Frames that are stored once."""
        measured = self.against("stacks", [Contender(MACHINE, "take stacks", 0.85)])
        return figures_of(f"{_STACKED}, `sample({BATCH_SIZE})`, Atari", "batches/s", measured)

    def n_steps(self) -> list[Figure]:
        """Transitions over several steps."""
        peers = [Contender(CPPRB, "n_step", 5), Contender(MACHINE, "accesses n_step")]
        return figures_of(f"{_N_STEP}, CartPole", "batches/s", self.against("n_step", peers))

    def sequences(self) -> list[Figure]:
        """Parts of episodes, of few steps and of many."""
        few, many = self.scale.replay_growth
        contenders = [
            Contender(OWN, "sequences"),
            Contender(MACHINE, "take sequences"),
            Contender(TORCHRL, "sequences", 3),
            Contender(TORCHRL, "sequences cached", None, _CACHED),
        ]
        large, small = (
            take_turns(
                [(one, replace(self.sizes, cartpole=n)) for one in contenders if self.is_there(one)],
                self.scale.repetitions,
            )
            for n in (many, few)
        )
        path = f"{_SEQUENCE}, {{:,}} steps stored"
        figures = figures_of(path.format(few), "batches/s", small) + figures_of(path.format(many), "batches/s", large)
        by_name = {one.name: one for one in small}
        for one in large:
            if one.name in by_name:
                figures.append(self._grown(path.format(many), one, by_name[one.name], f"{few:,} stored", large[0]))
        return figures

    @staticmethod
    def _grown(path: str, large: Measured, small: Measured, fewer: str, ours: Measured) -> Figure:
        """What a batch takes of many steps, against the same of fewer."""
        times = [[1e6 / rate for rate in measured.values()] for measured in (large, small)]
        if large is ours:
            return Figure(path, "µs", times[0], fewer, times[1], Floor(2))
        return Figure(f"{path}: {large.name}", "µs", times[0], fewer, times[1])

    def explicit(self) -> list[Figure]:
        """Items that a worker describes."""
        measured = self.against("pairs", [Contender(REVERB, "pairs", 20)])
        path = f"{_PAIR}, CartPole, `flush` after {PAIRS:,}"
        took = [1e6 / rate for rate in measured[0].values()]
        return [
            *figures_of(path, "items/s", measured),
            Figure(f"{path}: a pair", "µs", took, floor=Floor(4, of="value")),
        ]

    def memory(self) -> list[Figure]:
        """Gigabytes, measured once, for they do not vary."""
        frames = self.scale.item_frames
        sizes = replace(self.sizes, atari=frames)
        contenders = [(Contender(OWN, f"gigabytes of {what}"), sizes) for what in ("frames", "pixels")]
        whole, rest = (measured.values()[0] for measured in take_turns(contenders, 1, alone=True))
        # What is there beside the frames, a store of frames of one pixel has, too.
        alone = whole - (rest - frames / 1e9)
        path = f"Memory of {frames:,} Atari frames, {_STACKED}, next observations too"
        # A frame is 7,056 bytes: a million of them are 7.06 GB.
        return [
            Figure(f"{path}: the frames", "GB", [alone], floor=Floor(7.1e-6 * frames, of="value")),
            Figure(f"{path}: all", "GB", [whole]),
        ]


def items(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """All rows."""
    run = _Run(scale, (CPPRB, TORCHRL, REVERB))
    return [*run.stacks(), *run.n_steps(), *run.sequences(), *run.explicit(), *run.memory()]
