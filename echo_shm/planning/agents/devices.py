"""Where PyTorch can compute on this machine."""

from echo_shm.missing import needs

with needs("planning.agents", "PyTorch", "torch", extra="planning-agents"):
    import torch


def usable(device: str | torch.device) -> torch.device:
    """The device of that name, on which a number was put and read again.

    Raises:
        ValueError: PyTorch does not know it, or it is not here.

    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device={device!r} is none of PyTorch's: use 'cpu', or 'cuda' where there is one") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}, and PyTorch finds no CUDA here: use device='cpu'")
    try:
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"device={device!r} cannot be used here: {why:.200}: use device='cpu'") from None
    return found
