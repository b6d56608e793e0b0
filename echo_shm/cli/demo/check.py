"""Checks that every worker's steps reach the learner, each once and in order. The demo shows the verdict."""

from typing import NamedTuple

import numpy as np

from echo_shm.spec import Array

#: How many faults are kept as text. Further ones are only counted.
_MAX_TEXTS = 5


class Step(NamedTuple):
    """A position in one worker's sequence. Episodes count from 0, and so do the steps in each."""

    episode: int
    step: int

    def __str__(self) -> str:
        return f"episode {self.episode} step {self.step}"


class _Stream:
    """The sequence of one worker process: the step that is due, and those that came before their turn."""

    def __init__(self) -> None:
        self.due = Step(0, 0)
        self.ahead: dict[Step, bool] = {}

    def advance(self, done: bool) -> None:
        """Takes the step that was due, and then those that came before their turn. ``done``: it ended an episode."""
        while True:
            self.due = Step(self.due.episode + 1, 0) if done else Step(self.due.episode, self.due.step + 1)
            if self.due not in self.ahead:
                return
            done = self.ahead.pop(self.due)


class SequenceCheck:
    """Follows each worker's ``(episode, step)`` through the batches, in the order in which they are delivered.

    If a producer dies, the next sample of any producer fills its slot. So for each re-opened slot, one sample may
    come before its turn, by less than the ring holds. It is kept until its turn comes. Everything that re-opened
    slots do not explain is a fault: a step that never comes, comes twice, or comes too early or too late.

    A worker that is started again is another process with another number. It has a sequence of its own.

    Args:
        capacity: Samples that the ring holds.

    Attributes:
        episodes: Episodes that have ended.
        early: Samples that came before their turn.
        faults: The first few faults, one line each.
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
        """How many worker processes have sent anything."""
        return len(self._streams)

    def add(self, worker: Array, episode: Array, step: Array, done: Array) -> None:
        """Takes a batch. All arrays have shape ``(n,)``. ``done`` is true for steps that ended their episode."""
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
        """The step that is due was lost: continues with the first one after it."""
        first = min(stream.ahead)
        self._fault(f"worker {worker}: {stream.due} never came; {first} came next")
        before = len(stream.ahead)
        stream.due = first
        stream.advance(stream.ahead.pop(first))
        self.early -= before - len(stream.ahead)

    def finish(self, reopened_slots: int) -> None:
        """Checks what is left at the end of the stream.

        Args:
            reopened_slots: How many slots were re-opened, according to the ring.

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
    """Whether the steps follow ``due`` and each other without a gap."""
    expected_episode = np.concatenate([[due.episode], episode[:-1] + done[:-1]])
    expected_step = np.concatenate([[due.step], np.where(done[:-1], 0, step[:-1] + 1)])
    return bool((episode == expected_episode).all() and (step == expected_step).all())
