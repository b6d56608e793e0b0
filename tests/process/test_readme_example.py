"""README's Python blocks run as printed: each is saved to a file and run in a process of its own."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from harness.programs import ECHO_SHM, Program

_README = Path(__file__).resolve().parents[2] / "README.md"

#: What the fragments about producers and learners take for granted.
_AROUND = """\
import numpy as np
from echo_shm import Server

example = {"obs": np.zeros(4, np.float32), "action": np.zeros((), np.int64)}
obs = np.arange(4, dtype=np.float32)
tree = {"obs": obs, "action": np.array(1)}
trees = {"obs": np.stack([obs] * 3), "action": np.arange(3)}
"""


def _blocks(language="python"):
    text = _README.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def _block(words):
    """The one Python block with these words in it."""
    (block,) = [block for block in _blocks() if words in block]
    return block


def _run(folder, script, **env):
    """What the script prints; asserts that it ends well."""
    path = folder / "example.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, os.fspath(path)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_example_prints_what_readme_shows(tmp_path):
    """The quick start runs, and prints what stands in the block after it."""
    text = _README.read_text(encoding="utf-8")
    shown = re.search(r"server\.spawn.*?^```\n+^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert _run(tmp_path, _block("batches, total")) == shown.group(1)


def test_the_replay_example_prints_what_readme_shows(tmp_path):
    """So does the one of a replay."""
    shown = re.search(
        r"replay\.spawn.*?^```\n+^```\n(.*?)^```", _README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert _run(tmp_path, _block("SampleToInsertRatio(8.0")) == shown.group(1)


def test_the_weights_example_prints_what_readme_shows(tmp_path):
    """And the one whose workers get weights back."""
    text = _README.read_text(encoding="utf-8")
    shown = re.search(r"server\.publisher.*?^```\n+^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert _run(tmp_path, _block("server.publisher")) == shown.group(1)


def test_the_weights_block_runs(tmp_path):
    """Each way to read them gives the same."""
    script = "import numpy as np\nfrom echo_shm import Publisher, Subscriber\n"
    script += "publisher = Publisher({'w': np.zeros(2)})\nsubscriber = Subscriber(publisher.name)\n"
    script += "for i in range(7): publisher.publish({'w': np.full(2, float(i))})\n"
    _run(
        tmp_path,
        script + _block("subscriber.lease") + "    assert (view['w'] == params['w']).all() and params['w'][0] == 6\n",
    )


def test_the_ages_block_runs(tmp_path):
    """What is older is left out, and the figures are those of the batch."""
    script = f"{_AROUND}server = Server(example, batch_size=2)\npublisher = server.publisher(np.zeros(1))\n"
    script += "for i in range(22): publisher.publish(np.zeros(1))\nfrom echo_shm import ShmClient\n"
    script += "with ShmClient(server.handle) as client:\n"
    script += "    for client.version in 1, 2, 7, 4: client.send(tree)\n"
    script += "server.close()\n"
    check = "    assert lag.tolist() == [15, 18]\n"
    assert _run(tmp_path, script + _block("max_age=20") + check) == "16.5 18 1\n"


def test_the_datasets_block_runs(tmp_path):
    """The steps that it writes and reads are the same."""
    script = "import numpy as np\nfrom echo_shm import Replay\nreplay = Replay(np.zeros(2), 20)\n"
    script += "for i in range(10): replay.add(np.full(2, float(i)), truncated=i % 5 == 4)\n"
    check = "assert steps == 10 and replay.capacity == 20\n"
    check += "assert [list(x.steps[:, 1]) for x in replay.episodes()] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]\n"
    _run(tmp_path, script + _block("write_npz") + check)


def _with_loop(block):
    """The quick start with another loop, which keeps the mean that the block computes, and the right one."""
    loop = r"( +)batches, total = .*?^ +total \+=[^\n]*\n.*"
    start, indent = re.split(loop, _block("batches, total"), flags=re.DOTALL | re.MULTILINE)[:2]
    keep = "    kept.append((mean, batch['obs'].mean(dtype=np.float64)))\n"
    check = (
        "assert len(kept) == 156\n"
        "for mean, right in kept:\n"
        "    np.testing.assert_allclose(float(mean), right, rtol=1e-4, atol=1e-6)\n"
    )
    return start + textwrap.indent(f"kept = []\n{block}{keep}{check}", indent)


def test_the_torch_block_is_right(torch, tmp_path):
    """What it computes over views is right, although the space of each batch is overwritten after it."""
    _run(tmp_path, _with_loop(_block("import torch\n")), ECHO_SHM_POISON="1")


def test_the_jax_block_is_right(tmp_path):
    """The same. JAX computes after the loop has gone on."""
    _run(tmp_path, _with_loop(_block("import jax\n")), ECHO_SHM_POISON="1", JAX_PLATFORMS="cpu")


def test_the_producer_block_runs(tmp_path):
    """Every way to send sends: the block puts six samples into the ring."""
    block = _block("client.send_many").replace('"segment-name"', "server.name")
    check = (
        "batch = server.sample(5).batch\n"
        "np.testing.assert_array_equal(batch['obs'], [obs] * 6)\n"
        "np.testing.assert_array_equal(batch['action'][:4], [1, 0, 1, 2])\n"
    )
    _run(tmp_path, f"{_AROUND}server = Server(example, 6)\n{block}{check}server.close()\n")


def test_the_worker_block_stops(tmp_path):
    """Leaving the workers' block runs the ``finally`` block, and nothing is printed about it."""
    before = "import gymnasium\nimport numpy as np\nfrom echo_shm import Server\n\nstarted = []\n\n"
    before += "def play(envs):\n    started or started.append(envs.reset())\n"
    before += "    return envs.step(envs.action_space.sample())[0].copy()\n\n"
    block = _block("envs.close()").replace("envs.close()", "envs.close()\n        print('closed', flush=True)")
    main = "if __name__ == '__main__':\n    with Server(np.zeros((8, 4), np.float32), 2) as server:\n"
    main += "        with server.spawn(worker, 1, ['CartPole-v1']) as workers:\n            server.sample(timeout=40)\n"
    main += "        print(workers.exitcodes)\n"
    assert _run(tmp_path, f"{before}{block}\n{main}") == "closed\n[0]\n"


