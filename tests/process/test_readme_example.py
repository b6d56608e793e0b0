"""The README's first example."""

import re
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
