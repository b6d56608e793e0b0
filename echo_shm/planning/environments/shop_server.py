"""Serves a shop's pages over HTTP on this machine."""

import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from echo_shm.planning.environments.shop_pages import Location, Pages


class ShopServer:
    """A shop on 127.0.0.1, for people and for agents in other processes. Nobody else can reach it.

    ``GET /GOAL?kind=…`` is a page for the customer with the goal of that number; ``/GOAL`` is its search page. It is
    HTML, or with ``Accept: application/json`` an object of ``observation`` (WebShop's text), ``has_search_bar``,
    ``links`` (for each clickable text, in lower case, its URL), ``reward`` and ``done``. The server keeps nothing of a
    customer: all is in the URL. A search is ``GET /GOAL?kind=results&keywords=…``.

    Use it in a ``with`` block, or call :meth:`close`.

    Attributes:
        url: ``"http://127.0.0.1:PORT"``. The port is a free one.

    Args:
        pages: What is served.

    """

    def __init__(self, pages: Pages) -> None:
        handler = type("Handler", (_Handler,), {"pages": pages})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True  # a customer that keeps a connection open does not keep the program
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serves no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> "ShopServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    pages: Pages
    timeout = 30  # seconds for a request to come

    def do_GET(self) -> None:
        """A page, or what is wrong with the URL."""
        try:
            url = urllib.parse.urlsplit(self.path)
        except ValueError as error:
            self._answer(400, "text/plain", f"{self.path!r:.80} is no URL: {error}\n")
            return
        number = url.path.strip("/")
        goals = self.pages.goals
        if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) < len(goals)):
            self._answer(404, "text/plain", f"goal {number!r:.40}: use /0 to /{len(goals) - 1}\n")
            return
        try:
            page = self.pages.page(goals[int(number)], Location.of_path(url.query))
        except (ValueError, RecursionError) as error:  # of JSON that is nested too deep
            self._answer(404, "text/plain", f"{error}\n")
            return
        if "application/json" in self.headers.get("Accept", ""):
            self._answer(200, "application/json", json.dumps(page.described(f"/{number}")))
        else:
            self._answer(200, "text/html", page.html(f"/{number}"))

    def _answer(self, status: int, kind: str, content: str) -> None:
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: agents ask thousands of times."""
