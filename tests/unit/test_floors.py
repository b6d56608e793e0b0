"""Imports go down: each module of the package knows only what is on a floor below its own."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "echo_shm"

#: For each package, its floors from the bottom: modules and packages. Those on one floor do not know each other.
FLOORS = {
    "": [
        ["_core", "_send", "_batch", "_slot", "_replay", "_history", "_build"],
        ["errors", "timeouts", "closing", "missing", "lazy", "toml_lines"],
        ["spec"],
        ["ring", "trajectory"],
        ["weights"],
        ["sending"],
        ["client"],
        ["workers"],
        ["sampling"],
        ["server", "net"],
        ["replay"],
        ["planning"],
        ["adapters"],
        ["cli", "examples"],
        ["__main__"],
    ],
    "ring": [
        ["lockfile", "processes", "fast_path", "pages", "inbox"],
        ["segment", "board", "batch_names"],
        ["reaper", "metrics", "handle", "allocation", "updates", "ranks"],
        ["attachment", "creation", "sample", "protocols", "rollouts", "replay_board"],
        ["stuck", "producers", "transports", "staleness", "batch_source"],
        ["batch_reader"],
    ],
    "replay": [
        ["validation", "batch", "arguments", "checkpoint_files", "disk", "snapshots", "metric_names"],
        ["selectors", "rate_limiters", "waiting", "ahead", "item", "waits", "mapped", "syncing", "stock"],
        ["layout", "files"],
        ["finals", "table", "custom", "history", "batch_rings", "new_files", "described"],
        ["vector"],
        ["step_writer"],
        ["item_writer"],
        ["writer"],
        ["sources", "remote", "untaken"],
        ["store", "feed"],
        ["new_store"],
        ["rings", "listing", "learner", "settings", "checkpoint", "restoring", "peeking"],
        ["items", "finding"],
        ["ways", "episodes", "inserting", "sampling", "lifetime"],
        ["replay", "client"],
        ["datasets"],
    ],
    "replay.datasets": [
        ["common"],
        ["npz", "parquet", "minari", "reverb_records", "lerobot_features"],
        ["reverb", "lerobot_videos", "lerobot_sources", "lerobot_stats"],
        ["lerobot_rows", "lerobot_files"],
        ["lerobot"],
    ],
    "planning": [
        ["arguments", "environments", "reading"],
        ["plans", "costs", "importance", "prefix_index"],
        ["surprise", "kernels"],
        ["hot_cold"],
        ["backbones"],
        ["rollouts"],
        ["agents"],
        ["training", "core"],
        ["evaluation", "utils"],
        ["evaluate", "examples"],
    ],
    "planning.core": [
        ["configs", "bandwidth", "latent_planning", "prioritized_replay"],
        ["async_execution"],
    ],
    "planning.utils": [["monitoring"]],
    "planning.examples": [
        ["common"],
        [
            *("latent_planning_demo", "async_execution_demo", "prioritized_replay_demo", "bandwidth_efficient_demo"),
            *("train_echo_rl", "benchmark_echo_rl"),
        ],
    ],
    "planning.environments": [
        ["configs", "vocabulary", "minigrid_views", "limited_run", "registration"],
        ["common", "text_world_rules", "shop_catalogue", "code_functions", "arc_tasks"],
        ["text_world_maker", "played_games", "shop_files", "shop_reward", "shop_search"],
        ["shop_pages"],
        ["shop_server"],
        ["text_world", "textworld_games", "alfworld", "shop", "code", "arc", "minigrid"],
        ["webshop", "cruxeval"],  # EchoRL's names, as some of the floor below have, too
    ],
    "planning.agents": [
        ["devices"],
        ["configs", "segments", "advantages", "policies"],
        ["encoder"],
        ["planner"],
        ["ppo"],
    ],
    "planning.training": [
        ["text_view", "checkpoints", "metrics"],
        ["environments"],
        ["settings", "actor", "progress"],
        ["evaluation", "experience"],
        ["trainer"],
        ["__main__"],
    ],
    "planning.evaluation": [
        ["configs", "tasks", "statistics", "acting", "tree"],
        ["agents", "measures", "summary", "own"],
        ["models", "playing", "learning", "impala", "plots"],
        ["runs", "prompting"],
        ["directory", "report"],
        ["making"],
        ["evaluation", "child"],
        ["benchmark"],
    ],
    "planning.backbones": [
        ["protocol", "tokenizers"],
        ["paged", "limits"],
        ["transformer", "huggingface", "openai", "anthropic", "gemini"],
    ],
    "planning.rollouts": [
        ["backbone_thread", "sampling", "scheduler", "tracker", "messages", "blocks"],
        ["config"],
        ["decoder", "workers", "steps"],
        ["dialogue", "fleet"],
        ["reporting"],
        ["engine"],
    ],
    "trajectory": [["accumulator"]],
    "weights": [["leaves", "segment"], ["subscription"], ["publisher", "subscriber"]],
    "workers": [["parent_death"], ["entry"], ["worker", "preload"], ["group"], ["spawned"]],
    "net": [
        ["pem"],
        ["wire", "tcp", "validation"],
        ["learner_wire", "weights_wire"],
        ["client", "bridge"],
        ["transport"],
    ],
    "net.client": [
        ["backoff", "tls_stream", "dialing", "outbox", "steps", "taken", "blocks"],
        ["feed"],
        ["connection"],
        ["reconnect", "learner_connection"],
        ["sender", "batches"],
        ["finalizers", "subscriber"],
        ["client"],
    ],
    "net.bridge": [
        ["acceptor", "decoder", "copies", "refusals", "tls_records"],
        ["connection"],
        ["ingest", "shares"],
        ["learners", "weights"],
        ["replays"],
        ["admission"],
        ["bridge"],
        ["process"],
        ["supervisor"],
    ],
    "cli": [
        ["console", "words", "trace_events"],
        ["watching", "limiters", "progress", "replay_config", "sparklines", "ring_waits", "recorder"],
        ["top", "demo"],
        ["replay_figures", "ls", "ray_figures"],
        ["gc", "replay_waits", "replay_serve", "families", "priorities", "rollouts_top"],
        ["metrics", "record", "dash_state", "replay_top", "ray_top", "ray_state"],
        ["dash"],
        ["main"],
    ],
    "adapters": [
        ["torch_tensors", "torch_pinning", "gymnasium_spaces", "observations", "ray"],
        ["folders", "tensordicts", "tianshou_rows", "rllib_episodes"],
        ["torch_copies", "torch_datasets", "transitions", "torchrl_replay", "rllib_replay"],
        ["torch", "jax", "gymnasium", "cleanrl", "sb3", "torchrl", "tianshou", "rllib"],
        ["sb3_dqn"],
    ],
    "adapters.ray": [
        ["asking", "budgets", "example", "guard", "keys", "kuberay", "learners", "nodes", "subscriber"],
        ["stream_client", "weights", "handing"],
        ["directory"],
        ["sources", "metrics"],
        ["shares", "shards"],
        ["filling"],
        ["mixing", "changes"],
        ["limits", "merging", "attaching", "silence", "settling"],
        ["limited"],
        ["writers", "drawing", "checks"],
        ["workers"],
        ["keeper", "stream"],
        ["replay"],
    ],
    "examples": [["common"], ["ppo", "dqn", "impala", "jax_ppo", "remote", "atari"]],
    "cli.demo": [["check", "display", "policy"], ["view", "replay_view"], ["demo"], ["replay_demo"]],
}


def dotted(path):
    """A file's module name below ``echo_shm``: ``"net.wire"``; ``"net"`` for a package's ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = [name for name, path in FILES.items() if path.stem != "__init__"]


