"""What the ring of updates brings to a replay: blocks of new priorities, of deletions, or an ask for a ring of batches.

The C core checks and makes them, see csrc/replay/es_inbox.h.
"""

import numpy as np

from echo_shm._core import lib
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


def ask_for_batches(block: Array, table: int, n: int, num_batches: int) -> None:
    """Makes a block one that asks for the ring of batches of n items of a table; it is to hold so many."""
    block["table"], block["kind"], block["n"], block["keys"][0] = table, lib.ES_UPDATE_ASK, n, num_batches
