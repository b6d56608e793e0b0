"""A small HTTP server that answers as a test says, for clients of remote backbones."""

import asyncio
import contextlib
import json


class HttpAnswers:
    """Gives one answer a request, in order, then the last one again. Keeps what was asked.

    An answer is ``(status, headers, JSON)``, or with bytes that are sent as they are, or ``"hang"``, or ``"drop"``: the
    connection ends without one.
    """

    def __init__(self, *answers):
        self.answers = list(answers)
        #: Path, headers (lower case) and JSON of each request.
        self.asked = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._tasks = set()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.asked.append((head[0].split()[1], headers, json.loads(body)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "hang":
            await asyncio.Event().wait()
        if answer == "drop":
            return False
        status, more, content = answer
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        lines = [f"HTTP/1.1 {status} .", "content-type: application/json", f"content-length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in more.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await writer.drain()
        return True
