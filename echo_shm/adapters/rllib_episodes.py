"""RLlib's episodes as steps of a replay, and transitions of a replay as RLlib's episodes of one step."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import optree
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.spaces.space_utils import batch as stacked

from echo_shm.replay import Batch
from echo_shm.spec import Tree

#: Most steps that are sent before the replay stores them. Its inbox has room for more, however large they are.
_AT_ONCE = 8

#: How long the replay may take nothing (seconds). It is this process's own, so this is a failure.
_TIMEOUT = 30.0

#: Most episodes that may go on at the same time. The one that nothing came of for the longest time ends then.
_MOST_OPEN = 512


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

    Args:
        make: Makes a writer of the replay.
        store: Has the replay store what was sent.

    """

    def __init__(self, make: Callable[[], Any], store: Callable[[], object]) -> None:
        self._make, self._store = make, store
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._free: list[Any] = []

    def write(self, episode: SingleAgentEpisode) -> bool:
        """Sends an episode, or the next piece of one: whether it begins here."""
        writer = self._open.pop(episode.id_, None)
        begins = writer is None
        if writer is None:
            writer = self._free.pop() if self._free else self._make()
        steps, seen_last = steps_of(episode)
        n = len(steps["reward"])
        last = n - 1 if episode.is_done else n  # what an episode ends with goes with its last step
        for first in range(0, last, _AT_ONCE):
            writer.extend(optree.tree_map(lambda x: x[first : min(first + _AT_ONCE, last)], steps), timeout=_TIMEOUT)  # noqa: B023
            self._store()
        if episode.is_done and n:
            step = optree.tree_map(lambda x: x[-1], steps)
            ends = {"terminated": episode.is_terminated, "truncated": episode.is_truncated}
            writer.add(step, **ends, final={"obs": seen_last}, timeout=_TIMEOUT)
            self._store()
        if episode.is_done:
            self._free.append(writer)
            return begins
        self._open[episode.id_] = writer
        if len(self._open) > _MOST_OPEN:
            _, oldest = self._open.popitem(last=False)
            oldest.end_episode()
            self._free.append(oldest)
        return begins

    def close(self) -> None:
        """Closes all writers."""
        for writer in (*self._open.values(), *self._free):
            writer.close()
        self._open.clear()
        self._free.clear()


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
