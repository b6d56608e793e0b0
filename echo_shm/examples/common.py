"""What the examples share: their arguments, how training goes, the plot, and how they end."""

import argparse
import importlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

#: Episodes over which returns are averaged.
WINDOW = 100


class MissingPackage(Exception):
    """A package is not installed. The text is one line and says what to do."""


def need(module: str) -> Any:
    """Imports a package that echo_shm itself does not need.

    Workers import the file of the function that they run. So the packages that only the learner needs are imported in
    the learner's function: a worker without PyTorch starts seconds earlier, and has 200 MB more.

    Raises:
        MissingPackage: It is not installed.

    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name not in (module, package):
            raise
        raise MissingPackage(f"this example needs the package {package}: pip install 'echo-shm[examples]'") from None


def arguments(doc: str | None, steps: int, target: float = math.inf) -> argparse.ArgumentParser:
    """The arguments that all examples have.

    Args:
        doc: The example's docstring.
        steps: How many steps of the environments it may take.
        target: The mean return of the last 100 episodes at which it is solved.

    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the first weights and the environments; the order in which workers play "
        "is the scheduler's, so two runs differ all the same",
    )
    parser.add_argument("--steps", type=int, default=steps, help="most steps of the environments (%(default)s)")
    parser.add_argument("--target", type=float, default=target, help="mean return that counts as solved (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes that play (%(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="draw the returns into this file (.svg, .png, .pdf)")
    return parser


def seeds_of(args: argparse.Namespace) -> range:
    """A seed for each worker, which no run with another ``--seed`` has."""
    return range(args.seed * 1000, args.seed * 1000 + args.workers)


def run(learn: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser) -> None:
    """Runs an example to its end, and exits.

    The status is what ``learn`` returns; 130 after Ctrl-C; 2 if a package is missing.
    """
    args = parser.parse_args()
    try:
        if args.plot:
            need("matplotlib")  # not after minutes of training
        status = learn(args)
    except MissingPackage as error:
        status = _say(f"{parser.prog}: {error}", 2)
    except KeyboardInterrupt:  # the with blocks have stopped the workers
        status = _say("interrupted", 130)
    sys.exit(status)


def _say(line: str, status: int) -> int:
    print(line, file=sys.stderr)
    return status


class Progress:
    """How training goes.

    Args:
        args: Those of :func:`arguments`.

    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._curve: list[tuple[int, float]] = []
        self._started = self._said = time.monotonic()
        self.steps = 0

    @property
    def mean(self) -> float:
        """The mean return of the last 100 episodes; nan before the first."""
        return sum(self._last) / len(self._last) if self._last else math.nan

    @property
    def solved(self) -> bool:
        """Whether that mean has reached the target."""
        return len(self._last) == WINDOW and self.mean >= self._args.target

    @property
    def over(self) -> bool:
        """Whether it is solved, or all steps are taken."""
        return self.solved or self.steps >= self._args.steps

    @property
    def left(self) -> float:
        """Which part of the steps is left, from 1 down to 0."""
        return max(0.0, 1.0 - self.steps / float(self._args.steps))

    def add(self, steps: int, returns: Iterable[float]) -> None:
        """Counts steps of the environments, and the returns of the episodes that ended in them. nan is no return."""
        self.steps += steps
        for value in returns:
            if not math.isnan(value):
                self._last.append(float(value))
                self._curve.append((self.steps, self.mean))
        now = time.monotonic()
        if now - self._said > 2.0:
            self._said = now
            print(f"{self.steps:>9,} steps  {now - self._started:5.1f} s  mean return {self.mean:.1f}", flush=True)

    def finish(self, note: str = "") -> int:
        """Says how it ended, and draws the plot. Returns the exit status: 0 only if it is solved."""
        seconds = time.monotonic() - self._started
        print(
            f"{'solved' if self.solved else 'not solved'} in {self.steps:,} steps and {seconds:.1f} s: mean return "
            f"{self.mean:.1f} over the last {len(self._last)} episodes{note}"
        )
        if self._args.plot:
            self._draw(self._args.plot)
        return 0 if self.solved else 1

    def _draw(self, path: str) -> None:
        figure = need("matplotlib.figure").Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*self._curve, strict=True)) if self._curve else None
        if math.isfinite(self._args.target):
            axes.axhline(self._args.target, color="gray", linestyle=":")
        axes.set(xlabel="steps", ylabel=f"mean return of {WINDOW} episodes")
        figure.savefig(path)
