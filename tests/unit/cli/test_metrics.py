"""``echo-shm metrics``: what Prometheus gets of rings and replays."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.boards import rollouts_board
from harness.programs import ECHO_SHM, Program
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families

from echo_shm import Replay, Server, ShmClient, Table
from echo_shm.cli import main as cli
from echo_shm.cli import metrics
from echo_shm.replay import ReplayClient, SampleToInsertRatio

SHM = Path("/dev/shm")
EXAMPLE = {"obs": np.zeros(4, np.float32), "step": np.zeros((), np.int64)}
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def _scrape(name: str) -> Values:
    """All values by their name and their labels, without the label ``name``; as the library's own parser reads them."""
    text = exposition.generate_latest(metrics.registry(metrics.Source(name))).decode()
    found: Values = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("name") == name
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def _of(values: Values, name: str, **labels: str) -> float:
    return values[f"echo_shm_{name}", tuple(sorted(labels.items()))]


def test_a_ring_in_a_known_state(name: str) -> None:
    """Counters, gauges, who is attached, ages and summaries are as the ring is; times are in seconds."""
    with Server(EXAMPLE, 2, num_buffers=4, detailed_metrics=True, name=name) as server, ShmClient(name) as client:
        publisher = server.publisher(np.zeros(3))
        for _ in range(4):
            publisher.publish(np.zeros(3))
        client.version = 1
        for _ in range(5):
            client.send(EXAMPLE)
        with server.lease(timeout=10):
            values = _scrape(name)
    assert _of(values, "up") == 1
    assert _of(values, "samples_total") == 5
    assert _of(values, "batches_taken_total") == 1
    assert (_of(values, "slots"), _of(values, "slots_used"), _of(values, "store_samples")) == (8, 5, 3)
    assert _of(values, "owners", kind="creator", state="running") == 1
    assert _of(values, "owners", kind="producer", state="running") == 1
    assert _of(values, "batches_held") == 1
    assert 0 < _of(values, "oldest_lease_seconds") < 60
    assert _of(values, "wait_seconds", role="producer") == 0
    assert _of(values, "weights_version") == 4
    assert _of(values, "sample_age_versions", stat="mean") == 3
    assert _of(values, "sample_age_versions", stat="max") == 3
    assert _of(values, "copy_seconds_count") == 5
    assert 0 < _of(values, "copy_seconds", quantile="0.5") <= _of(values, "copy_seconds", quantile="0.99") < 60
    assert _of(values, "dwell_seconds_count") == 1
    assert _of(values, "dwell_seconds_sum") > 0


def test_no_label_is_a_process(name: str) -> None:
    """Labels have few values however many processes come and go."""
    with Server(EXAMPLE, 2, name=name) as server, ShmClient(name):
        before = set(_scrape(name))
        for _ in range(3):
            ShmClient(server.handle).close()
            with ShmClient(name):
                assert set(_scrape(name)) == before
    assert not any(str(os.getpid()) in value for _, labels in before for _, value in labels)


def test_a_replay_in_a_known_state(name: str) -> None:
    """Its tables, their limiters, its writers and its rings of batches."""
    tables = [Table("main", max_size=50, rate_limiter=SampleToInsertRatio(2.0, 1, (0.0, 6.0))), Table("other")]
    with Replay(EXAMPLE, 100, tables, store="shm", name=name) as replay, ReplayClient(name) as client:
        feed = replay._rings._feed
        assert feed is not None
        with client.writer():
            for _ in range(2):
                replay.add(EXAMPLE)
            replay.sample(1, "main")
            feed.publish()
            values = _scrape(name)
    assert (_of(values, "up"), _of(values, "replay_alive")) == (1, 1)
    assert (_of(values, "replay_steps"), _of(values, "replay_steps_max")) == (2, 100)
    assert _of(values, "replay_inserted_total", table="main") == 2
    assert _of(values, "replay_sampled_total", table="main") == 1
    assert _of(values, "replay_sampled_total", table="other") == 0
    assert _of(values, "replay_items_max", table="main") == 50
    assert _of(values, "replay_limiter_diff", table="main") == 3
    assert _of(values, "replay_limiter_max_diff", table="main") == 6
    assert _of(values, "replay_limiter_max_diff", table="other") == float("inf")
    assert _of(values, "replay_writers", state="running") == 1


def test_a_scrape_changes_nothing(name: str) -> None:
    """The segment's bytes are the same before and after."""
    with Server(EXAMPLE, 2, detailed_metrics=True, name=name), ShmClient(name) as client:
        client.send(EXAMPLE)
        before = (SHM / f"echo_shm.{name}").read_bytes()
        source = metrics.Source(name)
        for _ in range(3):
            generate_latest(metrics.registry(source))
        assert (SHM / f"echo_shm.{name}").read_bytes() == before


def test_a_closed_ring_is_down(name: str) -> None:
    """A scrape after the end says so and nothing else, even if another ring has the name."""
    with Server(EXAMPLE, 2, name=name):
        source = metrics.Source(name)
        assert b'echo_shm_up{name="%b"} 1.0' % name.encode() in generate_latest(metrics.registry(source))
    assert not source.is_there()
    with Server(EXAMPLE, 2, name=name):
        lines = generate_latest(metrics.registry(source)).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [f'echo_shm_up{{name="{name}"}} 0.0']


