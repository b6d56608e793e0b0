"""What Ray's own exporter says of shards."""

import re
import urllib.request

import numpy as np
import pytest
from harness.packages import need
from harness.ray_cluster import cluster
from harness.waiting import until

need("ray")
need("cryptography")
need("aiohttp", "aiohttp_cors", "grpc", "opencensus", "opentelemetry", "prometheus_client", "pydantic")  # ray[default]

import ray  # noqa: E402

from echo_shm import Table  # noqa: E402
from echo_shm.adapters.ray import RayReplay  # noqa: E402
from echo_shm.cli.families import OF_LIMITERS, OF_TABLES  # noqa: E402
from echo_shm.replay import Prioritized  # noqa: E402


def add(writer, i, n):
    """Writes n steps."""
    for _ in range(n):
        writer.add({"x": np.zeros(3)})
    writer.flush()


def scraped(node):
    """What a node exports of shards: values, by the name and what they are of."""
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    try:
        text = urllib.request.urlopen(url, timeout=20).read().decode()
    except OSError:  # the agent is not there yet
        return {}
    found = {}
    for name, labels, value in re.findall(r"^ray_echo_shm_replay_(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        said = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        found[name, said["replay"], said["shard"], said.get("table")] = float(value)
    return found


@pytest.mark.watchdog(300)
def test_ray_exports_the_figures_of_a_shard():
    """Those of its tables and limiters, named as echo-shm metrics names them."""
    tables = [Table("all", max_size=10, sampler=Prioritized(1.0, 1.0)), Table("few", max_size=4)]
    with (
        cluster(agents=True, num_cpus=1, config={"metrics_report_interval_ms": 200}),
        RayReplay({"x": np.zeros(3)}, 100, tables, mass_age=0.2) as replay,
    ):
        replay.spawn(add, 1, [7]).join(60)
        name, (node,) = replay._setup.name, ray.nodes()
        expected = {
            ("steps", None): 7,
            ("steps_max", None): 100,
            ("items", "all"): 7,
            ("items", "few"): 4,
            ("inserted_total", "few"): 7,
            ("evicted_total", "few"): 3,
            ("limiter_can_sample", "all"): 1,
        }

        def is_said():
            found = scraped(node)
            return {one: found.get((one[0], name, "0", one[1])) for one in expected} == expected

        until(is_said)
        found = scraped(node)
        assert {key[1:3] for key in found} == {(name, "0")}
        endings = {"counter": "_total", "gauge": ""}
        names = {one + endings[kind] for one, kind, _, _ in OF_TABLES} | {one for one, _ in OF_LIMITERS}
        # A counter that was never above 0 is not exported, and neither is what is infinite.
        nothing = {"sampled_total", "limiter_min_diff", "limiter_max_diff"}
        assert {key[0] for key in found} == (names - nothing) | {"steps", "steps_max"}
        assert {key[3] for key in found if key[0] in names} == {"all", "few"}
