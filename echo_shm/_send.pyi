"""The common case of a send, and of publishing and copying weights, as ``csrc/python/sendmodule.c`` has it."""

from typing import Any

import numpy as np

class Plan:
    """What the samples of one attachment look like: a capsule."""

def make_plan(
    function: int,
    es_ring: int,
    nbytes: int,
    leaves: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...],
    writes: bool = False,
    /,
) -> Plan:
    """Makes a plan.

    Args:
        function: The address of the C function. It takes the attachment and an array of pointers to the leaves. It
            returns ``int`` for :func:`send`, ``int64_t`` for :func:`call`.
        es_ring: The address of the attachment. The caller keeps it alive for as long as the plan is used.
        nbytes: Bytes of one sample.
        leaves: The dtype and shape of each leaf.
        writes: Whether the function writes into the leaves.

    """

def send(plan: Plan, /, *leaves: object) -> bool:
    """Sends one sample if every leaf is a contiguous array of its dtype and shape, or a usual scalar that fits, and the
    ring has a free slot.

    Returns:
        Whether it was sent. If not, nothing was.

    """

def call(plan: Plan, /, *leaves: object) -> int | None:
    """Calls the function if every leaf is a contiguous array of its dtype and shape, writable if it must be.

    Returns:
        What the function returned; None: it was not called.

    """
