"""What ``echo-shm replay`` reads: the replay that a file means, and what it says of one that is wrong."""

import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_shm.cli import replay_config
from echo_shm.cli.console import UsageError
from echo_shm.replay import (
    Lifo,
    MinHeap,
    Prioritized,
    Queue,
    RateLimiter,
    Replay,
    SampleToInsertRatio,
    Softmax,
    Table,
)

WHOLE = """\
name = "run"
capacity = 1_000
store = "shm"
seed = 7
max_items = 2000
max_producers = 12

[example]
obs = [{ dtype = "uint8", shape = [2, 3] }, { dtype = "bfloat16" }]
[example.info]
dtype = { dtype = "<f4", shape = [] }

[[tables]]
name = "first"
sampler = { type = "Prioritized", alpha = 0.5, beta = 1 }
remover = "Lifo"
max_size = 500
rate_limiter = { type = "SampleToInsertRatio", ratio = 4.0, min_size = 10, error_buffer = [0, 100] }
max_times_sampled = 3
replacement = false
protected = true

[[tables]]
name = "second"
rate_limiter = { type = "RateLimiter", min_size = 1, ratio = 1, min_diff = -inf, max_diff = 8 }

[[tables]]
name = "third"
[tables.sampler]
type = "Softmax"
temperature = 2.0
[tables.rate_limiter]
type = "Queue"
size = 5
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes a file, and returns its path."""

    def to_file(text: str) -> str:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return str(path)

    return to_file


def test_everything(write: Callable[[str], str]) -> None:
    """Each key becomes the argument of that name."""
    found = replay_config.read(write(WHOLE)).arguments
    assert isinstance(found, dict)
    example = found.pop("example")
    assert [one.dtype.name for one in example["obs"]] == ["uint8", "bfloat16"]
    assert (example["obs"][0].shape, example["info"]["dtype"].dtype) == ((2, 3), np.float32)
    limiters = SampleToInsertRatio(4.0, 10, (0, 100)), RateLimiter(1, 1.0, float("-inf"), 8)
    tables = found.pop("tables")
    assert [vars(one.rate_limiter) for one in tables[:2]] == [vars(one) for one in limiters]
    assert repr(tables[2].rate_limiter) == repr(Queue(5))
    whole = Table(
        "first", Prioritized(0.5, 1), Lifo(), 500, tables[0].rate_limiter, 3, replacement=False, protected=True
    )
    assert tables == [
        whole,
        Table("second", rate_limiter=tables[1].rate_limiter),
        Table("third", Softmax(2.0), rate_limiter=tables[2].rate_limiter),
    ]
    assert found == {
        "name": "run", "capacity": 1000, "store": "shm", "seed": 7, "max_items": 2000, "max_producers": 12
    }  # fmt: skip


def test_every_class_can_be_named() -> None:
    """Those of the package, but for the ones that only Python can fill."""
    assert set(replay_config.SELECTORS) == {
        "Fifo",
        "HotCold",
        "Lifo",
        "MaxHeap",
        "MinHeap",
        "Prioritized",
        "Softmax",
        "Uniform",
    }
    assert set(replay_config.LIMITERS) == {"MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"}
    assert replay_config.SELECTORS["MinHeap"] is MinHeap


SMALL = 'name = "run"\ncapacity = 10\n[example]\nx = { dtype = "int64" }\n[[tables]]\nname = "a"\n'


