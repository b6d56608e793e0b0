"""An evaluation: all runs that its configuration asks for, one after the other or beside each other."""

from dataclasses import dataclass
from typing import Any

from echo_shm.planning.evaluation.configs import EvaluationConfig


@dataclass(frozen=True)
class Results:
    """What came of an evaluation; ``results.json`` has the same.

    Attributes:
        runs: One mapping for each run that has ended: ``task``, ``agent``, ``backbone``, ``seed`` and the measures. A
            measure that such a run cannot have is None.
        left_out: ``task``, ``agent`` and ``why`` of each pair that does not fit together.
        summary: For each task and agent, each measure's mean or median with its interval.
        comparisons: For each task and pair of agents, paired differences with tests.

    """

    runs: list[dict[str, Any]]
    left_out: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]


class Evaluation:
    """Runs agents on tasks with several seeds, and compares them::

        results = asyncio.run(Evaluation(EvaluationConfig("results/", tasks="cartpole", seeds=3)).run())

    Start it under ``if __name__ == "__main__":``, since agents that learn have actors in processes.

    Args:
        config: What is evaluated.

    Raises:
        ValueError: A name is unknown; or the directory has the results of an evaluation with other settings.

    """

    def __init__(self, config: EvaluationConfig) -> None:
        self.config = config

    async def run(self) -> Results:
        """Makes the runs whose files are not there yet, and writes ``results.json``, the table and the plots.

        If it is cancelled, or the process killed, call it again with the same configuration to go on.
        """
        raise NotImplementedError
