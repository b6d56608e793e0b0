"""The build without futexes."""

import shutil
import sys
from pathlib import Path

import pytest
from harness.programs import TESTS, quick_compiler, run

_ROOT = Path(__file__).resolve().parents[2]

_SCRIPT = """
import signal
from harness import stamped, workers
import echo_shm
from echo_shm import Server
from echo_shm._core import ffi, lib

def main():
    assert echo_shm.__file__.startswith({build!r}), echo_shm.__file__
    assert ffi.string(lib.es_api_wait_kind()) == b"poll"
    with Server(stamped.example(), 4, num_buffers=2) as server:
        with server.spawn(workers.send_some, 3, [0, 1, 2], [500] * 3, context="fork") as group:
            came = [s for b in server.dataset_iter(until=group, drop_last=False) for s in stamped.stamps(b.batch)]
        assert sorted(came) == [(i, j) for i in range(3) for j in range(500)], len(came)
        path = {path!r}
        with server.spawn(workers.die_once, 1, [7], [path], context="fork", restart=True) as group:
            came = [s for b in server.dataset_iter(until=group, drop_last=False) for s in stamped.stamps(b.batch)]
        assert came == [(7, 0), (7, 1)]
        try:
            server.sample(timeout=0.2)
        except TimeoutError:
            pass
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            server.sample()
        except KeyboardInterrupt:
            print("interrupted")

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A copy of the sources with the extension built in it."""
    folder = tmp_path_factory.mktemp("poll")
    for name in ("csrc", "echo_shm"):
        shutil.copytree(_ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "_core.c"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(_ROOT / name, folder / name)
    env = {"ECHO_SHM_WAIT": "poll", **quick_compiler(folder)}
    # A compiler takes as long as the other tests leave it processors: that says nothing of what is built.
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=folder, env=env, timeout=300)
    return folder


@pytest.mark.watchdog(150)
def test_polling_from_end_to_end(build, tmp_path):
    """With ECHO_SHM_WAIT=poll samples arrive, deaths are noticed, waits time out, and Ctrl-C interrupts them."""
    script = tmp_path / "script.py"
    script.write_text(
        _SCRIPT.format(build=str(build), path=str(tmp_path / "once")),
        encoding="utf-8",
    )
    done = run(sys.executable, str(script), env={"PYTHONPATH": f"{build}:{TESTS}"}, cwd=tmp_path)
    assert done.stdout == "interrupted\n", done.stderr
