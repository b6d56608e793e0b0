"""RLlib's episodes as steps of a replay, and transitions of a replay as RLlib's episodes of one step."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import optree
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.spaces.space_utils import batch as stacked

from echo_shm.replay import Batch, NStep
from echo_shm.spec import Tree

#: Most steps that are sent before the replay stores them. Its inbox has room for more, however large they are.
_AT_ONCE = 8

#: How long the replay may take nothing (seconds). It is this process's own, so this is a failure.
_TIMEOUT = 30.0

#: Most episodes that may go on at the same time: nearly as many as a replay has writers.
_MOST_OPEN = 1000


def steps_of(episode: SingleAgentEpisode) -> tuple[Tree, Tree]:
    """The steps of an episode, or of a piece of one; and the observation that the last of them has led to.

    The leaves of the steps are ``"obs"``, ``"action"`` and ``"reward"``, which is float32. Each has a leading n.
    """
    seen, done = _array(episode.get_observations()), _array(episode.get_actions())
    rewards = np.asarray(episode.get_rewards(), np.float32)
    before, last = optree.tree_map(lambda x: x[:-1], seen), optree.tree_map(lambda x: x[-1], seen)
    return {"obs": before, "action": done, "reward": rewards}, last


def _array(values: Any) -> Tree:
    return stacked(values) if isinstance(values, list) else values


class Streams:
    """A writer for each episode that goes on, so that its pieces follow each other in the replay.

    An episode ends where a piece of it does not begin where the last one has ended: one was lost, or came twice. The
    piece begins another episode. At most 1,000 episodes go on. Before one more begins, the one ends of which nothing
    came for the longest time.

    Args:
        make: Makes a writer of the replay.
        store: Has the replay store what was sent.

    """

    def __init__(self, make: Callable[[], Any], store: Callable[[], object]) -> None:
        self._make, self._store = make, store
        self._open: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # a writer, and the next step's t
        self._free: list[Any] = []

    def write(self, episode: SingleAgentEpisode) -> bool:
        """Sends an episode of one step or more, or the next piece of one: whether it begins here."""
        writer, t = self._open.pop(episode.id_, (None, None))
        begins = bool(t != episode.t_started)
        if writer is None:
            writer = self._unused()
        elif begins:
            writer.end_episode(timeout=_TIMEOUT)
        steps, seen_last = steps_of(episode)
        n = len(steps["reward"])
        last = n - 1 if episode.is_done else n  # what an episode ends with goes with its last step
        for first in range(0, last, _AT_ONCE):
            writer.extend(optree.tree_map(lambda x: x[first : min(first + _AT_ONCE, last)], steps), timeout=_TIMEOUT)  # noqa: B023
            self._store()
        if episode.is_done:
            step = optree.tree_map(lambda x: x[-1], steps)
            ends = {"terminated": episode.is_terminated, "truncated": episode.is_truncated}
            writer.add(step, **ends, final={"obs": seen_last}, timeout=_TIMEOUT)
            self._store()
            self._free.append(writer)
        else:
            self._open[episode.id_] = writer, episode.t
        return begins

    def _unused(self) -> Any:
        """A writer for a new episode."""
        if self._free:
            return self._free.pop()
        if len(self._open) < _MOST_OPEN:
            return self._make()
        _, (oldest, _) = self._open.popitem(last=False)
        oldest.end_episode(timeout=_TIMEOUT)
        return oldest

    def close(self) -> None:
        """Closes all writers."""
        for writer in (*(writer for writer, _ in self._open.values()), *self._free):
            writer.close()
        self._open.clear()
        self._free.clear()


def check_sample(item: NStep, n_step: int | None, gamma: float | None, length: int | None, others: Any) -> None:
    """Refuses to sample what a buffer of transitions does not have.

    Args:
        item: What the buffer has.
        n_step, gamma: What is wanted; None: whatever it has.
        length: Of a sequence.
        others: All the other arguments of ``sample()`` by name.

    Raises:
        ValueError: It does not have that.

    """
    if n_step not in (None, item.n) or gamma not in (None, item.gamma):
        raise ValueError(
            f"n_step={n_step}, gamma={gamma}: the buffer has n_step={item.n}, gamma={item.gamma}: put the algorithm's "
            "into replay_buffer_config"
        )
    names = "include_extra_model_outputs", "include_infos", "lookback", "min_batch_length_T"
    wrong = [name for name in names if others.get(name)] + ["batch_length_T"] * ((length or 0) > 1)
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: this buffer has transitions alone: use one of RLlib's own buffers")


def transitions(batch: Batch, spaces: tuple[Any, Any]) -> list[SingleAgentEpisode]:
    """An episode of one step for each item of a batch of ``NStep``.

    Args:
        batch: What was drawn.
        spaces: Of the observations, and of the actions.

    """
    data: Any = batch.data
    rows = zip(
        _rows(data["obs"]),
        _rows(data["next"]["obs"]),
        _rows(data["action"]),
        data["reward"],
        (data["discount"] == 0).tolist(),
        batch.weight,
        data["n"],
        strict=True,
    )
    observation_space, action_space = spaces
    return [
        SingleAgentEpisode(
            observations=[obs, following],
            observation_space=observation_space,
            actions=[action],
            action_space=action_space,
            rewards=[reward],
            terminated=terminated,
            truncated=False,
            extra_model_outputs={"weights": [weight], "n_step": [n]},
            len_lookback_buffer=0,
        )
        for obs, following, action, reward, terminated, weight, n in rows
    ]


def _rows(tree: Tree) -> Any:
    """The rows of arrays with a leading n: trees."""
    if isinstance(tree, np.ndarray):
        return tree
    leaves, treespec = optree.tree_flatten(tree)
    return [treespec.unflatten(row) for row in zip(*leaves, strict=True)]


def figures(counts: dict[str, int], **others: float) -> dict[str, Any]:
    """What RLlib's metrics of a buffer are told: each figure is the environment's, the agent's and the module's."""
    said: dict[str, Any] = dict(others)
    for name, value in counts.items():
        said[f"num_env_{name}" if name.startswith("steps") else f"num_{name}"] = value
    for whose, key in (("agent", DEFAULT_AGENT_ID), ("module", DEFAULT_MODULE_ID)):
        said |= {f"{whose}_to_num_{name}": {key: value} for name, value in counts.items()}
        said |= {f"{whose}_to_{name}": {key: value} for name, value in others.items()}
    return said
