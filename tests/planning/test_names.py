"""What users import from echo_shm.planning."""

import os
import pickle
import subprocess
import sys
import typing

import pytest

from echo_shm import planning


@pytest.mark.parametrize("name", planning.__all__)
def test_public_names_are_the_packages_own(name):
    """A public name gives ``echo_shm.planning`` as its module, and its annotations can be evaluated."""
    try:
        public = getattr(planning, name)
    except ModuleNotFoundError as error:
        if "ECHO_SHM_NEED_ADAPTERS" in os.environ:
            raise
        pytest.skip(str(error))
    assert public.__module__ == "echo_shm.planning"
    assert pickle.loads(pickle.dumps(public)) is public
    typing.get_type_hints(public)


def test_nothing_is_loaded_before_it_is_used():
    """Importing the package loads no module of it. An unknown name is an ``AttributeError``."""
    source = "import sys, echo_shm.planning as p; print(sorted(m for m in sys.modules if m.startswith(p.__name__)))"
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
    assert done.stdout == "['echo_shm.planning']\n"
    with pytest.raises(AttributeError, match="has no attribute 'Plan'"):
        planning.Plan  # noqa: B018
    assert set(planning.__all__) <= set(dir(planning))