def imported(name, source):
    """The modules and packages of echo_shm that a module imports, wherever in its source, by their dotted names."""
    here = ["echo_shm", *name.split(".")]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*here[: -node.level], *filter(None, [node.module])] if node.level else [node.module])
            # What is imported from a package may be a module of it.
            found = [f"{base}.{alias.name}" if f"{base}.{alias.name}"[9:] in FILES else base for alias in node.names]
        else:
            continue
        yield from (one.removeprefix("echo_shm").removeprefix(".") for one in found if one.split(".")[0] == "echo_shm")


def floor_of(package, child):
    """The number of the floor of a package on which a module or package of it is; None if it is on none."""
    return next((number for number, floor in enumerate(FLOORS[package]) if child in floor), None)


def goes_down(name, other):
    """Whether the import of one module by another goes to a lower floor of the package that both are in."""
    mine, theirs = name.split("."), other.split(".")
    if other == "":  # what the package exports, which adapters and examples import as a user does
        return mine[0] in ("adapters", "examples") or mine[:2] == ["planning", "examples"]
    depth = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if depth is None:  # itself, or a package that it is in
        return False
    package = ".".join(mine[:depth])
    above, below = floor_of(package, mine[depth]), floor_of(package, theirs[depth])
    return above is not None and below is not None and below < above


