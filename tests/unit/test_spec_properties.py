"""Random trees, dtypes, shapes, sizes and orders: whatever goes in comes out."""

import warnings

import ml_dtypes
import numpy as np
import optree
from harness.valid import problem_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from echo_shm import Server, ShmClient
from echo_shm.spec import Spec

SCALARS = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="="),
    hnp.integer_dtypes(endianness=">"),
    hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    hnp.floating_dtypes(endianness=">", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(sizes=(64, 128)),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
    hnp.byte_string_dtypes(min_len=1, max_len=9),
    st.sampled_from([np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e5m2), np.dtype("V5")]),
)
FIELD_NAMES = st.text("abcxyz_é ", min_size=1, max_size=4)
STRUCTURED = st.builds(
    lambda fields, align: np.dtype([(name, *rest) for name, rest in fields.items()], align=align),
    st.dictionaries(
        FIELD_NAMES, st.one_of(st.tuples(SCALARS), st.tuples(SCALARS, hnp.array_shapes(max_dims=2))), max_size=4
    ).filter(bool),
    st.booleans(),
)
DTYPES = st.one_of(SCALARS, SCALARS, STRUCTURED)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
LEAVES = st.builds(lambda shape, dtype: np.zeros(shape, dtype), SHAPES, DTYPES)
KEYS = st.one_of(st.text(max_size=5), st.integers(-(10**30), 10**30))
TREES = st.recursive(
    LEAVES | st.none(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=8,
).filter(lambda tree: optree.tree_leaves(tree))


def randomised(tree, rng, lead=()):
    """The tree with random bytes in its leaves, of shape lead + leaf.shape, in random memory layouts."""

    def fill(leaf):
        shape = (*lead, *leaf.shape)
        raw = rng.integers(0, 2 if leaf.dtype == np.bool_ else 256, int(np.prod(shape)) * leaf.dtype.itemsize, np.uint8)
        array = np.frombuffer(raw.tobytes(), leaf.dtype).reshape(shape) if raw.size else np.zeros(shape, leaf.dtype)
        return array.copy(order=rng.choice(["C", "F"]))

    return optree.tree_map(fill, tree)


def content(leaf):
    """A leaf's bytes without the padding of structured items, which may differ."""
    if leaf.dtype.names:
        return [content(np.asarray(leaf[name])) for name in leaf.dtype.names]
    return leaf.tobytes()


@settings(max_examples=120, deadline=None)
@given(
    tree=TREES,
    batch_size=st.integers(1, 7),
    num_buffers=st.integers(1, 5),
    order=st.sampled_from(["fifo", "ready"]),
    detailed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_goes_in_comes_out(tree, batch_size, num_buffers, order, detailed, seed):
    """Any tree of any leaves, sent in any mix of ways, arrives in order, with its structure and each bit."""
    rng = np.random.default_rng(seed)
    warnings.simplefilter("ignore")
    with (
        Server(tree, batch_size, None, num_buffers, order=order, detailed_metrics=detailed) as server,
        ShmClient(server.name) as client,
        Server.attach(server.handle) as other,
    ):
        capacity, sent = server.capacity, []
        while len(sent) < capacity:
            way = rng.integers(4)
            if way == 0:
                n = int(rng.integers(0, capacity - len(sent) + 1))
                many = randomised(tree, rng, (n,))
                client.send_many(many)
                sent += [optree.tree_map(lambda leaf, i=i: leaf[i, ...], many) for i in range(n)]
                continue
            sent.append(randomised(tree, rng))
            if way == 1:
                client.send(sent[-1])
            elif way == 2:
                client.bind(optree.tree_map(np.ascontiguousarray, sent[-1], is_leaf=None)).send() if all(
                    leaf.ndim for leaf in optree.tree_leaves(tree)
                ) else other.submit(sent[-1])
            else:
                with client.reserve() as slot:
                    optree.tree_map_(lambda to, value: to.__setitem__(..., value), slot, sent[-1])
        assert problem_of(server._ring) is None
        for k in range(num_buffers):
            batch = (server, other)[k % 2].sample(5).batch
            assert optree.tree_structure(batch) == optree.tree_structure(tree)
            for i in range(batch_size):
                got = optree.tree_leaves(optree.tree_map(lambda leaf, i=i: leaf[i, ...], batch))
                expected = optree.tree_leaves(sent[k * batch_size + i])
                for a, b in zip(got, expected, strict=True):
                    assert (a.dtype, a.dtype.str, a.shape) == (b.dtype, b.dtype.str, b.shape)
                    assert content(a) == content(b)
        assert problem_of(server._ring) is None


@settings(max_examples=150, deadline=None)
@given(tree=TREES)
def test_schemas_are_faithful(tree):
    """A schema gives back the structure, dtypes, shapes and paths it was made from."""
    spec = Spec.from_example(tree)
    again = Spec.from_schema(spec.schema, "segment 'x'")
    assert again.treespec == spec.treespec
    assert again.leaves == spec.leaves
    assert [leaf.dtype.str for leaf in again.leaves] == [leaf.dtype.str for leaf in spec.leaves]
    again.check_same(spec, "segment 'x'")
