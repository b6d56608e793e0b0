"""Remote clients, their links and their bridges are disturbed at random; every sample is accounted for.

By hand, in ``tests/``: ``python -m stress.remote_storm [seconds [seed]]``.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter

from harness import stamped
from harness.account import Account
from harness.proxy import Proxy

from echo_shm import Server, TcpClient, TcpTransport

CLIENTS, PROCESSES = 4, 2

#: Samples that a ``send_many()`` of the storm sends.
MANY = 40


class Storm:
    """What was sent, what came, and what happened meanwhile."""

    def __init__(self):
        self.sent = dict.fromkeys(range(CLIENTS), 0)
        self.account = Account()
        self.events = Counter()
        self.failures = []

    def check(self):
        """Every sample whose send() returned came once and whole, and no other came."""
        assert self.failures == [], self.failures
        self.account.settle(self.sent)

    def __str__(self):
        events = ", ".join(f"{count} {name}" for name, count in sorted(self.events.items()))
        return f"{self.account.samples:,} samples, {self.account.descents} after a younger one; {events}"


def _connect(port, rng):
    """A client. It tries only once to connect for the first time; here links are cut during that, too."""
    while True:
        with contextlib.suppress(OSError):
            return TcpClient("127.0.0.1", port, stamped.example(), max_inflight_msgs=rng.choice([1, 2, 32]))


def _send(storm, who, port, stopping, rng):
    """Sends until it is told to stop, through one client after the other; each delivers everything before it closes."""
    one, many, n = stamped.example(), stamped.examples(MANY), 0
    try:
        while not stopping.is_set():
            with _connect(port, rng) as client:
                storm.events["clients"] += 1
                for _ in range(rng.choice([1, 100, 30_000])):
                    client.version = stamped.version(who, n)
                    if rng.random() < 0.75:
                        client.send(stamped.stamp(one, who, n))
                        n += 1
                    else:
                        client.send_many(stamped.stamp_many(many, who, n))
                        n += MANY
                    storm.sent[who] = n
                    if rng.random() < 0.01:
                        time.sleep(rng.random() * 0.004)
                    if stopping.is_set():
                        break
    except BaseException as error:  # check() shows it
        storm.failures.append((who, error))


def _take(storm, server, rng):
    """Takes until the server is closed and everything in the ring has come."""
    try:
        for sample in server.dataset_iter(drop_last=False):
            storm.account.enter(sample.batch, sample.versions)
            if rng.random() < 0.0005:
                time.sleep(0.3)  # the ring fills
    except BaseException as error:  # check() shows it
        storm.failures.append(error)


def _disturb(storm, transport, proxies, rng):
    what = rng.choice(["bridges killed", "bridges stopped", "links cut", "links cut", "links stalled"])
    storm.events[what] += 1
    bridge = rng.choice(transport._supervisors).pid
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
    """Runs a storm for so long (seconds), and returns it; the caller checks it."""
    rng, storm = random.Random(seed), Storm()
    transport = TcpTransport(0, processes=PROCESSES, max_connections=4 * CLIENTS)
    stopping = threading.Event()
    with Server(stamped.example(), 50, num_buffers=20, transport=transport) as server:
        server.start()
        proxies = [Proxy(server.port) for _ in range(CLIENTS)]
        senders = [
            threading.Thread(target=_send, args=(storm, who, proxy.port, stopping, random.Random(rng.random())))
            for who, proxy in enumerate(proxies)
        ]
        taker = threading.Thread(target=_take, args=(storm, server, random.Random(rng.random())))
        for thread in (*senders, taker):
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not storm.failures:
            time.sleep(rng.random() * 0.3)
            _disturb(storm, transport, proxies, rng)
        stopping.set()
        for thread in senders:
            thread.join(60)
            if thread.is_alive():
                storm.failures.append("a client does not end")
        for proxy in proxies:
            proxy.close()
    taker.join(60)
    if taker.is_alive():
        storm.failures.append("the stream does not end")
    return storm


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    storm = run(seconds, seed)
    print(storm)
    storm.check()
