"""``echo-shm metrics``: a ring's or a replay's figures for Prometheus, over HTTP, through a read-only mapping."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from echo_shm.cli import console, replay_figures
from echo_shm.cli.families import Family, RingFamilies, replay_families
from echo_shm.errors import EchoShmError, SegmentError
from echo_shm.replay import listing
from echo_shm.ring import lockfile, segment

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
  name       the ring's or the replay's
  kind       creator, learner, worker, bridge, producer; as in `echo-shm top`
  state      running, waiting, stopped, dead; as in `echo-shm top`
  table      of a replay; and batch_size and rank of a ring of batches
"""


class Source:
    """One ring or replay, which may be closed.

    Raises:
        SegmentError: There is none of that name.

    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._ring: RingFamilies | None = None
        self._uuid = b""
        if name in lockfile.names() or name not in listing.names():
            mapped = segment.Segment.attach(name, read_only=True)
            if mapped.geometry.weights:
                raise SegmentError(f"segment {name!r} holds weights: metrics are of rings and replays")
            self._ring, self._uuid = RingFamilies(mapped), mapped.uuid
        else:
            replay_figures.read(name)
        self.what = f"{'segment' if self._ring else 'replay'} {name!r}"

    def is_there(self) -> bool:
        """Whether it was not closed, even if another one has its name now."""
        try:
            if self._ring is None:
                return name_is_replay(self.name)
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
                return list(replay_families(replay_figures.read(self.name)))
            except SegmentError:
                return []


def name_is_replay(name: str) -> bool:
    """Whether a replay has that name now."""
    return name in listing.names()


class Collector:
    """What prometheus_client asks for at each scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator["Metric"]:
        """The families as prometheus_client has them, with the name as a label."""
        metric: type[Metric] = console.need("prometheus_client.core", "metrics").Metric
        is_there = self._source.is_there()
        up = metric("echo_shm_up", "1 while the ring or the replay is there.", "gauge")
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
    """A registry of prometheus_client with one ring or replay, and nothing of this process."""
    made: CollectorRegistry = console.need("prometheus_client", "metrics").CollectorRegistry()
    made.register(Collector(source))
    return made


def print_dashboard() -> int:
    """Prints the dashboard. Returns the exit status."""
    print(DASHBOARD.read_text(encoding="utf-8"), end="")
    return 0


def run(name: str, host: str, port: int) -> int:
    """Serves the figures until the ring or the replay is closed. Returns the exit status.

    Raises:
        UsageError: prometheus_client is not installed, or nothing can have that name.
        SegmentError: There is no ring and no replay of that name.
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