def _open(path: str) -> None:
    """What the command does: the replay itself refuses some arguments."""
    found = replay_config.read(path)
    assert isinstance(found.arguments, dict)
    try:
        Replay(**found.arguments)
    except (ValueError, TypeError) as error:
        raise found.explain(error) from None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'run'\ncapacity = \n", " is not TOML: Invalid value (at line 2, column 12)"),
        (SMALL.replace("10", "0"), ", line 2: capacity=0: use an integer, 1 or more"),
        (SMALL.replace("10", "'ten'"), ", line 2: capacity='ten': use an integer, 1 or more"),
        (SMALL.replace("run", "a/b"), ", line 1: bad replay name 'a/b': use 1 to 200 letters"),
        (SMALL.replace("capacity", "capasity"), ", line 2: unknown key 'capasity': did you mean 'capacity'?"),
        ("capacity = 10\n[example]\nx = { dtype = 'int64' }\n", ": the key 'name' is missing"),
        (
            "store = 'disk'\n" + SMALL,
            ", line 1: store='disk': use 'memory', 'shm', or the path of a directory, with a slash in it",
        ),
        ("checkpoint = 3\n" + SMALL, ", line 1: checkpoint=3: use the path of a directory"),
        ("checkpoint = ''\n" + SMALL, ", line 1: checkpoint='': use the path of a directory"),
        ("checkpoint = '''\\u0000'''\n".replace("'''", '"') + SMALL, ", line 1: checkpoint='\\x00': use the path of"),
        ("transport = 3\n" + SMALL, ", line 1: transport=3: use a table of port, "),
        ("seed = -1\n" + SMALL, ", line 1: seed=-1: use an integer, 0 or more"),
        ("max_items = 1.5\n" + SMALL, ", line 1: max_items=1.5: use an integer, 1 or more"),
        (SMALL.replace('"int64"', '"int46"'), ", line 4: example.x.dtype='int46': numpy has no such dtype"),
        (SMALL.replace('"int64"', '"O"'), ", line 4: example.x.dtype='O': example has dtype object"),
        (SMALL.replace('"int64"', '"i8", shape = [2, -1]'), ", line 4: example.x.shape=[2, -1]: use integers, 0 or mo"),
        (SMALL.replace('"int64"', '"i8", shape = 3'), ", line 4: example.x.shape=3: use integers, 0 or more"),
        (
            SMALL.replace('"int64"', '"i8", size = 3'),
            ", line 4: example.x: unknown key 'size': use one of dtype, shape",
        ),
        (SMALL.replace('{ dtype = "int64" }', "3"), ", line 4: example.x=3: use { dtype = 'float32', shape = [3] }"),
        (SMALL.replace('x = { dtype = "int64" }', ""), ", line 3: example={}: use { dtype"),
        (SMALL + "max_sise = 3\n", ", line 7: tables[0]: unknown key 'max_sise': did you mean 'max_size'?"),
        (SMALL + "max_size = 0\n", ", line 7: tables[0]: max_size=0: use an integer, 1 or more"),
        (SMALL + "protected = 1\n", ", line 7: tables[0]: protected=1: use True or False"),
        (SMALL + "[[tables]]\n", ", line 7: tables[1]: the key 'name' is missing"),
        (SMALL + "[[tables]]\nname = 'a'\n", ", line 5: 2 tables have the name 'a'"),
        (
            SMALL + "sampler = 'Unifrom'\n",
            ", line 7: tables[0].sampler: there is no 'Unifrom': did you mean 'Uniform'?",
        ),
        (SMALL + "sampler = 3\n", ", line 7: tables[0].sampler=3: use 'Fifo', or { type = 'Fifo', ... }"),
        (
            SMALL + "sampler = { type = 'Prioritized', alpha = -1 }\n",
            ", line 7: tables[0].sampler: alpha=-1: use a fin",
        ),
        (SMALL + "sampler = { type = 'Fifo', alpha = 1 }\n", ", line 7: tables[0].sampler: unknown key 'alpha'"),
        (SMALL + "rate_limiter = 'Queue'\n", ", line 7: tables[0].rate_limiter: the key 'size' is missing"),
        (
            SMALL
            + "[tables.rate_limiter]\ntype = 'SampleToInsertRatio'\nratio = 4.0\nmin_size = 1\nerror_buffer = 1\n",
            ", line 11: tables[0].rate_limiter: error_buffer=1: use 4.0 or more",
        ),
        (
            SMALL + "[[tables]]\nname = 'b'\nrate_limiter = { type = 'MinSize', min_size = 11 }\n",
            ", line 7: table 'b': MinSize(11) waits for 11 items, and the replay holds at most capacity=10 steps",
        ),
        (SMALL + "[transport]\n", ", line 7: transport: the key 'port' is missing"),
        (SMALL + "[transport]\nport = 70000\n", ", line 8: transport: port=70000: use an integer from 0 to 65535"),
        (
            SMALL + "[transport]\nport = 0\nhost = '0.0.0.0'\n",
            ", line 9: transport: host='0.0.0.0' can be reached from other machines: pass authkey_file, or "
            "allow_unauthenticated = true if everybody",
        ),
        (
            SMALL + "[transport]\nport = 0\nauthkey_file = 'key'\n",
            ", line 9: transport.authkey_file='key': No such file or directory; its path is ",
        ),
        (
            SMALL + "[transport]\nport = 0\nauthkey_file = 'short'\n",
            ", line 9: transport: authkey_file has 3 bytes: use at least 16",
        ),
        (
            SMALL + "[transport]\nport = 0\nallow_unauthenticated = 'no'\n",
            ", line 9: allow_unauthenticated='no': use true or false",
        ),
        (
            SMALL + "[transport]\nport = 0\ntls = { certfile = 'short', keyfile = 'short' }\n",
            ", line 9: transport.tls: the certificate and its key cannot be used: ",
        ),
        ("tables = [3]\n" + SMALL.partition("[[")[0], ", line 1: tables=[3]: use [[tables]], once for each table"),
        (
            SMALL + "sampler = { type = 3 }\n",
            ", line 7: tables[0].sampler={'type': 3}: use 'Fifo', or { type = 'Fifo', ... }",
        ),
        (SMALL.replace('"int64"', '"i8", shape = [true]'), ", line 4: example.x.shape=[True]: use integers, 0 or more"),
        (
            SMALL + "[transport]\nport = 0\nauthkey_file = 3\n",
            ", line 9: transport.authkey_file=3: use the path of a file",
        ),
        (
            SMALL + "[transport]\nport = 0\ntls = { certfile = 'short' }\n",
            ", line 9: transport.tls: the key 'keyfile' is missing",
        ),
        ("tables = 3\n" + SMALL.partition("[[")[0], ", line 1: tables=3: use [[tables]], once for each table"),
        (SMALL.replace('{ dtype = "int64" }', "[]"), ", line 4: example.x=[]: use { dtype = 'float32', shape = [3] }"),
        (
            SMALL.replace('"int64"', '"i8", shape = [4000000000, 4000000000]'),
            ", line 4: example.x.shape=[4000000000, 40",
        ),
        (
            SMALL.replace('"int64"', '"i8", shape = [40000000, 40000000]'),
            ", line 4: example.x.shape=[40000000, 4000000",
        ),
        (
            SMALL + '[transport]\nport = 0\nauthkey_file = "a\\u0000"\n',
            ", line 9: transport.authkey_file='a\\x00': embedded null byte; its path is ",
        ),
    ],
)
def test_wrong_files(write: Callable[[str], str], text: str, message: str) -> None:
    """The message names the line, and says what was got, what is expected, and where."""
    path = write(text)
    (Path(path).parent / "short").write_text("abc")
    with pytest.raises(UsageError) as refused:
        _open(path)
    assert str(refused.value).startswith(path + message)


