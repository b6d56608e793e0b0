"""The next token of each of several sequences, from their logits."""

from collections.abc import Sequence

import numpy as np

from echo_shm.spec import Array


def draw(logits: Array, temperatures: Array, uniforms: Sequence[float]) -> tuple[Array, Array]:
    """Draws from the softmax of each row.

    Args:
        logits: float ``(n, vocab_size)``, finite or -inf, one of each row finite.
        temperatures: float64 ``(n,)``: the logits are divided by it; 0 takes the largest one.
        uniforms: n numbers, at least 0 and below 1: which token comes.

    Returns:
        The tokens, int64 ``(n,)``, and the logarithms of their probabilities, float64 ``(n,)``. These are of the
        distribution that was drawn from; at temperature 0, of the one at temperature 1.

    """
    greedy = temperatures == 0
    scaled = logits.astype(np.float64)
    scaled -= scaled.max(axis=1, keepdims=True)
    scaled /= np.where(greedy, 1.0, temperatures)[:, None]
    weights = np.exp(scaled)
    sums = weights.cumsum(axis=1)
    thresholds = np.asarray(uniforms)[:, None] * sums[:, -1:]
    drawn = (sums <= thresholds).sum(axis=1)
    # A product may be rounded up to the sum itself: the last token with a weight is meant then.
    drawn = np.minimum(drawn, weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(axis=1))
    tokens = np.where(greedy, logits.argmax(axis=1), drawn)
    rows = np.arange(len(tokens))
    return tokens, scaled[rows, tokens] - np.log(sums[:, -1])


def checked_logits(logits: object, n: int, vocab_size: int) -> Array:
    """What a backbone has returned, if it can be logits.

    Raises:
        TypeError, ValueError: It cannot. Its numbers are not looked at.

    """
    if not isinstance(logits, np.ndarray) or logits.dtype.kind != "f":
        what = f"dtype {logits.dtype}" if isinstance(logits, np.ndarray) else type(logits).__name__
        raise TypeError(f"the backbone returned {what}: an array of floats was expected")
    if logits.shape != (n, vocab_size):
        raise ValueError(f"the backbone returned logits of shape {logits.shape}: {(n, vocab_size)} was expected")
    return logits


def is_usable(row: Array) -> bool:
    """Whether these logits ``(vocab_size,)`` are a distribution: numbers or -inf, at least one of them finite."""
    return bool(np.isfinite(row.max()))
