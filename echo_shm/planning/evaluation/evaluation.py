"""An evaluation: all runs that its configuration asks for, one after the other or beside each other."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from echo_shm.errors import WorkerError
from echo_shm.planning.evaluation import models, report
from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.directory import Directory, write
from echo_shm.planning.evaluation.making import make
from echo_shm.planning.evaluation.runs import Run, plan
from echo_shm.planning.evaluation.summary import compare, summarize

#: How long a run that is interrupted may take to make its last checkpoint (seconds).
_GRACE = 30.0


@dataclass(frozen=True)
class Results:
    """What came of an evaluation; ``results.json`` has the same.

    Attributes:
        runs: One mapping for each run that has ended: ``task``, ``agent``, ``backbone``, ``seed``, and the fields of
            :class:`~echo_shm.planning.evaluation.measures.Measures`. What such a run cannot have is None.
        left_out: ``task``, ``agent`` and ``why`` of each pair that does not fit together.
        summary: For each task and agent, each measure over its seeds with an interval: see
            :func:`~echo_shm.planning.evaluation.summary.summarize`.
        comparisons: For each task and pair of agents: see :func:`~echo_shm.planning.evaluation.summary.compare`.
        machine: Where it was run last: processors, and versions of packages.

    """

    runs: list[dict[str, Any]]
    left_out: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    machine: dict[str, str]


class Evaluation:
    """Runs agents on tasks with several seeds, and compares them::

        results = asyncio.run(Evaluation(EvaluationConfig("results/", tasks="cartpole", seeds=3)).run())

    Start it under ``if __name__ == "__main__":``, since agents that learn have actors in processes.

    Args:
        config: What is evaluated.
        say: Called with a line when a run has ended. None: nothing is said.

    Raises:
        ValueError: A name is unknown; or the directory has the results of an evaluation with other settings, or of
            another version of echo_shm.

    """

    def __init__(self, config: EvaluationConfig, say: Callable[[str], object] | None = None) -> None:
        self.config = config
        self.runs, self.left_out = plan(config)
        self.directory = Directory(config)
        self._say = say or (lambda line: None)
        self._done = 0

    async def run(self) -> Results:
        """Makes the runs whose files are not there yet, and writes ``results.json`` and ``table.md``.

        If it is cancelled, or the process killed, call it again with the same configuration to go on: runs that have
        ended are not made again, and agents that learn go on from their checkpoints.

        Raises:
            ValueError: Another process makes runs there, results with other settings have come there since, the
                directory cannot be written, a file cannot be read, or there is no key for a server.
            ModuleNotFoundError: What a run needs is not installed.
            WorkerError: With ``jobs`` above 1: a run has failed. Those beside it are interrupted.
            BaseException: With one job: what the run raised.

        """
        with self.directory.locked():
            left = [run for run in self.runs if self.directory.result(run) is None]
            self._done = len(self.runs) - len(left)
            for backbone in dict.fromkeys(run.backbone for run in left):
                await models.look(backbone or "")
            for one in self.left_out:
                self._say(f"left out: {one.agent} on {one.task}: {one.why}")
            if self._done:
                self._say(f"{self._done} of {len(self.runs)} runs are there already")
            if self.config.jobs == 1:
                for run in left:
                    self._told(run, await make(self.config, self.directory, run))
            else:
                await self._beside_each_other(left)
            return self._finish()

    def results(self) -> Results:
        """What came of the runs that have ended."""
        runs = [found for run in self.runs if (found := self.directory.result(run)) is not None]
        left_out = [asdict(one) for one in self.left_out]
        return Results(runs, left_out, summarize(runs), compare(runs), report.machine())

    def table(self) -> str:
        """The table of what has ended, in Markdown, and where and when it was made."""
        results = self.results()
        return report.table(
            results.summary, results.comparisons, report.about(self.config, results.runs, self.left_out)
        )

    def draw(self, results: Results) -> list[Path]:
        """Draws learning curves, steps to the threshold and success into ``plots/``, and returns the files.

        Raises:
            ModuleNotFoundError: matplotlib is not there.

        """
        from echo_shm.planning.evaluation.plots import draw

        return draw(results.runs, results.summary, self.config.threshold, self.directory.path / "plots")

    def _finish(self) -> Results:
        results = self.results()
        write(self.directory.path / "results.json", json.dumps(asdict(results), indent=1))
        write(self.directory.path / "table.md", self.table())
        return results

    def _told(self, run: Run, result: dict[str, Any]) -> None:
        self._done += 1
        reached = "" if result["reached"] is None else f", {result['steps_to_threshold']:,} steps"
        reached += " (threshold not reached)" if result["reached"] is False else ""
        failed = f", {result['failed']} of {result['episodes']} episodes without an answer"
        reached += failed if result["failed"] else ""
        self._say(
            f"[{self._done}/{len(self.runs)}] {run.name}: success {result['success_rate']:.2f}, "
            f"return {result['avg_reward']:.2f}{reached}, {result['seconds']:.1f} s"
        )

    # -- processes

    async def _beside_each_other(self, left: list[Run]) -> None:
        """Makes runs in processes, at most so many at a time. The first that fails ends all."""
        waiting = iter(left)

        async def make_some() -> None:
            for run in waiting:
                await self._in_a_process(run)

        tasks = [asyncio.ensure_future(make_some()) for _ in range(self.config.jobs)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()  # once each: a second time would end what it does to interrupt its process
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _in_a_process(self, run: Run) -> None:
        settings = json.dumps(asdict(self.config))
        words = "-m", "echo_shm.planning.evaluation.child", settings, run.name, str(os.getpid())
        # In a session of its own: Ctrl-C comes here alone, and the run is interrupted by us, once.
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, start_new_session=True, stderr=asyncio.subprocess.PIPE
        )
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            await _interrupt(process)
            raise
        result = self.directory.result(run)
        if process.returncode or result is None:
            why = said.decode(errors="replace").strip()[-2000:]
            raise WorkerError(f"the run {run.name} ended with status {process.returncode}: {why}")
        self._told(run, result)


async def _interrupt(process: asyncio.subprocess.Process) -> None:
    """Lets a run make its last checkpoint, and ends it."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.communicate(), _GRACE)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