def _names(name: str) -> set[str]:
    """The metrics of one ring, replay or engine, also those that have no values now, as Prometheus has them."""
    endings = {"counter": ("_total",), "gauge": ("",), "summary": ("", "_count", "_sum")}
    families = metrics.Source(name).families()
    return {"echo_shm_up"} | {family.name + ending for family in families for ending in endings[family.kind]}


def _all_names(name: str) -> set[str]:
    """Every metric that a ring, a replay and rollouts can have."""
    with Server(EXAMPLE, 2, detailed_metrics=True, name=name) as server:
        server.publisher(np.zeros(3)).publish(np.zeros(3))
        names = _names(name)
    with Replay(EXAMPLE, 10, store="shm", name=f"{name}-r"), rollouts_board(f"{name}.rollouts"):
        return names | _names(f"{name}-r") | _names(f"{name}.rollouts")


def test_every_expression_of_the_dashboard_names_a_metric(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The dashboard is JSON, and each of its queries is about metrics that the exporter has."""
    assert cli.main(["metrics", "--dashboard"]) == 0
    dashboard = json.loads(capsys.readouterr().out)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    expressions += [one["definition"] for one in dashboard["templating"]["list"] if "definition" in one]
    assert len(expressions) > 20
    there = _all_names(name)
    for expression in expressions:
        used = re.findall(r"\becho_shm_\w+", expression)
        assert used, expression
        assert set(used) <= there, expression
    assert any("_rollouts_" in expression for expression in expressions)
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert len({(place["x"], place["y"]) for place in places}) == len({one["id"] for one in dashboard["panels"]})


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_nothing_to_say(name: str) -> None:
    """Names and help texts follow Prometheus' conventions."""
    with Server(EXAMPLE, 2, detailed_metrics=True, name=name), ShmClient(name) as client:
        client.send(EXAMPLE)
        texts = [generate_latest(metrics.registry(metrics.Source(name)))]
    with Replay(EXAMPLE, 10, store="shm", name=f"{name}-r") as replay:
        replay.add(EXAMPLE)
        assert replay._rings._feed is not None
        replay._rings._feed.publish()
        texts.append(generate_latest(metrics.registry(metrics.Source(f"{name}-r"))))
    for text in texts:
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30)
        assert (checked.returncode, checked.stderr + checked.stdout) == (0, b"")


def test_names_follow_the_conventions(name: str) -> None:
    """Without promtool: counters end with _total, and no other metric does; every family has a help text."""
    with (
        Server(EXAMPLE, 2, detailed_metrics=True, name=name),
        Replay(EXAMPLE, 10, store="shm", name=f"{name}-r"),
        rollouts_board(f"{name}.rollouts"),
    ):
        families = [one for end in ("", "-r", ".rollouts") for one in metrics.Source(name + end).families()]
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert re.fullmatch(r"echo_shm_[a-z_]+[a-z]", family.name)
        assert not family.name.endswith(("_total", "_count", "_sum"))
        assert re.fullmatch(r"[^\n]+\.", family.help)


def test_the_command_serves_until_the_ring_is_closed(name: str, program: Callable[..., Program]) -> None:
    """It listens on loopback, says where, answers in both formats, and ends with the ring."""
    with Server(EXAMPLE, 2, name=name):
        started = program(*ECHO_SHM, "metrics", name, "--port", "0")
        url = started.wait_for(r"http://127\.0\.0\.1:\d+/metrics")[0]
        plain = urllib.request.urlopen(url, timeout=20).read().decode()
        names = {family.name for family in text_string_to_metric_families(plain)}
        assert "echo_shm_samples" in names
        request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert list(parser.text_string_to_metric_families(answer.read().decode()))
    started.wait_for(f"segment '{name}' was closed")
    assert started.result() == 0


def test_ctrl_c_ends_it(name: str, program: Callable[..., Program]) -> None:
    """With status 130, as other commands."""
    with Server(EXAMPLE, 2, name=name):
        started = program(*ECHO_SHM, "metrics", name)
        started.wait_for("http://127.0.0.1:")
        started.send_signal(signal.SIGINT)
        assert started.result() == 130


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["no-such-ring"], 1, "no segment is named 'no-such-ring'"),
        (["not/a/name"], 2, "not/a/name"),
    ],
)
def test_what_is_not_there(words: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name is an error in one line, an impossible one a usage error."""
    assert cli.main(["metrics", *words]) == status
    assert text in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


def test_a_port_that_is_taken(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the address."""
    with Server(EXAMPLE, 2, name=name), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["metrics", name, "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def test_weights_have_no_metrics(name: str) -> None:
    """A segment of weights is no ring."""
    with Server(EXAMPLE, 2, name=name) as server:
        publisher: Any = server.publisher(np.zeros(3))
        with pytest.raises(OSError, match="holds weights"):
            metrics.Source(publisher.name)
