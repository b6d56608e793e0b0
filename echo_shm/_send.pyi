"""The common case of a send, and of publishing and copying weights, as ``csrc/python/sendmodule.c`` has it."""

from typing import Any

import numpy as np

from echo_shm._batch import Leaf

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

class VectorPlan:
    """What a writer's environments are, and what their steps look like: a capsule."""

def make_vector_plan(
    function: int,
    es_ring: int,
    keep: object,
    leaves: tuple[Leaf, ...],
    form: Any,
    needed: tuple[int, ...],
    stream: int,
    environments: np.ndarray[Any, Any],
    num_tables: int,
    head_bytes: int,
    /,
) -> VectorPlan:
    """Makes a plan.

    Args:
        function: The address of ``es_api_send_many``.
        es_ring: The address of the attachment, which ``keep`` keeps.
        keep: Lives as long as the plan.
        leaves: An array of n for each leaf of a step. The address does not count.
        form: The steps' tree with the leaves' numbers at its leaves. None: nothing is sent.
        needed: The leaves that an episode's last observations must have, by number.
        stream: The random number that names the stream.
        environments: n times an ``es_environment``. :func:`send_vector` reads and changes it.
        num_tables: How many priorities a head has.
        head_bytes: The size of a head.

    """

def send_vector(
    plan: VectorPlan, steps: Any, terminated: object, truncated: object, autoreset: object, final: Any, /
) -> int | None:
    """Sends a step of each environment, and what episodes end with, if all are common and the ring has room.

    One thread at a time uses a plan and its environments.

    Returns:
        None: All were sent, and the environments are those after it. Otherwise how many samples were sent, and the
        environments are as before: the caller makes the same samples, and sends the others.

    """
