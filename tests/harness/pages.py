"""What a page shows in a browser that runs its script: headless Chromium."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest


def chromium() -> str:
    """The program. Without one the test is skipped, or it fails where the machine should have one."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        assert "ECHO_SHM_NEED_CHROMIUM" not in os.environ, "chromium is not installed"
        pytest.skip("needs chromium")
    return found


def text_of(url: str, folder: Path) -> str:
    """What the page at that address shows after three seconds, without its tags.

    Args:
        url: An address of 127.0.0.1. The page may load nothing from another host.
        folder: For the browser's files.

    """
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    done = subprocess.run(
        [chromium(), *options, "--virtual-time-budget=3000", "--dump-dom", url],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    body = done.stdout[done.stdout.index("<body") :]
    body = re.sub(r"<(script|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    assert not re.findall(r"https?://(?!127\.0\.0\.1)", done.stdout), "the page asks another host"
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))
