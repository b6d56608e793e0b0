"""Weights for the workers: one process publishes versions of a pytree of arrays, others copy or lease the latest."""

from echo_shm.weights.publisher import Publisher
from echo_shm.weights.subscriber import Subscriber

__all__ = ["Publisher", "Subscriber"]
