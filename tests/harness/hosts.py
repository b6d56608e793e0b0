"""Hosts for tests: network namespaces that cables join, and the programs that run on them.

The programs, in ``tests/``: ``python -m harness.hosts learner HOST CLIENTS COUNT [HURRY]`` and
``python -m harness.hosts client HOST PORT WHO COUNT``.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import echo_shm
from echo_shm import Server, TcpClient, TcpTransport
from echo_shm.net.bridge import supervisor
from echo_shm.workers.parent_death import die_with_parent
from harness import stamped
from harness.account import Account
from harness.programs import TESTS

KEY = b"the key of these two hosts"

_numbers = itertools.count()


def why_not() -> str:
    """Why no such host can be made here; empty if one can."""
    if any(shutil.which(tool) is None for tool in ("ip", "ss", "tc")):
        return "ip(8), ss(8) and tc(8) are needed: iproute2 is not installed"
    name = f"echo-{os.getpid()}-probe"
    steps = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", "one", "netns", name, "type", "veth", "peer", "name", "two", "netns", name],
        f"tc -n {name} qdisc add dev one root tbf rate 1mbit burst 16kb latency 1ms".split(),
    ]
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode != 0:
                return f"{' '.join(step)}: {done.stderr.strip()}"
        return ""
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Host:
    """A network namespace with a cable to another one, or to none.

    Args:
        far: The host at the cable's other end.
        net: The third part of both addresses. The last part is 1 for the far host and 2 for this one.

    """

    def __init__(self, far: "Host | None" = None, net: int = 0) -> None:
        self.name = f"echo-{os.getpid()}-{next(_numbers)}"
        self._processes: list[subprocess.Popen[str]] = []
        self._far, self.cable = far, f"cable{net}"
        _do("ip", "netns", "add", self.name)
        _do("ip", "-n", self.name, "link", "set", "lo", "up")
        if far is not None:
            _do("ip", "link", "add", "name", self.cable, "netns", self.name, "type", "veth",
                "peer", "name", self.cable, "netns", far.name)  # fmt: skip
            for host, last in ((far, 1), (self, 2)):
                _do("ip", "-n", host.name, "addr", "add", f"10.77.{net}.{last}/24", "dev", self.cable)
                _do("ip", "-n", host.name, "addr", "add", f"fd77:{net}::{last}/64", "dev", self.cable, "nodad")
                _do("ip", "-n", host.name, "link", "set", self.cable, "up")

    def cut(self) -> None:
        """Pulls the cable."""
        _do("ip", "-n", self.name, "link", "set", self.cable, "down")

    def mend(self) -> None:
        """Puts the cable back. (An interface that goes down loses its IPv6 address.)"""
        _do("ip", "-n", self.name, "link", "set", self.cable, "up")

    def slow_down(self, rate: str) -> None:
        """Limits what goes out over the cable."""
        limit = ["rate", rate, "burst", "16kb", "latency", "50ms"]
        _do("tc", "-n", self.name, "qdisc", "add", "dev", self.cable, "root", "tbf", *limit)

    def connections(self, to: str) -> list[str]:
        """A line for each TCP connection with an address."""
        done = _do("ip", "netns", "exec", self.name, "ss", "-Htn", "state", "established", "dst", to)
        return done.splitlines()

    def end_connections(self, to: str) -> list[str]:
        """Ends the TCP connections with an address, as if they had failed; returns a line for each."""
        done = _do("ip", "netns", "exec", self.name, "ss", "-HtnOK", "state", "established", "dst", to)
        return done.splitlines()

    def run(self, *words: Any) -> Iterator[dict[str, Any]]:
        """Starts a program on this host; yields what the program says."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", "harness.hosts", *map(str, words)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TESTS)
        self._processes.append(process)
        assert process.stdout is not None
        return map(json.loads, process.stdout)

    def kill(self) -> None:
        """Power off: its programs end, and no peer is told."""
        if self._far is not None:
            self.cut()
        self.end()

    def end(self) -> None:
        """Removes the host; a learner on it may clean up."""
        for process in self._processes:
            process.send_signal(signal.SIGINT if "learner" in process.args else signal.SIGKILL)
            process.wait(30)
        self._processes = []
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)


def _do(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


# --- the programs -------------------------------------------------------------


def say(**what: Any) -> None:
    """Prints a line for the test that started this program."""
    print(json.dumps(what), flush=True)


#: What a bridge executes before it begins: it gives up a silent peer so many times as fast.
_HURRY = (
    "from echo_shm.net import tcp; usual = tcp._set; "
    "tcp._set = lambda sock, name, value: usual(sock, name, value if name == 'TCP_KEEPCNT' else max(1, value // {}))"
)


def learner(host: str, clients: int, count: int, hurry: int = 1) -> None:
    """Takes what the clients send. Says its port, what has come so far, and at the end that each sample came once."""
    supervisor._PROGRAM = supervisor._PROGRAM.replace("; main()", f"; {_HURRY.format(hurry)}; main()")
    transport, account = TcpTransport(0, host=host, authkey=KEY), Account()
    with Server(stamped.example(), 50, num_buffers=4, transport=transport) as server:
        server.start()
        say(port=server.port)
        while account.samples < clients * count:
            sample = server.sample()
            assert sample is not None
            account.enter(sample.batch)
            got = [account.next.get(who, 0) for who in range(clients)]
            say(got=got, connected=sample.info.active_connections)
    account.settle(dict.fromkeys(range(clients), count))
    assert account.descents == 0
    say(done=True)


def client(host: str, port: int, who: int, count: int) -> None:
    """Says that it is connected, sends so many samples, and says that they were delivered."""
    try:
        with TcpClient(host, port, stamped.example(), authkey=KEY, timeout=60) as one:
            say(connected=True)
            sample = stamped.example()
            for n in range(count):
                one.send(stamped.stamp(sample, who, n))
            one.wait()
    except (OSError, echo_shm.EchoShmError) as error:
        say(error=str(error))
    else:
        say(sent=count)


def _main(words: list[str]) -> NoReturn:
    numbers = [int(word) for word in words[2:]]
    die_with_parent(os.getppid())
    with contextlib.suppress(KeyboardInterrupt):
        {"learner": learner, "client": client}[words[0]](words[1], *numbers)
    sys.exit(0)


if __name__ == "__main__":
    _main(sys.argv[1:])
