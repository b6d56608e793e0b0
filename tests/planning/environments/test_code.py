"""Questions about code: the stated outputs are so, and what an answer runs ends and leaves nothing."""

import contextlib
import errno
import json
import os
import tempfile
import time

import psutil
import pytest
from harness.waiting import until

from echo_shm.planning.environments import CodeReasoning
from echo_shm.planning.environments.code_functions import make_sample
from echo_shm.planning.environments.limited_run import remove_folder, run

MEMORY = 256 << 20


def test_stated_outputs_are_what_running_gives():
    """Of 300 generated functions, in one other process; and they are of every type, and differ."""
    samples = [make_sample(game, 1000) for game in range(300)]
    code = "\n".join(f"{one.code}\nf{number} = f" for number, one in enumerate(samples))
    calls = ", ".join(f"f{number}({one.arguments})" for number, one in enumerate(samples))
    result = run(code, f"[{calls}]", timeout=30, memory=MEMORY)
    assert result.error is None
    assert [repr(value) for value in result.value] == [one.output for one in samples]
    assert {type(value) for value in result.value} == {int, str, list}
    assert len({one.code for one in samples}) > 290


@pytest.mark.parametrize("task_type", ["output", "input"])
def test_the_right_answer_gets_1_and_another_0(task_type):
    """For outputs and inputs. The question has the code, and what is asked."""
    env = CodeReasoning(task_type=task_type, tries=2)
    for game in range(4):
        question, _ = env.reset(options={"game": game})
        sample = make_sample(game, 1000)
        asked = f"f({sample.arguments}) == ??" if task_type == "output" else f"f(??) == {sample.output}"
        assert question == f"{sample.code}\nassert {asked}"
        assert env.step("'no such answer', 1, 2")[1:4] == (0.0, False, False)
        assert env.step(env.answer())[1:4] == (1.0, True, False)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("sorted([3, 1])", None),
        ("f([1, 3])", "NameError"),  # the function is not there
        ("type('X', (), {'__eq__': lambda self, other: True})()", "is no literal"),  # equal to everything
        ("1 +", "SyntaxError"),
        ("__import__('sys').exit()", "SystemExit"),
        ("[" * 3000 + "]" * 3000, "nested|Memory|Recursion"),
    ],
)
def test_an_output_may_be_an_expression(tmp_path, answer, error):
    """It is evaluated in another process, and its value must be a literal."""
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"code": "def f(x):\n    return x", "input": "[1, 3]", "output": "[1, 3]"}))
    env = CodeReasoning(path=path)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(answer)
    assert terminated
    assert reward == (error is None)
    if error is None:
        assert info["error"] is None
    else:
        with pytest.raises(AssertionError, match=error):
            raise AssertionError(info["error"])


@pytest.mark.parametrize("answer", ["print(1)", "1) or (1", "x=[1]", "__import__('os').getpid()", ""])
def test_an_input_must_be_literals(tmp_path, answer):
    """What would run is refused, and the function is not called with it."""
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"code": "def f(x=0):\n    return 1", "input": "1", "output": "1"}))
    env = CodeReasoning(path=path, task_type="input")
    env.reset(seed=0)
    _, reward, _, _, info = env.step(answer)
    assert (reward, info["error"]) == ((1.0, None) if answer == "" else (0.0, info["error"]))
    assert answer == "" or "no literal" in info["error"]


def group_is_gone(group):
    """Whether no process of a group runs; one that nobody has waited for may be left."""
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return False
        except (ProcessLookupError, psutil.Error):
            continue
    return True


