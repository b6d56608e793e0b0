"""What a backbone is. There are two kinds, because only one of them has a KV cache that is ours.

- A :class:`LocalBackbone` runs in this process. It extends sequences of tokens, and keeps their keys and values in
  blocks whose numbers its caller chooses. The caller decides what is cached, shared and forgotten.
- A :class:`RemoteBackbone` is a server. It takes a conversation and returns a whole answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from echo_shm.errors import EchoShmError
from echo_shm.spec import Array


class BackboneError(EchoShmError):
    """A backbone raised an exception, answered nonsense, did not answer in time, or cannot be used any more."""


@dataclass(frozen=True)
class Part:
    """New tokens of one sequence, and where its keys and values lie.

    Token number ``start + i`` of the sequence is ``tokens[i]``. The keys and values of token ``t`` lie in block
    ``blocks[t // block_size]`` at place ``t % block_size``. Those of the tokens before ``start`` are there already.
    """

    #: int64 ``(m,)``, m at least 1.
    tokens: Array
    #: How many tokens of the sequence come before.
    start: int
    #: int64 ``(b,)``, b at least ``ceil((start + m) / block_size)``.
    blocks: Array
    #: float32 ``(p, width)``: a soft prefix, of a backbone that has a ``width``. The sequence's first p tokens are
    #: below 0 and stand for these embeddings. None: there is none.
    prefix: Array | None = None


@runtime_checkable
class LocalBackbone(Protocol):
    """A causal language model in this process, with a KV cache of ``num_blocks`` blocks.

    One thread at a time calls it.
    """

    @property
    def vocab_size(self) -> int:
        """Tokens are 0 to ``vocab_size - 1``."""
        ...

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks are 0 to ``num_blocks - 1``."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of the keys and values of a block, all layers together."""
        ...

    def extend(self, parts: Sequence[Part]) -> Array:
        """Reads new tokens of several sequences, and keeps their keys and values.

        The same part given again has the same effect. No block of one part is written by another.

        Returns:
            float32 ``(len(parts), vocab_size)``: the logits after the last token of each part.

        """
        ...


@dataclass(frozen=True)
class Message:
    """What one side of a conversation says."""

    role: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True)
class Completion:
    """What a server answered."""

    text: str
    #: Tokens that the server counted in what it was sent, of which it had ``cached_tokens`` in a cache of its own.
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@runtime_checkable
class RemoteBackbone(Protocol):
    """A server that completes conversations."""

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float = 1.0, stop: str | None = None
    ) -> Completion:
        """Asks for the next message of the assistant.

        Args:
            messages: The conversation. Those of the system come first.
            max_tokens: The answer has at most so many.
            temperature: 0 takes the likeliest token each time.
            stop: The answer ends before this text.

        Raises:
            BackboneError: The server refused, answered nonsense, or could not be reached, for as long as the backbone
                tries.

        """
        ...

    async def close(self) -> None:
        """Ends its connections. Idempotent."""
        ...
