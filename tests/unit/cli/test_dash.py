"""``echo-shm dash``: what it says of a ring, and to whom."""

import contextlib
import http.client
import json
import math
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.actors import Actor
from harness.boards import rollouts_board
from harness.programs import ECHO_SHM, Program
from harness.waiting import until

from echo_shm import Replay, SegmentError, Server, ShmClient, Table
from echo_shm.cli import dash, dash_state
from echo_shm.cli import main as cli
from echo_shm.replay import Prioritized, ReplayClient

SHM = Path("/dev/shm")
EXAMPLE = np.zeros(2, np.float32)
HERE = os.getpid()


class _Served:
    """A page's server, and requests to it."""

    def __init__(self, name: str) -> None:
        self.server = dash.Server(dash_state.find(name), 0)
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def get(
        self, path: str = "/state", token: str | None = None, host: str | None = None, method: str = "GET"
    ) -> tuple[int, bytes, dict[str, str]]:
        """The answer's status, content and headers. Without a token given it is the right one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=20)
        token = self.server.token if token is None else token
        connection.putrequest(method, f"{path}?token={token}" if token else path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or f"127.0.0.1:{self.server.server_port}")
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, answer.read(), dict(answer.getheaders())
        connection.close()
        return found

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.server_port), timeout=20)

    def state(self) -> dict[str, Any]:
        status, content, headers = self.get()
        assert (status, headers["Content-Type"]) == (200, "application/json")
        found = json.loads(content)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], _Served]]:
    """Serves pages, each of whose requests is a new reading."""
    monkeypatch.setattr(dash, "_LEAST", 0.0)
    served: list[_Served] = []

    def start(name: str) -> _Served:
        served.append(_Served(name))
        return served[-1]

    yield start
    for one in served:
        one.stop()


def _cells(ring: dict[str, Any]) -> str:
    """The slots' states by their first letters."""
    return "".join(dash_state.SLOT_STATES[state][0] * length for state, _, length in ring["cells"])


def test_a_ring_in_a_known_state(name: str, serve: Callable[[str], _Served]) -> None:
    """Each slot with its state and owner, the counters, and who is attached."""
    with Server(EXAMPLE, 3, num_buffers=3, name=name) as server, ShmClient(name) as client:
        served = serve(name)
        for _ in range(4):
            client.send(EXAMPLE)
        with server.lease(timeout=10), client.reserve() as slot:
            slot[...] = EXAMPLE
            said = served.state()
    ring = said["ring"]
    assert (said["closed"], said["kind"], said["name"], said["creator"]) == (False, "ring", name, HERE)
    assert (ring["slots"], ring["step"], ring["tail"], ring["batch_size"]) == (9, 1, 5, 3)
    assert _cells(ring) == "lllccffff"
    assert ring["states"] == {
        "free": 4, "claimed": 1, "committed": 1, "reopened": 0, "sealed": 0, "held": 0, "leased": 3
    }  # fmt: skip
    by_role = {one["role"]: one for one in ring["owners"]}
    assert ring["cells"][0][1] == by_role["learner"]["index"]
    assert ring["cells"][1][1] == ring["cells"][2][1] == by_role["producer"]["index"]
    assert ring["cells"][3][1] == -1
    assert (by_role["producer"]["pid"], by_role["producer"]["samples"], by_role["producer"]["held"]) == (HERE, 4, 1)
    assert (by_role["learner"]["kind"], by_role["learner"]["held"]) == ("creator", 1)
    assert (ring["samples"], ring["batches"], ring["occupancy"]) == (5, 1, 5)
    assert ring["age_mean"] is None


def test_who_blocks_whom(name: str, serve: Callable[[str], _Served], background: Callable[..., Any]) -> None:
    """A wait names the owners that wait, and the one that they wait for."""
    with Server(EXAMPLE, 1, num_buffers=2, name=name) as server, ShmClient(name) as client:
        served = serve(name)
        client.send(EXAMPLE)
        with server.lease(timeout=10):
            client.send(EXAMPLE)
            blocked = background(client.send, EXAMPLE)
            (wait,) = until(lambda: [one for one in served.state()["ring"]["waits"] if "holds" in one["text"]])
            owners = {one["index"]: one["kind"] for one in served.state()["ring"]["owners"]}
        blocked.result()
    assert [owners[index] for index in wait["waiting"]] == ["producer"]
    assert [owners[index] for index in wait["on"]] == ["creator"]
    assert f"producer {HERE} waits for" in wait["text"]
    assert f"creator {HERE} holds 1 of 2 batches" in wait["text"]


