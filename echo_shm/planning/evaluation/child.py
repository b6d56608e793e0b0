"""``python -m echo_shm.planning.evaluation.child SETTINGS NAME``: one run of an evaluation, in a process of its own."""

import asyncio
import json
import os
import sys
from typing import Any

from echo_shm.errors import EchoShmError
from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig
from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.directory import Directory
from echo_shm.planning.evaluation.making import line_of, make
from echo_shm.planning.evaluation.runs import plan
from echo_shm.workers.parent_death import die_with_parent

_INNER = {"planning": PlanningConfig, "ppo": PPOConfig, "replay": ReplayConfig}


def config_of(settings: dict[str, Any]) -> EvaluationConfig:
    """A configuration from ``dataclasses.asdict`` of one."""
    inner = {name: kind(**settings[name]) for name, kind in _INNER.items() if settings[name] is not None}
    return EvaluationConfig(**{**settings, **inner})


def main(argv: list[str]) -> int:
    """Makes the run of that name. Returns the exit status: 1 if it failed, which a line says; 130 if interrupted.

    What nobody foresaw comes with its traceback.
    """
    settings, name, parent = argv
    die_with_parent(int(parent))
    config = config_of(json.loads(settings))
    run = next(one for one in plan(config)[0] if one.name == name)
    try:
        asyncio.run(make(config, Directory(config), run))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    except (EchoShmError, OSError, ValueError, ModuleNotFoundError) as error:
        print(line_of(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
