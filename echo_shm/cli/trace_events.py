"""Chrome's trace events: slices, counters and instants of processes, as JSON that Perfetto reads."""

import json
from collections.abc import Hashable
from typing import Any, TextIO

#: The process ids of what is no process: above all that Linux gives.
_FIRST_MADE_UP = (1 << 22) + 1


class Trace:
    """Collects events. Times are nanoseconds of one clock; in the file they are microseconds since ``start_ns``."""

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.events: list[dict[str, Any]] = []
        self._pids: dict[Hashable, int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        self._made_up = _FIRST_MADE_UP

    def process(self, key: Hashable, name: str, pid: int | None = None) -> int:
        """The id of a process in the trace, and its name from now on.

        It is ``pid``, unless another key has that or it is None.
        """
        if key not in self._pids:
            if pid is None or pid < 0 or pid >= _FIRST_MADE_UP or pid in self._pids.values():
                pid, self._made_up = self._made_up, self._made_up + 1
            self._pids[key] = pid
        self._about(self._pids[key], 0, "process_name", name)
        return self._pids[key]

    def thread(self, pid: int, name: str) -> int:
        """The id of a process's line of that name."""
        tid = self._threads.get((pid, name))
        if tid is None:
            tid = self._threads[pid, name] = len(self._threads) + 1
            self._about(pid, tid, "thread_name", name)
        return tid

    def _about(self, pid: int, tid: int, what: str, name: str) -> None:
        self.events.append({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}})

    def slice(self, pid: int, thread: str, name: str, begin_ns: int, end_ns: int, **args: Any) -> None:
        """Something that lasted. Slices of one line must lie beside each other, or one in the other."""
        event = self._at("X", pid, self.thread(pid, thread), name, begin_ns)
        self.events.append({**event, "dur": max(0, end_ns - begin_ns) / 1000, "args": args})

    def instant(self, pid: int, thread: str, name: str, at_ns: int) -> None:
        """Something that happened, and of which nothing else is known."""
        self.events.append({**self._at("i", pid, self.thread(pid, thread), name, at_ns), "s": "t"})

    def counter(self, pid: int, name: str, at_ns: int, value: float) -> None:
        """A figure's value from then on."""
        self.events.append({**self._at("C", pid, 0, name, at_ns), "args": {"value": value}})

    def _at(self, kind: str, pid: int, tid: int, name: str, at_ns: int) -> dict[str, Any]:
        return {"ph": kind, "pid": pid, "tid": tid, "name": name, "ts": (at_ns - self.start_ns) / 1000}

    def write(self, file: TextIO, metadata: dict[str, Any]) -> None:
        """Writes the whole trace."""
        content = {"displayTimeUnit": "ms", "metadata": metadata, "otherData": _flat(metadata), "traceEvents": []}
        head = json.dumps(content)
        file.write(head.removesuffix("]}"))
        for i, event in enumerate(self.events):
            file.write((",\n" if i else "\n") + json.dumps(event))
        file.write("\n]}\n")


def _flat(metadata: dict[str, Any]) -> dict[str, str]:
    """What a viewer shows of the metadata: texts."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
