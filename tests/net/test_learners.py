"""A replay's learners on other hosts: each batch is acknowledged once, whatever is cut or killed on the way."""

import os
import signal
import socket
import threading
import time

import numpy as np
import optree
import pytest
from harness.actors import cast
from harness.leases import leased
from harness.peers import KEY, exactly, said
from harness.pretender import Pretender
from harness.programs import free_port
from harness.proxy import Proxy
from harness.waiting import LONG, until

from echo_shm import (
    ConnectionClosedError,
    Replay,
    ReplayClient,
    SegmentError,
    Server,
    SpecMismatchError,
    Table,
    TcpTransport,
    WireError,
)
from echo_shm.cli import replay_figures
from echo_shm.net import learner_wire, wire
from echo_shm.net.bridge.admission import Settings
from echo_shm.net.bridge.bridge import Bridge
from echo_shm.net.learner_wire import Ask
from echo_shm.net.wire import Frame, Hello, Refusal
from echo_shm.replay import Column, Episode, HotCold, NStep, Prioritized, Queue, Sequence, Step, Trajectory, listing
from echo_shm.replay.batch_rings import batch_spec
from echo_shm.replay.untaken import UNTAKEN
from echo_shm.ring.batch_source import BatchSource
from echo_shm.ring.inbox import inbox_spec
from echo_shm.ring.segment import Segment
from echo_shm.ring.updates import UPDATE_SPEC
from echo_shm.spec import Spec

EXAMPLE = {"obs": np.zeros(3, np.float32), "number": np.array(0, np.int64)}
HOST = "127.0.0.1"


def step(number):
    """A step that says its number."""
    return {"obs": np.full(3, number, np.float32), "number": number}


def numbers_of(batch):
    """The numbers of a batch's steps; each is whole."""
    assert (batch.data["obs"] == batch.data["number"][:, None]).all()
    return batch.data["number"].tolist()


def queue(size=5000):
    """A table that hands out each item once."""
    return Table("q", rate_limiter=Queue(size))


def client(replay, port=None, **options):
    """A client of a replay in this process."""
    return ReplayClient(f"tcp://{HOST}:{port or replay.port}", authkey=KEY, **options)


def bridge(replay):
    """What keeps the replay's bridge running."""
    return replay._rings._transports[0]._supervisors[0]


def kill_bridge(replay):
    """Kills the bridge, and waits for the next one."""
    pid = until(lambda: max(0, bridge(replay).pid))
    os.kill(pid, signal.SIGKILL)
    until(lambda: bridge(replay).pid not in (pid, -1))


@pytest.fixture
def replay():
    """A replay whose items are handed out once each, with a bridge."""
    with Replay(EXAMPLE, 5000, [queue()], thread=True, transport=TcpTransport(0, authkey=KEY)) as made:
        yield made


def learn(conn, where, n):
    """An actor: takes batches, and says what is in them. It goes on when it is told to.

    ``where``: a port or a handle.
    """
    with ReplayClient(f"tcp://{HOST}:{where}" if isinstance(where, int) else where, authkey=KEY) as replay:
        for batch in replay.dataset_iter(n):
            conn.send(numbers_of(batch))
            conn.recv()
    conn.send("over")


# --- what it does -----------------------------------------------------------------


@pytest.mark.parametrize("over", ["plain", "tls"])
def test_what_a_client_does(over, request):
    """Batches are trees of the learner's own arrays, with all columns; what it sets and deletes, the replay has."""
    contexts = request.getfixturevalue("tls") if over == "tls" else (None, None)
    table = Table("t", sampler=Prioritized(alpha=1, beta=0.5))
    with (
        Replay(EXAMPLE, 100, [table], thread=True, transport=TcpTransport(0, authkey=KEY, tls=contexts[0])) as replay,
        ReplayClient(f"tcp://localhost:{replay.port}", authkey=KEY, tls=contexts[1]) as learner,
    ):
        assert learner.tables == ("t",)
        with learner.writer() as writer:
            for number in range(10):
                writer.add(step(number), priority=4.0 if number < 5 else 1.0)
            writer.flush(LONG)
        batches = learner.dataset_iter(64, prefetch=2)
        batch = next(batches)
        assert type(batch).__name__ == "Batch"
        numbers = np.array(numbers_of(batch))
        assert len(set(numbers)) > 5
        assert (replay.get(batch.key).data["number"] == numbers).all()
        assert (batch.priority == np.where(numbers < 5, 4.0, 1.0)).all()
        assert (batch.probability == batch.priority / 25).all()
        assert (batch.weight == np.where(numbers < 5, 0.5, 1.0)).all()
        assert (batch.table_size == 10).all()
        assert (batch.age == 9 - numbers).all()
        assert replay.info().sampled == 3 * 64  # the one in hand, and two ahead
        held = batch.data["obs"]
        held[:] = 77
        for _ in range(8):
            batch = next(batches)
            assert (numbers_of(batch), held[0, 0])[1] == 77  # its memory is not used for another batch
        learner.update(batch.key[:1], [9.0])
        until(lambda: replay.get(batch.key[:1]).priority[0] == 9)
        learner.delete(batch.key[:1])
        until(lambda: learner.info().size == 9)
        assert learner.info() == replay.info()
        batches.close()
        assert leased(replay) == 0