def test_a_large_ring_has_fewer_cells(name: str, serve: Callable[[str], _Served]) -> None:
    """Each cell stands for the same number of slots."""
    with Server(np.zeros((), np.uint8), 10_000, num_buffers=3, name=name):
        ring = serve(name).state()["ring"]
    assert (ring["slots"], ring["step"], len(_cells(ring))) == (30_000, 8, 3_750)


def _draw(conn: Any, name: str) -> None:
    """Has a replay with ten steps, and draws for learners in other processes."""
    tables = [Table("train", sampler=Prioritized(alpha=1.0, beta=0.0)), Table("other", max_size=7)]
    replay = Replay(EXAMPLE, 100, tables, store="shm", name=name, thread=True)
    for i in range(10):
        replay.add(EXAMPLE, priority={"train": 0.0 if i < 2 else 2.0 ** (i - 4), "other": 1.0})
    replay.sample(4, "train")
    conn.send("ready")
    conn.recv()
    replay.close()


def test_a_replay_in_a_known_state(name: str, act: Callable[..., Actor], serve: Callable[[str], _Served]) -> None:
    """Its tables with their limiters; the priorities of its items, and of what was drawn for other processes."""
    process = act(_draw, name)
    assert process.hear() == "ready"
    with ReplayClient(name) as client:
        served = serve(name)
        assert served.state()["priorities"]["tables"]["train"]["drawn"]["of"] == 0
        batches = client.dataset_iter(2, table="train", prefetch=1, timeout=30)
        assert next(batches).key.shape == (2,)
        said = until(lambda: (found := served.state())["priorities"]["tables"]["train"]["drawn"]["of"] and found)
        del batches
    process.say()
    process.end()
    train, other = said["tables"]
    assert (said["kind"], said["pid"], said["steps"], said["capacity"]) == ("replay", process.pid, 10, 100)
    assert (train["name"], train["size"], train["inserted"], train["sampled"] >= 4) == ("train", 10, 10, True)
    assert (other["size"], other["max_size"], other["min_diff"], other["max_diff"]) == (7, 7, None, None)
    assert (train["can_insert"], train["can_sample"]) == (True, True)
    assert [(one["table"], one["n"]) for one in said["batches"]] == [("train", 2)]
    assert said["priorities"]["why"] is None
    train = said["priorities"]["tables"]["train"]
    assert (train["items"]["of"], train["items"]["zeros"], sum(train["items"]["bars"])) == (10, 2, 8)
    assert sum(train["drawn"]["bars"]) == train["drawn"]["of"] >= 2
    assert (train["edges"][0], train["edges"][-1]) == pytest.approx((0.25, 32.0))
    assert "other" not in said["priorities"]["tables"], "nothing goes by its priorities"
    assert [one["kind"] for one in said["ring"]["owners"]] == ["replay"]
    assert _cells(said["ring"])


def test_priorities_in_a_directory(name: str, tmp_path: Path, serve: Callable[[str], _Served]) -> None:
    """They are read from the file, whoever has it open."""
    table = Table("train", sampler=Prioritized(alpha=1.0, beta=0.0))
    with Replay(EXAMPLE, 100, [table], store=str(tmp_path / "replay"), name=name, thread=True) as replay:
        served = serve(name)
        for priority in (1.0, 1.0, 8.0):
            replay.add(EXAMPLE, priority=priority)
        items = until(lambda: _fresh(served)["tables"]["train"]["items"], "the board names the directory")
    assert (items["of"], items["zeros"], items["median"]) == (3, 0, 1.0)
    assert [n for n in items["bars"] if n] == [2, 1]


def test_priorities_that_cannot_be_read(name: str, serve: Callable[[str], _Served]) -> None:
    """The page says why: they are in the process's own memory, or the store is damaged. All else is shown."""
    table = Table("train", sampler=Prioritized(alpha=1.0, beta=0.0))
    with Replay(EXAMPLE, 100, [table], name=name, thread=True):
        said = serve(name).state()["priorities"]
        assert "memory of its own process" in said["why"]
        assert said["tables"] == {}
    with Replay(EXAMPLE, 100, [table], store="shm", name=name, thread=True):
        with (SHM / f"echo_shm_replay.{name}").open("r+b") as file:
            file.seek(200)
            file.write(b"\xff" * 8)
        said = serve(name).state()
    assert f"replay '{name}' cannot be used" in said["priorities"]["why"]
    assert said["ring"]["slots"] > 0


