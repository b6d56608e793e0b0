"""Random sequences of calls against a model that says exactly what each call must do."""

import collections
import contextlib
import gc

import numpy as np
import pytest
from harness.valid import problem_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from echo_shm import ConnectionClosedError, Server, ShmClient

EXAMPLE = {"v": np.zeros((), np.int64), "w": np.zeros(3, np.float32)}


def row(value):
    """The sample of a number."""
    return {"v": np.int64(value), "w": np.full(3, value, np.float32)}


class Model:
    """A ring as documented: positions, batches, holes."""

    def __init__(self, batch_size, num_buffers, order):
        self.b, self.k, self.order = batch_size, num_buffers, order
        self.tail = 0
        self.slots = {}  # position → "claimed", "hole", or the committed number
        self.taken, self.released = set(), set()
        self.reopened = 0

    def claim(self):
        """The position that the next claim gets, or None when the ring is full."""
        position = min((p for p, s in self.slots.items() if s == "hole"), default=self.tail)
        number = position // self.b
        if position == self.tail:
            if number >= self.k and number - self.k not in self.released:
                return None
            self.tail += 1
        self.slots[position] = "claimed"
        return position

    def abort(self, position):
        """Offers a claimed position again."""
        self.slots[position] = "hole"
        self.reopened += 1

    def batch(self, number):
        """What is in a batch, by position."""
        return [self.slots.get(p, "hole") for p in range(number * self.b, (number + 1) * self.b)]

    def take(self, any_order=False, older=()):
        """The next batch to be delivered: its number and content, or None.

        ``older``: the batches that others leased before the learner came. It leaves the last one before each to them.
        """
        untaken = (n for n in range(self.tail // self.b + 1) if n not in self.taken)
        for number in untaken:
            content = self.batch(number)
            left = number - self.k + 1 in set(older) - self.released
            if all(isinstance(s, int) for s in content) and not left:
                self.taken.add(number)
                return number, content
            if self.order == "fifo" and not any_order:
                return None
        return None

    def drain(self):
        """All that a closed ring still delivers when no claim is open."""
        batches = []
        while (found := self.take(any_order=True)) is not None:
            batches.append(found[1])
        rest = [s for p, s in sorted(self.slots.items()) if isinstance(s, int) and p // self.b not in self.taken]
        return batches + [rest[i : i + self.b] for i in range(0, len(rest), self.b)]


class RingMachine(RuleBasedStateMachine):
    """Clients and learners come, go, write and read in any order."""

    @initialize(batch_size=st.integers(1, 4), num_buffers=st.integers(1, 4), order=st.sampled_from(["fifo", "ready"]))
    def start(self, batch_size, num_buffers, order):
        """Makes the ring and its model."""
        self.server = Server(EXAMPLE, batch_size, num_buffers=num_buffers, order=order)
        self.model = Model(batch_size, num_buffers, order)
        self.clients = []
        self.learners = [self.server]
        self.open = []  # (client, reservation, slot, position)
        self.leases = []  # (learner, lease, sample, number)
        self.kept = []  # (views, (number, content))
        self.copied = {}  # learner → (number, views)
        self.latest = collections.defaultdict(int)  # learner → the highest number that sample() has delivered
        self.shared = False
        self.older = {self.server: ()}
        self.value = 0

    def next(self):
        """A number not used before."""
        self.value += 1
        return self.value

    def writer(self, data):
        """Some client, or a learner that submits."""
        return data.draw(st.sampled_from([*self.clients, *(learner._writer for learner in self.learners)]))

    # -- attaching and leaving

    @precondition(lambda self: len(self.clients) < 4)
    @rule(by_name=st.booleans())
    def open_client(self, by_name):
        """A client attaches."""
        self.clients.append(ShmClient(self.server.name if by_name else self.server.handle))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def close_client(self, data):
        """A client leaves: its reserved slots are re-opened."""
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        client.close()
        for entry in [entry for entry in self.open if entry[0] is client]:
            self.open.remove(entry)
            self.model.abort(entry[3])
            with pytest.raises(ConnectionClosedError):
                entry[1].__exit__(None, None, None)

    @precondition(lambda self: len(self.learners) < 3)
    @rule()
    def open_learner(self):
        """A further learner attaches."""
        self.learners.append(Server.attach(self.server.handle))
        self.shared = True
        self.older[self.learners[-1]] = frozenset(self.model.taken - self.model.released)

    @precondition(lambda self: len(self.learners) > 1)
    @rule(data=st.data())
    def close_learner(self, data):
        """A further learner leaves: its batches stay for as long as they are used, its reserved slots are re-opened."""
        learner = data.draw(st.sampled_from(self.learners[1:]))
        self.learners.remove(learner)
        learner.close()
        for entry in [entry for entry in self.leases if entry[0] is learner]:
            self.leases.remove(entry)
            self.model.released.add(entry[3])
            entry[1].__exit__(None, None, None)
        self.model.released.add(self.copied.pop(learner, (-1, None))[0])
        for entry in [entry for entry in self.open if entry[0] is learner._writer]:
            self.open.remove(entry)
            self.model.abort(entry[3])

    # -- writing

    @rule(data=st.data(), bound=st.booleans())
    def send(self, data, bound):
        """One sample: it goes where the model says, or the ring is full."""
        writer, value = self.writer(data), self.next()
        send = writer.bind({k: np.asarray(v) for k, v in row(value).items()}).send if bound else None
        position = self.model.claim()
        with contextlib.nullcontext() if position is not None else pytest.raises(TimeoutError):
            send(timeout=0) if bound else writer.send(row(value), timeout=0)
        if position is not None:
            self.model.slots[position] = value

    @rule(data=st.data(), n=st.integers(0, 12))
    def send_many(self, data, n):
        """Several samples: as many as the model has room for, in order."""
        writer, values = self.writer(data), [self.next() for _ in range(n)]
        sent = 0
        for value in values:
            if (position := self.model.claim()) is None:
                break
            self.model.slots[position] = value
            sent += 1
        tree = {"v": np.array(values, np.int64), "w": np.repeat(np.float32(values), 3).reshape(n, 3)}
        if sent == n:
            writer.send_many(tree, timeout=0)
        else:
            with pytest.raises(TimeoutError) as caught:
                writer.send_many(tree, timeout=0)
            assert caught.value.sent == sent

    @rule(data=st.data())
    def reserve(self, data):
        """A slot is claimed and stays open."""
        writer = self.writer(data)
        reservation = writer.reserve(timeout=0)
        position = self.model.claim()
        if position is None:
            with pytest.raises(TimeoutError):
                reservation.__enter__()
        else:
            self.open.append((writer, reservation, reservation.__enter__(), position))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans())
    def settle(self, data, commit):
        """An open reservation is written and committed, or aborted."""
        entry = data.draw(st.sampled_from(self.open))
        self.open.remove(entry)
        self.finish(entry, commit)

    def finish(self, entry, commit):
        """Commits or aborts."""
        _, reservation, slot, position = entry
        value = self.next()
        slot["v"][...], slot["w"][:] = value, value
        if commit:
            reservation.__exit__(None, None, None)
            self.model.slots[position] = value
        else:
            reservation.__exit__(KeyError, KeyError(), None)
            self.model.abort(position)

    # -- reading

    def check(self, sample, expected):
        """Content exact, and the counts in step with the model."""
        assert sample.batch["v"].tolist() == expected
        assert (sample.batch["w"] == np.float32(expected)[:, None]).all()
        assert sample.info.samples_inserted_total == self.model.tail
        assert sample.info.active_connections == len(self.clients)
        assert sample.info.reopened_slots == self.model.reopened

    @rule(data=st.data())
    def sample(self, data):
        """sample() delivers the model's next batch, if any, and keeps those of before."""
        learner = data.draw(st.sampled_from(self.learners))
        number, views = self.copied.pop(learner, (-1, None))
        self.model.released.add(number)
        found = self.model.take(older=self.older[learner])
        if found is None:
            with pytest.raises(TimeoutError):
                learner.sample(0)
            return
        sample = learner.sample(0)
        self.check(sample, found[1])
        views = [sample.batch["v"][:1], sample.batch["w"][:, 1:].T]
        if self.copies(learner, found[0]):
            self.copied[learner] = found[0], views
        else:
            self.kept.append((views, found))

    def copies(self, learner, number):
        """Whether sample() copies: what it returns holds its slots until the learner's next call."""
        late, self.latest[learner] = number < self.latest[learner], max(number, self.latest[learner])
        return self.model.k == 1 or self.shared or (self.model.order == "ready" and late)

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), first=st.booleans())
    def forget(self, data, first):
        """Views keep a batch, whatever has happened since. With the last of them it goes."""
        entry = data.draw(st.sampled_from(self.kept))
        views, (number, content) = entry
        for view in views:
            assert view.tolist() == (content[:1] if view.ndim == 1 else [content] * 2)
        views.pop(0 if first else -1)
        if not views:
            self.kept.remove(entry)
            self.model.released.add(number)

    @rule(data=st.data())
    def lease(self, data):
        """A lease delivers the model's next batch and keeps it."""
        learner = data.draw(st.sampled_from(self.learners))
        lease, found = learner.lease(0), self.model.take(older=self.older[learner])
        if found is None:
            with pytest.raises(TimeoutError):
                lease.__enter__()
        else:
            sample = lease.__enter__()
            self.check(sample, found[1])
            self.leases.append((learner, lease, sample, found[0]))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), early=st.booleans())
    def end_lease(self, data, early):
        """A lease ends, with its block or early; until then its content did not change."""
        entry = data.draw(st.sampled_from(self.leases))
        self.leases.remove(entry)
        _, lease, sample, number = entry
        assert sample.batch["v"].tolist() == self.model.batch(number)
        if early:
            sample.release()
        lease.__exit__(None, None, None)
        sample.release()
        self.model.released.add(number)

    @invariant()
    def valid(self):
        """The core's own invariants hold after every step."""
        if hasattr(self, "server"):
            problem = problem_of(self.server._ring)
            assert problem is None, problem

    def teardown(self):
        """The ring is closed and drained: everything committed and not yet delivered comes, once."""
        if not hasattr(self, "server"):
            return
        for number, entry in enumerate(self.open[::2]):
            self.finish(entry, commit=number % 2 == 0)
        self.server.close()
        for entry in self.open[1::2]:  # open at the close
            self.finish(entry, commit=True)
        for _, lease, _, _ in self.leases:
            lease.__exit__(None, None, None)
        for learner in self.learners[1:]:
            learner.close()
        self.valid()
        with pytest.raises(ConnectionClosedError):
            self.server.submit(row(0))
        got = [sample.batch["v"].tolist() for sample in self.server.dataset_iter(drop_last=False)]
        assert got == self.model.drain()
        assert self.server.sample() is None
        for client in self.clients:
            client.close()


RingMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


class TestRing(RingMachine.TestCase):
    """Every committed sample is delivered exactly once, whole, and in the promised order."""

    def setUp(self):
        """A learner that refers to all batches looks for garbage: not among what other tests have imported."""
        gc.freeze()
        self.addCleanup(gc.unfreeze)