@pytest.mark.parametrize(
    ("code", "timeout", "error"),
    [
        ("while True: pass", 0.3, "TimeoutError: it ran for more than 0.3 seconds"),
        ("import time; time.sleep(1000)", 0.3, "TimeoutError"),
        ("x = bytearray(10**9)", 20, "MemoryError"),
        ("x = []\nwhile True: x.append(bytes(10**7))", 20, "MemoryError"),
        ("import os; os._exit(3)", 20, "the process ended without an answer"),
        ("import os; os.kill(os.getpid(), 9)", 20, "the process ended without an answer"),
        ("def g(n): return g(n + 1)\ng(1)", 20, "RecursionError"),
        ("import os; os.write(3, b'x' * (3 << 20))", 20, "without an answer, or with one that is too long"),
        ("file = open('file', 'w'); file.write('x'); file.flush()", 20, "OSError"),
        ("raise ValueError('x' * 10000)", 20, "ValueError: xxx"),
        ("import os; os.fork(); raise KeyError(1)", 20, "KeyError"),
    ],
)
def test_what_does_not_end_by_itself_is_ended(code, timeout, error):
    """With an error that says why; and the temporary folder is removed (the fixtures look for processes)."""
    began = time.monotonic()
    result = run(code, "1", timeout=timeout, memory=MEMORY)
    assert error in (result.error or "")
    assert result.value is None
    assert len(result.error) < 600
    assert time.monotonic() - began < 15, "a limit has not worked: another one did"


def test_a_fork_ends_with_its_parent():
    """A child that would sleep on is killed with the group, although it holds the pipe of the answer."""
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(1000)\n"
    result = run(code, "__import__('os').getpgid(0)", timeout=20, memory=MEMORY)
    assert result.error is None
    until(lambda: group_is_gone(result.value), "the group ends")


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(3000):\n    os.mkdir('a')\n    os.chdir('a')",  # deeper than a path is long
        "for one in 'abc':\n    os.makedirs(f'{one}/b/c')\n    open(f'{one}/b/file', 'w').close()",
        "os.makedirs('a/b')\nos.chmod('a', 0)\nos.chmod('.', 0)",
        "os.mkfifo('a')\nos.symlink('a', 'b')\nos.symlink('nowhere', b'\\xff')\nos.mkdir(b'\\xfe')",
        "os.rmdir(os.getcwd())",
        "os.symlink(OUTSIDE, 'a')",
        "os.mkdir('b')\nos.symlink(OUTSIDE, 'b/a')",
        "here = os.getcwd()\nos.rmdir(here)\nos.symlink(OUTSIDE, here)",
    ],
)
def test_the_folder_is_removed_whatever_is_in_it(tmp_path, monkeypatch, code):
    """With directories below directories. What links lead to stays."""
    (tmp_path / "file").touch()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folders:  # disks take milliseconds for each directory
        monkeypatch.setattr(tempfile, "tempdir", folders)
        result = run(f"import os\nOUTSIDE = {str(tmp_path)!r}\n{code}", "1", timeout=20, memory=MEMORY)
        assert (result.value, result.error) == (1, None)
        assert os.listdir(folders) == []
    assert os.listdir(tmp_path) == ["file"]


