"""The programs that hold a replay buffer, and the environments of the other libraries.

Each library gets a virtual environment of its own in ``build/peers``, made when it is first needed. torch alone is
some gigabytes; where pip finds a smaller build of the same version, as through ``PIP_EXTRA_INDEX_URL``, it takes that.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.replay_program import Sizes

_ROOT = Path(__file__).resolve().parent.parent
_CACHE = _ROOT / "build" / "peers"

#: TorchRL tells of each storage that it makes; torch of workers that are killed, and of its own use of itself;
#: TensorFlow of what it was built for.
_QUIET = {
    "RL_LOGGING_LEVEL": "WARNING",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONWARNINGS": "ignore",
}


class ProgramError(RuntimeError):
    """A program ended without an answer. What it said is on standard error."""


@dataclass(frozen=True)
class Library:
    """A library, and the program that measures it.

    Attributes:
        module: The program.
        requirements: What is installed for it; nothing: it runs in this environment.

    """

    module: str
    requirements: tuple[str, ...] = ()

    def python(self) -> str:
        """The interpreter of its environment, which is made if it is not there.

        Raises:
            subprocess.CalledProcessError: pip cannot install it.

        """
        if not self.requirements:
            return sys.executable
        directory = _CACHE / self.module.rpartition(".")[2]
        interpreter, stamp = directory / "bin" / "python", directory / "requirements.txt"
        wanted = "\n".join(self.requirements)
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
            print(f"installing {', '.join(self.requirements)} into {directory} ...", file=sys.stderr, flush=True)
            venv.create(directory, clear=True, with_pip=True)
            subprocess.run(
                [interpreter, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *self.requirements],
                check=True,
                stdout=sys.stderr,
            )
            stamp.write_text(wanted, encoding="utf-8")  # last: it says that the rest is there
        return os.fspath(interpreter)


OWN = Library("bench.replay_own")
MACHINE = Library("bench.replay_machine")
CPPRB = Library("bench.replay_cpprb", ("cpprb==11.0.0",))
REVERB = Library("bench.replay_reverb", ("dm-reverb==0.14.0", "tensorflow-cpu==2.14.1"))
TORCHRL = Library("bench.replay_torchrl", ("torchrl==0.14.1", "tensordict==0.14.3", "torch==2.14.1"))


def installed(library: Library) -> bool:
    """Whether a library can be measured; says on standard error why not."""
    try:
        library.python()
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"no ratios to {library.requirements[0]}, which cannot be installed: {error}", file=sys.stderr)
        return False
    return True


class Program:
    """A program that is ready to measure one row.

    Args:
        library: Whose buffer it holds.
        row: The row's name in the program.
        sizes: How much it stores and measures.

    Raises:
        ProgramError: It ended instead.

    """

    def __init__(self, library: Library, row: str, sizes: Sizes) -> None:
        self._what = f"{library.module}, row {row!r}"
        self._process = subprocess.Popen(
            [library.python(), "-m", library.module, row, json.dumps(asdict(sizes))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env={**os.environ, **(_QUIET if library.requirements else {})},
            start_new_session=True,  # so that it ends with the processes that it started
        )
        try:
            #: The library's name and version.
            self.version = str(self._answer())
        except BaseException:
            self.close()
            raise

    def measure(self) -> list[float]:
        """One measurement's values."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; the answer says so
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return [float(value) for value in self._answer()]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ProgramError(f"{self._what}: ended with status {self._process.wait()} instead of an answer")
        return json.loads(line)

    def close(self) -> None:
        """Ends it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(10)  # its input has ended
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
