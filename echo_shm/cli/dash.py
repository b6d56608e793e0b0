"""``echo-shm dash``: a page on loopback that shows a ring, a replay or rollouts as they move. It changes nothing.

Who knows the token in the page's address can read it, and nobody else: another user of this machine cannot, and neither
can a page of another site, which the browser would send here (the Host header tells).
"""

import base64
import hashlib
import json
import re
import secrets
import sys
import threading
import time
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from echo_shm.cli import console
from echo_shm.cli.dash_state import State, find
from echo_shm.errors import EchoShmError
from echo_shm.ring.lockfile import check_name

_PAGE = Path(__file__).with_name("dash.html")

#: Two readings are at least so far apart, however many pages ask (seconds).
_LEAST = 0.05

#: The most connections at once. A browser opens six.
_MOST_CONNECTIONS = 64

#: How often the command looks whether the ring was closed, and for how long pages may still ask then (seconds).
_INTERVAL, _LINGER = 0.5, 2.0

HELP = """\
Open the printed address in a browser of this machine. The page needs nothing
from anywhere else. It shows the ring's slots (free, claimed, committed, leased,
and by whom), rates, ages, and who waits for whom; of a replay also its tables,
their limiters, and histograms of priorities: a sample of each table's items,
if the replay has a store (store="shm" or a directory), and what was drawn for
other processes. Of rollouts it shows how many run, wait and have ended, by how,
tokens a second, what was reused and what it cost, and the backbone's blocks of
the KV cache, or requests and money. Of a replay on Ray it shows all shards, and
what was lost. The token in the address is new each time; without it nothing is
shown.
From another machine: ssh -L PORT:127.0.0.1:PORT HOST, and the same address.
"""


class Server(ThreadingHTTPServer):
    """Serves one page on 127.0.0.1, to whoever knows the token.

    Attributes:
        token: What the page's address must have.

    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, state: State, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.token = secrets.token_urlsafe(32)
        self._state = state
        self._lock = threading.Lock()
        self._free = threading.Semaphore(_MOST_CONNECTIONS)
        self._last: tuple[float, dict[str, Any] | None] = (-_LEAST, None)
        self._closed = False

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    @cached_property
    def hosts(self) -> frozenset[str]:
        """What a browser that was sent here by this machine's user says is our name."""
        return frozenset(f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost"))

    @cached_property
    def page(self) -> bytes:
        """The page, whole."""
        return _PAGE.read_bytes()

    @cached_property
    def policy(self) -> str:
        """The page's own script and style may run, it may ask this server, and nothing else may happen."""
        hashes = {}
        for tag in (b"script", b"style"):
            (text,) = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), self.page, re.DOTALL)
            hashes[tag] = base64.b64encode(hashlib.sha256(text).digest()).decode()
        return (
            f"default-src 'none'; script-src 'sha256-{hashes[b'script']}'; style-src 'sha256-{hashes[b'style']}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def state(self) -> dict[str, Any]:
        """The latest reading, or a new one; ``{"closed": True}`` once it was closed, for good."""
        with self._lock:
            if not self._closed and time.monotonic() - self._last[0] >= _LEAST:
                read = self._state.read()
                self._last, self._closed = (time.monotonic(), read), read is None
            return {"closed": True} if self._closed else {"closed": False, **(self._last[1] or {})}

    # -- connections

    def process_request(self, request: Any, client_address: Any) -> None:
        """Has a thread answer a connection. One too many is closed: threads and files stay few."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread for it
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of connections that the other side has ended."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers GET, and no other method."""

    server: Server
    server_version, sys_version = "echo-shm", ""
    protocol_version = "HTTP/1.1"
    timeout = 10  # seconds that a connection may be idle

    def do_GET(self) -> None:
        """The page, or the figures."""
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # nobody reads what comes with it
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"This is not the name of this server.\n")
            return
        if not self.path.startswith("/"):  # another host may be named there, too
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", b"This is no address of this server.\n")
            return
        address = urlsplit("//" + hosts[0] + self.path)
        given = parse_qs(address.query).get("token", [""])[0]
        if not secrets.compare_digest(given.encode(errors="replace"), self.server.token.encode()):
            text = b"The address needs the token that echo-shm dash has printed.\n"
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", text)
        elif address.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif address.path == "/state":
            text = json.dumps(self.server.state(), separators=(",", ":"), allow_nan=False).encode()
            self._answer(HTTPStatus.OK, "application/json", text)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There is nothing here.\n")

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for header, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", self.server.policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the token would be in the log."""


def run(name: str, port: int) -> int:
    """Shows a ring, a replay or rollouts of this machine: see :func:`serve`.

    Raises:
        UsageError: Nothing can have that name.
        SegmentError: There is no ring, no replay and no engine of rollouts of that name.
        EchoShmError: Nothing can listen there.

    """
    try:
        state = find(check_name(name))
    except ValueError as error:
        raise console.UsageError(str(error)) from None
    return serve(state, port)


def serve(state: State, port: int) -> int:
    """Serves the page until what it shows is closed. Returns the exit status.

    Raises:
        EchoShmError: Nothing can listen there.

    """
    try:
        server = Server(state, port)
    except OSError as error:
        raise EchoShmError(f"cannot listen on 127.0.0.1 port {port}: {error.strerror or error}") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="echo_shm dash")
    thread.start()
    try:
        print(f"{state.what}: {server.url}", flush=True)
        while not server.state()["closed"]:
            time.sleep(_INTERVAL)
        print(f"{state.what} was closed", flush=True)
        time.sleep(_LINGER)  # so that the page hears it, too
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    return 0
