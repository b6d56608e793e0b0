"""Whether every worker's steps reached the learner, each once and in order."""

from typing import NamedTuple

import numpy as np

from echo_shm.spec import Array

#: Faults that are kept as text; further ones are only counted.
_MAX_TEXTS = 5


class Step(NamedTuple):
    """A place in one worker's sequence: steps count from 0 in each episode, episodes from 0."""

    episode: int
    step: int

    def __str__(self) -> str:
        return f"episode {self.episode} step {self.step}"


class _Stream:
    """One worker process's sequence: the step that is due, and those that came before their turn."""

    def __init__(self) -> None:
        self.due = Step(0, 0)
        self.ahead: dict[Step, bool] = {}

    def advance(self, done: bool) -> None:
        """The step that was due came, and ended its episode or not; with it those that waited for it."""
        while True:
            self.due = Step(self.due.episode + 1, 0) if done else Step(self.due.episode, self.due.step + 1)
            if self.due not in self.ahead:
                return
            done = self.ahead.pop(self.due)


class SequenceCheck:
    """Follows each worker's ``(episode, step)`` through the batches in the order in which they are delivered.

    The slot of a producer that died is filled by whoever sends next, so one
    sample a re-opened slot may come before its turn, by less than the ring
    holds. It is kept until its turn comes. What re-opened slots do not explain
    is a fault: a step that never comes, comes twice, or comes too early or late.

    A worker that is started again is another process with another number, and
    so a sequence of its own.

    Args:
        capacity: Samples that the ring holds.

    Attributes:
        episodes: Episodes that were seen to end.
        early: Samples that came before their turn.
        faults: What was wrong, one line each; the first few.
        fault_count: How many faults there were.

    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._streams: dict[int, _Stream] = {}
        self.episodes = 0
        self.early = 0
        self.faults: list[str] = []
        self.fault_count = 0

    @property
    def workers(self) -> int:
        """Worker processes that were heard of."""
        return len(self._streams)

    def add(self, worker: Array, episode: Array, step: Array, done: Array) -> None:
        """Takes in a batch; all arrays have shape ``(n,)``, and ``done`` says that the step ended its episode."""
        self.episodes += int(np.count_nonzero(done))
        for number in np.unique(worker).tolist():
            mine = worker == number
            self._add_stream(number, episode[mine], step[mine], done[mine])

    def _add_stream(self, worker: int, episode: Array, step: Array, done: Array) -> None:
        stream = self._streams.setdefault(worker, _Stream())
        if not stream.ahead and _unbroken(stream.due, episode, step, done):
            stream.due = Step(int(episode[-1]), int(step[-1]))
            stream.advance(bool(done[-1]))
            return
        for e, s, d in zip(episode.tolist(), step.tolist(), done.tolist(), strict=True):
            self._add_step(worker, stream, Step(e, s), d)

    def _add_step(self, worker: int, stream: _Stream, step: Step, done: bool) -> None:
        if step == stream.due:
            stream.advance(done)
        elif step < stream.due or step in stream.ahead:
            self._fault(f"worker {worker}: {step} came again, or too late: {stream.due} was due")
        else:
            stream.ahead[step] = done
            self.early += 1
            if len(stream.ahead) > self._capacity:
                self._give_up_on(worker, stream)

    def _give_up_on(self, worker: int, stream: _Stream) -> None:
        """The step that is due was lost: goes on with the first one after it."""
        first = min(stream.ahead)
        self._fault(f"worker {worker}: {stream.due} never came; {first} came next")
        before = len(stream.ahead)
        stream.due = first
        stream.advance(stream.ahead.pop(first))
        self.early -= before - len(stream.ahead)

    def finish(self, reopened_slots: int) -> None:
        """Judges what is left over at the end of the stream.

        Args:
            reopened_slots: How many slots the ring counts as re-opened.

        """
        for worker, stream in self._streams.items():
            while stream.ahead:
                self._give_up_on(worker, stream)
        if self.early > reopened_slots:
            self._fault(f"{self.early} samples came before their turn, but only {reopened_slots} slots were re-opened")

    def _fault(self, text: str) -> None:
        self.fault_count += 1
        if len(self.faults) < _MAX_TEXTS:
            self.faults.append(text)


def _unbroken(due: Step, episode: Array, step: Array, done: Array) -> bool:
    """Whether the steps follow ``due`` and each other."""
    expected_episode = np.concatenate([[due.episode], episode[:-1] + done[:-1]])
    expected_step = np.concatenate([[due.step], np.where(done[:-1], 0, step[:-1] + 1)])
    return bool((episode == expected_episode).all() and (step == expected_step).all())
