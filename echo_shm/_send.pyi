"""The common case of a send, as ``csrc/python/sendmodule.c`` has it."""

from typing import Any

import numpy as np

class Plan:
    """What the samples of one attachment look like: a capsule."""

def make_plan(
    es_api_send: int, es_ring: int, nbytes: int, leaves: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...], /
) -> Plan:
    """Makes a plan.

    Args:
        es_api_send: The address of the C function.
        es_ring: The address of the attachment. The caller keeps it alive for as long as the plan is used.
        nbytes: Bytes of one sample.
        leaves: The dtype and shape of each leaf.

    """

def send(plan: Plan, /, *leaves: object) -> bool:
    """Sends one sample if every leaf is a contiguous array of its dtype and shape and the ring has a free slot.

    Returns:
        Whether it was sent. If not, nothing was.

    """
