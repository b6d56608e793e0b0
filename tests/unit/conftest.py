"""What several unit tests start from."""

import pytest

from echo_shm import ShmClient


@pytest.fixture
def client(server):
    """A producer on the ring of a test's server."""
    with ShmClient(server.handle) as client:
        yield client
