"""Datasets of Minari: observations, actions and rewards of whole episodes.

An episode of T steps has T + 1 observations there. The last one is what the episode ended with.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optree

from echo_shm.errors import SpecMismatchError
from echo_shm.replay.datasets.common import Importer, Name, exact, flat, need, part_of
from echo_shm.replay.episodes import StoredEpisode
from echo_shm.replay.replay import Replay
from echo_shm.spec import Array, Spec, Tree

if TYPE_CHECKING:
    import minari

#: How much is handed over to Minari at a time, if episodes are shorter (bytes).
_CHUNK = 64 << 20


def write_minari(
    replay: Replay,
    dataset_id: str,
    *,
    observation: Name = "obs",
    action: Name = "action",
    reward: Name = "reward",
    infos: Sequence[str] = (),
    observation_space: Any = None,
    action_space: Any = None,
    **metadata: Any,
) -> int:
    """Makes a Minari dataset of the episodes that a replay has.

    A Minari episode needs the observation after its last step. If the episode was given ``final``, that is it. If it
    terminated, the last observation comes twice. Otherwise its last observation is left, and it is truncated a step
    earlier, as in an :class:`NStep`. Images are stored without loss.

    Args:
        replay: The replay. It may be used meanwhile: see :meth:`Replay.episodes`.
        dataset_id: As Minari has it: ``"cartpole/mine-v0"``.
        observation, action: Keys of the step, or tuples of keys. Dicts with str keys, tuples and arrays of numbers can
            be there.
        reward: Likewise, a leaf of shape ().
        infos: Keys of the step that are stored as infos. All others are left out.
        observation_space, action_space: Spaces of Gymnasium. None: of ``env=``, if that is given. Otherwise a Box for
            each array, as wide as its dtype; or a Dict or a Tuple of such.
        metadata: As ``minari.create_dataset_from_buffers`` takes it: ``env``, ``algorithm_name``, ``author``, ...

    Returns:
        How many steps were written.

    Raises:
        ImportError: Minari is not installed: ``pip install 'echo-shm[minari]'``. It needs Python 3.11.
        ValueError: A key is unknown, or there is no episode that can be written, or Minari has such a dataset.
        TypeError: A part of the steps is nothing that Minari stores.
        ConnectionClosedError, MemoryError, ForkedError: As :meth:`Replay.episodes`.

    """
    minari = need("minari", "minari")
    spec = replay._spec
    parts = {
        "observation": part_of(spec, "observation", observation),
        "action": part_of(spec, "action", action),
        "reward": part_of(spec, "reward", reward),
        **{f"infos {name!r}": part_of(spec, "infos", name) for name in infos},
    }
    if not isinstance(parts["reward"], int) or spec.leaves[parts["reward"]].shape != ():
        raise TypeError(f"reward={reward!r}: Minari has one number a step: choose a leaf of shape ()")
    inferred = {name: _space(spec, part, name) for name, part in parts.items()}
    if metadata.get("env") is None:
        observation_space = inferred["observation"] if observation_space is None else observation_space
        action_space = inferred["action"] if action_space is None else action_space
    dataset: Any = None
    steps = 0
    with contextlib.ExitStack() as undo:
        for buffers in _chunks(_buffers(replay, parts, infos, need("minari.data_collector", "minari").EpisodeBuffer)):
            steps += sum(len(buffer) for buffer in buffers)
            if dataset is None:
                dataset = minari.create_dataset_from_buffers(
                    dataset_id,
                    buffers,
                    observation_space=observation_space,
                    action_space=action_space,
                    jpeg_encoding=False,
                    **metadata,
                )
                undo.callback(shutil.rmtree, dataset.storage.data_path, ignore_errors=True)  # it is not finished
            else:
                dataset.update_dataset_from_buffer(buffers)
        undo.pop_all()
    if dataset is None:
        raise ValueError(
            f"there is no dataset {dataset_id!r} to make: the replay has no episode with an observation after a step"
        )
    return steps


def read_minari(
    replay: Replay,
    dataset: "minari.MinariDataset | str",
    *,
    observation: Name | None = "obs",
    action: Name | None = "action",
    reward: Name | None = "reward",
    others: "Mapping[Any, str | Callable[[Any], Tree]] | None" = None,
    timeout: float | None = 0.0,
) -> int:
    """Adds the episodes of a Minari dataset to a replay. Their items get each table's highest priority.

    The last observation of an episode is its ``final``. An episode that neither terminated nor was truncated counts as
    truncated. Floats are rounded to the leaf's precision, since Minari has rewards in float64. Integers are converted
    if their values fit. Nothing else is cast.

    Args:
        replay: The replay.
        dataset: A ``minari.MinariDataset``, or the ID of one on this machine.
        observation, action, reward: Keys of the step, or tuples of keys, that take these. None: none does.
        others: By key: where the rest of a step comes from. A str: from the infos with that name. Otherwise a function
            of a ``minari.EpisodeData`` that returns arrays with a leading n, the number of steps.
        timeout: As for :meth:`Replay.extend`.

    Returns:
        How many steps were added.

    Raises:
        ImportError: Minari is not installed: ``pip install 'echo-shm[minari]'``. It needs Python 3.11.
        ValueError: A key is unknown, a part of the steps has no source, or an episode goes on after its end.
        SpecMismatchError: An array has another dtype or shape than the leaf, or a tree another structure.
        TimeoutError, ConnectionClosedError, EchoShmError, ForkedError: As :meth:`Replay.extend`. The message and the
            attribute ``sent`` say how many steps are stored.

    """
    minari = need("minari", "minari")
    data = minari.load_dataset(dataset) if isinstance(dataset, str) else dataset
    spec = replay._spec
    named = {"observation": observation, "action": action, "reward": reward}
    sources = [_Source(name, part_of(spec, name, key), None) for name, key in named.items() if key is not None]
    sources += [
        _Source(f"others[{key!r}]", part_of(spec, "others", key), source) for key, source in (others or {}).items()
    ]
    taken = [leaf for source in sources for leaf in optree.tree_leaves(source.part)]
    missing = [leaf.path for i, leaf in enumerate(spec.leaves) if i not in taken]
    if missing or len(set(taken)) != len(taken):
        what = f"{', '.join(missing)} of the replay's steps" if missing else "a leaf that two arguments name"
        raise ValueError(f"{what}: each leaf needs one source: observation, action, reward, or others={{key: ...}}")
    with Importer(replay, timeout, f"dataset {data.id!r}") as importer:
        for episode in data.iterate_episodes():
            _add(importer, spec, sources, episode, f"dataset {data.id!r}, episode {episode.id}")
        return importer.added


def minari_example(
    dataset: "minari.MinariDataset | str",
    *,
    observation: str | None = "obs",
    action: str | None = "action",
    reward: str | None = "reward",
) -> dict[str, Tree]:
    """One step of a Minari dataset, with zeros in its leaves: ``Replay(minari_example(dataset), capacity)``.

    The dtypes are those that are stored. Rewards may be float64 there; ``example["reward"] = np.zeros((), np.float32)``
    halves them.

    Raises:
        ImportError: Minari is not installed: ``pip install 'echo-shm[minari]'``. It needs Python 3.11.
        ValueError: The dataset has no episode.

    """
    minari = need("minari", "minari")
    data = minari.load_dataset(dataset) if isinstance(dataset, str) else dataset
    episode = next(iter(data.iterate_episodes()), None)
    if episode is None:
        raise ValueError(f"dataset {data.id!r} has no episode")
    found = {observation: episode.observations, action: episode.actions, reward: episode.rewards}
    return {name: _mapped(lambda one: np.zeros_like(np.asarray(one)[0]), tree) for name, tree in found.items() if name}


# --- parts of a step -------------------------------------------------------------


def _mapped(change: Callable[[Any], Any], tree: Tree) -> Tree:
    """A tree of the same structure."""
    return optree.tree_map(change, tree)


def _space(spec: Spec, part: Tree, what: str) -> Any:
    """The space of a part of a step: as wide as its dtypes."""
    spaces = need("gymnasium", "minari").spaces
    if isinstance(part, dict) and all(isinstance(key, str) for key in part):
        return spaces.Dict({key: _space(spec, one, what) for key, one in part.items()})
    if type(part) is tuple:
        return spaces.Tuple([_space(spec, one, what) for one in part])
    if not isinstance(part, int):
        raise TypeError(f"{what}: got {type(part).__name__}: Minari has dicts with str keys, tuples and arrays")
    leaf = spec.leaves[part]
    if leaf.dtype.kind not in "biuf" or not leaf.dtype.isnative:
        raise TypeError(f"{what}: {leaf.name} is {leaf.dtype}: Minari has numbers and bools")
    low, high = _range(leaf.dtype)
    return spaces.Box(low, high, leaf.shape, leaf.dtype.type)


def _range(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    if dtype.kind == "b":
        return 0, 1
    return np.iinfo(dtype).min, np.iinfo(dtype).max


# --- writing -------------------------------------------------------------------


def _buffers(replay: Replay, parts: dict[str, Tree], infos: Sequence[str], buffer: Any) -> Iterator[Any]:
    """The episodes, as Minari takes them."""
    for episode in replay.episodes():
        n = len(episode) if episode.final is not None or episode.terminated else len(episode) - 1
        if n == 0:
            continue
        steps = flat(replay._spec, episode.steps)

        def first(part: Tree, steps: list[Array] = steps, n: int = n) -> Tree:
            return _mapped(lambda i: steps[i][:n], part)

        ends = np.zeros((2, n), bool)
        ends[:, -1] = episode.terminated, episode.truncated or not episode.terminated
        yield buffer(
            observations=_observations(replay._spec, episode, steps, parts["observation"]),
            actions=first(parts["action"]),
            rewards=first(parts["reward"]),
            terminations=ends[0],
            truncations=ends[1],
            infos={name: first(parts[f"infos {name!r}"]) for name in infos} or None,
        )


def _observations(spec: Spec, episode: StoredEpisode, steps: list[Array], part: Tree) -> Tree:
    """One more than there are steps."""
    if episode.final is not None:
        last = flat(spec, episode.final)
        return _mapped(lambda i: np.concatenate([steps[i], last[i][None]]), part)
    if episode.terminated:
        return _mapped(lambda i: np.concatenate([steps[i], steps[i][-1:]]), part)
    return _mapped(lambda i: steps[i], part)


def _chunks(buffers: Iterator[Any]) -> Iterator[list[Any]]:
    """Episodes that are stored together."""
    chunk: list[Any] = []
    size = 0
    for buffer in buffers:
        chunk.append(buffer)
        for tree in (buffer.observations, buffer.actions):
            size += sum(array.nbytes for array in optree.tree_leaves(tree))
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


# --- reading -------------------------------------------------------------------


class _Source(NamedTuple):
    """Where a part of a step comes from: ``"observation"``, ``"action"``, ``"reward"``, infos, or a function."""

    name: str
    part: Tree
    get: Any

    def of(self, episode: Any, where: str) -> Tree:
        """What an episode has there."""
        own = {"observation": "observations", "action": "actions", "reward": "rewards"}
        if self.name in own:
            return getattr(episode, own[self.name])
        if callable(self.get):
            return self.get(episode)
        if self.get not in (episode.infos or {}):
            known = ", ".join(map(repr, episode.infos or {})) or "none"
            raise ValueError(f"{where} has no infos {self.get!r}: it has {known}")
        return episode.infos[self.get]


def _add(importer: Importer, spec: Spec, sources: list[_Source], episode: Any, where: str) -> None:
    n = len(episode.rewards)
    ends = np.asarray(episode.terminations, bool), np.asarray(episode.truncations, bool)
    if n == 0:
        return
    if any(flags.shape != (n,) or flags[:-1].any() for flags in ends):
        raise ValueError(f"{where}: a step before the last one of {n} is terminated or truncated, or flags are missing")
    steps: list[Array] = [np.empty(0)] * len(spec.leaves)
    final = [np.zeros(leaf.shape, leaf.dtype) for leaf in spec.leaves]
    for source in sources:
        got = source.of(episode, where)
        try:
            arrays = optree.tree_structure(source.part).flatten_up_to(got)
        except (ValueError, TypeError) as error:
            raise SpecMismatchError(
                f"{where}, {source.name}: the structure is not that of the steps: {error}"
            ) from None
        for i, array in zip(optree.tree_leaves(source.part), arrays, strict=True):
            is_observation = source.name == "observation"
            # Infos may have an entry for the reset, too, which is the first.
            rows = n + 1 if is_observation or (isinstance(source.get, str) and len(array) == n + 1) else n
            whole = exact(spec.leaves[i], array, rows, f"{where}, {source.name}")
            steps[i] = whole[:n] if is_observation else whole[rows - n :]
            if is_observation:
                final[i] = whole[n, ...].reshape(spec.leaves[i].shape)
    terminated, truncated = (bool(flags[-1]) for flags in ends)
    importer.steps(steps)
    importer.end(terminated, truncated or not terminated, final if _has_observation(sources) else None)


def _has_observation(sources: list[_Source]) -> bool:
    return any(source.name == "observation" for source in sources)
