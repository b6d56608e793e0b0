"""What the context managers share that close on exit."""

import pytest

from echo_shm import Replay, Server, TcpClient
from echo_shm.closing import Closing


class Failing(Closing):
    """It cannot be closed."""

    def close(self):
        """Fails."""
        raise ValueError("late")


def test_an_exception_in_the_block_is_not_hidden(caplog):
    """A failure to close is logged then; alone, it is raised."""
    with pytest.raises(ZeroDivisionError), Failing():
        raise ZeroDivisionError
    assert "late" in caplog.text
    with pytest.raises(ValueError, match="late"), Failing() as entered:
        assert isinstance(entered, Failing)


def test_who_closes_so():
    """All that end something for others."""
    for one in (Server, Replay, TcpClient):
        assert one.__exit__ is Closing.__exit__