def test_memory_is_used_again():
    """A batch's memory is another batch's once nothing refers to it, no view either."""
    with (
        Replay(EXAMPLE, 100, thread=True, transport=TcpTransport(0)) as replay,
        ReplayClient(f"tcp://{HOST}:{replay.port}") as learner,
    ):
        replay.add(step(1))
        batches = learner.dataset_iter(4, prefetch=2)
        places = {next(batches).key.ctypes.data for _ in range(50)}
        assert len(places) <= 5
        views = [next(batches).key[1:3] for _ in range(10)]
        assert len({view.ctypes.data for view in views}) == 10


#: Steps of two episodes of four, of which the first is terminated.
STEP = {"obs": np.zeros(2, np.float32), "reward": np.float32(0), "memory": {"h": np.zeros(3, np.float32)}}
ITEMS = {
    "step": Step(),
    "n_step": NStep(2, 0.5, "obs", stack={"obs": 2}),
    "sequence": Sequence(3, period=2, state=[("memory", "h")]),
    "episode": Episode(5),
    "trajectory": Trajectory({"now": Column("obs"), "before": [Column("reward", 2)]}),
}


def test_items_of_several_steps():
    """A batch has the data tree of its table's items, whatever they are: the same arrays as on the replay's machine."""
    tables = [Table(name, max_size=50, item=item) for name, item in ITEMS.items()]
    with (
        Replay(STEP, 200, tables, thread=True, transport=TcpTransport(0, authkey=KEY)) as replay,
        client(replay) as learner,
        learner.writer() as writer,
    ):
        for number in range(8):
            one = {"obs": np.full(2, number), "reward": 10.0 * number, "memory": {"h": np.full(3, -number)}}
            writer.add(optree.tree_map(lambda leaf: np.asarray(leaf, np.float32), one), terminated=number == 3)
            if number % 4 in (1, 2):
                history = writer.history
                item = {"now": history["obs"][-1], "before": [history["reward"][-2:]]}
                writer.create_item("trajectory", 1.0, item)
        writer.flush(LONG)
        for name in ITEMS:
            batch = next(learner.dataset_iter(6, name, timeout=LONG))
            there = replay.get(batch.key, name)
            mine, theirs = optree.tree_flatten(batch.data), optree.tree_flatten(there.data)
            assert mine[1] == theirs[1], name
            for one, other in zip(mine[0], theirs[0], strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape), name
                assert (one == other).all(), name
        assert batch.data["before"][0].shape == (6, 2)
        assert (batch.data["before"][0][:, 1] == 10 * batch.data["now"][:, 0]).all()


def test_what_top_shows_of_them(replay):
    """A bridge is one learner, however many it serves, and no worker."""
    replay.add(step(1))
    replay.add(step(2))
    with client(replay) as learner:
        batches = learner.dataset_iter(2)
        next(batches)
        ring = replay_figures.read(replay.handle.name).rings[".0x2.batches"]
        assert (ring.alive("learner"), ring.alive("producer")) == (1, 1)


def test_flow_control(replay):
    """No more batches are on their way than the learner has room for. It releases one when it asks for the next."""
    for number in range(100):
        replay.add(step(number))
    with client(replay) as learner:
        batches = learner.dataset_iter(4, prefetch=3)
        got = numbers_of(next(batches))
        until(lambda: leased(replay) == 4)
        assert replay.info().sampled == 16
        got += numbers_of(next(batches))
        until(lambda: replay.info().sampled == 20 and leased(replay) == 4)
        assert got == list(range(8))


def test_what_is_on_its_way_is_sent(background):
    """The bridge does not sleep while a learner has room, though it sends little at a time and all of that is sent."""
    large = {"obs": np.zeros(1 << 18, np.uint8)}

    def moments():
        """In how many moments of one transfer all was sent, but not all items."""
        seen = 0
        with Replay(large, 40, [queue()], thread=True) as replay, socket.create_server((HOST, 0)) as listener:
            bridge = Bridge(Segment.attach(replay.handle.inbox.name), [listener], Settings(None, 2, 8), None)
            for _ in range(40):
                replay.add(large)

            def learn():
                with ReplayClient(f"tcp://{HOST}:{listener.getsockname()[1]}") as learner:
                    stock = until(lambda: learner._stock("q", 40, 0.1))
                    until(lambda: stock.count(40) == 40)
                    stock.close()

            learning = background(learn)
            while learning.thread.is_alive():
                bridge.run_once(0.001)
                for source in bridge._replay.learners._sources.values():
                    for one in source.learners:
                        if replay.info().sampled == 40 and 0 < one.sent < 40 and one.connection.batch_bytes == 0:
                            seen += 1
                            assert bridge._replay.nap == 0
            learning.result()
            bridge.close()
        return seen

    until(moments)  # a transfer may have none


def test_much_in_hand_at_the_end(background, tmp_path):
    """The bridge hears of all that a learner is done with, in however many frames it says so."""
    count, ending = 200, threading.Event()
    with Replay(EXAMPLE, 2 * count, [queue()], thread=True) as replay, socket.create_server((HOST, 0)) as listener:
        bridge = Bridge(Segment.attach(replay.handle.inbox.name), [listener], Settings(None, 2, 8), None)
        for number in range(count):
            replay.add(step(number))

        def serve():
            while not ending.is_set():
                bridge.run_once(0.01)
            bridge.close()

        serving = background(serve)
        with ReplayClient(f"tcp://{HOST}:{listener.getsockname()[1]}") as learner:
            stock = until(lambda: learner._stock("q", count, 0.1))
            until(lambda: stock.count(count) == count)
            assert sorted(number for _ in range(count) for number in numbers_of(stock.take())) == list(range(count))
            ending.set()
            serving.result()
            replay._rings.hold_untaken(["q"]).save(tmp_path / UNTAKEN)
            assert not list(tmp_path.iterdir())


