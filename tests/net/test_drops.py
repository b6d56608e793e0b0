"""Connections are lost and bridges killed while samples go: every sample comes once, with its version."""

import contextlib
import os
import random
import signal
import threading
import time

import pytest
from harness import stamped
from harness.account import Account
from harness.proxy import Proxy
from harness.waiting import until
from stress import remote_storm

from echo_shm import ConnectionClosedError, Server, TcpClient, TcpTransport

EXAMPLE = stamped.example()

#: How often a bridge is killed: each time it takes about a second until the next one serves.
KILLS = 5


def sample(who, n):
    """The n-th sample of a client."""
    return stamped.stamp(stamped.example(), who, n)


class Stream:
    """Clients that send, and a learner that takes until everything has come, while they are disturbed.

    Args:
        server: Started.
        ports: Where each client connects.
        count: Samples of each client.

    """

    def __init__(self, server, ports, count, **options):
        self.server, self.count = server, count
        self.account, self.failures = Account(), []
        self._connected = threading.Barrier(len(ports) + 1)  # a client tries only once to connect for the first time
        self.threads = [threading.Thread(target=self._send, args=(i, port, options)) for i, port in enumerate(ports)]

    def _send(self, who, port, options):
        try:
            rng = random.Random(who)
            with TcpClient("127.0.0.1", port, EXAMPLE, **options) as client:
                self._connected.wait(30)
                for n in range(self.count):
                    client.version = stamped.version(who, n)
                    client.send(sample(who, n))
                    if rng.random() < 0.01:
                        time.sleep(0.002 * rng.random())
                    if rng.random() < 0.001:
                        client.wait()
        except BaseException as error:  # check() shows it
            self.failures.append((who, error))

    def run(self, disturb, times):
        """Takes until all samples have come; calls ``disturb`` so many times in between."""
        for thread in self.threads:
            thread.start()
        self._connected.wait(30)
        total, disturbed = self.count * len(self.threads), 0
        while self.account.samples < total and not self.failures:
            with contextlib.suppress(TimeoutError):
                came = self.server.sample(timeout=0.05)
                self.account.enter(came.batch, came.versions)
            if self.account.samples > total * (disturbed + random.random()) / (times + 1):
                disturb()
                disturbed += 1
        for thread in self.threads:
            thread.join(30)

    def check(self, in_order=True):
        """Asserts that every sample came once; and in order, unless a bridge died and its slot was re-opened."""
        assert self.failures == []
        self.account.settle(dict.fromkeys(range(len(self.threads)), self.count))
        assert not in_order or self.account.descents == 0
        with pytest.raises(TimeoutError):
            self.server.sample(timeout=0.1)


@pytest.mark.watchdog(180)
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_bridges(processes):
    """Bridges are killed again and again: each is started again, clients go on, every sample comes once."""
    transport, kills = TcpTransport(0, processes=processes, max_connections=4), []

    def kill():
        supervisor = random.choice(transport._supervisors)
        kills.append(
            until(lambda: supervisor.pid > 0 and supervisor.pid not in kills and supervisor.pid, "another bridge runs")
        )
        os.kill(kills[-1], signal.SIGKILL)

    with Server(EXAMPLE, 10, transport=transport) as server:
        server.start()
        stream = Stream(server, [server.port] * 4, 10_000)
        stream.run(kill, KILLS)
        stream.check(in_order=False)
    assert len(kills) >= KILLS


@pytest.mark.watchdog(180)
def test_storm():
    """All of this at random, with a learner that pauses: every sample whose send() returned comes once and whole."""
    seed = int(os.environ.get("STORM_SEED", random.SystemRandom().getrandbits(32)))
    print(f"STORM_SEED={seed}")
    storm = remote_storm.run(4, seed)
    print(storm)
    storm.check()


@pytest.mark.watchdog(180)
def test_cut_connections():
    """Connections are reset at any byte, in both directions: nothing is lost or doubled."""
    with Server(EXAMPLE, 10, transport=TcpTransport(0)) as server:
        server.start()
        proxies = [Proxy(server.port) for _ in range(3)]
        stream = Stream(server, [proxy.port for proxy in proxies], 20_000)
        stream.run(lambda: random.choice(proxies).cut(), 60)
        for proxy in proxies:
            proxy.close()
        stream.check()
        assert sum(proxy.cuts for proxy in proxies) >= 30


def test_a_stalled_client_delays_nobody():
    """While one client's connection is stalled, another client's samples come."""
    with Server(EXAMPLE, 10, transport=TcpTransport(0)) as server:
        server.start()
        proxy, account = Proxy(server.port), Account()
        slow, fast = (TcpClient("127.0.0.1", port, EXAMPLE) for port in (proxy.port, server.port))

        def take_until(who, count):
            while account.next.get(who, 0) < count:
                account.enter(server.sample(timeout=20).batch)

        slow.send(sample(0, 0))
        slow.wait()
        proxy.stalled.set()
        time.sleep(0.2)
        for n in range(1, 1000):
            slow.send(sample(0, n))
        for n in range(1000):
            fast.send(sample(1, n))
        take_until(1, 990)
        assert account.next[0] <= 10
        proxy.stalled.clear()
        take_until(0, 990)
        slow.close()
        fast.close()
        take_until(0, 1000)
        take_until(1, 1000)
        account.settle({0: 1000, 1: 1000})
        assert account.descents == 0
        proxy.close()


def test_another_server_on_the_same_port():
    """A new learner on the same port, with a new ring, gets what the old one has not acknowledged."""
    with Server(EXAMPLE, 5, transport=TcpTransport(0)) as old:
        old.start()
        port = old.port
        proxy = Proxy(port)
        client = TcpClient("127.0.0.1", proxy.port, EXAMPLE)
        for n in range(5):
            client.send(sample(0, n))
        client.wait()
        proxy.stalled.set()
        time.sleep(0.2)
        for n in range(5, 10):
            client.send(sample(0, n))
        proxy.cut()  # before the old server's BYE can reach the client
    proxy.stalled.clear()
    with Server(EXAMPLE, 5, transport=TcpTransport(port)) as new:
        new.start()
        client.wait()
        assert stamped.stamps(new.sample(timeout=20).batch) == [(0, n) for n in range(5, 10)]
        client.close()
    proxy.close()


def test_without_reconnect():
    """With reconnect=False a lost connection ends the client, which says what is not acknowledged."""
    with Server(EXAMPLE, 5, transport=TcpTransport(0)) as server:
        server.start()
        proxy = Proxy(server.port)
        client = TcpClient("127.0.0.1", proxy.port, EXAMPLE, reconnect=False)
        client.send(sample(0, 0))
        client.wait()
        proxy.cut()
        assert client._closed.wait(20)
        with pytest.raises(ConnectionClosedError, match="connection lost"):
            client.send(sample(0, 1))
        client.close()
        proxy.close()
