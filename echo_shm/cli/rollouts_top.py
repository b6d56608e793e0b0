"""``echo-shm top`` of a RolloutEngine: what its rollouts do, earn, cost and share, from its board."""

import time
from typing import TYPE_CHECKING

from echo_shm.cli import console, sparklines
from echo_shm.errors import SegmentError
from echo_shm.ring import rollouts
from echo_shm.ring.rollouts import RolloutFigures

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

#: Figures that are older are said to be old: the engine's event loop does something else (seconds).
_OLD = 2.0

#: What ``top`` prints of rollouts, for its ``--help``.
HELP = """\
figures of rollouts:
  tokens/s   that the backbone answers
  ETPS       tokens of observations and actions a second, of episodes that ended
  eta        reward for each unit of attention's cost, and of the learner's
  reuse      the share of contexts' tokens that was computed before
  blocks     of the KV cache that a rollout or a kept prefix has
  passed over  in how many dispatches somebody waited at most, and the bound
"""


class RolloutsWatch:
    """Looks at one board again and again, and shows what it says.

    Args:
        name: The board's.

    Raises:
        SegmentError: There is none of that name, or it cannot be read.

    """

    def __init__(self, name: str) -> None:
        self.what = f"rollouts {name!r}"
        self._name = name
        self._lines = sparklines.Lines()
        self._alive, self._latest = self._read()
        self._earlier = self._latest

    def _read(self) -> tuple[bool, RolloutFigures]:
        seen = rollouts.look(self._name)
        if seen.figures is None:
            raise SegmentError(f"{self.what}: {seen.fault}")
        return seen.alive, seen.figures

    @property
    def other_lines(self) -> int:
        """Lines of the screen: nothing of this can be any number."""
        return 18 + len(self._lines)

    def look(self) -> bool:
        """Takes another reading. Returns False if the engine was closed."""
        if self._name not in rollouts.names():
            return False
        try:
            alive, latest = self._read()
        except SegmentError:
            if self._name in rollouts.names():
                raise
            return False
        self._alive, self._earlier, self._latest = alive, self._latest, latest
        now = time.monotonic()
        self._lines.add("tokens/s", now, self._rate("tokens"))
        self._lines.add("ETPS", now, self._rate("environment_tokens"))
        self._lines.add("running", now, latest.running)
        return True

    def _rate(self, field: str) -> float:
        """How much a figure grew a second between the last two that the engine has written."""
        before, now = self._earlier, self._latest
        span = now.time - before.time
        return max(0.0, getattr(now, field) - getattr(before, field)) / span if span > 0 else 0.0

    # -- rendering

    def render(self, most: int) -> "RenderableType":
        """Shows the last two readings. Nothing of it can be any number, so ``most`` is not asked for."""
        group: type[Group] = console.need("rich.console", "cli").Group
        parts: list[RenderableType] = [self._head(), "", self._rollouts(), "", self._efficiency(), "", self._backbone()]
        parts += ["", self._lines.table()] if self._lines else []
        framed: RenderableType = group(*parts)
        return framed

    def _head(self) -> str:
        process = f"process {self._latest.pid}"
        age = time.time() - self._latest.time
        if not self._alive:
            process += " [red]dead[/]: `echo-shm gc` removes this"
        if not self._alive or age > _OLD:
            process += f", figures of {console.duration(age)} ago"
        return f"[bold]{self._name}[/]  rollouts\n[dim]{process}[/]"

    def _rollouts(self) -> "RenderableType":
        now = self._latest
        figures = console.grid(5)
        figures.add_row(
            "running", f"{now.running:,}", "waiting", f"{now.waiting:,}", "finished", f"{now.finished:,}",
            *_count("failed", now.failed), *_count("timed out", now.timed_out),
        )  # fmt: skip
        figures.add_row(
            "workers", f"{now.workers} of {now.workers_max}", *_count("cancelled", now.cancelled),
            "closed", f"{now.closed:,}", *_count("retried", now.retried), *_count("preempted", now.preempted),
        )  # fmt: skip
        if any(now.attempts_failed.values()):
            cells = [cell for what, count in now.attempts_failed.items() for cell in _count(f"by {what}", count)]
            figures.add_row("attempts", "failed", *cells)
        return figures

    def _efficiency(self) -> "RenderableType":
        now = self._latest
        share = f"{100 * now.successes / now.episodes:.0f} %" if now.episodes else "-"
        saved = now.bandwidth_total - now.bandwidth_spent
        figures = console.grid(4)
        figures.add_row(
            "tokens/s", console.amount(self._rate("tokens")), "ETPS", console.amount(now.etps),
            "eta", f"{now.eta:.3g}", "reuse", f"{100 * now.reuse_rate:.0f} %",
        )  # fmt: skip
        figures.add_row(
            "episodes", console.amount(now.episodes), "success", share, "reward", f"{now.reward:,.5g}",
            "steps", console.amount(now.steps),
        )  # fmt: skip
        figures.add_row(
            "cost", console.amount(now.bandwidth_spent), "saved", console.amount(saved),
            "learner", console.amount(now.learner_cost),
            "a success", "-" if now.cost_per_success is None else console.amount(now.cost_per_success),
        )  # fmt: skip
        return figures

    def _backbone(self) -> "RenderableType":
        now = self._latest
        figures = console.grid(4)
        if now.blocks is not None and now.blocks_free is not None:
            used = now.blocks - now.blocks_free
            figures.add_row("blocks", console.bar(used, now.blocks), "", f"{used:,} of {now.blocks:,}")
        if now.longest_wait is not None and now.wait_bound is not None:
            figures.add_row("passed over", f"at most {now.longest_wait:,} times", "of", f"{now.wait_bound:,}")
        if now.requests is not None:
            figures.add_row(
                "requests", f"{now.requests:,}", *_count("repeated", now.requests_retried or 0),
                "tokens sent", console.amount(now.input_tokens or 0), "money", f"{now.remote_cost or 0.0:,.4g}",
            )  # fmt: skip
        return figures


def _count(what: str, count: int) -> tuple[str, str]:
    """Something that should not happen often, and how often it did."""
    return what, f"[yellow]{count:,}[/]" if count else "0"