def test_rollouts_in_a_known_state(name: str, serve: Callable[[str], _Served]) -> None:
    """Its figures, of which JSON can hold those that are finite; why there are none; and that it was closed."""
    with rollouts_board(f"{name}.rollouts", running=2, finished=4, eta=math.nan, remote_cost=None) as board:
        served = serve(f"{name}.rollouts")
        said = served.state()
        assert (said["closed"], said["kind"], said["name"]) == (False, "rollouts", f"{name}.rollouts")
        assert (said["alive"], said["fault"], 0 <= said["heard"] < 60) == (True, "", True)
        figures = said["figures"]
        assert (figures["pid"], figures["running"], figures["finished"]) == (HERE, 2, 4)
        assert (figures["eta"], figures["remote_cost"], figures["blocks"]) == (None, None, 0)
        board._board.write({"version": 99})
        said = served.state()
        assert (said["figures"], said["heard"], said["alive"]) == (None, None, True)
        assert "are of version 99" in said["fault"]
    assert served.state() == {"closed": True}


def _fresh(served: _Served) -> Any:
    """The histograms now, even if the last ones are younger than a second."""
    served.server._state._priorities._looked = -10.0  # type: ignore[attr-defined]
    return served.state()["priorities"]


@pytest.mark.parametrize("path", ["/", "/state", "/nothing"])
def test_without_the_token_nothing_is_shown(name: str, path: str, serve: Callable[[str], _Served]) -> None:
    """Neither without one, nor with another, nor with a part of it, nor with what is no ASCII."""
    with Server(EXAMPLE, 1, name=name):
        served = serve(name)
        right = served.server.token
        assert len(right) >= 40
        for token in (
            "",
            "x",
            right[:-1],
            right + "x",
            right.swapcase(),
            "%ff%fe",
            "\N{COPYRIGHT SIGN}".encode().hex(),
        ):
            status, content, _ = served.get(path, token=token)
            assert status == 403, token
            assert name.encode() not in content


def test_each_page_has_a_token_of_its_own(name: str, serve: Callable[[str], _Served]) -> None:
    """The token of one is wrong for another."""
    with Server(EXAMPLE, 1, name=name):
        one, other = serve(name), serve(name)
        assert other.get(token=one.server.token)[0] == 403


