"""The README's first example, and the one with other hosts."""

import re
import socket
import subprocess
import sys
from pathlib import Path

_README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_runs_as_printed(tmp_path):
    """The first Python block with server.spawn, saved to a file, runs and ends well."""
    blocks = re.findall(r"^```python\n(.*?)^```", _README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (example, *_) = [block for block in blocks if "server.spawn" in block]
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


def test_the_remote_example_runs(tmp_path):
    """The block with TcpTransport, with this machine for the learner's host: each client sends, and is heard."""
    blocks = re.findall(r"^```python\n(.*?)^```", _README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (remote, *_) = [block for block in blocks if "TcpTransport(50051" in block]
    assert remote.count("client = ") == 3
    remote = remote.replace("50051", "PORT").replace("learner-host", "127.0.0.1")
    remote = remote.replace('"tcp://127.0.0.1:PORT"', 'f"tcp://127.0.0.1:{PORT}"')
    remote = remote.replace('"shm://segment-name"', '"shm://" + server.name')
    remote = re.sub(
        r"^(client = [^#\n]*)(.*)$", r"\1\nclient.send(example); client.close()", remote, flags=re.MULTILINE
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = tmp_path / "example.py"
    script.write_text(
        f"import numpy as np\nPORT = {port}\nexample = {{'x': np.zeros(3)}}\n{remote}\n"
        "server.close()\n"
        "assert sum(s.batch['x'].shape[0] for s in server.dataset_iter(drop_last=False)) == 3\n",
        encoding="utf-8",
    )
    (tmp_path / "key").write_bytes(bytes(range(32)))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
