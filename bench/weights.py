"""Weights against memcpy, TorchRL's shared-memory scheme, a state dict under a lock, and queues.

As in :mod:`bench.replay`: every contender has a process of its own, and they take turns.
"""

import ctypes
from dataclasses import replace

from bench.replay import Contender, Run, figures_of, take_turns
from bench.replay_peers import MACHINE, OWN, TORCHRL
from bench.replay_program import Sizes
from bench.scale import Scale
from bench.table import Figure, Floor

_COPIED = "copied by each reader"
_IN_PLACE = "no reader has a copy"
_LOCKED = "a state dict in shared memory under a lock"

_PEERS = (
    Contender(TORCHRL, "weights sent and copied", note=_COPIED),
    Contender(TORCHRL, "weights sent", note=_IN_PLACE),
    Contender(TORCHRL, "weights locked", note=_LOCKED),
    Contender(MACHINE, "queue of weights"),
)


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:g} MB"


class _Run(Run):
    """Measures. Libraries that cannot be installed are left out."""

    def copies(self) -> list[Figure]:
        """What a process copies, against what memcpy and numpy do."""
        figures = []
        for nbytes in self.scale.weights:
            (ours,) = take_turns([(Contender(OWN, "weights copies"), self._sizes(nbytes))], self.scale.repetitions)
            size, values = _megabytes(nbytes), [ours.values(which) for which in range(7)]
            publish, spread, one, latest, copies, poll, leaves = values
            floor = Floor(0.8)
            figures += [
                Figure(f"`publish` of {size}", "MB/s", publish, "memcpy into as much shared memory", spread, floor),
                Figure(f"`publish` of {size}", "MB/s", publish, "memcpy to one place", one),
                Figure(f"`latest()` of {size}", "MB/s", latest, "`numpy.copy` of each leaf", copies, floor),
                Figure(f"`poll(into=)` of {size}", "MB/s", poll, "memcpy of each leaf", leaves, floor),
            ]
        return figures

    def poll(self) -> list[Figure]:
        """A look that finds nothing new."""
        sizes = self._sizes(min(self.scale.weights))
        (ours,) = take_turns([(Contender(OWN, "weights poll"), sizes)], self.scale.repetitions)
        return [Figure("`poll()` without news", "ns", ours.values(0), "an empty method", ours.values(1), Floor(3))]

    def receive(self) -> list[Figure]:
        """From ``publish`` to the moment when the last reader has a version, for one reader and for many."""
        sizes = replace(self._sizes(*self.scale.weights), workers=self.scale.readers)
        contenders = [Contender(OWN, "weights receive"), *filter(self.is_there, _PEERS)]
        measured = take_turns([(one, sizes) for one in contenders], self.scale.repetitions)
        figures = []
        for which, nbytes in enumerate(self.scale.weights):
            path = f"`publish` of {_megabytes(nbytes)} \N{RIGHTWARDS ARROW} a reader in `wait` has its copy"
            figures += figures_of(path, "ms", measured, which)
        path = f"`publish` of {_megabytes(min(self.scale.weights))} \N{RIGHTWARDS ARROW} the last of "
        path += f"{self.scale.readers} readers in `wait` has its copy"
        return [*figures, *figures_of(path, "ms", measured, len(self.scale.weights))]

    def _sizes(self, *nbytes: int) -> Sizes:
        return replace(self.sizes, weights=nbytes)


def weights(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """All rows."""
    run = _Run(scale, (TORCHRL,))
    return [*run.copies(), *run.poll(), *run.receive()]
