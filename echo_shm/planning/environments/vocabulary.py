"""A fixed set of words, and texts as their numbers; and numbers for words that nobody knows beforehand."""

import re
import zlib
from collections.abc import Iterable, Sequence

#: A word, or a mark that stands right behind one.
_PIECE = re.compile(r"[^\s.,:]+|[.,:]")
_MARKS = frozenset(".,:")


class Vocabulary:
    """Words and their numbers. The first four are ``<pad>`` (0), ``<end>`` (1), ``<unknown>`` (2) and ``<act>`` (3).

    A text is cut into words and the marks ``.``, ``,`` and ``:``. ``decode(encode(text))`` is the text, if its words
    are known, are parted by one space each, and each mark stands right behind a word.

    Attributes:
        words: All of them; a token is an index into it.

    Args:
        words: The words; one that comes twice is there once.

    """

    pad, end, unknown, act = range(4)

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(dict.fromkeys(["<pad>", "<end>", "<unknown>", "<act>", ".", ",", ":", *words]))
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: str) -> list[int]:
        """A text's tokens: a list of ints, 0 to ``len(vocabulary) - 1``. An unknown word is ``unknown``."""
        numbers = self._numbers
        return [numbers.get(piece, self.unknown) for piece in _PIECE.findall(words)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens. It ends at the first ``end``; ``pad`` is left out.

        Raises:
            ValueError: A token is not in the vocabulary.

        """
        out: list[str] = []
        for token in tokens:
            if not 0 <= token < len(self.words):
                raise ValueError(f"token {token!r}: use 0 to {len(self.words) - 1}")
            if token == self.end:
                break
            if token == self.pad:
                continue
            word = self.words[token]
            out.append(word if word in _MARKS or not out else f" {word}")
        return "".join(out)


class HashedWords:
    """Numbers for all words there are: a word's number follows from its CRC-32, in every process alike.

    Different words may have the same number: any two of them do so with a probability of 1 in ``numbers``. So numbers
    cannot be turned back into words. Weinberger et al., "Feature hashing for large scale multitask learning", 2009.

    The first four numbers are those of :class:`Vocabulary`, and no word has them.

    Args:
        numbers: How many numbers words have.

    """

    def __init__(self, numbers: int) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return self._numbers + 4

    def encode(self, words: str) -> list[int]:
        """A text's tokens, cut as :class:`Vocabulary` cuts it: a list of ints, 4 to ``len(self) - 1``."""
        return [
            4 + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % self._numbers for piece in _PIECE.findall(words)
        ]
