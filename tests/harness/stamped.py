"""Samples that say which process made them, in what order, and whether they are whole."""

from typing import Any

import numpy as np

WORDS = 32  # of payload: 256 bytes
_FACTORS = np.arange(1, 2 * WORDS, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def example() -> dict[str, Any]:
    """One sample; its arrays are the caller's."""
    return {
        "incarnation": np.zeros((), np.int64),
        "sequence": np.zeros((), np.int64),
        "payload": np.zeros(WORDS, np.uint64),
        "sum": np.zeros((), np.uint64),
    }


def examples(n: int) -> dict[str, Any]:
    """n samples, stacked."""
    return {key: np.zeros((n, *leaf.shape), leaf.dtype) for key, leaf in example().items()}


def stamp(sample: dict[str, Any], incarnation: int, sequence: int) -> dict[str, Any]:
    """Writes a sample in place, payload first: the sum of a torn sample is wrong."""
    key = (incarnation * 0x100000001B3 + sequence * 0xD6E8FEB86659FD93 + 1) & _MASK
    payload = sample["payload"]
    np.multiply(_FACTORS, np.uint64(key), out=payload)
    sample["incarnation"][...] = incarnation
    sample["sequence"][...] = sequence
    sample["sum"][...] = payload.sum()
    return sample


def stamp_many(samples: dict[str, Any], incarnation: int, first: int) -> dict[str, Any]:
    """The same for stacked samples first, first + 1, ..."""
    for i in range(len(samples["sequence"])):
        stamp({key: leaf[i, ...] for key, leaf in samples.items()}, incarnation, first + i)
    return samples


#: How many samples have the same version, at most: those of a send_many() have that of the first.
SAME, MANY = 64, 128


def version(incarnation: int, sequence: int) -> int:
    """The version of the weights that the sender sets for this sample, and for those after it in the same call."""
    return (incarnation + 1) << 32 | sequence - sequence % SAME


def misdated(batch: dict[str, Any], versions: Any) -> Any:
    """Indices of the samples of a batch that have the version of another one."""
    after = batch["sequence"] - (versions & 0xFFFFFFFF)
    return np.flatnonzero((versions >> 32 != batch["incarnation"] + 1) | (after < 0) | (after >= SAME + MANY))


def torn(batch: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Indices of the samples of a batch that are not whole."""
    incarnations = batch["incarnation"].astype(np.uint64)
    sequences = batch["sequence"].astype(np.uint64)
    keys = incarnations * np.uint64(0x100000001B3) + sequences * np.uint64(0xD6E8FEB86659FD93) + np.uint64(1)
    wrong = (batch["payload"] != keys[:, None] * _FACTORS).any(axis=1)
    return np.flatnonzero(wrong | (batch["sum"] != batch["payload"].sum(axis=1, dtype=np.uint64)))


def stamps(batch: dict[str, Any]) -> list[tuple[int, int]]:
    """(incarnation, sequence) of each sample of a batch, which must be whole."""
    assert not torn(batch).size, f"torn samples: {torn(batch)}"
    return list(zip(batch["incarnation"].tolist(), batch["sequence"].tolist(), strict=True))
