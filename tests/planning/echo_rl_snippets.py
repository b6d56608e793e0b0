"""Runs code that was written for EchoRL."""

import asyncio
import re


def ran(snippet):
    """The names that a snippet for EchoRL defines, after a change of its imports. An ``async def main`` is run."""
    changed, count = re.subn(r"^from echo_rl\b", "from echo_shm.planning", snippet, flags=re.MULTILINE)
    assert count > 0
    names = {}
    exec(changed, names)
    if "main" in names:
        names["result"] = asyncio.run(names["main"]())
    return names
