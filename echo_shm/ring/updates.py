"""What the ring of updates brings: new priorities, deletions, a learner's update, or an ask for a ring of batches.

The C core checks and makes them, see csrc/replay/es_inbox.h.
"""

import numpy as np

from echo_shm._core import lib
from echo_shm.ring.batch_names import BatchRing
from echo_shm.spec import Array, Spec

#: How many keys a block of updates has room for.
UPDATE_KEYS: int = lib.ES_UPDATE_KEYS

#: An ``es_update_block``.
UPDATE_BLOCK = np.dtype(
    [
        ("table", np.uint32),
        ("kind", np.uint32),
        ("n", np.uint64),
        ("keys", np.uint64, (UPDATE_KEYS,)),
        ("priorities", np.float64, (UPDATE_KEYS,)),
    ]
)

#: What the ring's samples look like.
UPDATE_SPEC = Spec.from_example(np.zeros((), UPDATE_BLOCK))


def ask_for_batches(block: Array, one: BatchRing, num_batches: int) -> None:
    """Makes a block one that asks for a ring of batches, which is to hold so many, and for all others of its group."""
    block["table"], block["kind"], block["n"] = one.table, lib.ES_UPDATE_ASK, one.n
    block["keys"][:2] = num_batches, one.world_size
