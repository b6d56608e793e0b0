"""Questions about what code does, in CRUXEval's format."""

from collections.abc import Mapping
from typing import Any

from echo_shm.planning.environments.code_functions import Sample, load_samples, make_sample
from echo_shm.planning.environments.common import (
    LONGEST_ACTION,
    LONGEST_OBSERVATION,
    Environment,
    Strings,
    observed,
    text,
)
from echo_shm.planning.environments.configs import CodeConfig, configured
from echo_shm.planning.environments.limited_run import Result, literal, run


class CodeReasoning(Environment[str, str]):
    """A function is shown, and what a call returns, or which call returns a value, is asked.

    What of CRUXEval (Gu et al. 2024, arXiv:2401.03065) it is: its format (a function ``f``, an input, an output), its
    two tasks, and its criterion, that ``f(input) == output`` holds. What it is not: the functions are generated, short
    and regular, unless ``config.path`` is its file; an input must be literals, and an output must be an expression that
    does not use ``f``, where CRUXEval runs whatever the answer is; there is no prompt with examples. It has nothing of
    code repair.

    An observation is the question: the function's source, and ``assert f(...) == ??`` or ``assert f(??) == ...``. An
    action is what stands for ``??``, as a string. The reward is 1 for a right answer, which ends the episode, else 0;
    after ``config.tries`` answers it ends, too. ``info`` has ``"success"``, ``"sample"`` (its name) and ``"error"``
    (what was wrong with the last answer, or None).

    An answer that is a literal is compared here. What has to run runs in another process: see
    :mod:`~echo_shm.planning.environments.limited_run` for its limits, and for what they are not.

    Args:
        config: Which functions; None: the defaults.
        fields: Fields of the configuration.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no sample that fits.

    """

    def __init__(self, config: CodeConfig | None = None, **fields: Any) -> None:
        self.config = config = configured(CodeConfig, config, fields)
        super().__init__(config)
        self._samples = None if config.path is None else load_samples(config.path, config.max_code_length)
        if self._samples is None:
            make_sample(0, config.max_code_length)  # refuses a length that is too short
        self.observation_space = Strings(LONGEST_OBSERVATION)
        self.action_space = Strings(LONGEST_ACTION)
        self._sample = Sample("", "", "", "")
        self._tries = 0

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Asks about a function. ``options={"game": n}``: the one of that number, or the n-th one of the file."""
        if self._samples is None:
            self._sample = make_sample(self._begin(seed, options), self.config.max_code_length)
        else:
            self._sample = self._samples[self._begin(seed, options, len(self._samples))]
        self._tries = 0
        return self._question(), self._info(False, None)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Gives an answer."""
        answer = text(action).strip()
        truncated = self._count()
        result = self._output(answer) if self.config.task_type == "output" else self._returned(answer)
        success = result.error is None and _equal(result.value, self._sample.output)
        self._tries += 1
        over = success or self._tries == self.config.tries
        if over:
            self._end()
        return self._question(), float(success), over, truncated and not over, self._info(success, result.error)

    def answer(self) -> str:
        """A right answer, for demonstrations."""
        return self._sample.output if self.config.task_type == "output" else self._sample.arguments

    def _question(self) -> str:
        sample = self._sample
        call = (sample.arguments, "??") if self.config.task_type == "output" else ("??", sample.output)
        return observed(f"{sample.code}\nassert f({call[0]}) == {call[1]}")

    def _output(self, answer: str) -> Result:
        """The value of an answer. The function is not there when it is evaluated."""
        value, is_literal = literal(answer)
        return Result(value) if is_literal else self._run("", answer)

    def _returned(self, answer: str) -> Result:
        """What the function returns for an answer's arguments."""
        _, are_literals = literal(f"[{answer}\n]")  # arguments are parted by commas; a comment ends with its line
        if not are_literals:
            return Result(error=f"ValueError: {answer[:80]!r} is no literal, or literals with commas between")
        return self._run(self._sample.code, f"f({answer}\n)")

    def _run(self, code: str, expression: str) -> Result:
        return run(code, expression, timeout=self.config.timeout, memory=self.config.memory)

    def _info(self, success: bool, error: str | None) -> dict[str, Any]:
        return {"success": success, "sample": self._sample.name, "error": error}


def _equal(value: Any, output: str) -> bool:
    """Whether a value is what an output's source says."""
    expected, is_literal = literal(output)
    return is_literal and bool(value == expected)