def test_the_learner_block_runs(tmp_path):
    """It takes a batch, holds two, and gets a shorter one at the end; the further learner joins the same ring."""
    block, other = _block("server.lease() as a").split("other = ")
    assert block.count("    ...") == 2
    block = block.replace("    ...", "    sizes.append([len(x.batch['obs']) for x in (a, b)])", 1)
    block = block.replace("    ...", "    sizes.append(len(sample.batch['obs']))", 1)
    block = block.replace("for sample in", "server.close()\nfor sample in")
    fill = "for _ in range(11): server.submit(tree)\nsizes = []\n"
    other = f"other = {other}".replace('"segment-name"', "server.name")
    script = f"{_AROUND}server = Server(example, 3)\n{fill}{other}other.close()\n{block}"
    _run(tmp_path, f"{script}assert sizes == [[3, 3], 2], sizes\n")


def test_the_remote_example_runs(tmp_path):
    """The block with TcpTransport, with this machine for the learner's host: each client sends, and is heard."""
    remote = _block("TcpTransport(50051")
    assert remote.count("client = ") == 3
    remote = remote.replace("50051", "PORT").replace("learner-host", "127.0.0.1")
    remote = remote.replace('"tcp://127.0.0.1:PORT"', 'f"tcp://127.0.0.1:{PORT}"')
    remote = remote.replace('"shm://segment-name"', '"shm://" + server.name')
    remote = re.sub(
        r"^(client = [^#\n]*)(.*)$", r"\1\nclient.send(example); client.close()", remote, flags=re.MULTILINE
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "key").write_bytes(bytes(range(32)))
    _run(
        tmp_path,
        f"import numpy as np\nPORT = {port}\nexample = {{'x': np.zeros(3)}}\n{remote}\n"
        "server.close()\n"
        "assert sum(s.batch['x'].shape[0] for s in server.dataset_iter(drop_last=False)) == 3\n",
    )


def test_the_block_of_a_remote_replay_runs(tmp_path):
    """With this machine for the learner's host and a thread that stores, the step has come when flush() returns."""
    remote = _block("RemoteWriter(").replace("50052", "PORT").replace("learner-host", "127.0.0.1")
    remote = remote.replace("100_000,", "100_000, thread=True,")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    _run(
        tmp_path,
        "import numpy as np\nfrom echo_shm import Replay, TcpTransport\nfrom echo_shm.replay import RemoteWriter\n"
        f"PORT, key, done = {port}, bytes(range(32)), True\nexample = step = {{'x': np.zeros(3)}}\n{remote}\n"
        "assert replay.info().episodes == replay.num_steps == 1\nreplay.close()\n",
    )


def test_the_block_about_items_runs(tmp_path):
    """The shapes of transitions, sequences and episodes are those that it shows."""
    _run(tmp_path, _block("import Episode, NStep, Sequence"))


