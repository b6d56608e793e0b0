"""Producers and learners in containers: they have their own PID and mount namespaces, and share one /dev/shm."""

import os
import random
import signal
import time

import pytest
from harness import stamped
from harness.actors import LastWords
from harness.containers import (
    CAN_CHOOSE_PIDS,
    CLONE_NEWPID,
    MS_BIND,
    Box,
    Mount,
    contain,
    fork_as,
    inhabitants,
    kill_container,
    pod,
    probe,
    unshare,
)
from harness.processes import stop
from harness.valid import problem_of
from harness.waiting import Until, until
from stress import learner_storm, producer_storm

from echo_shm import ConnectionClosedError, Server, ShmClient
from echo_shm.cli.ls import describe
from echo_shm.ring import lockfile
from echo_shm.ring.metrics import RingView
from echo_shm.ring.processes import pid_namespace


@pytest.fixture(autouse=True)
def allowed(act):
    """Skips the test where this user cannot make namespaces."""
    why = act(probe).hear()
    if why:
        pytest.skip(f"no containers can be made here: {why}")


@pytest.fixture
def container(act):
    """Makes actors in containers: ``container(fn, *args, box=Box(...))``."""
    return lambda fn, *args, box=None: act(contain, box or Box(), fn, *args)


def _seed():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return seed


# --- the kill test --------------------------------------------------------------


def _strangers(view):
    """How many owners are in another PID namespace, and how many of those have the PID of a process here."""
    pids = [o.pid for o in view.owners() if o.pid_namespace != pid_namespace()]
    return len(pids), sum(os.path.exists(f"/proc/{pid}") for pid in pids)


def _learn_through_a_storm(conn, neighbours, plan):
    """The learner of a storm in another container. Beside it are processes that have all the low PIDs."""
    for _ in range(neighbours):
        if os.fork() == 0:
            signal.pause()
    with Server(stamped.example(), 16) as server:
        conn.send(server.handle)
        over = Until(lambda: conn.poll(0))
        ledger, view, seen, mistakable = producer_storm.Ledger(), RingView(server._segment), 0, 0
        for number, (batch, info) in enumerate(server.dataset_iter(until=over, drop_last=False)):
            ledger.record(batch, info)
            if number % 16 == 0:
                others, alike = _strangers(view)
                seen, mistakable = seen + others, mistakable + alike
        ledger.settle_notes(producer_storm.open_notes(plan.notes, plan.kills + plan.producers), conn.recv())
        assert problem_of(server._ring) is None
        assert [owner.role for owner in view.owners()] == ["learner"]
        name = server.name
    left = [file for file in os.listdir("/dev/shm") if name in file]
    conn.send((ledger.samples, ledger.info.reopened_slots, seen, mistakable, left))


@pytest.mark.watchdog(100)
@pytest.mark.parametrize("shared", ["inherited", "bound"])
def test_kills_in_another_container_lose_nothing(act, container, tmp_path, shared):
    """100 producers are killed in one container; the learner is in another one, whose processes have the same PIDs."""
    box = Box()
    if shared == "bound":  # as with docker -v /dev/shm or --ipc=container: each mounts the same tmpfs
        holder = act(pod, str(tmp_path))
        assert holder.hear() == "mounted"
        box = Box((Mount("/dev/shm", flags=MS_BIND, source=str(tmp_path)),), within=holder.pid)
    notes = tmp_path.with_suffix(".notes")
    plan = producer_storm.Plan(seed=_seed(), notes=notes, kills=100, producers=4)
    learner = container(_learn_through_a_storm, plan.kills, plan, box=box)
    handle = learner.hear()
    assert (shared == "inherited") == (handle.name in lockfile.names())
    incarnations, seconds = container(producer_storm.master, handle, plan, box=box).hear(90)
    learner.say(incarnations)
    samples, reopened, strangers, mistakable, left = learner.hear()
    print(f"{incarnations} kills in {seconds:.1f} s, {samples} samples, {reopened} slots re-opened")
    assert incarnations >= plan.kills
    assert strangers > 0
    assert mistakable > strangers // 2, "the two containers' pids overlap"
    assert left == []


def _crowd(conn, handle, first, path, incarnations):
    """Three producers, each with an incarnation number of its own."""
    notes = producer_storm.open_notes(path, incarnations)
    for i in range(first, first + 3):
        producer_storm.fork_producer(handle, i, notes)
    conn.send("forked")
    conn.recv()


