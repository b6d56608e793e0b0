"""``echo-shm demo --replay``: environments in worker processes fill a replay, and a learner draws from it.

:func:`play` is the whole worker and :func:`learn` the whole learner. The display is in
:mod:`echo_shm.cli.demo.replay_view`.
"""

import time

import numpy as np

from echo_shm.cli import console
from echo_shm.cli.demo import demo
from echo_shm.cli.demo.replay_view import Draws, ReplayView
from echo_shm.errors import SegmentError
from echo_shm.replay import Prioritized, Replay, SampleToInsertRatio, Table, Writer, listing
from echo_shm.ring import lockfile
from echo_shm.spec import Array
from echo_shm.workers.group import WorkerGroup

#: The table, how many steps the replay holds, and the most memory for them (bytes).
_TABLE = "train"
_CAPACITY, _MOST_BYTES = 50_000, 1 << 30

#: How many samples belong to an item, how many items must be there first, and how far the two may be from that.
_RATIO, _MIN_SIZE, _ERROR_BUFFER = 8.0, 1_000, 8_000.0

#: The learner's largest error. Items that were never drawn have this priority.
_LARGEST_ERROR = 3.0

#: How long the learner waits for a batch before it looks whether the workers have finished (seconds).
_PATIENCE = 0.25


def play(writer: Writer, env_id: str, seed: int, deadline: float) -> None:
    """The worker: plays random actions and sends every transition.

    Args:
        writer: A writer into the learner's replay.
        env_id, seed, deadline: As for :func:`echo_shm.cli.demo.demo.play`.

    """
    env = demo.make_env(env_id)
    transition = demo.blank_transition(env)
    for _ in demo.transitions(env, transition, seed, deadline):
        # It waits while the inbox is full. A new item has the highest priority so far.
        writer.add(transition, terminated=bool(transition["terminated"]), truncated=bool(transition["truncated"]))


def learn(replay: Replay, group: WorkerGroup, batch_size: int, draws: Draws) -> None:
    """The learner: draws batches until the workers have finished, and sets priorities to errors that it makes up."""
    rng = np.random.default_rng(0)
    while not group.finished:
        try:
            batch = replay.sample(batch_size, _TABLE, timeout=_PATIENCE)
        except TimeoutError:
            continue  # what was drawn for it comes first in the next call
        if batch is None:
            return
        # As of a learner that gets better at what it has seen often.
        errors = np.minimum(rng.exponential(size=batch_size) / np.sqrt(batch.times_sampled), _LARGEST_ERROR)
        replay.update(batch.key, errors, _TABLE)
        draws.add(batch)


def run(env_id: str, workers: int, batch_size: int, seconds: float) -> int:
    """Runs the demo. Returns the exit status: 1 if nothing was drawn, or something was left in shared memory.

    Raises:
        UsageError: There is no such environment, its spaces are not supported, a package is missing, or the batch size
            is too large.
        SegmentError: Shared memory is too small.

    """
    console.need("rich", "demo")
    example = demo.example_of(env_id)
    step_bytes = sum(leaf.nbytes for leaf in example.values())
    with demo.terminated_cleanly(), _replay(example, step_bytes, batch_size) as replay:
        name = replay.handle.name
        draws = Draws()
        view = ReplayView(replay, _TABLE, f"{env_id}, {console.plural(workers, 'worker')}", seconds, draws, step_bytes)
        deadline = time.monotonic() + seconds
        with replay.spawn(
            play,
            workers,
            [env_id] * workers,
            range(workers),
            [deadline] * workers,
            restart=True,
            max_restarts=1000,
        ) as group:
            with view:
                learn(replay, group, batch_size, draws)
            view.summarise(group.restarts)
    left = [one for one in (*lockfile.names(), *listing.names()) if one == name or one.startswith(f"{name}.")]
    view.say_what_is_left(left)
    return 1 if left or draws.samples == 0 else 0


def _replay(example: dict[str, Array], step_bytes: int, batch_size: int) -> Replay:
    capacity = max(2 * _MIN_SIZE, min(_CAPACITY, _MOST_BYTES // step_bytes))
    if batch_size > capacity:
        raise console.UsageError(f"--batch-size {batch_size}: the demo's replay holds {capacity:,} steps; use fewer")
    table = Table(
        _TABLE,
        Prioritized(alpha=0.6, beta=0.4),
        rate_limiter=SampleToInsertRatio(_RATIO, _MIN_SIZE, _ERROR_BUFFER),
    )
    try:
        return Replay(example, capacity, [table], thread=True)
    except MemoryError as error:
        raise SegmentError(str(error)) from None
