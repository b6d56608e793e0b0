"""PyTorch: batches as tensors over the same memory, datasets for a ``DataLoader``, and copies to a GPU.

It needs ``pip install 'echo-shm[torch]'``. What it has stands in the modules beside it, whose names begin with
``torch_``: import it from here.
"""

try:
    import torch as _torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "echo_shm.adapters.torch needs PyTorch: pip install 'echo-shm[torch]'", name="torch"
    ) from None

from echo_shm.adapters.torch_copies import batches
from echo_shm.adapters.torch_datasets import ReplayDataset, RingDataset
from echo_shm.adapters.torch_pinning import pin_host_memory
from echo_shm.adapters.torch_tensors import as_tensors

__all__ = ["ReplayDataset", "RingDataset", "as_tensors", "batches", "pin_host_memory"]

del _torch
