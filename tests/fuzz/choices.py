"""Choices of a fuzzer: ``below(n)`` is a number from 0 to n - 1."""

from collections.abc import Callable

Below = Callable[[int], int]


def choices_of(data: bytes) -> Below:
    """Choices from an input: one or two bytes for each, zeros after its end."""
    at = 0

    def below(n: int) -> int:
        nonlocal at
        width = 1 if n <= 256 else 2
        number = int.from_bytes(data[at : at + width], "little")
        at += width
        return number % n

    return below
