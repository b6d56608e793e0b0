"""What users import says that it belongs to the package itself."""

import pickle
import re
import typing

import numpy as np
import pytest

import echo_shm


@pytest.mark.parametrize("name", [name for name in echo_shm.__all__ if not name.startswith("_")])
def test_public_names_are_the_packages_own(name):
    """A public name gives ``echo_shm`` as its module, so no message or pickle names a file that may move."""
    public = getattr(echo_shm, name)
    assert public.__module__ == "echo_shm"
    assert pickle.loads(pickle.dumps(public)) is public
    if isinstance(public, type):
        typing.get_type_hints(public)  # every annotation can be evaluated


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickles_name_the_package_alone(protocol):
    """Pickles of a batch and its info name only public names, so they can be read when files have moved."""
    with echo_shm.Server(np.zeros((), np.int64), 1) as server:
        server.submit(np.int64(3))
        data = pickle.dumps(server.sample(timeout=10), protocol)
    named = set(re.findall(rb"echo_shm[\w.]*", data))
    assert named == {b"echo_shm"}
    again = pickle.loads(data)
    assert again.batch.tolist() == [3]
    assert again.info.samples_inserted_total == 1
