"""The directory of an evaluation: its settings, a file for each run that has ended, and what runs are at.

    evaluation.json     the settings, and the version of echo_shm; written when the first run begins
    runs/NAME.json      a run that has ended
    at/NAME/            checkpoints of a run that has not
    own/                language models that were trained here
    results.json, table.md, plots/

A file is complete when it has its name, so whoever is killed at any moment, the next one goes on. Until there are files
of runs, checkpoints or models, other settings replace those that are there.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.measures import Measures
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
    """The settings that results depend on, as JSON has them; echo_shm's version, too."""
    settings: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    kept = {name: value for name, value in settings.items() if name not in _FREE}
    return {"version": version("echo-shm"), **kept}


class Directory:
    """Where an evaluation's results are. Nothing is written before :meth:`locked`.

    Args:
        config: The evaluation's.

    Raises:
        ValueError: There are results of an evaluation with other settings, or of another version of echo_shm: the
            message names both.
        OSError: It cannot be read.

    """

    def __init__(self, config: EvaluationConfig) -> None:
        self.path = Path(config.output)
        self._settings = settings_of(config)
        self._check()

    def _check(self) -> None:
        """Looks whether what is there, if anything, was made with these settings."""
        if not self._used():
            return
        settings, file = self._settings, self.path / "evaluation.json"
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{self.path} has results, and no evaluation.json: use another directory") from None
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

    def _used(self) -> bool:
        """Whether there is a file that settings have made. One that begins with a dot is a lock, or unfinished."""
        folders = (self.path / name for name in ("runs", "at", "own"))
        found = (path for folder in folders for path in folder.rglob("*"))
        return any(path.is_file() and not path.name.startswith(".") for path in found)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Within the block no other process makes runs here. It has written the settings.

        Raises:
            ValueError: Another one does; it cannot be written; or there are, by now, results with other settings.

        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("a")
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written: {error}: use another directory") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"another process makes runs in {self.path}: wait for it, or use another") from None
            self._check()  # once more: who had the lock before may have made runs since
            write(self.path / "evaluation.json", json.dumps(self._settings, indent=1))
            yield

    def result(self, run: Run) -> dict[str, Any] | None:
        """What came of a run; None if it has not ended.

        Raises:
            ValueError: Its file cannot be read.

        """
        path = self._file(run)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}: remove it, and that run is made again") from None
        if not isinstance(found, dict) or any(found.get(name) != value for name, value in run.as_dict().items()):
            raise ValueError(f"{path} is of another run: remove it, and that run is made again")
        missing = [one.name for one in fields(Measures) if one.name not in found]
        if missing:
            raise ValueError(f"{path} has no {', '.join(missing)}: remove it, and that run is made again")
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
