"""A server that does what a test tells it to. It speaks version 2 of the wire as far as the test wants."""

import contextlib
import socket
import threading

from echo_shm import WireError
from echo_shm.net import wire
from echo_shm.net.wire import Accept, Greeting, Hello, Refusal
from echo_shm.spec import Spec
from harness.peers import exactly

#: The id of a ring that does not exist.
RING = b"r" * 16


class Pretender:
    """Listens; ``play(connection)`` runs in a thread of its own for each connection, one after the other.

    Args:
        example: The samples it pretends to take.
        play: Given a :class:`Visit`.

    """

    def __init__(self, example, play):
        self.spec = Spec.from_example(example)
        self.visits = []
        self._play = play
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.visits.append(visit := Visit(self, sock))
                threading.Thread(target=self._one, args=(visit,), daemon=True).start()

    def _one(self, visit):
        with contextlib.suppress(OSError, AssertionError, WireError), visit.sock:
            self._play(visit)

    def close(self):
        """Stops listening, and ends every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for visit in self.visits:
            with contextlib.suppress(OSError):
                visit.sock.shutdown(socket.SHUT_RDWR)


class Visit:
    """One connection to a pretender. ``number`` counts the connections before it."""

    def __init__(self, host, sock):
        self.host, self.sock, self.number = host, sock, len(host.visits)
        self.greeting = Greeting(False, bytes(32))
        self.hello = None

    def greet(self):
        """Greets, and hears the client's hello."""
        self.sock.sendall(self.greeting.to_bytes())
        self.hello = Hello.from_bytes(exactly(self.sock, wire.HELLO_BYTES))

    def accept(self, committed=0, known=False, max_frame=1 << 23):
        """Greets, and accepts the client."""
        self.greet()
        accept = Accept(RING, max_frame, known, self.host.spec.schema, committed)
        self.sock.sendall(accept.to_bytes(None, self.greeting, self.hello))

    def refuse(self, text="come again", code=Refusal.BUSY):
        """Refuses the client."""
        self.greet()
        self.sock.sendall(wire.refuse(code, text))

    def take_all(self):
        """Accepts the client, and acknowledges all that it sends."""
        self.accept()
        self.acknowledge_all()

    def acknowledge_all(self):
        """Acknowledges all that the client sends, until it closes the connection."""
        while True:
            number, count = self.take()
            self.sock.sendall(wire.ack(number + count))

    def take(self):
        """The number of a frame's first sample, and how many it has."""
        header = wire.read_header(exactly(self.sock, wire.HEADER_BYTES))
        exactly(self.sock, header.length * self.host.spec.sample_bytes)
        return header.number, header.length
