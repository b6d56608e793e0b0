"""The exceptions' class tree, and what the package exports."""

import errno
import importlib.metadata
import inspect
import pickle
import re
import shutil
import sys
from pathlib import Path

import pytest
from harness.programs import run

import echo_shm
from echo_shm._core import lib
from echo_shm.errors import error_from

EXPORTS = {
    "BatchesHeldError", "BoundSample", "ConnectionClosedError", "EchoShmError", "Finishing", "ForkedError", "Handle",
    "HistSnapshot", "Lease", "Publisher", "Replay", "ReplayClient", "Reservation", "Sample", "SampleInfo",
    "SegmentError", "Server", "ShmClient", "SpecMismatchError", "Subscriber", "Subscription", "Table", "TcpClient",
    "TcpSubscriber", "TcpTransport", "TrajectoryAccumulator", "Transport", "WireError", "WorkerError", "WorkerGroup",
    "__version__", "connect",
}  # fmt: skip


def test_exports():
    """The package exports exactly this, and all of it is documented where it is defined."""
    assert set(echo_shm.__all__) == EXPORTS
    assert echo_shm.__all__ == sorted(echo_shm.__all__)
    for name in echo_shm.__all__:
        value = getattr(echo_shm, name)
        assert name == "__version__" or inspect.getdoc(value), name


def test_codes_are_distinct():
    """No two results of the core have the same number."""
    codes = [getattr(lib, name) for name in dir(lib) if name.startswith("ES_")]
    codes = [code for code in codes if isinstance(code, int) and code < -10_000]
    assert len(codes) > 20
    assert len(codes) == len(set(codes))


def test_every_public_method_is_documented():
    """Public methods and properties of what is exported have docstrings."""
    for name in EXPORTS - {"__version__"}:
        for attribute, value in getattr(getattr(echo_shm, name), "__dict__", {}).items():
            if not attribute.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(getattr(getattr(echo_shm, name), attribute)), f"{name}.{attribute}"


def test_a_checkout_that_is_not_built(tmp_path):
    """Importing sources without the compiled modules says how to build them."""
    package = Path(echo_shm.__path__[0])
    shutil.copytree(package, tmp_path / "echo_shm", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # -S: without the packages of this environment, in which the core is built.
    done = run(sys.executable, "-S", "-c", "import echo_shm", cwd=tmp_path, status=1)
    assert re.search(
        rf"ModuleNotFoundError: echo_shm in {tmp_path}/echo_shm is not built "
        r"\(missing: _batch, _core, _history, _replay, _send, _slot\)\. .*"
        "`pip install -e .`",
        done.stderr,
    )


def test_version():
    """The version is the installed distribution's."""
    assert echo_shm.__version__ == importlib.metadata.version("echo-shm")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("EchoShmError", Exception),
        ("SpecMismatchError", ValueError),
        ("SegmentError", OSError),
        ("ConnectionClosedError", ConnectionError),
        ("ForkedError", RuntimeError),
        ("WorkerError", RuntimeError),
        ("BatchesHeldError", RuntimeError),
        ("WireError", ValueError),
    ],
)
def test_family_tree(name, base):
    """Each exception is an EchoShmError and of one built-in type; it pickles with its message."""
    kind = getattr(echo_shm, name)
    assert issubclass(kind, echo_shm.EchoShmError)
    assert issubclass(kind, base)
    again = pickle.loads(pickle.dumps(kind("what happened")))
    assert type(again) is kind
    assert str(again) == "what happened"


def test_timeouts_are_not_ours():
    """TimeoutError is the built-in, and none of our exceptions is one."""
    for name in EXPORTS:
        value = getattr(echo_shm, name)
        assert not (isinstance(value, type) and issubclass(value, TimeoutError))


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("ES_EMAGIC", echo_shm.SegmentError, "not an echo_shm segment"),
        ("ES_EINIT", echo_shm.SegmentError, "not finished initialising.*echo-shm gc"),
        ("ES_EVERSION", echo_shm.SegmentError, "same version"),
        ("ES_ESIZE", echo_shm.SegmentError, "truncated"),
        ("ES_EGEOMETRY", echo_shm.SegmentError, "damaged"),
        ("ES_EOFFSET", echo_shm.SegmentError, "damaged"),
        ("ES_EHASH", echo_shm.SegmentError, "damaged"),
        ("ES_ECLOSED", echo_shm.ConnectionClosedError, "closed by the learner"),
        ("ES_EEVICTED", echo_shm.ConnectionClosedError, "not sent"),
        ("ES_EDETACHED", echo_shm.ConnectionClosedError, "closed"),
        ("ES_EFORK", echo_shm.ForkedError, "attach again in the child"),
        ("ES_EREADONLY", echo_shm.EchoShmError, "only observes"),
        ("ES_ESTALE", echo_shm.EchoShmError, "unexpected result"),
    ],
)
def test_results_become_exceptions(code, kind, message):
    """Each error code of the core has its exception, whose message names the object."""
    with pytest.raises(kind, match=message) as caught:
        raise error_from(getattr(lib, code), "ring 'x'")
    assert type(caught.value) is kind
    assert "ring 'x'" in str(caught.value)


def test_errno_results():
    """A negative errno is a SegmentError of that errno."""
    error = error_from(-errno.EACCES, "ring 'x'")
    assert type(error) is echo_shm.SegmentError
    assert error.errno == errno.EACCES
    assert "Permission denied" in str(error)
