"""A learner and its clients on hosts of their own: network namespaces, whose cables are cut while samples go."""

import pytest
from harness import waiting
from harness.hosts import Host, why_not

COUNT = 20_000

#: How many samples of one client the learner has at least once all were sent. The others may wait in a batch that is
#: full only when another client's samples come.
SURE = COUNT - 50


@pytest.fixture(scope="module", autouse=True)
def allowed():
    """Skips the tests where this user cannot make network namespaces."""
    why = why_not()
    if why:
        pytest.skip(f"no hosts can be made here: {why}")


@pytest.fixture
def hosts():
    """A learner's host, and two that have a cable to it."""
    made = [Host()]
    try:
        made += [Host(made[0], 0), Host(made[0], 1)]
        yield made
    finally:
        for host in made:
            host.end()


def until(told, enough):
    """Reads what a learner says until that is enough, and returns the last of it."""
    for said in told:
        if said.get("done") or enough(said):
            return said
    raise AssertionError("the learner ended")


def all_sent(client):
    """Whether a client said that it was connected, and that it has sent everything."""
    return [next(client), next(client)] == [{"connected": True}, {"sent": COUNT}]


@pytest.mark.parametrize("address", ["10.77.0.1", "fd77:0::1"])
def test_another_host(hosts, address):
    """Samples arrive, over IPv4 and IPv6."""
    learner, near, _ = hosts
    told = learner.run("learner", address, 1, COUNT)
    port = next(told)["port"]
    sent = near.run("client", address, port, 0, COUNT)
    assert all_sent(sent)
    assert until(told, lambda said: False) == {"done": True}


def test_loopback_only(hosts):
    """A learner that listens on loopback cannot be reached from another host."""
    learner, near, _ = hosts
    port = next(learner.run("learner", "127.0.0.1", 1, COUNT))["port"]
    assert "refused" in next(near.run("client", "10.77.0.1", port, 0, 1))["error"]


@pytest.mark.watchdog(120)
@pytest.mark.parametrize("cut", ["cable", "cable and connection", "far connection"])
def test_cut_in_mid_stream(hosts, cut):
    """A cable is pulled and put back. In two cases one end of the client's connection is lost, too. Meanwhile the
    other host's samples come; in the end each sample has come once.
    """
    learner, near, other = hosts
    told = learner.run("learner", "0.0.0.0", 2, COUNT)
    port = next(told)["port"]
    for host in (near, other):
        host.slow_down("24mbit")  # 6 MB in 2 s or more: the cuts come while samples go
    sent = [near.run("client", "10.77.0.1", port, 0, COUNT), other.run("client", "10.77.1.1", port, 1, COUNT)]
    for turn in range(1, 4):
        had = until(told, lambda said, turn=turn: said["got"][0] > turn * COUNT / 6)["got"]
        # What came may have come before the last cut.
        waiting.until(lambda: near.connections("10.77.0.1"), "the client is connected")
        if cut == "far connection":
            assert learner.end_connections("10.77.0.2")
            continue
        near.cut()
        if cut == "cable and connection":
            assert near.end_connections("10.77.0.1")
        goal = min(had[1] + 1000, SURE)
        if had[1] < goal:
            until(told, lambda said, goal=goal: said["got"][1] >= goal)
        near.mend()
    assert all(map(all_sent, sent))
    assert until(told, lambda said: False) == {"done": True}


@pytest.mark.watchdog(120)
def test_a_host_that_is_gone(hosts):
    """A host that loses its power delays no other, and its loss is noticed; in this test ten times as fast as usual.

    ``test_tcp.py`` asserts the usual time.
    """
    learner, near, other = hosts
    told = learner.run("learner", "0.0.0.0", 2, 10**7, 10)
    port = next(told)["port"]
    for host in (near, other):
        host.slow_down("24mbit")  # as fast as they can they would take a processor while the loss goes unnoticed
    near.run("client", "10.77.0.1", port, 0, 10**7)
    other.run("client", "10.77.1.1", port, 1, 10**7)
    until(told, lambda said: min(said["got"]) > 5000 and said["connected"] == 2)
    near.kill()
    had = until(told, lambda said: True)["got"]
    until(told, lambda said: said["got"][1] > had[1] + 5000 and said["connected"] == 2)
    until(told, lambda said: said["connected"] == 1)  # before the watchdog ends the run


@pytest.mark.watchdog(120)
def test_a_slow_link(hosts):
    """A client behind a slow link does not slow down another."""
    learner, near, other = hosts
    near.slow_down("1mbit")
    told = learner.run("learner", "0.0.0.0", 2, COUNT)
    port = next(told)["port"]
    assert next(near.run("client", "10.77.0.1", port, 0, COUNT)) == {"connected": True}
    fast = other.run("client", "10.77.1.1", port, 1, COUNT)
    assert until(told, lambda said: said["got"][1] >= COUNT / 2)["connected"] == 2
    assert until(told, lambda said: said["got"][1] >= SURE)["got"][0] < COUNT / 4
    assert all_sent(fast)
