"""``echo-shm top --ray`` and ``echo-shm dash --ray``."""

import dataclasses
import re
import threading
import time

import numpy as np
import pytest
from harness.packages import need
from harness.pages import text_of
from harness.programs import ECHO_SHM
from harness.ray_cluster import cluster
from harness.waiting import until

need("ray")
need("cryptography")
need("rich")

from echo_shm import Replay, Table  # noqa: E402
from echo_shm.adapters.ray import RayReplay  # noqa: E402
from echo_shm.adapters.ray.directory import Look, Loss, Place, Report, Roster  # noqa: E402
from echo_shm.cli import console, dash, ray_figures, ray_state, ray_top  # noqa: E402
from echo_shm.cli import main as cli  # noqa: E402
from echo_shm.replay import Prioritized, SampleToInsertRatio  # noqa: E402

STEP = {"x": np.zeros(3)}
TABLES = [
    Table("main", sampler=Prioritized(1.0, 1.0)),
    Table("[red]", rate_limiter=SampleToInsertRatio(2.0, 1, (-10.0, 60.0))),
]


def reported(number, added, drawn, age):
    """What a shard says that has so many items of priority number + 1; and how old that is."""
    with Replay(STEP, 50, TABLES) as replay:
        for _ in range(added):
            replay.add(STEP, number + 1.0)
        for _ in range(drawn):
            replay.sample(1, "main")
        tables = {table.name: replay.info(table.name) for table in TABLES}
        return Report(number, 0, replay.num_steps, 50, tables, 4000 + number), age


def place(number):
    """Where a shard is."""
    return Place(number, 0, f"{number}abcdefghijk", f"10.0.0.{number}", 1)


@pytest.fixture
def directory(monkeypatch):
    """A directory that says these looks, one after another, and the last one again and again."""

    def says(*looks):
        said = list(looks)
        monkeypatch.setattr(ray_figures, "_connected", lambda address: None)
        monkeypatch.setattr(ray_figures, "_names", lambda ray: ["r"])
        monkeypatch.setattr(ray_figures.RayFigures, "_ask", lambda self: said.pop(0) if len(said) > 1 else said[0])

    return says


@pytest.fixture
def watch(directory):
    """Watches such a directory."""

    def start(*looks):
        directory(*looks)
        return ray_top.RayWatch(None, "auto")

    return start


def rows(watch, most=20):
    """What a screen shows, word by word."""
    terminal = console.open_console()
    with terminal.capture() as captured:
        terminal.print(watch.render(most))
    return [line.split() for line in captured.get().splitlines()]


def test_shards_sums_and_losses(watch):
    """Each shard's figures, sums, rates between two reports, shares by mass, what is absent, and what is lost."""
    roster = Roster(3, tuple(map(place, range(4))))
    loss = Loss(9, "9abcdefghijk", "10.0.0.9", 12, {"[red]": 1, "main": 7}, True)
    now = time.monotonic()
    first = {0: reported(0, 4, 0, 0.5), 1: reported(1, 6, 0, 0.5), 2: reported(2, 5, 0, 1.0)}
    second = {0: reported(0, 8, 6, 0.25), 1: reported(1, 6, 0, 0.25), 2: (first[2][0], 5.0)}
    seen = watch(
        Look(roster, first, now - 93.75),
        Look(dataclasses.replace(roster, epoch=4, losses=(loss,)), second, now - 90),
        Look(Roster(), {}, now),  # it was just started again, and knows nothing yet
    )
    assert seen.look()
    for _ in range(2):
        found = rows(seen)
        head = "r replay over 4 shards on Ray, 1 absent, its directory has said nothing for 1 min"
        assert " ".join(found[0]) == head
        assert found[2][-4:] == ["19", "of", "150", "steps"]
        assert [line for line in found if line[1:2] and line[1].endswith("abcdefg")] == [
            ["2", "2abcdefg", "10.0.0.2", "4002", "5", "50", "1", "min", "absent"],
            ["0", "0abcdefg", "10.0.0.0", "4000", "8", "50", "1", "min", "here"],
            ["1", "1abcdefg", "10.0.0.1", "4001", "6", "50", "1", "min", "here"],
            ["3", "3abcdefg", "10.0.0.3", "-", "-", "-", "-", "new"],
        ]
        both = ["insert", "and", "sample"]
        start = next(i for i, line in enumerate(found) if line[:2] == ["main", "items"])
        assert found[start + 1 : start + 6] == [
            ["all", "19", "1", "2", "100", "%", "0", "any", *both],  # 4 and 6 in 4 seconds
            ["2", "5", "0", "0", "-", "0", "any", *both],
            ["0", "8", "1", "2", "40", "%", "0", "any", *both],  # 8 of mass 1 beside 6 of mass 2
            ["1", "6", "0", "0", "60", "%", "0", "any", *both],
            ["3", *"-------"],
        ]
        start = next(i for i, line in enumerate(found) if line[:2] == ["[red]", "items"])
        assert found[start + 1] == ["all", "19", "1", "0", "100", "%", "0", "-30..180", *both]
        lost = (
            "shard 9 was lost on node 9abcdefg (10.0.0.9): it had 12 steps, 1 item of table '[red]', 7 items of table"
        )
        assert f"{lost} 'main'; it was restored on another node" in " ".join(word for line in found for word in line)
        assert seen.look()