def upward(name, source):
    """What a module imports that is not on a floor below its own."""
    return sorted({other for other in imported(name, source) if not goes_down(name, other)})


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down(name):
    """A module imports from floors below its own only; imports inside functions count."""
    assert upward(name, FILES[name].read_text()) == []


def test_every_file_has_one_floor():
    """The table names each module and package exactly once, and nothing else."""
    for package, floors in FLOORS.items():
        folder = PACKAGE.joinpath(*package.split("."))
        there = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
        there += [path.parent.name for path in folder.glob("*/__init__.py")]
        there += ["_core", "_send", "_batch", "_slot", "_replay", "_history"] if package == "" else []
        assert sorted(child for floor in floors for child in floor) == sorted(there), package or "echo_shm"
    assert set(FLOORS) == {name for name, path in FILES.items() if path.stem == "__init__"}


def test_inner_packages_import_nothing():
    """Only seven packages have public names, some of them lazily: another package inside is no more than a folder."""
    public = (
        *("replay", "replay.datasets", "weights", "planning", "planning.environments", "planning.core"),
        "adapters.ray",
    )
    for name, path in FILES.items():
        if path.stem == "__init__" and name:
            own = (f"{name}.", "lazy", "missing") if name in public else "?"
            assert [other for other in imported(name, path.read_text()) if not other.startswith(own)] == [], name


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("ring.segment", "import echo_shm.server"),  # another room, above
        ("ring.segment", "from echo_shm.client import ShmClient"),
        ("ring.segment", "from echo_shm.ring.attachment import Attachment"),  # this room, above
        ("ring.segment", "from echo_shm.ring import attachment"),
        ("ring.segment", "from . import attachment"),
        ("ring.segment", "from ..client import ShmClient"),
        ("ring.reaper", "from echo_shm.ring.metrics import RingView"),  # the same floor
        ("net.client.sender", "from echo_shm.net.bridge.bridge import Bridge"),  # another room on the same floor
        ("net.wire", "from echo_shm.net.client import connection"),
        ("server", "from echo_shm.net.transport import TcpTransport"),
        ("ring.handle", "from echo_shm.net import wire"),  # a circle between packages
        ("errors", "def f():\n    from echo_shm import spec"),  # inside a function
        ("client", "from .server import Server"),
        ("client", "from . import server"),
        ("client", "from echo_shm import Server"),  # the package itself, which imports everything
        ("spec", "from echo_shm.unheard_of import x"),
    ],
)
def test_upward_imports_are_seen(name, source):
    """The reader of imports sees every way of importing upward or sideways."""
    assert upward(name, source) != []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("net.client.connection", "from echo_shm.net.wire import Frame\nfrom echo_shm.spec import Spec"),
        ("net.client.connection", "from .. import wire\nfrom .tls_stream import TlsStream"),
        ("server", "from echo_shm.ring import segment\nimport echo_shm.workers.group, json"),
    ],
)
def test_downward_imports_are_allowed(name, source):
    """The reader of imports says nothing of those that go down."""
    assert upward(name, source) == []