@contextlib.contextmanager
def no_root():
    """Somebody who needs permissions."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_directories_without_permissions_are_removed():
    """None may be read, written or searched, the outermost one neither."""
    with no_root():
        folder = tempfile.mkdtemp(dir="/tmp")  # where everybody may make one
        for mode in (0, 0o400, 0o100, 0o600):
            os.makedirs(f"{folder}/{mode}/b")
            os.close(os.open(f"{folder}/{mode}/b/file", os.O_CREAT))
            os.chmod(f"{folder}/{mode}/b", mode)
            os.chmod(f"{folder}/{mode}", mode)
        os.chmod(folder, 0)
        remove_folder(folder)
        assert not os.path.exists(folder)


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path, monkeypatch):
    """All beside it, and above it, is tried. Nothing is raised."""
    for one in "abc":
        (tmp_path / one / one).mkdir(parents=True)
        for number in range(3):
            (tmp_path / one / one / f"file{number}").touch()
    unlink, kept = os.unlink, []

    def refuse_the_first(name, **where):
        if name.startswith("file") and not kept:
            kept.append(name)
            raise PermissionError(errno.EPERM, "it is immutable", name)
        unlink(name, **where)

    monkeypatch.setattr(os, "unlink", refuse_the_first)
    remove_folder(str(tmp_path))
    first, second, third = sorted(tmp_path.rglob("*"))
    assert [first.parent, second.parent, third.parent, third.name] == [tmp_path, first, second, *kept]


def test_a_directory_that_is_moved_leads_nowhere_else(tmp_path, monkeypatch):
    """Its new parent, and what is beside it there, stay."""
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for one in (folder, outside):
        for name in "abc":
            (one / name).mkdir(parents=True)
            (one / name / f"file of {one.name}").touch()
    unlink, moved = os.unlink, []

    def move_the_first(name, **where):
        unlink(name, **where)
        if not moved:
            moved.extend(one for one in folder.iterdir() if not any(one.iterdir()))
            moved[0].rename(outside / "moved")

    monkeypatch.setattr(os, "unlink", move_the_first)
    remove_folder(str(folder))
    assert len(moved) == 1
    assert sorted(path.name for path in outside.iterdir()) == ["a", "b", "c", "moved"]
    assert len(list(outside.glob("*/file of outside"))) == 3


def test_the_process_sees_nothing_of_this_one():
    """No environment, no site-packages, no descriptors, and a folder of its own that is gone afterwards."""
    os.environ["ECHO_SHM_SECRET"] = "secret"
    try:
        expression = (
            "(dict(os.environ), os.getcwd(), sorted(os.listdir('/proc/self/fd')), 'numpy' in sys.modules, sys.path)"
        )
        result = run("import os, sys", expression, timeout=20, memory=MEMORY)
    finally:
        del os.environ["ECHO_SHM_SECRET"]
    environment, folder, descriptors, _, path = result.value
    assert "ECHO_SHM_SECRET" not in environment
    assert len(descriptors) <= 5  # 0, 1, 2, the answer's and the one that lists
    assert not os.path.exists(folder)
    assert not any("site-packages" in one for one in path)


def test_what_is_printed_is_no_answer():
    """Only the value is; and a code with a null character is refused."""
    assert run("print('=7\\0', flush=True)", "5", timeout=20, memory=MEMORY).value == 5
    assert "null character" in (run("\0", "5", timeout=20, memory=MEMORY).error or "")
    assert run("# " + "x" * (1 << 20), "6", timeout=20, memory=MEMORY).value == 6, "longer than a pipe"


def test_a_file_in_cruxevals_format(tmp_path):
    """Its samples are asked in their order, those that are too long are left out, and bad lines are named."""
    path = tmp_path / "cruxeval.jsonl"
    long = {"id": "long", "code": "def f(x):\n    return x" + " " * 100, "input": "1", "output": "1"}
    short = {"id": "sample_0", "code": "def f(a, b):\n    return a + b", "input": "1, 2", "output": "3"}
    path.write_text(json.dumps(long) + "\n\n" + json.dumps(short) + "\n")
    env = CodeReasoning(path=path, max_code_length=50, task_type="input")
    question, info = env.reset(options={"game": 0})
    assert question == "def f(a, b):\n    return a + b\nassert f(??) == 3"
    assert info["sample"] == "sample_0"
    assert env.step("2, 1")[1] == 1.0
    with pytest.raises(ValueError, match=r"options\['game'\]=1: use an integer, 0 to 0"):
        env.reset(options={"game": 1})
    with pytest.raises(ValueError, match="no function of at most 3 characters"):
        CodeReasoning(path=path, max_code_length=3)
    path.write_text('{"code": "x"}\n')
    with pytest.raises(
        ValueError, match=r"cruxeval\.jsonl:1: expected a JSON object with 'code', 'input' and 'output'"
    ):
        CodeReasoning(path=path)
    path.write_text('{"code": "x", "input": 1, "output": "2"}\n')
    with pytest.raises(ValueError, match="must be strings"):
        CodeReasoning(path=path)
    with pytest.raises(FileNotFoundError, match=r"github\.com/facebookresearch/cruxeval"):
        CodeReasoning(path=tmp_path / "nothing")


def test_limits_that_make_no_sense_are_refused():
    """The least memory lets the interpreter start; the shortest code is that of a function."""
    with pytest.raises(ValueError, match="memory=1: use an integer"):
        CodeReasoning(memory=1)
    with pytest.raises(ValueError, match="max_code_length=20: too short for generated functions"):
        CodeReasoning(max_code_length=20)
    assert run("", "2", timeout=20, memory=64 << 20).value == 2
