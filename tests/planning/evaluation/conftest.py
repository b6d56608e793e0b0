"""PyTorch with one thread: its threads wait in loops, and these tests are run beside others."""

import contextlib

with contextlib.suppress(ModuleNotFoundError):  # then the tests that need it are skipped, or say so
    import torch

    torch.set_num_threads(1)
