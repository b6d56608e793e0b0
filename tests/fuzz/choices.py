"""The source of a fuzzer's choices: ``below(n)`` is a number from 0 to n - 1."""

from collections.abc import Callable

Below = Callable[[int], int]


def choices_of(data: bytes) -> Below:
    """Each choice uses up one or two bytes of an input; after the end of the input it is 0."""
    at = 0

    def below(n: int) -> int:
        nonlocal at
        width = 1 if n <= 256 else 2
        number = int.from_bytes(data[at : at + width], "little")
        at += width
        return number % n

    return below
