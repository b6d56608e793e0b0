"""Text to tokens and back."""

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer.

    A context is tokenized piece by piece, as it grows, so that its tokens never change afterwards.
    """

    @property
    def end(self) -> int:
        """The token with which an answer ends. It is in no text."""
        ...

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any that mark its begin or end."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without the ending one."""
        ...


class ByteTokenizer:
    """The bytes of UTF-8 are tokens 0 to 255, and 256 ends an answer. ``vocab_size`` is 257."""

    end = 256
    vocab_size = 257

    def encode(self, text: str) -> list[int]:
        """The bytes of the text."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; U+FFFD stands for bytes that are none."""
        return bytes(token for token in tokens if token < 256).decode(errors="replace")
