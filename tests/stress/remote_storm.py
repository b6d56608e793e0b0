"""Clients, links and bridges disturbed at random, every sample accounted for.

By hand: ``python remote_storm.py [seconds [seed]]``.
"""

import contextlib
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections import Counter

import numpy as np
from proxy import Proxy

from echo_shm import Server, TcpClient, TcpTransport

EXAMPLE = {"who": np.zeros((), np.int64), "n": np.zeros((), np.int64), "x": np.zeros(50, np.uint8)}
CLIENTS, PROCESSES = 4, 2


class Account:
    """What was sent, what came, and what happened meanwhile."""

    def __init__(self):
        self.sent = [0] * CLIENTS
        self.got = [[] for _ in range(CLIENTS)]
        self.events = Counter()
        self.failures = []

    def check(self):
        """Every sample whose send() returned came once, whole, and no other. Out of order: only after deaths."""
        assert self.failures == [], self.failures
        for sent, got in zip(self.sent, self.got, strict=True):
            assert sorted(got) == list(range(sent))

    def __str__(self):
        backwards = sum(a > b for got in self.got for a, b in itertools.pairwise(got))
        events = ", ".join(f"{count} {name}" for name, count in sorted(self.events.items()))
        return f"{sum(self.sent):,} samples, {backwards} after a later one; {events}"


def _connect(port, rng):
    """A client. To connect for the first time is tried once: here links are cut then, too."""
    while True:
        with contextlib.suppress(OSError):
            return TcpClient("127.0.0.1", port, EXAMPLE, max_inflight_msgs=rng.choice([1, 2, 32]))


def _send(account, who, port, stopping, rng):
    """Sends until told to stop, as one client after the other; each delivers everything before it goes."""
    try:
        n = 0
        while not stopping.is_set():
            with _connect(port, rng) as client:
                account.events["clients"] += 1
                for _ in range(rng.choice([1, 100, 30_000])):
                    count = rng.choice([1, 1, 1, 40])
                    numbers = np.arange(n, n + count)
                    x = np.repeat(numbers.astype(np.uint8), 50).reshape(count, 50)
                    if count == 1:
                        client.send({"who": np.int64(who), "n": numbers[0], "x": x[0]})
                    else:
                        client.send_many({"who": np.full(count, who), "n": numbers, "x": x})
                    n += count
                    account.sent[who] = n
                    if rng.random() < 0.01:
                        time.sleep(rng.random() * 0.004)
                    if stopping.is_set():
                        break
    except BaseException as error:  # shown by check()
        account.failures.append((who, error))


def _take(account, server, rng):
    """Takes until the server was closed and everything in the ring has come."""
    try:
        for sample in server.dataset_iter(drop_last=False):
            batch = sample.batch
            assert (batch["x"] == batch["n"][:, None].astype(np.uint8)).all(), "a sample is torn"
            for who in range(CLIENTS):
                account.got[who] += batch["n"][batch["who"] == who].tolist()
            if rng.random() < 0.0005:
                time.sleep(0.3)  # the ring fills
    except BaseException as error:  # shown by check()
        account.failures.append(error)


def _disturb(account, transport, proxies, rng):
    what = rng.choice(["bridges killed", "bridges stopped", "links cut", "links cut", "links stalled"])
    account.events[what] += 1
    bridge = rng.choice(transport._keepers).pid
    proxy = rng.choice(proxies)
    if what == "links cut":
        proxy.cut()
    elif what == "links stalled":
        proxy.stalled.set()
        time.sleep(rng.random() * 0.3)
        proxy.stalled.clear()
    elif bridge > 0:
        with contextlib.suppress(ProcessLookupError):
            if what == "bridges killed":
                os.kill(bridge, signal.SIGKILL)
            else:
                os.kill(bridge, signal.SIGSTOP)
                time.sleep(rng.random() * 0.3)
                os.kill(bridge, signal.SIGCONT)


def run(seconds, seed):
    """Storms for so long: the account, settled."""
    rng, account = random.Random(seed), Account()
    transport = TcpTransport(0, processes=PROCESSES, max_connections=4 * CLIENTS)
    stopping = threading.Event()
    with Server(EXAMPLE, 50, num_buffers=20, transport=transport) as server:
        server.start()
        proxies = [Proxy(server.port) for _ in range(CLIENTS)]
        senders = [
            threading.Thread(target=_send, args=(account, who, proxy.port, stopping, random.Random(rng.random())))
            for who, proxy in enumerate(proxies)
        ]
        taker = threading.Thread(target=_take, args=(account, server, random.Random(rng.random())))
        for thread in (*senders, taker):
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not account.failures:
            time.sleep(rng.random() * 0.3)
            _disturb(account, transport, proxies, rng)
        stopping.set()
        for thread in senders:
            thread.join(60)
            if thread.is_alive():
                account.failures.append("a client does not end")
        for proxy in proxies:
            proxy.close()
    taker.join(60)
    if taker.is_alive():
        account.failures.append("the stream does not end")
    return account


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    account = run(seconds, seed)
    print(account)
    account.check()