@pytest.fixture
def looks():
    """Two looks at four shards: one that is full, one that has not reported yet, one that is absent; and a loss."""
    places, now = tuple(map(place, range(4))), time.monotonic()
    loss = Loss(9, "9abcdefghijk", "10.0.0.9", 12, {"main": 7}, False)
    first = {0: reported(0, 4, 0, 0.5), 1: reported(1, 6, 0, 0.5), 2: reported(2, 5, 0, 1.0)}
    second = {0: reported(0, 8, 6, 0.25), 1: reported(1, 6, 0, 0.25), 2: (first[2][0], 5.0)}
    return Look(Roster(3, places), first, now - 4.0), Look(Roster(4, places, (loss,)), second, now - 0.25)


def test_the_state_of_a_page(directory, looks):
    """Shards, sums and parts, as top has them; what JSON cannot hold is None."""
    directory(*looks)
    state = ray_state.RayState(None, "auto")
    said = state.read()
    assert [(one["number"], one["state"], one["steps"]) for one in said["shards"]] == [
        *((0, "here", 8), (1, "here", 6), (2, "absent", 5)),
        (3, "new", None),
    ]
    assert (said["kind"], said["steps"], said["capacity"], said["more_shards"]) == ("ray", 19, 150, 0)
    main, red = said["tables"]
    parts = [(one["shard"], one["size"], one["share"]) for one in main["parts"]]
    assert parts == [(0, 8, pytest.approx(0.4)), (1, 6, pytest.approx(0.6)), (2, 5, None)]
    assert (main["size"], main["inserted"], main["sampled"]) == (19, pytest.approx(1.0, 0.1), pytest.approx(1.5, 0.1))
    assert (main["min_diff"], main["max_diff"]) == (None, None)
    assert (red["min_diff"], red["max_diff"], red["diff"]) == (-30.0, 180.0, 38.0)
    assert said["losses"] == ["shard 9 was lost on node 9abcdefg (10.0.0.9): it had 12 steps, 7 items of table 'main'"]


def test_the_page(directory, looks, tmp_path):
    """A browser shows it."""
    directory(*looks)
    server = dash.Server(ray_state.RayState(None, "auto"), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        said = text_of(server.url, tmp_path)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    for words in (
        "r replay over 4 shards on Ray, 1 absent, 19 of 150 steps",
        r"what was lost shard 9 was lost on node 9abcdefg \(10.0.0.9\): it had 12 steps, 7 items of table 'main'",
        r"state 0 0abcdefg 10.0.0.0 4000 8 50 \d+\.\d s here .* absent 3 3abcdefg 10.0.0.3 - - - - new tables",
        r"main 19 [\d.]+ [\d.]+ 100 % 0 any both",
        r"main 0 8 [\d.]+ [\d.]+ 40 % 0 any both main 1 6 0 0 60 % 0 any both main 2 5 0 0 - 0 any both",
    ):
        assert re.search(words, said), said


def test_few_lines(watch):
    """A small screen has a line for each part, and says what it leaves out."""
    now = time.monotonic()
    seen = watch(Look(Roster(3, tuple(map(place, range(4)))), {0: reported(0, 4, 0, 0.5)}, now))
    found = rows(seen, 3)
    assert ["and", "3", "more"] in found
    assert len([line for line in found if line[:1] == ["0"]]) == 3  # the shard, and its two tables


def add(writer, i, n):
    """Writes n steps."""
    for _ in range(n):
        writer.add(STEP)
    writer.flush()


@pytest.mark.watchdog(300)
def test_top_of_a_cluster(capsys, program):
    """It finds the only replay, ends when that is closed, and says what is wrong."""
    with cluster() as made:
        with RayReplay(STEP, 100, mass_age=0.2) as replay:
            replay.spawn(add, 1, [7]).join(60)
            name = replay._setup.name
            until(lambda: replay.shards and [info.size for info in replay.info().values()] == [7])
            words = ["top", "--ray", "--address", made.address, "--interval", "0.01"]
            assert cli.main([*words, "--once"]) == 0
            out = capsys.readouterr().out
            assert f"{name}  replay over 1 shard on Ray" in out
            assert "7 of 100 steps" in out
            assert cli.main([*words, "nobody"]) == 1
            assert f"no replay 'nobody' is on this Ray cluster: use one of {name}" in capsys.readouterr().err
            seen = ray_top.RayWatch(name, made.address)
            page = program(*ECHO_SHM, "dash", "--ray", "--address", made.address)
            page.wait_for(rf"replay '{name}': http://127\.0\.0\.1:\d+/\?token=\S+")
        until(lambda: not seen.look())
        page.wait_for(f"replay '{name}' was closed")
        assert page.result() == 0
        assert cli.main(words) == 1
        assert "no replay is on this Ray cluster: a RayReplay has to be open" in capsys.readouterr().err


def test_without_a_cluster(capsys):
    """Nobody waits for one."""
    assert cli.main(["top", "--ray", "--address", "127.0.0.1:1"]) == 1
    assert "no Ray cluster at '127.0.0.1:1': run this on a node, or name it with --address" in capsys.readouterr().err
    for command in ("top", "dash"):
        assert cli.main([command, "--address", "127.0.0.1:1"]) == 2
        assert "--address is that of a Ray cluster: use it with --ray" in capsys.readouterr().err


def test_without_ray(monkeypatch, capsys):
    """It says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert cli.main(["top", "--ray"]) == 2
    assert "this needs the package ray: pip install 'echo-shm[ray]'" in capsys.readouterr().err
