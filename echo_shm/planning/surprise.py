"""Scores steps by how surprising their plans are: in the replay's own process, and in workers."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from echo_shm.planning.arguments import Doubles, Numbers
from echo_shm.planning.plans import EmaPlan, Plans, plan_surprise
from echo_shm.replay import Writer, arguments
from echo_shm.replay.layout import named_leaf
from echo_shm.replay.validation import at_least_zero
from echo_shm.spec import Array, Spec, Tree

#: The key of a leaf, or the keys that lead to it.
Name: TypeAlias = str | tuple[str | int, ...]


@dataclass(frozen=True)
class Scoring:
    """How a step is scored: ``plan_weight * ||plan - ema||² + reward_weight * |reward|``. It pickles.

    Attributes:
        plan: The leaf with the plan: its key, or a tuple of keys.
        reward: The leaf with the reward.
        dim: Numbers of a plan.
        dtype: That of the plan's leaf, and of the shared plan: ``"float32"`` or ``"float64"``.
        decay: Of the shared plan: see :class:`EmaPlan`.
        plan_weight, reward_weight: See :func:`plan_surprise`.

    """

    plan: Name
    reward: Name
    dim: int
    dtype: str
    decay: float
    plan_weight: float
    reward_weight: float

    @classmethod
    def of(
        cls, example: Tree, plan: Name, reward: Name, decay: float, plan_weight: float, reward_weight: float
    ) -> "Scoring":
        """How to score such steps.

        Raises:
            ValueError: A leaf is not there, has another shape, or a number is out of range.
            TypeError: The plan is of another dtype than float32 or float64, or the reward is no real number.

        """
        spec = Spec.from_example(example)
        one, earned = (spec.leaves[named_leaf(label, name, spec)] for label, name in _both(plan, reward))
        if one.dtype not in (np.float32, np.float64):
            raise TypeError(f"plan={plan!r}: the leaf is {one.dtype}: use float32 or float64")
        if len(one.shape) != 1 or one.shape[0] < 1:
            raise ValueError(f"plan={plan!r}: the leaf has shape {one.shape}: use (dim,)")
        if earned.dtype.kind not in "iuf":
            raise TypeError(f"reward={reward!r}: the leaf is {earned.dtype}: use floats or integers")
        if earned.shape != ():
            raise ValueError(f"reward={reward!r}: the leaf has shape {earned.shape}: use ()")
        EmaPlan(one.shape[0], decay)  # raises what is wrong with the decay
        weights = at_least_zero("plan_weight", plan_weight), at_least_zero("reward_weight", reward_weight)
        return cls(plan, reward, one.shape[0], one.dtype.name, float(decay), *weights)

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, said: dict[str, Any]) -> "Scoring":
        """What :meth:`as_dict` has said, also after it was JSON."""
        keys = {name: tuple(said[name]) if isinstance(said[name], list) else said[name] for name in ("plan", "reward")}
        return cls(**{**said, **keys})


def _both(plan: Name, reward: Name) -> tuple[tuple[str, Name], tuple[str, Name]]:
    return ("plan", plan), ("reward", reward)


class Scorer:
    """Scores steps, each before the shared plan takes its plan.

    Args:
        scoring: How.
        spec: What a step looks like.

    """

    def __init__(self, scoring: Scoring, spec: Spec) -> None:
        self.scoring = scoring
        self.ema = EmaPlan(scoring.dim, scoring.decay, np.dtype(scoring.dtype))
        #: One call at a time scores, sends and takes.
        self.lock = threading.RLock()
        self._spec = spec
        self._plan, self._reward = (named_leaf(*pair, spec) for pair in _both(scoring.plan, scoring.reward))
        # Environments of add_vector() whose next row is a reset, and no step.
        self._resets = np.zeros(0, bool)

    def score(self, plans: Plans, rewards: Numbers) -> float | Doubles:
        """By the shared plan as it is. It takes none."""
        one = self.scoring
        return plan_surprise(plans, self.ema, rewards, one.plan_weight, one.reward_weight)

    def add(self, step: Tree, store: Callable[[float], None]) -> None:
        """``store`` stores the step with that score. If it raises, the plan is taken only if ``sent`` says so."""
        leaves = arguments.exact_leaves(self._spec, step)
        plan = leaves[self._plan]
        with self.lock:
            score = self.score(plan, float(leaves[self._reward]))
            try:
                store(float(score))
            except BaseException as error:
                if getattr(error, "sent", 0):  # what the episode ends with was not
                    self.ema.update(plan)
                raise
            self.ema.update(plan)

    def extend(self, steps: Tree, store: Callable[[Doubles], None]) -> None:
        """The same of n steps, one after the other. If it raises, those are taken that ``sent`` says are stored."""
        _, leaves = arguments.stacked(self._spec, steps)
        plans, rewards = leaves[self._plan], leaves[self._reward].astype(np.float64)
        one = self.scoring
        with self.lock:
            before = self.ema.state
            scores = self.ema.score_and_update(
                plans, rewards, plan_weight=one.plan_weight, reward_weight=one.reward_weight
            )
            try:
                store(np.asarray(scores))
            except BaseException as error:
                self.ema.state = before
                self.ema.update(plans[: getattr(error, "sent", 0)])
                raise

    def add_vector(
        self,
        steps: Tree,
        ends: tuple[object, object],
        autoreset: object,
        environments: object,
        store: Callable[[Doubles], None],
        *,
        rest_follows: bool,
    ) -> None:
        """The same of a row of each of n environments. All are compared with the same shared plan, and then taken.

        ``rest_follows``: if it raises and ``sent`` is above 0, the other rows are stored later all the same.
        """
        n, leaves = arguments.stacked(self._spec, steps)
        plans = leaves[self._plan]
        with self.lock:
            scores = self.score(plans, leaves[self._reward].astype(np.float64))
            sent = 0
            try:
                store(np.asarray(scores))
                sent = n
            except BaseException as error:
                sent = getattr(error, "sent", 0)
                sent = n if sent and rest_follows else sent
                raise
            finally:
                if sent:  # what store() refuses may be of any shape
                    self.ema.update(plans[:sent][self._steps(n, ends, autoreset, environments, sent)])

    def _steps(
        self, n: int, ends: tuple[object, object], autoreset: object, environments: object, sent: int
    ) -> npt.NDArray[np.bool_]:
        """Which of the first rows are steps and no resets. Notes which environments' next rows are."""
        numbers = (np.arange(n) if environments is None else np.asarray(environments))[:sent]
        if sent and (most := int(numbers.max())) >= len(self._resets):
            self._resets = np.concatenate([self._resets, np.zeros(most + 1 - len(self._resets), bool)])
        skips = autoreset == "next_step"
        steps = ~self._resets[numbers] if skips else np.ones(sent, bool)
        over = np.zeros(sent, bool)
        for flags in ends:
            if flags is not None:
                over |= np.asarray(flags)[:sent]
        self._resets[numbers] = over & skips
        return steps

    def end_episode(self, environments: object = None) -> None:
        """The next row of these environments begins an episode; None: of all."""
        if environments is None:
            self._resets[:] = False
        else:
            numbers = np.asarray(environments)
            self._resets[numbers[numbers < len(self._resets)]] = False


