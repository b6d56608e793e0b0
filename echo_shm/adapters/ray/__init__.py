"""Replays and streams over the nodes of a Ray cluster: ``pip install 'echo-shm[ray]'``.

Ray places processes, and says when they die. Samples do not pass through it: within a node they move through shared
memory, and between nodes over echo_shm's bridge.
"""

from echo_shm.missing import needs

with needs("adapters.ray", "Ray", "ray"):
    import ray as ray

from echo_shm.adapters.ray.filling import RayBatch
from echo_shm.adapters.ray.replay import RayReplay
from echo_shm.adapters.ray.stream import RayStream
from echo_shm.adapters.ray.writers import RayWriter

__all__ = ["RayBatch", "RayReplay", "RayStream", "RayWriter"]
