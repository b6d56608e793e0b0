"""Steps of a replay that hold the tokens of a rollout."""

from collections.abc import Sequence

import numpy as np

from echo_shm.planning.rollouts.config import Turn
from echo_shm.replay.validation import integer
from echo_shm.spec import Array


class TextSteps:
    """Makes steps of fixed size of the turns of an episode: what :class:`RolloutEngine` takes as ``record``.

    Leaves of a step:

    - ``context``: int32 ``(context,)``, the last tokens that the policy had read before it answered, ended by zeros;
      ``context_length``: how many these are;
    - ``action``: int32 ``(action,)``, the answer's first tokens, ended by zeros; ``action_length``;
    - ``log_prob``: float32 ``(action,)``, of these tokens when they were drawn;
    - ``reward``: float32; ``version``: int32, of the weights, as in :class:`Turn`.

    Args:
        context: Tokens of a context.
        action: Tokens of an answer; ``max_action_tokens`` of the engine loses none.

    """

    def __init__(self, context: int = 256, action: int = 32) -> None:
        self.context, self.action = integer("context", context, 1), integer("action", action, 1)

    @property
    def example(self) -> dict[str, Array]:
        """A step of zeros, for ``Replay(example, ...)``."""
        return {
            "context": np.zeros(self.context, np.int32),
            "context_length": np.zeros((), np.int32),
            "action": np.zeros(self.action, np.int32),
            "action_length": np.zeros((), np.int32),
            "log_prob": np.zeros(self.action, np.float32),
            "reward": np.zeros((), np.float32),
            "version": np.zeros((), np.int32),
        }

    def __call__(self, turns: Sequence[Turn]) -> dict[str, Array]:
        """The steps of an episode: each leaf has a leading ``len(turns)``."""
        steps = {name: np.zeros((len(turns), *leaf.shape), leaf.dtype) for name, leaf in self.example.items()}
        context: list[int] = []
        for i, turn in enumerate(turns):
            context += turn.observation_tokens
            read, action = context[-self.context :], turn.action_tokens[: self.action]
            steps["context"][i, : len(read)] = read
            steps["context_length"][i] = len(read)
            steps["action"][i, : len(action)] = action
            steps["action_length"][i] = len(action)
            steps["log_prob"][i, : len(action)] = turn.log_probs[: len(action)]
            steps["reward"][i], steps["version"][i] = turn.reward, turn.version
            context += turn.action_tokens
        return steps
