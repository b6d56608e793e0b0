"""A ring's memory as CUDA wants it for fast copies. ``echo_shm.adapters.torch`` has what users call."""

import os
import weakref
from collections.abc import Callable

import numpy as np
import torch

from echo_shm import Server
from echo_shm.ring.segment import Segment

#: cudaHostRegisterPortable: every CUDA context of the process finds the memory pinned.
_PORTABLE = 1

#: What unregisters each ring that is registered.
_registered: "weakref.WeakKeyDictionary[Segment, weakref.finalize[..., Segment]]" = weakref.WeakKeyDictionary()


def pin_host_memory(server: Server) -> Callable[[], object]:
    """Registers the ring's memory with CUDA, so that copies from it to a GPU are direct and asynchronous.

    It stays registered until nothing of this process refers to the ring's memory any more, or the process ends. Then it
    is unregistered, before it is unmapped. Memory that is registered is not swapped out.

    Returns:
        A function that unregisters the memory at once. No copy from it may be under way then. Idempotent.

    Raises:
        RuntimeError: CUDA refused. The message has its error's number.
        AssertionError: This PyTorch was built without CUDA.

    """
    segment = server._segment
    known = _registered.get(segment)
    if known is not None and known.alive:
        return known
    address = np.frombuffer(segment.mapping, np.uint8).ctypes.data
    code = int(torch.cuda.cudart().cudaHostRegister(address, segment.size, _PORTABLE))
    if code:
        raise RuntimeError(
            f"CUDA cannot pin the {segment.size:,} bytes of ring {server.name!r}: cudaHostRegister returned error "
            f"{code}. Is there a limit on locked memory (ulimit -l)? Copies work without pin_host_memory, more slowly"
        )
    # Batches keep the segment. The mapping is an argument so that it is still there when this is called.
    done = _registered[segment] = weakref.finalize(segment, _unregister, address, segment.mapping, os.getpid())
    return done


def _unregister(address: int, mapping: object, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has registered nothing
        torch.cuda.cudart().cudaHostUnregister(address)