def test_the_trajectory_block_runs(tmp_path):
    """Its assertion holds."""
    _run(tmp_path, _block("import Column, ReplayClient, Trajectory"))


def test_the_tls_block_runs(tmp_path):
    """Both contexts are made, from a certificate and a key in the named files."""
    make = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=learner-host -keyout key.pem -out cert.pem"
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True)
    _run(tmp_path, f"import ssl\n{_block('PROTOCOL_TLS_SERVER')}assert tls.get_ca_certs()\n")


def test_links_to_sections_lead_there():
    """Each has the name that a heading gets on the project's page."""
    text = _README.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    there = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    wanted = set(re.findall(r"\]\(#([\w-]+)\)", text))
    assert len(wanted) > 8
    assert wanted <= there


def test_no_other_block_is_unheard_of():
    """README has no Python block besides those that run above, and those that tests/adapters/ runs."""
    elsewhere = ("echo_shm.adapters", "echo_shm.planning")
    assert len([block for block in _blocks() if not any(words in block for words in elsewhere)]) == 17


# --- a replay in a process of its own --------------------------------------------


def _service():
    """What the unit says of its service."""
    (unit,) = _blocks("ini")
    parser = configparser.ConfigParser()
    parser.read_string(unit)
    return parser["Service"]


def _commands():
    """The command lines of the unit and of the Compose file that start a replay, as words."""
    (compose,) = _blocks("yaml")
    shown = [line.partition(":")[2] for line in compose.splitlines() if line.strip().startswith("command:")]
    return [shlex.split(_service()["ExecStart"]), json.loads(shown[0])]


def test_the_unit_says_what_the_command_does(tmp_path):
    """Each setting is about a status or a signal of the command. Status 0 after SIGTERM: see the next test."""
    assert set(_service()) == {
        "user", "execstart", "killmode", "timeoutstopsec", "restart", "restartpreventexitstatus"
    }  # fmt: skip
    (tmp_path / "run.toml").write_text("name = 3")
    program = Program(*ECHO_SHM, "replay", str(tmp_path / "run.toml"))
    try:
        assert program.result() == int(_service()["RestartPreventExitStatus"])
    finally:
        program.discard()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_knows_the_unit(tmp_path):
    """It reads the unit without a complaint."""
    (unit,) = _blocks("ini")
    unit = unit.replace(_commands()[0][0], "/bin/true")  # a program that is there
    (tmp_path / "replay.service").write_text(unit)
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "replay.service")]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "replay.service" in line]) == (0, [])


@pytest.mark.parametrize("number", [0, 1], ids=["systemd", "compose"])
def test_the_services_run_a_replay(tmp_path, name, number):
    """Their command serves the configuration that stands above them, to the client that stands below it."""
    (config,) = (block for block in _blocks("toml") if 'name = "run"' in block)
    words = _commands()[number]
    assert Path(words[0]).name == "echo-shm"
    assert words[1:-1] == ["replay"]
    (tmp_path / Path(words[-1]).name).write_text(config.replace('name = "run"', f'name = "{name}"'))
    program = Program(*ECHO_SHM, *words[1:-1], str(tmp_path / Path(words[-1]).name))
    try:
        program.wait_for("steps in shared memory")
        around = (
            "import numpy as np\nfrom echo_shm import ReplayClient\nrank, world_size, taken = 0, 1, []\n"
            f"with ReplayClient({name!r}) as replay, replay.writer() as writer:\n"
            "    for number in range(1000):\n"
            "        writer.add({'obs': np.zeros(4, np.float32), 'action': number})\n"
            "    writer.flush()\n"
        )
        block = (
            _block("rank=rank")
            .replace('"run"', repr(name))
            .replace("...", "taken.append(len(batch.key))\n        break")
        )
        assert _run(tmp_path, f"{around}{block}print(taken)\n") == "[256]\n"
        program.send_signal(signal.SIGTERM)
        assert program.result() == 0
    finally:
        program.discard()


def test_the_compose_file_shares_memory():
    """Every service has the host's shared memory, where the others find the replay."""
    (compose,) = _blocks("yaml")
    volumes = [json.loads(line.partition(":")[2]) for line in compose.splitlines() if "volumes:" in line]
    services = re.findall(r"^  (\w+):$", compose, re.MULTILINE)
    assert services == ["replay", "worker"]
    assert ["/dev/shm:/dev/shm" in one for one in volumes] == [True, True]
    (mounted,) = [one.split(":")[1] for one in volumes[0] if "run.toml" in one]
    assert mounted == _commands()[1][-1]
