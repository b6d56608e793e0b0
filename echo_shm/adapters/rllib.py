"""RLlib: episode replay buffers for its off-policy algorithms on the new API stack.

RLlib finds them by name::

    buffer = {"type": "echo_shm.adapters.rllib.PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6}
    config = DQNConfig().training(replay_buffer_config=buffer)
"""

import tempfile
from typing import Any, Literal

import numpy as np
import optree

from echo_shm.adapters.missing import needs

# The last two come with ray[rllib], and not with ray alone.
with needs("rllib", "RLlib", "ray", "gymnasium", "tree"):
    from ray.rllib.utils import force_list, replay_buffers

from echo_shm.adapters.folders import read_files, write_files
from echo_shm.adapters.rllib_episodes import Streams, figures, steps_of, transitions
from echo_shm.replay import NStep, Prioritized, Replay, ReplayClient, Table, Uniform
from echo_shm.replay.selectors import Selector

__all__ = ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"]


class EpisodeReplayBuffer(replay_buffers.EpisodeReplayBuffer):
    """RLlib's ``EpisodeReplayBuffer`` of transitions over an echo_shm :class:`Replay`, sampled uniformly.

    Each observation is stored once. The transitions at an episode's end are there, too: of fewer than n steps, as their
    ``n_step`` says. RLlib's own buffer leaves them out.

    Args:
        capacity: Most steps. The oldest ones go.
        n_step, gamma: Of the transitions. They are those of the algorithm.
        store, name, seed: As for :class:`Replay`.
        metrics_num_episodes_for_smoothing: As in RLlib.
        kwargs: What RLlib gives to all buffers. It has no effect.

    Raises:
        ValueError, SegmentError: As for :class:`Replay`.

    It is for single agents whose modules have no state: sequences, infos and other model outputs are not stored.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        store: Literal["memory", "shm"] | str = "memory",
        name: str | None = None,
        seed: int = 0,
        metrics_num_episodes_for_smoothing: int = 100,
        **kwargs: Any,
    ) -> None:
        replay_buffers.EpisodeReplayBuffer.__init__(
            self, capacity, metrics_num_episodes_for_smoothing=metrics_num_episodes_for_smoothing
        )
        if gamma == 0:
            raise ValueError("gamma=0: a discount of 0 says that an episode was terminated: use a gamma above 0")
        self._item = NStep(n_step, gamma, observation=["obs"])
        self._options: dict[str, Any] = {"store": store, "name": name}
        self._seed, self._selector = seed, self._sampler(kwargs)
        self._replay: Replay | None = None
        self._spaces: tuple[Any, Any] = (None, None)
        self._drawn: Any = None  # the keys of the last sample
        self._num_episodes_added = self._num_items_evicted = 0

    def _sampler(self, options: dict[str, Any]) -> Selector:
        return Uniform()

    def _begin(self, replay: Replay) -> None:
        self._replay, self._client = replay, ReplayClient(replay.handle)
        self._streams = Streams(self._client.writer, lambda: replay.num_steps)

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Stores the steps of episodes, or of pieces of them. A piece follows the one before with the same ``id_``."""
        begun = added = 0
        for episode in force_list(episodes):
            if self._replay is None and len(episode):
                step = optree.tree_map(lambda leaf: np.asarray(leaf[0]), steps_of(episode)[0])
                table = Table("default", self._selector, item=self._item)
                self._begin(Replay(step, self.capacity, [table], seed=self._seed, **self._options))
                self._spaces = episode.observation_space, episode.action_space
            if self._replay is not None:
                begun += self._streams.write(episode)
                added += len(episode)
        if self._replay is None:
            return
        before, evicted = self._num_items_evicted, int(self.get_num_episodes_evicted())
        self._num_items_evicted = int(self._info.deleted)
        self._num_timesteps_added += added
        self._num_episodes_added += begun
        self._num_episodes_evicted = max(evicted, self._num_episodes_added - self.get_num_episodes())
        gone = self._num_episodes_evicted - evicted
        changed = {"episodes_added": begun, "steps_added": added, "episodes_evicted": gone}
        self._update_add_metrics(**figures({**changed, "steps_evicted": self._num_items_evicted - before}))

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | None = None,
        beta: float | None = None,
        gamma: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Draws transitions: a list of episodes of one step, as RLlib's prioritized buffer returns them.

        Raises:
            ValueError: ``n_step`` or ``gamma`` is not the buffer's, or a sequence is wanted, infos, or model outputs.
            RuntimeError: Nothing was added yet, or the buffer is closed.

        """
        if n_step not in (None, self._item.n) or gamma not in (None, self._item.gamma):
            raise ValueError(
                f"n_step={n_step}, gamma={gamma}: the buffer has n_step={self._item.n}, gamma={self._item.gamma}: put "
                "the algorithm's into replay_buffer_config"
            )
        others = {"include_infos", "include_extra_model_outputs", "lookback", "min_batch_length_T"}
        wrong = sorted(name for name in others if kwargs.get(name)) + ["batch_length_T"] * ((batch_length_T or 0) > 1)
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: this buffer has transitions alone: use one of RLlib's own buffers")
        n = num_items or batch_size_B or self.batch_size_B
        batch = None if self._replay is None else self._replay.sample(n, beta=beta, timeout=60.0)
        if batch is None:
            raise RuntimeError("sample(): nothing was added yet, or the buffer is closed")
        self._drawn = batch.key
        self.sampled_timesteps += n
        drawn = {"steps_sampled": n, "steps_per_sample": len(np.unique(batch.key)), "resamples": 0}
        mean_n = float(batch.data["n"].mean())
        self._update_sample_metrics(**figures({**drawn, "episodes_per_sample": 0}, sampled_n_step=mean_n))
        return transitions(batch, self._spaces)

    def get_num_episodes(self, module_id: Any = None) -> int:
        """How many episodes have transitions in the buffer."""
        return 0 if self._replay is None else self._info.episodes

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """How many transitions may be drawn: one for each step, once the n steps from it on came, or all to the end."""
        return 0 if self._replay is None else self._info.size

    @property
    def _info(self) -> Any:
        assert self._replay is not None
        return self._replay.info("default")

    def get_state(self) -> dict[str, Any]:
        """All that is stored, as arrays of bytes: see :meth:`Replay.checkpoint`."""
        names = ("_num_items_evicted", "_num_timesteps_added", "_num_episodes_added", "_num_episodes_evicted")
        state = {name: getattr(self, name) for name in (*names, "sampled_timesteps", "_spaces")}
        with tempfile.TemporaryDirectory() as folder:
            if self._replay is not None:
                self._replay.checkpoint(folder)
            return {"counts": state, "files": read_files(folder)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on with such a state. Episodes that went on then do not: their next pieces are episodes of their own."""
        self.close()
        for name, value in state["counts"].items():
            setattr(self, name, value)
        with tempfile.TemporaryDirectory() as folder:
            write_files(folder, state["files"])
            if state["files"]:
                self._begin(Replay.restore(folder, **self._options))

    def close(self) -> None:
        """Ends the replay. Idempotent."""
        if self._replay is not None:
            self._streams.close()
            self._client.close()
            self._replay.close()


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer, replay_buffers.PrioritizedEpisodeReplayBuffer):
    """The same with priorities: RLlib's ``PrioritizedEpisodeReplayBuffer``.

    Args:
        alpha: The exponent of the priorities, in ``kwargs``; 1.0 by default, as in RLlib. :meth:`sample` has beta.

    """

    def _sampler(self, options: dict[str, Any]) -> Selector:
        return Prioritized(options.get("alpha", 1.0))

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Gives the transitions of the last sample priorities: those at least that RLlib gives them."""
        assert self._replay is not None
        self._replay.update(self._drawn, np.maximum(np.asarray(priorities, np.float64), 1e-12))
