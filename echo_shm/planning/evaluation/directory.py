"""The directory of an evaluation: its settings, a file for each run that has ended, and what runs are at.

    evaluation.json     the settings, written first
    runs/NAME.json      a run that has ended
    at/NAME/            checkpoints of a run that has not
    own/                language models that were trained here
    results.json, table.md, plots/

A file is complete when it has its name, so whoever is killed at any moment, the next one goes on.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.runs import Run

#: Settings that change no result.
_FREE = ("output", "jobs")


def write(path: Path, text: str) -> None:
    """Writes a file that is there whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def settings_of(config: EvaluationConfig) -> dict[str, Any]:
    """The settings that results depend on, as JSON has them."""
    settings: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return {name: value for name, value in settings.items() if name not in _FREE}


class Directory:
    """Where an evaluation's results are.

    Args:
        config: The evaluation's.

    Raises:
        ValueError: There are results of an evaluation with other settings, which the message names.
        OSError: It cannot be written.

    """

    def __init__(self, config: EvaluationConfig) -> None:
        self.path = Path(config.output)
        settings = settings_of(config)
        file = self.path / "evaluation.json"
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            write(file, json.dumps(settings, indent=1))
            return
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: {error}: use another directory") from None
        if not isinstance(before, dict):
            raise ValueError(f"{file} has no settings: use another directory")
        names = sorted({*settings, *before})
        other = [
            f"{name}={settings.get(name)!r:.80}, there {before.get(name)!r:.80}"
            for name in names
            if settings.get(name) != before.get(name)
        ]
        if other:
            raise ValueError(
                f"{self.path} has results of an evaluation with other settings: {'; '.join(other)}: use another "
                "directory, or the same settings"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Within the block no other process makes runs here.

        Raises:
            ValueError: Another one does.

        """
        with (self.path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"another process makes runs in {self.path}: wait for it, or use another") from None
            yield

    def result(self, run: Run) -> dict[str, Any] | None:
        """What came of a run; None if it has not ended.

        Raises:
            ValueError: Its file cannot be read.

        """
        path = self._file(run)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}: remove it, and that run is made again") from None
        if not isinstance(found, dict) or any(found.get(name) != value for name, value in run.as_dict().items()):
            raise ValueError(f"{path} is of another run: remove it, and that run is made again")
        return found

    def finish(self, run: Run, result: dict[str, Any]) -> None:
        """Writes what came of a run, and removes its checkpoints."""
        write(self._file(run), json.dumps(result, indent=1, allow_nan=False))
        shutil.rmtree(self.at(run), ignore_errors=True)

    def at(self, run: Run) -> Path:
        """Where a run has its checkpoints."""
        return self.path / "at" / run.name

    @property
    def own(self) -> Path:
        """Where language models are that were trained here."""
        return self.path / "own"

    def _file(self, run: Run) -> Path:
        return self.path / "runs" / f"{run.name}.json"
