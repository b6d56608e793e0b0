"""RLlib: episode replay buffers for its off-policy algorithms on the new API stack.

RLlib finds them by name::

    buffer = {"type": "echo_shm.adapters.rllib.PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6}
    config = DQNConfig().training(replay_buffer_config=buffer)
"""

from typing import Any, Literal

import numpy as np
import optree

from echo_shm.missing import needs

# The last two come with ray[rllib], and not with ray alone.
with needs("adapters.rllib", "RLlib", "ray", "gymnasium", "tree"):
    from ray.rllib.utils import force_list, replay_buffers

from echo_shm.adapters.rllib_episodes import check_sample, figures, steps_of, transitions
from echo_shm.adapters.rllib_replay import Owner
from echo_shm.replay import NStep, Prioritized, Replay, Table, Uniform
from echo_shm.replay.selectors import Selector

__all__ = ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"]


class EpisodeReplayBuffer(Owner, replay_buffers.EpisodeReplayBuffer):
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

    Up to 1,000 episodes may go on at the same time. Each takes a file descriptor. Before one more begins, the one of
    which nothing came for the longest time is cut where it is.
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
        self._options = {"store": store, "name": name}
        self._table = Table("default", self._sampler(kwargs), item=self._item)
        self._seed, self._replay = seed, None
        self._spaces: tuple[Any, Any] = (None, None)
        self._drawn: Any = None  # the keys of the last sample
        self._num_episodes_added = self._num_items_evicted = 0

    def _sampler(self, options: dict[str, Any]) -> Selector:
        return Uniform()

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Stores the steps of episodes, or of pieces of them. A piece follows the one before with the same ``id_``.

        Where its ``t_started`` is not the ``t`` at which that one has ended, the episode is cut there, and the piece
        begins another one. RLlib's own buffer raises an AssertionError. A piece without steps is left out.
        """
        begun = added = 0
        for episode in filter(len, force_list(episodes)):
            if self._replay is None:
                step = optree.tree_map(lambda leaf: np.asarray(leaf[0]), steps_of(episode)[0])
                self._begin(Replay(step, self.capacity, [self._table], seed=self._seed, **self._options))
                self._spaces = episode.observation_space, episode.action_space
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
            RuntimeError: Nothing was added yet, no transition is complete yet, or the buffer is closed.

        """
        check_sample(self._item, n_step, gamma, batch_length_T, kwargs)
        n = num_items or batch_size_B or self.batch_size_B
        try:
            batch = None if self._replay is None else self._replay.sample(n, beta=beta, timeout=0)
        except TimeoutError:  # waiting does not help: this thread is the one that adds
            raise RuntimeError(
                f"sample(): no transition is complete yet: one takes n_step={self._item.n} steps and the next piece of "
                "the episode, or the episode's end: add more first"
            ) from None
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


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer, replay_buffers.PrioritizedEpisodeReplayBuffer):
    """The same with priorities: RLlib's ``PrioritizedEpisodeReplayBuffer``.

    Args:
        alpha: The exponent of the priorities, in ``kwargs``; 1.0 by default, as in RLlib. :meth:`sample` has beta.

    """

    def _sampler(self, options: dict[str, Any]) -> Selector:
        return Prioritized(options.get("alpha", 1.0))

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Gives the transitions of the last sample priorities: those at least that RLlib gives them.

        Raises:
            RuntimeError: There is no last sample.
            ValueError: They are not as many, or one is not finite.

        """
        if self._replay is None or self._drawn is None:
            raise RuntimeError("update_priorities(): nothing was drawn yet: call sample() first")
        self._replay.update(self._drawn, np.maximum(np.asarray(priorities, np.float64), 1e-12))
