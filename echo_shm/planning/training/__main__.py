"""``python -m echo_shm.planning.training --env-name CartPole-v1``: a run of training. ``--help`` lists its options."""

import asyncio
import json
import sys
from dataclasses import asdict

from echo_shm.missing import needs
from echo_shm.planning.agents.configs import TrainingConfig
from echo_shm.planning.training.trainer import EchoRLTrainer

with needs("planning.training", "Gymnasium", "gymnasium", extra="planning-agents"):
    import gymnasium

_PROGRAM = "echo_shm.planning.training"

#: What is no field of the configuration.
_OPTIONS = {"--resume": "go on from the newest checkpoint; without it, there must be none"}


def main(argv: list[str] | None = None) -> int:
    """Trains, and prints what came of it as JSON. Returns the exit status: 2 if it cannot begin, 130 after Ctrl-C."""
    given = sys.argv[1:] if argv is None else argv
    resume = "--resume" in given
    config = TrainingConfig.from_args([one for one in given if one != "--resume"], prog=_PROGRAM, also=_OPTIONS)
    try:
        trainer = EchoRLTrainer(config, resume=resume)
    except (ValueError, TypeError, OSError, ModuleNotFoundError, gymnasium.error.Error) as error:
        print(f"{_PROGRAM}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    try:
        metrics = asyncio.run(trainer.train())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(json.dumps(asdict(metrics), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
