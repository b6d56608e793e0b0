"""EchoRL's name of the questions about code."""

from echo_shm.planning.environments.code import CodeReasoning
from echo_shm.planning.environments.configs import CRUXEvalConfig

__all__ = ["CRUXEvalConfig", "CRUXEvalEnvironment"]


class CRUXEvalEnvironment(CodeReasoning):
    """EchoRL's name of :class:`CodeReasoning`. There, one function was to be repaired, by an action that repaired it.

    CRUXEval asks what a call returns, or which call returns a value, and so does this; it repairs nothing.
    """