def test_learners_share_a_queue(replay):
    """Each item goes to one of them, on whatever host. All end with the replay."""
    with cast() as make:
        actors = [make(learn, where, 8) for where in (replay.port, replay.port, replay.handle)]
        for number in range(3000):
            replay.add(step(number))
        got = []
        while len(got) < 3000:
            for actor in actors:
                if not actor.is_silent(0.001):
                    got += actor.hear()
                    actor.say()
        assert sorted(got) == list(range(3000))
        replay.close()
        for actor in actors:
            assert actor.hear() == "over"


def test_learners_that_wait_for_each_other(replay):
    """Each gets a batch, though the first one had all there are on their way: what it does not use is called back."""
    for number in range(400):
        replay.add(step(number))
    with client(replay) as remote, ReplayClient(replay.handle) as local:
        several, got = [remote.dataset_iter(8)], []
        got += numbers_of(next(several[0]))
        until(lambda: leased(replay) == 5)
        several += [remote.dataset_iter(8), local.dataset_iter(8)]
        for _ in range(10):
            for one in several:
                got += numbers_of(next(one))
        assert len(set(got)) == len(got) == 8 * 31


def test_iterations_of_one_thread(replay):
    """One that is seldom used keeps no other one waiting. What it has had meanwhile is its own, also after a cut."""
    for number in range(2000):
        replay.add(step(number))
    proxy, got = Proxy(replay.port), []
    with client(replay, proxy.port) as first, client(replay) as second, ReplayClient(replay.handle) as near:
        coming = [one._polled(8, "q", 4, 0.01) for one in (first, second, near)]

        def take(which):
            batch = next(coming[which])
            got.extend([] if batch is None else numbers_of(batch))
            return batch is not None

        for turn in range(150):
            until(lambda turn=turn: take(0 if turn % 25 == 0 else 1 + turn % 2))
            if turn % 60 == 59:
                proxy.cut()
        # If it takes more than a second to connect again, another one gets what the server had not heard to be done.
        until(lambda: [take(which) for which in range(3)] and set(got) == set(range(2000)))
        for one in coming:
            one.close()
    assert proxy.cuts >= 2
    proxy.close()


def stocks(replay, wheres, prefetch):
    """What takes several items before it is done with any: for each of ``"near"`` and ``"far"``."""
    for where in wheres:
        learner = client(replay) if where == "far" else ReplayClient(replay.handle)
        stock = until(lambda learner=learner: learner._stock("q", prefetch, 0.1))
        stock.count(0)
        yield stock, learner


