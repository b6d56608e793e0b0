"""Measures echo_shm against id-echo and against the machine itself; ``python -m bench`` from the repository root."""
