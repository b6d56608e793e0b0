"""Datasets of Minari: what comes back, what each end of an episode becomes, and what does not fit."""

import numpy as np
import pytest
from harness.episodes import filled, same_bytes

from echo_shm import Replay, SpecMismatchError, Table
from echo_shm.replay import NStep
from echo_shm.replay.datasets import minari as minari_format
from echo_shm.replay.datasets import minari_example, read_minari, write_minari

minari = pytest.importorskip("minari", reason="the extra 'minari' is not installed")
gymnasium = pytest.importorskip("gymnasium")
EpisodeBuffer = pytest.importorskip("minari.data_collector").EpisodeBuffer

# Minari wants an author, a permalink and more.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")

EXAMPLE = {
    "obs": {"image": np.zeros((40, 33, 3), np.uint8), "pair": (np.zeros(2, np.float64), np.zeros((), bool))},
    "action": np.zeros((), np.int64),
    "reward": np.zeros((), np.float64),
}
SMALL = {"obs": np.zeros(2, np.float32), "action": np.zeros((), np.int64), "reward": np.zeros((), np.float32)}

ENDS = [(3, True, False, True), (1, False, True, True), (2, True, True, True)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where Minari keeps its datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def tables():
    """A table that needs final observations."""
    return [Table("t", item=NStep(2, 0.9, ["obs"], "reward"))]


def test_there_and_back():
    """Nested observations, images and their ends come back, byte by byte. So do the items that they make."""
    with filled(EXAMPLE, ENDS) as replay:
        assert write_minari(replay, "test/there-v0") == 6
        example = minari_example("test/there-v0")
        assert same_bytes(example, EXAMPLE)
        with Replay(example, 100, tables()) as other:
            assert read_minari(other, "test/there-v0") == 6
            got, expected = list(other.episodes()), list(replay.episodes())
            assert [len(episode) for episode in got] == [3, 1, 2]
            for one, was in zip(got, expected, strict=True):
                assert same_bytes(one.steps, was.steps)
                assert same_bytes(one.final["obs"], was.final["obs"])
                assert (one.terminated, one.truncated) == (was.terminated, was.truncated)
            assert other.info().size == replay.info().size == 6


def test_what_minari_has():
    """An episode has one observation more than actions. Each end becomes what Minari has for it."""
    ends = [(3, True, False, True), (2, True, False, False), (3, False, True, False), (3, False, False, False)]
    with filled(SMALL, ends) as replay:
        assert write_minari(replay, "ends-v0", algorithm_name="mine") == 3 + 2 + 2 + 2
        stored = list(replay.episodes())
    got = list(minari.load_dataset("ends-v0"))
    assert [len(episode) for episode in got] == [3, 2, 2, 2]
    assert [episode.terminations.tolist() for episode in got] == [
        [False, False, True],
        [False, True],
        *[[False] * 2] * 2,
    ]
    assert [episode.truncations.tolist() for episode in got] == [[False] * 3, [False] * 2, *[[False, True]] * 2]
    for episode, was in zip(got, stored, strict=True):
        n = len(episode)
        np.testing.assert_array_equal(episode.actions, was.steps["action"][:n])
        np.testing.assert_array_equal(episode.rewards, was.steps["reward"][:n])
        np.testing.assert_array_equal(episode.observations[:n], was.steps["obs"][:n])
    np.testing.assert_array_equal(got[0].observations[3], stored[0].final["obs"])
    np.testing.assert_array_equal(got[1].observations[2], stored[1].steps["obs"][1])  # once more
    np.testing.assert_array_equal(got[2].observations[2], stored[2].steps["obs"][2])


def test_spaces_are_given_or_inferred():
    """An inferred space is as wide as the dtypes. A given one stays, and so do those of an environment."""
    with filled(EXAMPLE, ENDS) as replay:
        write_minari(replay, "inferred-v0", action_space=gymnasium.spaces.Discrete(7))
        narrow = gymnasium.spaces.Dict(
            {
                **minari.load_dataset("inferred-v0").observation_space,
                "image": gymnasium.spaces.Box(0, 99, (40, 33, 3), np.uint8),
            }
        )
        write_minari(replay, "given-v0", observation_space=narrow)
    assert minari.load_dataset("given-v0").observation_space == narrow
    data = minari.load_dataset("inferred-v0")
    assert data.action_space == gymnasium.spaces.Discrete(7)
    inner = data.observation_space
    assert inner["image"] == gymnasium.spaces.Box(0, 255, (40, 33, 3), np.uint8)
    assert (inner["pair"][0].shape, inner["pair"][0].dtype) == ((2,), np.float64)
    assert (inner["pair"][1].low, inner["pair"][1].high) == (0, 1)
    env = gymnasium.make("CartPole-v1")
    with filled({**SMALL, "obs": np.zeros(4, np.float32)}, ENDS) as replay:
        write_minari(replay, "env-v0", env=env)
    data = minari.load_dataset("env-v0")
    assert data.observation_space == env.observation_space
    assert data.env_spec.id == "CartPole-v1"


def test_many_episodes(monkeypatch):
    """Episodes are handed over a few at a time. They keep their order."""
    sizes, chunks = [], minari_format._chunks

    def counted(buffers):
        for chunk in chunks(buffers):
            sizes.append(len(chunk))
            yield chunk

    monkeypatch.setattr(minari_format, "_CHUNK", 41)  # an episode has 24 bytes of observations and 16 of actions
    monkeypatch.setattr(minari_format, "_chunks", counted)
    with filled(SMALL, [(2, True, False, True)] * 7) as replay:
        write_minari(replay, "many-v0")
        expected = [episode.steps["obs"].tolist() for episode in replay.episodes()]
    assert sizes == [2, 2, 2, 1]
    got = minari.load_dataset("many-v0")
    assert (got.total_episodes, got.total_steps) == (7, 14)
    assert [episode.observations[:2].tolist() for episode in got] == expected


def test_other_parts():
    """The rest of a step goes to infos, and comes from there or from a function. Names may lead into a tree."""
    example = {
        "at": {"eye": np.zeros(2)},
        "a": np.zeros(1, np.float32),
        "r": np.zeros(()),
        "core": np.zeros(2, np.int8),
    }
    names = {"observation": ("at", "eye"), "action": "a", "reward": "r"}
    with Replay(example, 10) as replay:
        for i in range(3):
            step = {
                "at": {"eye": np.full(2, i / 2)},
                "a": np.full(1, i, np.float32),
                "r": 1.0,
                "core": np.full(2, i, np.int8),
            }
            replay.add(step, terminated=i == 2)
        write_minari(replay, "parts-v0", infos=["core"], **names)
    with Replay({**example, "more": np.zeros((), np.int64)}, 10) as other:
        others = {"core": "core", "more": lambda episode: np.arange(len(episode)) + 5}
        assert read_minari(other, "parts-v0", others=others, **names) == 3
        (episode,) = other.episodes()
    assert episode.steps["at"]["eye"].tolist() == [[0, 0], [0.5, 0.5], [1, 1]]
    assert episode.steps["core"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert episode.steps["more"].tolist() == [5, 6, 7]
    with Replay({"at": {"eye": np.zeros(2)}}, 10) as other:
        data = minari.load_dataset("parts-v0")  # or the dataset itself
        assert same_bytes(minari_example(data, action=None, reward=None), {"obs": np.zeros(2)})
        assert read_minari(other, data, observation=("at", "eye"), action=None, reward=None) == 3
        (episode,) = other.episodes()
        assert episode.final["at"]["eye"].tolist() == [1, 1]
    with Replay({"a": np.zeros(1, np.float32)}, 10) as other:
        assert read_minari(other, data, observation=None, action="a", reward=None) == 3
        (episode,) = other.episodes()
        assert episode.final is None


def made(**changes):
    """A dataset of one episode of 3 steps, as another program may have made it."""
    fields = {
        "observations": np.arange(8, dtype=np.float32).reshape(4, 2),
        "actions": np.arange(3),
        "rewards": [0.1, 0.2, 0.3],
        "terminations": [False, False, False],
        "truncations": [False, False, False],
        **changes,
    }
    box, discrete = gymnasium.spaces.Box(-9, 9, (2,), np.float32), gymnasium.spaces.Discrete(9)
    buffer = EpisodeBuffer(**fields)
    minari.create_dataset_from_buffers("made-v0", [buffer], observation_space=box, action_space=discrete)


def test_an_episode_without_an_end_is_truncated():
    """Its last observation is known. Rewards, in float64 there, are rounded; actions fit a smaller integer."""
    made(actions=np.array([0, 1, 255]))
    with Replay({**SMALL, "action": np.zeros((), np.uint8)}, 10, tables()) as replay:
        read_minari(replay, "made-v0")
        (episode,) = replay.episodes()
        assert replay.info().size == 3
    assert (episode.terminated, episode.truncated) == (False, True)
    assert episode.steps["obs"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert episode.final["obs"].tolist() == [6, 7]
    assert episode.steps["action"].tolist() == [0, 1, 255]
    assert episode.steps["reward"].tolist() == np.float32([0.1, 0.2, 0.3]).tolist()


def test_infos_of_a_reset_are_skipped():
    """Infos have an entry for the reset, or none: each step gets its own."""
    made(infos={"with": np.array([9, 1, 2, 3]), "without": np.array([1, 2, 3])})
    with Replay({**SMALL, "x": np.zeros((), np.int64), "y": np.zeros((), np.int64)}, 10) as replay:
        read_minari(replay, "made-v0", others={"x": "with", "y": "without"})
        (episode,) = replay.episodes()
    assert episode.steps["x"].tolist() == episode.steps["y"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "example", "options", "error", "message"),
    [
        (
            {},
            {**SMALL, "x": np.zeros(())},
            {},
            ValueError,
            r"\['x'\] of the replay's steps: each leaf needs one source",
        ),
        ({}, SMALL, {"others": {"obs": "a"}}, ValueError, "a leaf that two arguments name"),
        (
            {},
            SMALL,
            {"observation": "o"},
            ValueError,
            r"observation='o': steps have no such key. They have \['action'\]",
        ),
        (
            {},
            {**SMALL, "obs": np.zeros(3, np.float32)},
            {},
            SpecMismatchError,
            r"episode 0, observation: leaf \['obs'\]",
        ),
        ({}, {**SMALL, "obs": np.zeros(2, np.int8)}, {}, SpecMismatchError, r"got float32\[4, 2\], expected int8"),
        (
            {"actions": np.array([0, 1, 300])},
            {**SMALL, "action": np.zeros((), np.uint8)},
            {},
            SpecMismatchError,
            "action",
        ),
        ({}, {**SMALL, "obs": (np.zeros(2),)}, {}, SpecMismatchError, "observation: the structure is not that"),
        ({"terminations": [True, False, True]}, SMALL, {}, ValueError, "a step before the last one of 3 is terminated"),
        (
            {"actions": np.array([0, 1, -1])},
            {**SMALL, "action": np.zeros((), np.uint8)},
            {},
            SpecMismatchError,
            r"got int64\[3\], expected uint8",
        ),
        (
            {"infos": {"z": np.zeros(3)}},
            {**SMALL, "x": np.zeros(())},
            {"others": {"x": "y"}},
            ValueError,
            "has no infos 'y': it has 'z'",
        ),
        ({"terminations": [False, True, True]}, SMALL, {}, ValueError, "a step before the last one of 3 is terminated"),
        (
            {},
            {**SMALL, "action": np.zeros((), bool)},
            {},
            SpecMismatchError,
            r"action: leaf .*got int64\[3\], expected bool",
        ),
        ({}, np.zeros(2), {}, ValueError, "observation='obs': steps have no such key. They have one array"),
        ({"observations": np.zeros((3, 2), np.float32)}, SMALL, {}, SpecMismatchError, r"expected float32\[4, 2\]"),
        ({}, {**SMALL, "x": np.zeros(())}, {"others": {"x": "y"}}, ValueError, "has no infos 'y': it has none"),
    ],
)
def test_what_does_not_fit_is_refused(changes, example, options, error, message):
    """The message names the episode and the part of it, or the argument. Nothing is stored."""
    made(**changes)
    with Replay(example, 10) as replay:
        with pytest.raises(error, match=message):
            read_minari(replay, "made-v0", **options)
        assert replay.num_steps == 0


@pytest.mark.parametrize(
    ("example", "options", "error", "message"),
    [
        ({**SMALL, "reward": np.zeros(2)}, {}, TypeError, "reward='reward': Minari has one number a step"),
        ({**SMALL, "action": np.zeros(2, "S3")}, {}, TypeError, r"action: leaf \['action'\] is \|S3"),
        ({**SMALL, "action": np.zeros(2, ">i4")}, {}, TypeError, r"action: leaf \['action'\] is >i4"),
        ({**SMALL, "obs": [np.zeros(2)]}, {}, TypeError, "observation: got list"),
        (SMALL, {"infos": ["x"]}, ValueError, "infos='x': steps have no such key"),
        (SMALL, {}, ValueError, "the replay has no episode with an observation after a step"),
    ],
)
def test_what_minari_cannot_have_is_refused(example, options, error, message, folder):
    """The message names the part of the steps. No dataset is made."""
    with Replay(example, 10) as replay, pytest.raises(error, match=message):
        write_minari(replay, "refused-v0", **options)
    assert not (folder / "refused-v0").exists()


def test_a_dataset_that_is_there_stays():
    """Nothing is overwritten."""
    made()
    with filled(SMALL, ENDS) as replay, pytest.raises(ValueError, match="made-v0"):
        write_minari(replay, "made-v0")
    assert minari.load_dataset("made-v0").total_steps == 3
