"""What users import says that it belongs to the package itself."""

import pickle

import pytest

import echo_shm


@pytest.mark.parametrize("name", [name for name in echo_shm.__all__ if not name.startswith("_")])
def test_public_names_are_the_packages_own(name):
    """A public name gives ``echo_shm`` as its module, so no message or pickle names a file that may move."""
    public = getattr(echo_shm, name)
    assert public.__module__ == "echo_shm"
    assert pickle.loads(pickle.dumps(public)) is public