@pytest.mark.watchdog(100)
def test_whole_containers_killed_lose_nothing(serve, container, background, owners, tmp_path):
    """Process 1 of a container is killed, 12 times: all producers in the container die at the same moment."""
    server, rng, rounds, path = serve(16, 4), random.Random(_seed()), 12, tmp_path / "notes"
    notes = producer_storm.open_notes(path, 3 * rounds)

    def kill_them():
        for n in range(rounds):
            crowd = container(_crowd, server.handle, 3 * n, path, 3 * rounds)
            assert crowd.hear() == "forked"
            time.sleep(rng.uniform(0, 0.05))  # when the kill comes
            kill_container(crowd)

    killing, ledger = background(kill_them), producer_storm.Ledger()
    for batch, info in server.dataset_iter(until=Until(lambda: not killing.runs), drop_last=False):
        ledger.record(batch, info)
    killing.result()
    ledger.settle_notes(notes, 3 * rounds)
    print(f"{ledger.samples} samples, {ledger.info.reopened_slots} slots re-opened")
    assert ledger.samples > 0
    assert problem_of(server._ring) is None
    assert [owner.role for owner in owners(server.name)] == ["learner"]


# --- learners -------------------------------------------------------------------


def _collect(conn, name):
    conn.send(lockfile.collect(name))


def _create_and_learn(conn, name, log):
    """The creator of the ring, which is also the first learner that is killed."""
    server = Server(stamped.example(), 8, num_buffers=6, name=name)
    conn.send(server.handle)
    learner_storm.learn(server.handle, 0, log)


def _learn(conn, handle, number, log):
    conn.send("here")
    learner_storm.learn(handle, number, log)


@pytest.mark.watchdog(100)
def test_a_learner_in_yet_another_container_takes_over(container, name, tmp_path):
    """The creator is killed with its container, and so is each later learner; each sample is released once."""
    log, rng, kills = tmp_path / "log", random.Random(_seed()), 12
    learner = container(_create_and_learn, name, log)
    handle = learner.hear()
    feeders = [container(learner_storm.feed, handle, i) for i in range(2)]
    for number in range(1, kills + 1):
        time.sleep(rng.uniform(0, 0.08))  # when the kill comes
        kill_container(learner)
        if number < kills:
            learner = container(_learn, handle, number, log)
            assert learner.hear() == "here"
    for feeder in feeders:
        feeder.say("enough")
    rest, sent = [], LastWords(feeders)
    with Server.attach(handle) as server:
        for sample in server.dataset_iter(until=sent, drop_last=False):
            rest += stamped.stamps(sample.batch)
        assert problem_of(server._ring) is None
    figures = learner_storm.settle(log, 8, rest, sent.said)
    print(figures)
    assert figures["released"] > 0
    assert describe(name)["state"] == "garbage"
    assert container(_collect, name).hear()


def _serve_and_wait(conn, name):
    with Server(stamped.example(), 2, num_buffers=1, name=name) as server:
        conn.send(server.handle)
        conn.recv()


def _find_it_full(conn, handle):
    """Fills the ring, and says what happens to one sample more: at once, and when told to try again."""
    with ShmClient(handle, learner_grace=0.3) as client:
        for i in range(2):
            client.send(stamped.stamp(stamped.example(), 1, i))
        for timeout in (1.0, 20.0):  # longer than the grace
            with pytest.raises((TimeoutError, ConnectionClosedError)) as caught:
                client.send(stamped.example(), timeout)
            conn.send((caught.type, str(caught.value)))
            conn.recv()


def test_who_lives_in_another_container_is_told_by_the_locks(container, name):
    """A learner in another container counts as alive, and its segment as in use, until the container is killed."""
    learner = container(_serve_and_wait, name)
    producer = container(_find_it_full, learner.hear())
    assert producer.hear()[0] is TimeoutError
    assert describe(name)["state"] == "in use"
    kill_container(learner)
    assert describe(name)["state"] == "orphaned"
    producer.say()
    kind, message = producer.hear()
    assert kind is ConnectionClosedError
    assert "no living learner" in message
    assert not container(_collect, name).hear()
    producer.say()
    producer.end()
    assert describe(name)["state"] == "garbage"
    assert container(_collect, name).hear()


# --- PIDs that mean another process here --------------------------------------------


choosing = pytest.mark.skipif(not CAN_CHOOSE_PIDS, reason="this kernel cannot be told which pid comes next")


def _unused_pid():
    """A PID that no process outside has, or gets soon."""
    with open("/proc/sys/kernel/pid_max") as f:
        return next(pid for pid in range(int(f.read()) - 50, 300, -1) if not os.path.exists(f"/proc/{pid}"))


#: The PID that the producer has in its container, by the process that has it outside.
PIDS = {"process 1": lambda: 1, "nobody": _unused_pid, "the learner": os.getpid, "its parent": os.getppid}


def _send_and_hold(conn, handle):
    """Sends a sample, then holds a reservation until told to go on."""
    with ShmClient(handle) as client:
        client.send(stamped.stamp(stamped.example(), 1, 0))
        with client.reserve() as slot:
            conn.send(client._attachment.index)
            conn.recv()
            stamped.stamp(slot, 1, 1)
        conn.send("sent")
        conn.recv()