def test_directories(write: Callable[[str], str]) -> None:
    """Relative ones begin at the configuration's. A store is one if it has a slash. There may be no checkpoints."""
    path = write('store = "store/"\ncheckpoint = "saved"\n' + SMALL)
    found = replay_config.read(path)
    assert isinstance(found.arguments, dict)
    assert (Path(found.arguments["store"]), found.checkpoint) == (
        Path(path).parent / "store",
        str(Path(path).parent / "saved"),
    )
    assert replay_config.read(write('checkpoint = "/saved"\n' + SMALL)).checkpoint == "/saved"
    assert replay_config.read(write(SMALL)).checkpoint is None


def test_a_shape_may_be_empty(write: Callable[[str], str]) -> None:
    """A leaf without bytes is one, too."""
    found = replay_config.read(write(SMALL.replace('"int64"', '"i8", shape = [0, 2]'))).arguments
    assert isinstance(found, dict)
    assert found["example"]["x"].shape == (0, 2)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """It says where."""
    (tmp_path / "run.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(UsageError, match=r"run\.toml: it is not UTF-8 from byte 8 on"):
        replay_config.read(str(tmp_path / "run.toml"))


def test_a_transport(write: Callable[[str], str]) -> None:
    """It has the arguments of its keys. Files are found beside the configuration."""
    path = write(SMALL + "[transport]\nport = 7777\nhost = '0.0.0.0'\nauthkey_file = 'key'\nprocesses = 2\n")
    (Path(path).parent / "key").write_bytes(b"0123456789abcdef")
    found = replay_config.read(path).arguments
    assert isinstance(found, dict)
    transport = found["transport"]
    assert (transport.port, transport._host, transport._authkey) == (7777, "0.0.0.0", b"0123456789abcdef")
    assert transport._processes == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_tls(write: Callable[[str], str]) -> None:
    """With a file of authorities, clients must have a certificate. One that is none is refused."""
    tls = "certfile = 'cert', keyfile = 'key', cafile = "
    start = SMALL + "[transport]\nport = 0\n"
    path = Path(write(start + f"tls = {{ {tls}'cert' }}\n"))
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj /CN=localhost"
    subprocess.run(make.split(), cwd=path.parent, check=True, capture_output=True)
    found = replay_config.read(str(path)).arguments
    assert isinstance(found, dict)
    assert found["transport"]._tls.verify_mode is ssl.CERT_REQUIRED
    assert len(found["transport"]._tls.get_ca_certs()) == 1
    write(start + f"tls = {{ {tls}'key' }}\n")
    with pytest.raises(UsageError, match=r"line 9: transport\.tls\.cafile='key' cannot be used: "):
        replay_config.read(str(path))
    write(start + "tls = { certfile = 'cert', keyfile = 'key' }\n")
    found = replay_config.read(str(path)).arguments
    assert isinstance(found, dict)
    assert found["transport"]._tls.verify_mode is ssl.CERT_NONE


MODULE = """\
import pathlib

import numpy as np
from echo_shm import Replay, Table

EXAMPLE = {"x": np.zeros(())}

def arguments():
    return {"example": EXAMPLE, "capacity": 10, "tables": [Table("a")]}

def replay():
    return Replay(EXAMPLE, 10)

def nothing():
    return 3

def too_much():
    return {"example": EXAMPLE, "capacity": 10, "tabels": 1}

def too_little():
    return {"example": EXAMPLE}

def saved():
    return {**arguments(), "checkpoint": pathlib.Path("saved")}

def no_path():
    return {"example": EXAMPLE, "capacity": 10, "checkpoint": 3}

def fails():
    import no_such_module
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "of_a_user.py").write_text(MODULE)
    (tmp_path / "of_another.py").write_text("import no_such_module")
    monkeypatch.delitem(sys.modules, "of_a_user", raising=False)
    return "of_a_user"


def test_a_function(module: str) -> None:
    """It returns the arguments, or the replay itself."""
    found: Any = replay_config.read(f"{module}:arguments").arguments
    assert (set(found), found["tables"]) == ({"example", "capacity", "tables"}, [Table("a")])
    saved = replay_config.read(f"{module}:saved")
    assert (set(saved.arguments), saved.checkpoint) == ({"example", "capacity", "tables"}, "saved")
    made: Any = replay_config.read(f"{module}:replay").arguments
    with made:
        assert made.capacity == 10


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", "of_a_user:nothing has returned 3: return a Replay, or a dict of its arguments"),
        ("too_much", "of_a_user:too_much: a Replay has no argument 'tabels': did you mean 'tables'?"),
        ("no_path", "of_a_user:no_path: checkpoint=3: use the path of a directory"),
        ("too_little", "of_a_user:too_little: the argument 'capacity' is missing"),
        ("missing", "of_a_user:missing: module 'of_a_user' has no function 'missing'"),
    ],
)
def test_wrong_functions(module: str, function: str, message: str) -> None:
    """The message says which, and why."""
    with pytest.raises(UsageError) as refused:
        replay_config.read(f"{module}:{function}")
    assert str(refused.value) == message


def test_modules_that_are_missing(module: str) -> None:
    """One that the command names is a wrong use of it; one that the user's code imports is an error of that code."""
    with pytest.raises(UsageError, match="there is no module 'no_such'"):
        replay_config.read("no_such.module:function")
    for function in (f"{module}:fails", "of_another:function"):
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            replay_config.read(function)


def test_a_file_with_the_name_of_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is there is what is meant."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run:toml").write_text(SMALL)
    assert isinstance(replay_config.read("run:toml").arguments, dict)


def test_no_file() -> None:
    """Something that is neither, and a file that is not there."""
    with pytest.raises(
        UsageError, match="no_such: No such file or directory: give the path of a TOML file, or module:"
    ):
        replay_config.read("no_such")
    with pytest.raises(UsageError, match=r"no_such\.toml: No such file or directory$"):
        replay_config.read("no_such.toml")
