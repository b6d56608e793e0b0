"""``echo-shm metrics``: the figures of a ring, a replay or rollouts for Prometheus, over HTTP, read-only."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from echo_shm.cli import console, replay_figures
from echo_shm.cli.families import Family, RingFamilies, replay_families, rollouts_families
from echo_shm.errors import EchoShmError, SegmentError
from echo_shm.replay import listing
from echo_shm.ring import lockfile, rollouts, segment

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

#: A dashboard for Grafana that shows these metrics.
DASHBOARD = Path(__file__).with_name("grafana.json")

#: How long after its end a closed segment is noticed, at most (seconds).
_INTERVAL = 1.0

HELP = """\
Prometheus scrapes http://HOST:PORT/metrics. Whoever can connect can read the
figures: without --host only this machine can.
  --dashboard  prints a dashboard for Grafana that shows them, and exits
labels:
  name       of the ring, the replay or the rollouts
  kind       creator, learner, worker, bridge, producer; as in `echo-shm top`
  state      running, waiting, stopped, dead; as in `echo-shm top`
  table      of a replay; and batch_size and rank of a ring of batches
  how, by    of rollouts: how they ended; what an attempt failed by
"""


class Source:
    """One ring, replay or engine of rollouts, which may be closed.

    Raises:
        SegmentError: There is none of that name.

    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._ring: RingFamilies | None = None
        self._uuid = b""
        kind = "segment"
        if name in lockfile.names() or name not in listing.names() + rollouts.names():
            mapped = segment.Segment.attach(name, read_only=True)
            if mapped.geometry.weights:
                raise SegmentError(
                    f"segment {name!r} holds weights: metrics are of rings, replays and engines of rollouts"
                )
            self._ring, self._uuid = RingFamilies(mapped), mapped.uuid
        elif name in listing.names():
            kind = "replay"
            replay_figures.read(name)
        else:
            kind = "rollouts"
            rollouts.look(name)
        self._kind = kind
        self.what = f"{kind} {name!r}"

    def is_there(self) -> bool:
        """Whether it was not closed, even if another one has its name now."""
        if self._kind != "segment":
            return self.name in (listing if self._kind == "replay" else rollouts).names()
        try:
            seen = segment.listing(self.name).segment
        except SegmentError:
            return False
        return seen is not None and seen.uuid == self._uuid

    def families(self) -> list[Family]:
        """All of its figures now. A lock keeps two scrapes apart."""
        with self._lock:
            if self._ring is not None:
                return list(self._ring.collect())
            try:
                if self._kind == "replay":
                    return list(replay_families(replay_figures.read(self.name)))
                seen = rollouts.look(self.name)
            except SegmentError:
                return []
            return [] if seen.figures is None else list(rollouts_families(seen.alive, seen.figures))


class Collector:
    """What prometheus_client asks for at each scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator["Metric"]:
        """The families as prometheus_client has them, with the name as a label."""
        metric: type[Metric] = console.need("prometheus_client.core", "metrics").Metric
        is_there = self._source.is_there()
        up = metric("echo_shm_up", "1 while the ring, the replay or the rollouts are there.", "gauge")
        up.add_sample("echo_shm_up", {"name": self._source.name}, float(is_there))
        yield up
        for family in self._source.families() if is_there else []:
            made = metric(family.name, family.help, family.kind)
            ending = "_total" if family.kind == "counter" else ""
            for sample in family.samples:
                labels = {"name": self._source.name, **sample.labels}
                made.add_sample(family.name + (sample.ending or ending), labels, sample.value)
            yield made


def registry(source: Source) -> "CollectorRegistry":
    """A registry of prometheus_client with one ring, replay or engine of rollouts, and nothing of this process."""
    made: CollectorRegistry = console.need("prometheus_client", "metrics").CollectorRegistry()
    made.register(Collector(source))
    return made


def print_dashboard() -> int:
    """Prints the dashboard. Returns the exit status."""
    print(DASHBOARD.read_text(encoding="utf-8"), end="")
    return 0


def run(name: str, host: str, port: int) -> int:
    """Serves the figures until what they are of is closed. Returns the exit status.

    Raises:
        UsageError: prometheus_client is not installed, or nothing can have that name.
        SegmentError: There is no ring, no replay and no engine of rollouts of that name.
        EchoShmError: Nothing can listen there.

    """
    client = console.need("prometheus_client", "metrics")
    try:
        source = Source(lockfile.check_name(name))
    except ValueError as error:
        raise console.UsageError(str(error)) from None
    try:
        server, thread = client.start_http_server(port, addr=host, registry=registry(source))
    except OSError as error:
        raise EchoShmError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    try:
        shown = f"[{host}]" if ":" in host else host
        print(f"{source.what}: http://{shown}:{server.server_port}/metrics", flush=True)
        while source.is_there():
            time.sleep(_INTERVAL)
        print(f"{source.what} was closed")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    return 0