@pytest.fixture(params=[pytest.param(p, marks=choosing if p != "process 1" else ()) for p in PIDS])
def holder(request, serve, container):
    """A producer that holds a slot. Outside its container, its PID belongs to another process or to none."""
    pid, server = PIDS[request.param](), serve(2, 2, order="ready")
    actor = container(_send_and_hold, server.handle, box=Box(pid=pid))
    index = actor.hear()
    (owner,) = [o for o in RingView(server._segment).owners() if o.index == index]
    assert (owner.pid, owner.held) == (pid, 1)
    assert owner.pid_namespace not in (0, pid_namespace())
    return server, actor, index, inhabitants(actor)[pid]


def test_a_dead_producer_is_reaped_whatever_its_pid_is_here(holder, owners):
    """A dead producer is reaped although a process with its PID lives here."""
    server, actor, index, process = holder
    server._attachment.reaper.sweep()
    assert index in [o.index for o in owners(server.name)]
    os.kill(process, signal.SIGKILL)
    actor.end()

    def reaped():
        server._attachment.reaper.sweep()
        return [o.role for o in owners(server.name)] == ["learner"]

    until(reaped, "the producer is reaped")
    with ShmClient(server.handle) as client:
        client.send(stamped.stamp(stamped.example(), 2, 0))
    assert stamped.stamps(server.sample(timeout=20).batch) == [(1, 0), (2, 0)]


def test_a_stopped_producer_is_never_reaped_whatever_its_pid_is_here(holder, owners):
    """A stopped producer keeps its slot through many sweeps, is reported as stalled, and goes on afterwards."""
    server, actor, index, process = holder
    stop(process)
    with ShmClient(server.handle) as client:
        for i in range(2):
            client.send(stamped.stamp(stamped.example(), 2, i))
    assert stamped.stamps(server.sample(timeout=20).batch) == [(2, 0), (2, 1)]

    def reported():
        with pytest.raises(TimeoutError):
            server.sample(timeout=0.11)  # a reap interval
        return RingView(server._segment).snapshot().stalled_producers == 1

    until(reported, "the producer is reported as stalled")
    for _ in range(12):
        server._attachment.reaper.sweep()
        assert [o.held for o in owners(server.name) if o.index == index] == [1]
    snapshot = RingView(server._segment).snapshot()
    assert (snapshot.stalled_producers, snapshot.dead_producers) == (1, 0)
    os.kill(process, signal.SIGCONT)
    actor.say()
    assert actor.hear() == "sent"
    assert stamped.stamps(server.sample(timeout=20).batch) == [(1, 0), (1, 1)]


def _die_holding(conn, handle):
    client = ShmClient(handle)
    with client.reserve():
        os._exit(0)


def _reap_one(conn, pid, again):
    """A producer with that PID dies while it holds a slot. If ``again``, another process gets the PID at once."""
    with Server(stamped.example(), 2) as server:
        os.waitpid(fork_as(pid, _die_holding, conn, server.handle), 0)
        time.sleep(0.03)  # the kernel gives start times in ticks of 0.01 s
        if again:
            fork_as(pid, lambda conn: signal.pause(), conn)
        view = RingView(server._segment)
        assert [o.role for o in view.owners()] == ["learner", "producer"]
        for _ in range(3):
            server._attachment.reaper.sweep()
        left = [o.role for o in view.owners()]
    conn.send(left)  # now that nothing is left in /dev/shm: this process may be killed


@choosing
def test_a_pid_that_is_given_out_again_at_once(container):
    """A new process with a dead producer's PID is not taken for the producer, however young both are."""
    assert container(_reap_one, 50, True).hear() == ["learner"]


@choosing
def test_a_foreign_proc_says_nothing(container):
    """Where /proc shows the processes outside, one that has the dead producer's PID does not keep it alive."""
    assert container(_reap_one, os.getpid(), False, box=Box(proc=False)).hear() == ["learner"]


def _attach_leave_and_die(conn, handle):
    """Attaches; then a child in a new PID namespace attaches, and dies there."""
    with ShmClient(handle):
        unshare(CLONE_NEWPID)
        first = os.fork()
        if first == 0:
            _die_holding(conn, handle)
        os.waitpid(first, 0)
        conn.send("dead")
        conn.recv()


def test_a_child_in_a_namespace_that_its_parent_made(serve, act, owners):
    """A parent does not take its child's namespace for its own: PID 1 is another process there."""
    server = serve(2, 2)
    parent = act(_attach_leave_and_die, server.handle)
    assert parent.hear() == "dead"
    assert sorted(o.pid for o in owners(server.name) if o.role == "producer") == [1, parent.pid]
    for _ in range(3):
        server._attachment.reaper.sweep()
    assert [o.pid for o in owners(server.name) if o.role == "producer"] == [parent.pid]
