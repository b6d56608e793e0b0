"""A replay with a hot and a cold part, which scores steps by how surprising their plans are."""

import functools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from echo_shm.errors import SegmentError
from echo_shm.planning.arguments import Doubles, Numbers
from echo_shm.planning.plans import EmaPlan, Plans
from echo_shm.planning.surprise import Name, Scored, Scorer, Scoring
from echo_shm.replay import HotCold, HotColdInfo, MinHeap, Replay, Table
from echo_shm.replay.item import Item
from echo_shm.replay.table import lay_out_table
from echo_shm.replay.validation import integer, number
from echo_shm.ring.protocols import Transport
from echo_shm.spec import Array, Spec, Tree
from echo_shm.workers.group import WorkerGroup

_TABLE = "experience"

#: Steps beyond those of items, unless the caller says how many.
_SPARE_STEPS = 256

#: The store's notes: the bytes of the text that follows (int64), a text that says how steps are scored, how many plans
#: the shared plan has taken (int64), and the shared plan.
_NUMBER = np.dtype(np.int64)


class HotColdReplay(Replay):
    """A :class:`Replay` of one table with a hot and a cold part, drawn by surprise.

    A step's score is its priority: ``plan_weight * ||plan - ema||² + reward_weight * |reward|``, before the shared plan
    takes the step's plan: see :class:`EmaPlan`. The table is a ``Table("experience", sampler=HotCold(...),
    remover=MinHeap())``, and all about ages, shares, probabilities and weights is said at :class:`HotCold`. The learner
    calls :meth:`learned` once for each of its updates, or :meth:`ReplayClient.learned` if it is another process. When
    there are ``hot_size + cold_size`` items, the one with the lowest score goes for the next. It may be that one.

    A hot item becomes cold where it is: it keeps its key, and :meth:`update` finds it. All else is as of any replay:
    workers, learners in other processes, checkpoints, stores that outlive a kill. They have the shared plan, too. After
    a kill it may lack the plans of the last call, whose steps are stored.

    Steps that workers send have the scores that their writers give them: see :class:`SurpriseWriter`, which
    :meth:`spawn` gives to each worker. A plain :class:`Writer` without a priority gives the highest score so far. The
    shared plan takes what this process stores, and what :meth:`observe` is given.

    Args:
        example: As for :class:`Replay`, with a plan and a reward among its leaves.
        hot_size: Most hot items.
        cold_size: How many items more there can be in all.
        plan: The leaf with the plan, ``(dim,)`` of float32 or float64: its key, or a tuple of keys.
        reward: The leaf with the reward, a number.
        decay, plan_weight, reward_weight: Of the score: see :class:`EmaPlan` and :func:`plan_surprise`.
        hot_share: Of the draws, that come from the hot part: 0 to 1.
        age_threshold: How many updates of the learner old an item is at most, while it is hot.
        max_age: How many it is at most, while it is there at all; None: any number.
        temperature: Of the draws in each part: ``exp(score / temperature)``.
        target_effective: The effective sample size of each part, as a share of its items, for which its temperature is
            chosen; None: it stays. Scores as they are leave most draws to a few items, if the temperature does not fit
            them.
        beta: Exponent of the importance weights ``(N * P) ** -beta``.
        item: As of :class:`Table`. It has the score of the step that completes it.
        spare_steps: Steps beyond one for each item, for what items refer to, and for what streams keep: their last
            steps, whose items may have gone, and what episodes end with. If they do not suffice, the oldest items go,
            whatever their scores. None: as many as all items need where no two have a step in common, and 256. So
            there is memory for ``(hot_size + cold_size) * length`` steps with a ``Sequence`` of that length. Where
            items overlap, or episodes are short, fewer suffice.
        store, name, sync_every, seed, thread, max_producers, transport: As for :class:`Replay`.

    Raises:
        ValueError: A number is out of range, or a leaf is not there, or has another shape.
        TypeError: A leaf has another dtype.
        SegmentError, MemoryError: As for :class:`Replay`.

    """

    def __init__(
        self,
        example: Tree,
        hot_size: int,
        cold_size: int,
        *,
        plan: Name = "plan",
        reward: Name = "reward",
        decay: float = 0.99,
        plan_weight: float = 1.0,
        reward_weight: float = 1.0,
        hot_share: float = 0.7,
        age_threshold: int = 1000,
        max_age: int | None = None,
        temperature: float = 1.0,
        target_effective: float | None = None,
        beta: float = 0.4,
        item: Item | None = None,
        spare_steps: int | None = None,
        store: Literal["memory", "shm"] | str | os.PathLike[str] = "memory",
        name: str | None = None,
        sync_every: float | None = 60.0,
        seed: int = 0,
        thread: bool = False,
        max_producers: int = 1024,
        transport: Transport | Sequence[Transport] | None = None,
    ) -> None:
        if not 0 <= number("hot_share", hot_share) <= 1:
            raise ValueError(f"hot_share={hot_share!r}: use a number from 0 to 1")
        sampler = HotCold(hot_size, hot_share, age_threshold, max_age, temperature, target_effective, beta)
        size = sampler.hot_size + integer("cold_size", cold_size, 1)
        scoring = Scoring.of(example, plan, reward, decay, plan_weight, reward_weight)
        spec = Spec.from_example(example)
        self._scorer = Scorer(scoring, spec)
        self._notes_size = len(self._notes())
        table = Table(_TABLE, sampler, MinHeap(), size, item=item)
        if spare_steps is None:
            # An item that stays keeps all of its steps.
            spare_steps = size * (lay_out_table(table, spec).span - 1) + _SPARE_STEPS
        super().__init__(
            example,
            size + integer("spare_steps", spare_steps, 1),
            [table],
            store=store,
            name=name,
            sync_every=sync_every,
            seed=seed,
            thread=thread,
            max_producers=max_producers,
            transport=transport,
        )

    def _open(self, *args: Any, **kwargs: Any) -> None:
        """Also attach() and restore() come here. Then the store says how its steps are scored."""
        super()._open(*args, **kwargs)
        try:
            if hasattr(self, "_scorer"):
                self._keep()
            else:
                self._scorer = self._kept()
                self._check_tables()
        except BaseException:
            (self.close if kwargs["is_new"] else self._let_go)()
            raise

    # -- what the store keeps

    def _notes(self) -> npt.NDArray[np.uint8]:
        state, text = self._scorer.ema.state, json.dumps(self._scorer.scoring.as_dict()).encode()
        head = np.array(len(text), _NUMBER).tobytes() + text + np.asarray(state["updates"], _NUMBER).tobytes()
        return np.frombuffer(bytearray(head + state["plan"].tobytes()), np.uint8)

    def _keep(self) -> None:
        """Has the store keep the shared plan."""
        self._checked(self._core.set_notes(self._notes()))

    def _kept(self) -> Scorer:
        notes = np.zeros(self._store.notes_size, np.uint8)
        self._checked(self._core.notes(notes))
        what = f"{self._store.what} is no HotColdReplay"
        if len(notes) < 2 * _NUMBER.itemsize:
            raise SegmentError(f"{what}: use Replay.attach() or Replay.restore()")
        try:
            size = int(notes[: _NUMBER.itemsize].view(_NUMBER)[0])
            text, rest = np.split(notes[_NUMBER.itemsize :], [size])
            scorer = Scorer(Scoring.from_dict(json.loads(text.tobytes())), self._spec)
            updates, plan = rest[: _NUMBER.itemsize].tobytes(), rest[_NUMBER.itemsize :].tobytes()
            scorer.ema.state = {
                "plan": np.frombuffer(plan, scorer.ema.dtype),
                "updates": np.frombuffer(updates, _NUMBER)[0],
            }
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise SegmentError(f"{what}, or it is damaged: {error!r:.200}") from None
        return scorer

    def _check_tables(self) -> None:
        """It may be restored into other tables."""
        if len(self._names) > 1:
            names = ", ".join(map(repr, self._names))
            raise ValueError(f"tables: a HotColdReplay has one table, and these are {len(self._names)}: {names}")
        (name,) = self._names
        if not self._store.tables[name].is_hot_cold:
            raise ValueError(f"tables: table {name!r} has another sampler: use HotCold(...), or Replay.restore()")

    # -- scores

    @property
    def scoring(self) -> Scoring:
        """How steps are scored. It pickles: ``SurpriseWriter(writer, replay.scoring)``."""
        return self._scorer.scoring

    @property
    def ema(self) -> EmaPlan:
        """The shared plan. Only look at it: what it takes by itself is not kept by the store. See :meth:`observe`."""
        return self._scorer.ema

    def surprise(self, plans: Plans, rewards: Numbers) -> float | Doubles:
        """Scores plans by the shared plan as it is, for :meth:`update`. It does not take them.

        Args:
            plans: ``(dim,)`` or ``(n, dim)``.
            rewards: A number, or ``(n,)``.

        Returns:
            float64 ``(n,)``; a float for one plan.

        Raises:
            ValueError: As :func:`plan_surprise`.

        """
        with self._scorer.lock:
            return self._scorer.score(plans, rewards)

    def observe(self, plans: Plans) -> None:
        """The shared plan takes these plans, one after the other: for instance those of steps that workers have sent.

        Args:
            plans: ``(dim,)`` or ``(n, dim)``.

        Raises:
            ValueError: As :meth:`EmaPlan.update`.
            ConnectionClosedError: The replay is closed.

        """
        with self._scorer.lock:
            self._refuse_closed()
            self._scorer.ema.update(plans)
            self._keep()

    # -- storing

    def add(
        self,
        step: Tree,
        priority: "float | dict[str, float | None] | None" = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Tree = None,
        timeout: float | None = 0.0,
    ) -> None:
        """As :meth:`Replay.add`. Without a priority the step has its score. The shared plan takes its plan then.

        Raises:
            ValueError: The plan or the reward is not finite, or the score overflows; or as :meth:`Replay.add`.

        """
        ends: dict[str, Any] = {"terminated": terminated, "truncated": truncated, "final": final, "timeout": timeout}
        plain = super().add

        def store(score: float) -> None:
            plain(step, score if priority is None else priority, **ends)

        with self._scorer.lock:
            self._scorer.add(step, store)
            self._keep()

    def extend(
        self,
        steps: Tree,
        priorities: Any = None,
        *,
        terminated: Any = None,
        truncated: Any = None,
        timeout: float | None = 0.0,
    ) -> None:
        """As :meth:`Replay.extend`, and as :meth:`add`: each step is scored before the shared plan takes its plan."""
        ends: dict[str, Any] = {"terminated": terminated, "truncated": truncated, "timeout": timeout}
        plain = super().extend

        def store(scores: Doubles) -> None:
            plain(steps, scores if priorities is None else priorities, **ends)

        with self._scorer.lock:
            try:
                self._scorer.extend(steps, store)
            finally:
                self._keep_unless_closed()

    def add_vector(
        self,
        steps: Tree,
        terminated: Any,
        truncated: Any,
        autoreset: Literal["next_step", "same_step", "disabled"] = "next_step",
        *,
        final: Tree = None,
        priorities: Any = None,
        environments: Any = None,
        timeout: float | None = 0.0,
    ) -> None:
        """As :meth:`Replay.add_vector`. The rows are scored by the same shared plan, which then takes their plans."""
        plain = super().add_vector

        def store(scores: Array) -> None:
            given = scores if priorities is None else priorities
            plain(
                steps,
                terminated,
                truncated,
                autoreset,
                final=final,
                priorities=given,
                environments=environments,
                timeout=timeout,
            )

        with self._scorer.lock:
            try:
                self._scorer.add_vector(
                    steps, (terminated, truncated), autoreset, environments, store, rest_follows=False
                )
            finally:
                self._keep_unless_closed()

    def end_episode(self, environments: Any = None) -> None:
        """As :meth:`Replay.end_episode`."""
        with self._scorer.lock:
            super().end_episode(environments)
            self._scorer.end_episode(environments)

    def _keep_unless_closed(self) -> None:
        if not self._core.closed:
            self._keep()

    def spawn(
        self,
        fn: Callable[..., Any],
        n: int,
        *per_worker_args: Sequence[Any],
        context: Literal["spawn", "forkserver", "fork"] = "spawn",
        restart: bool | Literal["always"] = False,
        on_death: Literal["raise", "ignore"] = "raise",
        max_restarts: int = 10,
    ) -> WorkerGroup:
        """As :meth:`Replay.spawn`, but each worker's writer is a :class:`SurpriseWriter`."""
        scored = functools.wraps(fn, updated=())(Scored(fn, self.scoring))  # its name, and no attributes
        return super().spawn(
            scored,
            n,
            *per_worker_args,
            context=context,
            restart=restart,
            on_death=on_death,
            max_restarts=max_restarts,
        )

    # -- looking

    @property
    def parts(self) -> HotColdInfo:
        """The figures of the hot and the cold part: those of ``info().hot_cold``."""
        self._rings.look()
        found = self._info(0).hot_cold
        assert found is not None
        return found