def test_another_host_name_is_refused(name: str, serve: Callable[[str], _Served]) -> None:
    """A site whose name leads to 127.0.0.1 gets nothing, even with the token; localhost is ours, too."""
    with Server(EXAMPLE, 1, name=name):
        served = serve(name)
        port = served.server.server_port
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1",
            f"127.0.0.1:{port + 1}",
            f"0.0.0.0:{port}",
            "",
        ):
            assert served.get(host=host)[0] == 403, host
        assert served.get(host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(
    ("first", "status"),
    [
        ("GET /state?token={token} HTTP/1.1\r\nHost: {host}", 200),
        ("GET /state?token={token} HTTP/1.1\r\nHost: {host}\r\nHost: evil.example", 403),
        ("GET http://evil.example/state?token={token} HTTP/1.1\r\nHost: {host}", 400),
        ("GET http://[ HTTP/1.1\r\nHost: {host}", 400),
        ("GET //[?token={token} HTTP/1.1\r\nHost: {host}", 404),
        ("GET /state?token=x HTTP/1.1\r\nHost: {host}\r\nContent-Length: 999999999", 403),
    ],
)
def test_odd_requests_have_plain_answers(
    name: str, first: str, status: int, serve: Callable[[str], _Served], capsys: pytest.CaptureFixture[str]
) -> None:
    """None of them is an error of the server."""
    with Server(EXAMPLE, 1, name=name):
        served = serve(name)
        host = f"127.0.0.1:{served.server.server_port}"
        with served.connect() as client:
            words = first.format(token=served.server.token, host=host)
            client.sendall(f"{words}\r\nConnection: close\r\n\r\n".encode())
            assert client.recv(100).startswith(f"HTTP/1.1 {status} ".encode())
    assert capsys.readouterr().err == ""


def test_clients_that_say_nothing_are_few(
    name: str, serve: Callable[[str], _Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One too many is turned away, and threads do not grow. When they are gone, there is room again."""
    monkeypatch.setattr(dash, "_MOST_CONNECTIONS", 3)
    monkeypatch.setattr(dash.Handler, "timeout", 60)
    with Server(EXAMPLE, 1, name=name), contextlib.ExitStack() as silent:
        served = serve(name)
        before = threading.active_count()
        for _ in range(3):
            silent.enter_context(served.connect()).sendall(b"GET /")
        until(lambda: threading.active_count() == before + 3)
        with served.connect() as one_more:
            assert one_more.recv(1) == b""
        silent.close()
        until(lambda: threading.active_count() == before)
        assert served.state()["closed"] is False


@pytest.mark.parametrize(
    "path", ["/../../../etc/passwd", "/dash.html", "/..%2f..%2fetc%2fpasswd", "//etc/passwd", "/state/", "/state/../"]
)
def test_other_paths_lead_nowhere(name: str, path: str, serve: Callable[[str], _Served]) -> None:
    """There are two addresses, and no file can be asked for."""
    with Server(EXAMPLE, 1, name=name):
        assert serve(name).get(path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_is_answered(name: str, method: str, serve: Callable[[str], _Served]) -> None:
    """Nothing can be changed, and no other site is told that it may ask."""
    with Server(EXAMPLE, 1, name=name):
        status, _, headers = serve(name).get(method=method)
    assert status == 501
    assert not [header for header in headers if header.startswith("Access-Control")]


def test_the_page_needs_nothing_from_elsewhere(name: str, serve: Callable[[str], _Served]) -> None:
    """It names no other address, its policy allows none, and names of the user are never markup."""
    with Server(EXAMPLE, 1, name=name):
        status, content, headers = serve(name).get("/")
    page = content.decode()
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert not re.search(r"https?://|//[a-z]|<link|@import|src=|url\(|innerHTML|insertAdjacent|document\.write", page)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["Referrer-Policy"], headers["X-Content-Type-Options"]) == ("no-referrer", "nosniff")


def test_looking_changes_nothing(name: str, serve: Callable[[str], _Served]) -> None:
    """The segment's bytes are the same before and after."""
    with Server(EXAMPLE, 2, name=name), ShmClient(name) as client:
        client.send(EXAMPLE)
        served = serve(name)
        before = (SHM / f"echo_shm.{name}").read_bytes()
        for _ in range(3):
            served.state()
        assert (SHM / f"echo_shm.{name}").read_bytes() == before


def test_a_closed_ring_is_said_to_be_closed(name: str, serve: Callable[[str], _Served]) -> None:
    """From then on, even if another one has its name."""
    with Server(EXAMPLE, 1, name=name):
        served = serve(name)
        assert served.state()["closed"] is False
    assert served.state() == {"closed": True}
    with Server(EXAMPLE, 1, name=name):
        assert served.state() == {"closed": True}


def test_the_command_ends_with_the_ring(name: str, program: Callable[..., Program]) -> None:
    """It prints the address with the token, says when the ring was closed, and ends with status 0."""
    with Server(EXAMPLE, 1, name=name):
        started = program(*ECHO_SHM, "dash", name)
        match = started.wait_for(r"http://127\.0\.0\.1:(\d+)(/\?token=\S+)")
        connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=20)
        connection.request("GET", match[2])
        assert b"<canvas" in connection.getresponse().read()
        connection.close()
    started.wait_for(f"segment '{name}' was closed")
    assert started.result() == 0
    assert "GET" not in started.output


def test_ctrl_c_ends_it(name: str, program: Callable[..., Program]) -> None:
    """With status 130, also while a page is open."""
    with Server(EXAMPLE, 1, name=name):
        started = program(*ECHO_SHM, "dash", name)
        match = started.wait_for(r"http://127\.0\.0\.1:(\d+)(/\?token=\S+)")
        connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=20)
        connection.request("GET", match[2])
        connection.getresponse().read()
        started.send_signal(signal.SIGINT)
        assert started.result() == 130
        connection.close()
    assert "Traceback" not in started.output


@pytest.mark.parametrize(("name", "status"), [("no-such-ring", 1), ("not/a/name", 2)])
def test_what_is_not_there(name: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name is an error in one line, an impossible one a usage error."""
    assert cli.main(["dash", name]) == status
    assert name in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


def test_weights_have_no_page(name: str) -> None:
    """A segment of weights is no ring."""
    with Server(EXAMPLE, 2, name=name) as server:
        publisher: Any = server.publisher(np.zeros(3))
        with pytest.raises(SegmentError, match="holds weights"):
            dash_state.find(publisher.name)
