"""How far a run of training is, on standard error."""

import importlib
import sys
from types import TracebackType
from typing import Any

from echo_shm.planning.agents.configs import TrainingConfig
from echo_shm.planning.training.metrics import TrainingMetrics


class Progress:
    """A bar on a terminal, if rich is installed. Elsewhere nothing is shown.

    Args:
        config: Of the run. With ``progress=False`` nothing is shown.

    """

    def __init__(self, config: TrainingConfig) -> None:
        self._bar: Any = None
        if not config.progress or not sys.stderr.isatty():
            return
        try:
            bars, consoles = importlib.import_module("rich.progress"), importlib.import_module("rich.console")
        except ModuleNotFoundError:
            return
        columns = [bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn()]
        columns += [bars.TextColumn("{task.fields[said]}"), bars.TimeRemainingColumn()]
        self._bar = bars.Progress(*columns, console=consoles.Console(stderr=True))
        self._task = self._bar.add_task(config.env_name, total=config.total_timesteps, said="")

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, metrics: TrainingMetrics) -> None:
        """Shows the latest figures."""
        if self._bar is None:
            return
        said = [] if metrics.avg_return is None else [f"return {metrics.avg_return:.1f}"]
        if metrics.evaluation_results:
            said.append(f"success {100 * metrics.evaluation_results['success_rate']:.0f} %")
        self._bar.update(self._task, completed=metrics.timesteps, said=", ".join(said))