class SurpriseWriter:
    """A worker's :class:`Writer` whose steps get a score as priority, by a shared plan of its own.

    The worker's shared plan begins with the first plan that it sends. To begin with the learner's, or to come back to
    it now and then, the learner publishes ``replay.ema.state`` among its weights, and the worker has the writer
    :meth:`adopt` it. In the replay a step keeps its score until an update: the learner may score what it draws by its
    own shared plan, with :meth:`HotColdReplay.surprise`.

    What a Writer has beside :meth:`add`, :meth:`extend` and :meth:`add_vector`, this has, too. Threads may share it. It
    is a context manager that closes the writer on exit.

    Args:
        writer: A Writer. Without a ``with`` block it stays the caller's to close.
        scoring: ``replay.scoring``.

    """

    def __init__(self, writer: Writer, scoring: Scoring) -> None:
        self._writer = writer
        self._scorer = Scorer(scoring, writer._steps)

    @property
    def ema(self) -> EmaPlan:
        """The worker's shared plan. Only look at it: other threads may be changing it. See :meth:`adopt`."""
        return self._scorer.ema

    def adopt(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """The worker's shared plan becomes another one, as the learner's. Waits for other threads that send.

        Args:
            state: ``replay.ema.state``: see :attr:`EmaPlan.state`.

        Raises:
            ValueError: As there.

        """
        with self._scorer.lock:
            self._scorer.ema.state = state

    @property
    def version(self) -> int:
        """As of :class:`Writer`."""
        return self._writer.version

    @version.setter
    def version(self, version: int) -> None:
        self._writer.version = version

    def add(
        self,
        step: Tree,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Tree = None,
        timeout: float | None = None,
    ) -> None:
        """As :meth:`Writer.add`, with the score as priority."""
        ends: dict[str, Any] = {"terminated": terminated, "truncated": truncated, "final": final, "timeout": timeout}
        self._scorer.add(step, lambda score: self._writer.add(step, score, **ends))

    def extend(
        self, steps: Tree, *, terminated: Any = None, truncated: Any = None, timeout: float | None = None
    ) -> None:
        """As :meth:`Writer.extend`, with the scores as priorities."""
        ends: dict[str, Any] = {"terminated": terminated, "truncated": truncated, "timeout": timeout}
        self._scorer.extend(steps, lambda scores: self._writer.extend(steps, scores, **ends))

    def add_vector(
        self,
        steps: Tree,
        terminated: Any,
        truncated: Any,
        autoreset: Literal["next_step", "same_step", "disabled"] = "next_step",
        *,
        final: Tree = None,
        timeout: float | None = None,
    ) -> None:
        """As :meth:`Writer.add_vector`, with the scores as priorities."""

        def send(scores: Array) -> None:
            self._writer.add_vector(
                steps, terminated, truncated, autoreset, final=final, priorities=scores, timeout=timeout
            )

        self._scorer.add_vector(steps, (terminated, truncated), autoreset, None, send, rest_follows=True)

    def end_episode(self, clear: bool = True, *, timeout: float | None = None) -> None:
        """As :meth:`Writer.end_episode`."""
        self._writer.end_episode(clear, timeout=timeout)
        self._scorer.end_episode()

    def __enter__(self) -> "SurpriseWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also where there is no writer yet: in a copy that is being made
            raise AttributeError(f"a SurpriseWriter has no {name!r}", name=name, obj=self)
        return getattr(self._writer, name)

    def __repr__(self) -> str:
        return f"<SurpriseWriter over {self._writer!r}>"


class Scored:
    """What a worker process runs: its function, with a writer that scores. It pickles."""

    def __init__(self, fn: Callable[..., Any], scoring: Scoring) -> None:
        self._fn, self._scoring = fn, scoring

    def __call__(self, writer: Writer, *args: Any) -> Any:
        """Runs it."""
        return self._fn(SurpriseWriter(writer, self._scoring), *args)