@pytest.mark.parametrize("wheres", [("near", "near"), ("far", "far"), ("near", "far"), ("far", "near")])
def test_several_items_at_a_time(replay, wheres):
    """What was taken is held until it is done; what was not taken goes to others at the end."""
    for number in range(10):
        replay.add(step(number))
    (first, one), (second, other) = stocks(replay, wheres, 24)
    until(lambda: second.count(10) + first.count(10) == 10)
    got = []
    for stock in (first, second):
        for _ in range(stock.count(10) // 2):
            ahead = stock.peek().data["number"].tolist()
            got += numbers_of(stock.take())
            assert got[-1:] == ahead
    assert leased(replay) == 10
    first.done()
    first.close()
    until(lambda: (second.count(10), len(got))[0] + len(got) == 10)
    while second.count(10):
        got += numbers_of(second.take())
    assert second.take() is second.peek() is None
    assert sorted(got) == list(range(10))
    second.done()
    until(lambda: leased(replay) == 0)
    replay.close()
    with pytest.raises(ConnectionClosedError, match="has closed"):
        until(lambda: second.count(1))
    second.close()
    for learner in (one, other):
        learner.close()


@pytest.mark.parametrize("wheres", ["near near near", "far far far", "near far near", "far near far"])
def test_several_items_where_there_is_no_room(replay, wheres):
    """Each waits for more than its share of the ring. Nobody waits forever: one that must do so itself makes room."""
    for number in range(400):
        replay.add(step(number))
    learners, got, wanted = list(stocks(replay, wheres.split(), 8)), [], [6, 3, 4]

    def turn():
        for k, (stock, _) in zip(wanted, learners, strict=True):
            there = stock.count(k)
            if there >= k or stock.is_full or len(got) > 380:  # what is left at the end makes no batch for each
                got.extend(number for _ in range(min(k, there)) for number in numbers_of(stock.take()))
                stock.done()
        return len(got) == 400

    until(turn)
    assert sorted(got) == list(range(400))
    for stock, learner in learners:
        stock.close()
        learner.close()


def test_an_item_in_the_place_that_is_next(replay):
    """A learner below its share, whose item is in the place that is filled next, is told that no more come.

    It does not matter whether the one that had the others is still there.
    """
    for number in range(40):
        replay.add(step(number))
    (first, one), (second, other) = stocks(replay, ("near", "near"), 8)
    assert until(lambda: first.count(1)) == 1
    got = []

    def drained():
        while second.count(1):
            got.append(numbers_of(second.take()))
            second.done()
        return len(got) == 7  # all places but that one

    until(drained)
    assert (first.count(2), first.is_full, second.count(1), second.is_full) == (1, True, 0, False)
    second.close()
    other.close()
    assert (first.count(2), first.is_full) == (1, True)
    assert (first.count(1), first.is_full) == (1, False)  # it has what it wants
    first.take()
    first.done()
    until(lambda: first.count(2) == 2)
    first.close()
    one.close()


def test_the_end_of_an_iteration(replay):
    """What was not handed out goes to the next learner. After a timeout the iteration is over."""
    for number in range(40):
        replay.add(step(number))
    with client(replay) as learner:
        assert [numbers_of(batch) for _, batch in zip(range(2), learner.dataset_iter(8), strict=False)] == [
            list(range(8)),
            list(range(8, 16)),
        ]
        started = time.monotonic()
        rest = [numbers_of(batch) for batch in learner.dataset_iter(8, timeout=0.3)]
        assert rest == [list(range(at, at + 8)) for at in (16, 24, 32)]
        assert time.monotonic() - started > 0.3


# --- groups -----------------------------------------------------------------------


def share(rank, world_size, n, first, last):
    """What a rank's batches ``first`` to ``last - 1`` hold, of items that are drawn in order."""
    return [list(range((k * world_size + rank) * n, (k * world_size + rank + 1) * n)) for k in range(first, last)]


def take(batches, count):
    """What the next batches hold."""
    return [numbers_of(next(batches)) for _ in range(count)]


def test_each_rank_has_its_share(replay):
    """Whatever hosts they are on, and whoever takes first. One that is slow holds up the others."""
    for number in range(600):
        replay.add(step(number))
    with client(replay) as remote, ReplayClient(replay.handle) as local:
        ranks = [
            one.dataset_iter(4, prefetch=2, timeout=LONG, rank=rank, world_size=3)
            for rank, one in enumerate((remote, local, remote))
        ]
        assert take(ranks[2], 3) == share(2, 3, 4, 0, 3)
        assert replay.info().sampled == 3 * 3 * 4  # as many as rank 0 has places for
        got = [[], [], share(2, 3, 4, 0, 3)]
        for turn in range(40):
            for rank in (0, 1, 2) if turn % 2 else (1, 0, 2):
                got[rank] += take(ranks[rank], len(got[rank]) == turn)
        assert got == [share(rank, 3, 4, 0, 40) for rank in range(3)]


@pytest.mark.watchdog(120)
def test_disturbed_ranks(replay):
    """Each rank's batches stay in their order while connections are reset and bridges are killed."""
    proxy, done = Proxy(replay.port), threading.Event()
    for number in range(4000):
        replay.add(step(number))

    def cut():
        while not done.wait(0.02):
            proxy.cut()

    with client(replay, proxy.port) as one, client(replay) as other:
        ranks = [it.dataset_iter(8, timeout=LONG, rank=rank, world_size=2) for rank, it in enumerate((one, other))]
        got, thread = [[], []], threading.Thread(target=cut)
        thread.start()
        for turn in range(200):
            for rank in range(2):
                got[rank] += take(ranks[rank], 1)
            if turn % 60 == 30:
                kill_bridge(replay)
        done.set()
        thread.join()
        assert got == [share(rank, 2, 8, 0, 200) for rank in range(2)]
    assert proxy.cuts > 5
    proxy.close()


def learn_as(conn, where, rank, world_size):
    """As :func:`learn`, as a member of a group."""
    with ReplayClient(f"tcp://{HOST}:{where}" if isinstance(where, int) else where, authkey=KEY) as replay:
        for batch in replay.dataset_iter(4, rank=rank, world_size=world_size):
            conn.send(numbers_of(batch))
            conn.recv()


@pytest.mark.parametrize("where", ["there", "here"])
def test_a_killed_rank(replay, where):
    """The next one of that rank, on whatever host, begins with what the dead one had not acknowledged."""
    for number in range(200):
        replay.add(step(number))
    with cast() as make, client(replay) as remote, ReplayClient(replay.handle) as local:
        dies = make(learn_as, replay.port, 0, 2)
        for expected in share(0, 2, 4, 0, 3):
            assert dies.hear() == expected
            dies.say()
        assert [dies.hear()] == share(0, 2, 4, 3, 4)
        until(lambda: leased(replay) == 3)  # two ahead: rank 1 has no place for more
        dies.kill()
        until(lambda: leased(replay) == 0)  # the bridge has given up waiting for it
        heir = (remote if where == "there" else local).dataset_iter(4, timeout=LONG, rank=0, world_size=2)
        assert take(heir, 3) == share(0, 2, 4, 3, 6)


def test_a_rank_whose_learner_does_not_come_again(replay):
    """The next one waits for a moment, as it might come, and then begins with what it had."""
    for number in range(200):
        replay.add(step(number))
    with cast() as make, client(replay) as heir:
        dies = make(learn_as, replay.port, 0, 1)
        assert [dies.hear()] == share(0, 1, 4, 0, 1)
        dies.kill()
        assert take(heir.dataset_iter(4, timeout=LONG, rank=0, world_size=1), 3) == share(0, 1, 4, 0, 3)


def test_a_dead_learner_of_a_rank_that_nobody_has_reaped():
    """A bridge takes nothing for the next one before it has reaped the dead one: its batches come first."""
    with Replay(EXAMPLE, 100, [queue(100)]) as replay, cast() as make:
        for number in range(12):
            replay.add(step(number))
        dies = make(learn_as, replay.handle, 0, 1)
        until(lambda: replay.num_steps and not dies.is_silent(0.001))
        assert [dies.hear()] == share(0, 1, 4, 0, 1)
        dies.kill()
        ring = f"{replay.handle.name}.0x4r0of1.batches"
        source = BatchSource(Segment.attach(ring), is_rank=True)
        assert [until(source.take).number for _ in range(2)] == [0, 1]
        source.detach()


def test_a_rank_is_one_learner(replay):
    """A second one is refused, wherever either of them is. It may be had once the first one has stopped."""
    for number in range(100):
        replay.add(step(number))
    with client(replay) as remote, client(replay) as second, ReplayClient(replay.handle) as local:
        clients = {"remote": remote, "second": second, "local": local}
        cases = [
            ("remote", "second", "the learner at 127"),
            ("remote", "local", "process"),
            ("local", "remote", "process"),
        ]
        for at, (first, other, who) in enumerate(cases):
            batches = clients[first].dataset_iter(4, timeout=LONG, rank=0, world_size=1)
            assert take(batches, 1) == share(0, 1, 4, at, at + 1)
            with pytest.raises(SegmentError, match=rf"rank 0 of 1 in replay .* is taken: {who}.* iterates"):
                next(clients[other].dataset_iter(4, timeout=LONG, rank=0, world_size=1))
            batches.close()
            until(lambda: leased(replay) == 0)


# --- cuts and kills ---------------------------------------------------------------


def test_updates_of_the_learner_count_once():
    """A learner on another host tells of its updates over cut connections and a killed bridge: each counts once."""
    tables = [Table("t", HotCold(5)), Table("u")]
    with Replay(EXAMPLE, 100, tables, thread=True, transport=TcpTransport(0, authkey=KEY)) as replay:
        replay.add(step(0), {"u": 1.0})
        proxy = Proxy(replay.port)
        with client(replay, proxy.port) as learner:
            for number in range(600):
                learner.learned("t")
                if number % 100 == 50:
                    proxy.cut()
                if number == 300:
                    kill_bridge(replay)
            with pytest.raises(ValueError, match="table 'u': items age only"):
                learner.learned("u")
        with client(replay) as last:  # what it sends is done after all of that
            last.delete(replay.sample(1, "u").key, "u")
            until(lambda: replay.info("u").size == 0)
        assert replay.info("t").hot_cold.updates == 600
        proxy.close()


@pytest.mark.watchdog(120)
def test_cut_connections(replay):
    """Connections are reset at any byte: each item comes once, and each update is made once."""
    proxy, total = Proxy(replay.port), 4000
    done, updated = threading.Event(), {}

    def cut():
        while not done.wait(0.03):
            proxy.cut()

    def feed():
        for number in range(total):
            replay.add(step(number))

    replay_of_updates = Table("u", Prioritized(alpha=1), max_size=500)
    with Replay(EXAMPLE, 500, [replay_of_updates], thread=True, transport=TcpTransport(0, authkey=KEY)) as other:
        for number in range(500):
            other.add(step(number))
        second = Proxy(other.port)
        with client(replay, proxy.port) as learner, client(other, second.port) as updater:
            threads = [threading.Thread(target=one) for one in (cut, feed)]
            for thread in threads:
                thread.start()
            got = []
            keys = np.unique(other.sample(500, timeout=LONG).key)
            for batch in learner.dataset_iter(16, timeout=LONG):
                got += numbers_of(batch)
                key = keys[len(got) % len(keys)]
                updater.update([key], [float(len(got))])
                updated[int(key)] = float(len(got))
                if len(got) % 512 == 0:
                    second.cut()
                if len(got) >= total - total % 16:
                    break
            done.set()
            for thread in threads:
                thread.join()
        got_keys = np.array(list(updated), np.uint64)
        until(lambda: (other.get(got_keys).priority == list(updated.values())).all())
    assert proxy.cuts > 5
    assert sorted(got) == list(range(total))
    proxy.close()
    second.close()


def test_killed_bridges(replay):
    """The next bridge goes on: no item is lost, and what a learner works on is sent to nobody again."""
    for number in range(2000):
        replay.add(step(number))
    with client(replay) as learner:
        batches, got = learner.dataset_iter(8), []
        for _ in range(4):
            for _ in range(50):
                got += numbers_of(next(batches))
            kill_bridge(replay)
        while len(got) < 2000:
            got += numbers_of(next(batches))
        assert sorted(got) == list(range(2000))


def test_a_killed_learner(replay):
    """What it had, in hand and ahead, goes to another one; what it had acknowledged does not."""
    for number in range(400):
        replay.add(step(number))
    with cast() as make, client(replay) as lives:
        dies = make(learn, replay.port, 8)
        acknowledged = dies.hear()
        dies.say()
        in_hand = dies.hear()
        dies.kill()
        got = [number for batch in lives.dataset_iter(8, timeout=3) for number in numbers_of(batch)]
        assert set(in_hand) <= set(got)
        assert sorted(got + acknowledged) == list(range(400))


def test_a_learner_that_comes_again(replay):
    """What it has not acknowledged waits for it for a moment, and does not go to another learner meanwhile."""
    for number in range(80):
        replay.add(step(number))
    proxy = Proxy(replay.port)
    with client(replay, proxy.port) as away, client(replay) as other:
        batches = away.dataset_iter(8, prefetch=2)
        got = numbers_of(next(batches))
        until(lambda: leased(replay) == 3)
        proxy.stalled.set()
        proxy.cut()
        others = other.dataset_iter(8, timeout=0.5)
        assert list(others) == []
        proxy.stalled.clear()
        while len(got) < 80:
            got += numbers_of(next(batches))
        assert got == list(range(80))
    proxy.close()


def run_replay(conn, name, port, attach):
    """An actor: holds a replay whose items are handed out once each, in order."""
    transport = TcpTransport(port, authkey=KEY)
    replay = Replay.attach(name, thread=True, transport=transport) if attach else Replay(
        EXAMPLE, 1000, [queue(1000)], store="shm", name=name, thread=True, transport=transport
    )  # fmt: skip
    for number in range(0 if attach else 400):
        replay.add(step(number))
    conn.send("ready")
    conn.recv()
    replay.close()


@pytest.mark.parametrize("group", [{}, {"rank": 0, "world_size": 1}])
def test_a_killed_replay(name, group):
    """The next one on the same port goes on with its store: each item comes once, and of a rank in its order."""
    port = free_port()
    with cast() as make:
        first = make(run_replay, name, port, False)
        first.hear()
        with client(None, port) as learner:
            batches, got = learner.dataset_iter(8, **group), []
            for _ in range(10):
                got += numbers_of(next(batches))
            first.kill()
            second = make(run_replay, name, port, True)
            second.hear()
            while len(got) < 400:
                got += numbers_of(next(batches))
            assert (got if group else sorted(got)) == list(range(400))
            until(lambda: learner.info().sampled == 400)
            second.say()
            assert list(batches) == []
            second.end()


def test_another_replay_at_the_address():
    """Its keys are other ones: updates of the first one's items are not sent to it, and the iteration ends."""
    port = free_port()
    with cast() as make:
        first = make(hold_in_memory, port)
        handle = first.hear()
        with client(None, port, reconnect=5.0) as learner:
            batches = learner.dataset_iter(2)
            key = next(batches).key[:1]
            first.kill()
            second = make(hold_in_memory, port)
            second.hear()
            with pytest.raises(ConnectionClosedError, match="has another replay now"):
                list(batches)
            until(lambda: learner._way.closed)
            with pytest.raises(ConnectionClosedError, match="another replay is there now, whose items have other keys"):
                learner.update(key, [5.0])
        listing.remove(handle.name)
        second.say()
        second.end()


def hold_in_memory(conn, port):
    """An actor: holds a replay of one item."""
    with Replay(EXAMPLE, 10, [Table("t")], thread=True, transport=TcpTransport(port, authkey=KEY)) as replay:
        replay.add(step(1))
        conn.send(replay.handle)
        conn.recv()


def test_nobody_comes(name, monkeypatch):
    """A learner whose server is gone tries again for as long as it was told to."""
    port = free_port()
    with cast() as make:
        first = make(run_replay, name, port, False)
        first.hear()
        with client(None, port, reconnect=0.5) as learner:
            batches = learner.dataset_iter(8)
            next(batches)
            first.kill()
            with pytest.raises(ConnectionClosedError, match=r"connection lost, and not made again within 0\.5 s"):
                list(batches)
    Replay.attach(name).close()


# --- who is refused ---------------------------------------------------------------


def test_who_is_refused(replay):
    """Each error says what to do."""
    address = f"tcp://{HOST}:{replay.port}"
    with pytest.raises(WireError, match="asks for a key"):
        ReplayClient(address)
    with pytest.raises(WireError, match="does not know the authkey"):
        ReplayClient(address, authkey=b"w" * 16)
    with pytest.raises(SpecMismatchError, match=r"\['obs'\]"):
        ReplayClient(address, {**EXAMPLE, "obs": np.zeros(4, np.float32)}, authkey=KEY)
    with pytest.raises(ValueError, match="use tcp://host:port"):
        ReplayClient("tcp://nowhere")
    with pytest.raises(ValueError, match="authkey has 3 bytes"):
        ReplayClient(address, authkey=b"key")
    replay.add(step(1))
    with client(replay) as learner:
        for n in (0, -1, 2.5, True):
            with pytest.raises((ValueError, TypeError)):
                learner.dataset_iter(n)
        with pytest.raises(ValueError, match="prefetch"):
            learner.dataset_iter(2, prefetch=0)
        for call in (
            lambda: learner.dataset_iter(2, "nope"),
            lambda: learner.info("nope"),
            lambda: learner.delete([2], "nope"),
        ):
            with pytest.raises(ValueError, match="'nope'"):
                call()
        with pytest.raises(ValueError, match="finite"):
            learner.update([1], [float("nan")])
        with pytest.raises(SegmentError, match=r"1073741824 items|1,073,741,824|out of range|room"):
            next(learner.dataset_iter(2**30))
        assert numbers_of(next(learner.dataset_iter(1))) == [1]


def test_servers_that_are_no_replays():
    """A server of batches, one of wire version 1, and a replay whose version knows no learners."""
    for version, error, text in [
        (2, ConnectionClosedError, "is no replay: use TcpClient"),
        (1, WireError, "version 1"),
    ]:
        with Server(EXAMPLE, 1, TcpTransport(0, wire_version=version)) as server:
            server.start()
            with pytest.raises(error, match=text):
                ReplayClient(f"tcp://{HOST}:{server.port}")

    def play(visit):
        visit.greet()
        visit.sock.sendall(wire.refuse_spec(host.schema))
        visit.sock.recv(1)

    host = Pretender(EXAMPLE, play)
    host.schema = inbox_spec(Spec.from_example(EXAMPLE), (("all", (), (), None),)).schema
    with pytest.raises(ConnectionClosedError, match=r"lets others only write to it: its version .* is older"):
        ReplayClient(f"tcp://{HOST}:{host.port}")
    host.close()


def test_too_many_learners():
    """Each iteration counts as a client."""
    with (
        Replay(EXAMPLE, 10, thread=True, transport=TcpTransport(0, max_connections=3)) as replay,
        ReplayClient(f"tcp://{HOST}:{replay.port}", reconnect=0.3) as learner,
    ):
        replay.add(step(1))
        two = [learner.dataset_iter(2) for _ in range(3)]
        for one in two[:2]:
            next(one)
        with pytest.raises(ConnectionClosedError, match="too many clients: 3 are connected"):
            next(two[2])
        two[0].close()
        next(learner.dataset_iter(2))


# --- the wire ---------------------------------------------------------------------


class Raw:
    """A learner that says what a test tells it to."""

    def __init__(self, replay, client=b"i" * 16):
        self.sock = socket.create_connection((HOST, replay.port), timeout=20)
        greeting = wire.Greeting.from_bytes(exactly(self.sock, wire.GREETING_REST + 5))
        hello = Hello(client, 0, b"n" * 32, learner_wire.LEARNER).signed(KEY, greeting)
        self.sock.sendall(hello.to_bytes())
        header = wire.read_server_header(exactly(self.sock, wire.HEADER_BYTES))
        assert header.kind is Frame.ACCEPT
        exactly(self.sock, header.length)

    def next(self, n, size=0):
        """The next frame: its type, its number, its body. ``size``: bytes of an item."""
        header = learner_wire.read_batch_header(exactly(self.sock, wire.HEADER_BYTES), n)
        return (
            header.kind,
            header.number,
            exactly(self.sock, header.length * (size if header.kind is Frame.BATCH else 1)),
        )


ITEM = 12 + 8 + 8 * 8


def test_batches_on_the_wire(replay):
    """Frames are as WIRE.md says. A batch that is not DONE comes again on the next connection, unless it was had."""
    for number in range(20):
        replay.add(step(number))
    raw = Raw(replay)
    raw.sock.sendall(Ask(0, 2, 4).to_bytes() + learner_wire.want(2))
    kind, _, body = raw.next(2)
    assert kind is Frame.RING
    schema = batch_spec(Spec.from_example(EXAMPLE), Step()).schema
    assert body[16:] == schema
    first, second = raw.next(2, ITEM), raw.next(2, ITEM)
    assert [one[:2] for one in (first, second)] == [(Frame.BATCH, 0), (Frame.BATCH, 1)]
    columns = np.frombuffer(first[2][:16], np.int64)  # leaves in the order of their paths: number, obs
    assert columns.tolist() == [0, 1]
    assert np.frombuffer(first[2][16:40], np.float32).tolist() == [0, 0, 0, 1, 1, 1]
    raw.sock.sendall(learner_wire.done(0) + learner_wire.want(3))
    assert raw.next(2) == (Frame.ACK, 1, b"")
    assert raw.next(2, ITEM)[:2] == (Frame.BATCH, 2)
    raw.sock.close()
    again = Raw(replay)
    again.sock.sendall(Ask(0, 2, 4, body[:16], (0, 1)).to_bytes() + learner_wire.want(2))
    assert again.next(2) == (Frame.RING, 0, body)
    assert [again.next(2, ITEM)[:2] for _ in range(2)] == [(Frame.BATCH, 2), (Frame.BATCH, 3)]
    again.sock.sendall(learner_wire.info())
    kind, _, text = again.next(2)
    assert kind is Frame.INFO
    assert b'"q":{' in text
    again.sock.sendall(wire.bye(0))
    until(lambda: leased(replay) == 0)
    again.sock.close()


ASK = Ask(0, 2, 4).to_bytes()


HOSTILE = [
    (learner_wire.want(1), "WANT before ASK"),
    (learner_wire.done(1), "DONE before ASK"),
    (ASK + ASK, "ASK came twice"),
    (Ask(1, 2, 4).to_bytes(), "asked for batches of table 1, expected a table below 1"),
    (Ask(2**32 - 1, 2, 4).to_bytes(), "expected a table below 1"),
    (Ask(0, 0, 4).to_bytes(), "asked for 4 batches of 0 items"),
    (Ask(0, 2, 4, rank=1).to_bytes(), "asked for the batches of rank 1 of 0"),
    (Ask(0, 2, 4, rank=2, world_size=2).to_bytes(), "asked for the batches of rank 2 of 2"),
    (Ask(0, 2, 4, world_size=33).to_bytes(), "asked as one of 33 ranks, expected at most 32"),
    (Ask(0, 2**33, 4).to_bytes(), "asked for 4 batches of 8589934592 items"),
    (Ask(0, 2, 0).to_bytes(), "asked for 0 batches of 2 items"),
    (Ask(0, 2, 4, has=tuple(range(9000))).to_bytes(), "a learner sends no ASK frame of 72032 bytes"),
    (learner_wire.batch_header(5, 0), "a learner sends no BATCH frame"),
    (wire.samples_header(1, 0), "a learner sends no SAMPLES frame"),
    (bytes([8, 0, 0, 0, 23, 0, 0, 0]) + bytes(8 + 23), "an ASK frame of 23 bytes"),
    (b"\xff" * 16, "no frame starts with"),
]


def test_hostile_learners(replay):
    """A learner that says what it must not is told so, and its connection ends. Others go on."""
    for number in range(2 * len(HOSTILE)):
        replay.add(step(number))
    with client(replay) as good:
        batches = good.dataset_iter(2)
        for turn, (data, why) in enumerate(HOSTILE):
            raw = Raw(replay)
            with raw.sock:
                raw.sock.sendall(data)
                assert why.encode() in said(raw.sock)
            assert numbers_of(next(batches)) == [2 * turn, 2 * turn + 1]


def test_done_with_what_it_does_not_have(replay):
    """A batch of another learner is not released by it, nor one that was not sent yet."""
    for number in range(40):
        replay.add(step(number))
    with client(replay) as good:
        batches = good.dataset_iter(8, prefetch=1)
        got = numbers_of(next(batches))
        raw = Raw(replay)
        raw.sock.sendall(Ask(0, 8, 2, bytes(16), tuple(range(10))).to_bytes())
        raw.sock.sendall(b"".join(map(learner_wire.done, range(10))))
        while raw.next(8)[0] is not Frame.ACK:
            pass
        assert leased(replay) in (1, 2)  # the one in hand, and one ahead, unless it was called back
        raw.sock.close()
        while len(got) < 40:
            got += numbers_of(next(batches))
        # Each batch once and whole. If the one ahead was called back, the other learner had it when it went: it comes
        # again, behind the one that took its place.
        assert sorted(got[i : i + 8] for i in range(0, 40, 8)) == [list(range(i, i + 8)) for i in range(0, 40, 8)]


SCHEMA = batch_spec(Spec.from_example(EXAMPLE), Step()).schema
RING = learner_wire.ring(b"q" * 16, SCHEMA)
ONE = learner_wire.batch_header(2, 0) + bytes(2 * ITEM)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (ONE, WireError, "sent a batch, and has not said what is in it"),
        (RING + ONE + ONE, WireError, "sent batch 0 again"),
        (
            RING + b"".join(learner_wire.batch_header(2, i) + bytes(2 * ITEM) for i in range(4)),
            WireError,
            "batch 3 without being asked",
        ),
        (RING + learner_wire.batch_header(3, 0), WireError, "a batch of 3 items, expected 2"),
        (RING + wire.ack(5), WireError, "acknowledged 5 batches, expected 0 to"),
        (learner_wire.ring(b"q" * 16, b'{"leaves":[]}'), WireError, "its answer"),
        (learner_wire.ring(b"q" * 16, Spec.from_example(EXAMPLE).schema), SegmentError, "does not say what an item is"),
        (RING + learner_wire.ring(b"z" * 16, SCHEMA), ConnectionClosedError, "has another replay now"),
        (learner_wire.info(b"{}"), WireError, "sent INFO, which nobody has asked for"),
        (wire.refuse(Refusal.OTHER, "no\nroom"), SegmentError, r"no\?room"),
        (wire.bye(0, "bad learner"), ConnectionClosedError, "has closed: bad learner"),
        (wire.samples_header(1, 0), WireError, "a server sends no SAMPLES frame"),
        (b"\xff" * 16, WireError, "no frame starts with"),
    ],
)
def test_hostile_servers(answer, error, text):
    """A learner believes nothing that cannot be, and says what was wrong."""

    def play(visit):
        visit.greet()
        accept = wire.Accept(b"r" * 16, 1 << 20, False, host.schemas[visit.hello.spec], 0)
        visit.sock.sendall(accept.to_bytes(None, visit.greeting, visit.hello))
        if visit.hello.spec == learner_wire.LEARNER:
            first = exactly(visit.sock, wire.HEADER_BYTES)
            if first[0] == Frame.ASK:
                visit.sock.sendall(answer)
        visit.sock.recv(1)
        said(visit.sock)

    host = Pretender(EXAMPLE, play)
    inbox = inbox_spec(Spec.from_example(EXAMPLE), (("all", (), (), None),))
    host.schemas = {learner_wire.LEARNER: inbox.schema, wire.spec_hash(UPDATE_SPEC.schema): UPDATE_SPEC.schema}
    with ReplayClient(f"tcp://{HOST}:{host.port}", reconnect=False) as learner:
        batches = learner.dataset_iter(2, prefetch=2, timeout=20)
        with pytest.raises(error, match=text):
            take_late(batches)
    host.close()


def take_late(batches):
    """Takes one batch, and the others only once the learner has ended."""
    for _ in batches:
        until(lambda: batches.gi_frame.f_locals["coming"].gi_frame.f_locals["received"]._ended)


def test_a_stalled_server(monkeypatch):
    """A learner that hears nothing takes the connection for lost."""
    monkeypatch.setattr(wire, "SILENCE", 0.3)
    with Replay(EXAMPLE, 10, thread=True, transport=TcpTransport(0, authkey=KEY)) as replay:
        proxy = Proxy(replay.port)
        with client(replay, proxy.port) as learner:
            batches = learner.dataset_iter(2)
            replay.add(step(1))
            next(batches)
            proxy.stalled.set()
            thread = threading.Timer(1.0, proxy.stalled.clear)
            thread.start()
            for _ in range(10):
                next(batches)
            thread.join()
        proxy.close()
