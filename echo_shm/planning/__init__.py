"""Planning: what rollouts cost and share, and how surprising a plan is.

A module is loaded when one of its names is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echo_shm.planning.costs import attention_cost, bandwidth_efficiency, effective_cost, rollout_priorities
    from echo_shm.planning.hot_cold import HotColdReplay
    from echo_shm.planning.importance import importance_weights
    from echo_shm.planning.plans import EmaPlan, plan_surprise, temporal_kl
    from echo_shm.planning.prefix_index import Insertion, Lease, Match, PrefixIndex
    from echo_shm.planning.surprise import Scoring, SurpriseWriter

#: For each module, its public names.
_NAMES = {
    "costs": ("attention_cost", "bandwidth_efficiency", "effective_cost", "rollout_priorities"),
    "hot_cold": ("HotColdReplay",),
    "importance": ("importance_weights",),
    "plans": ("EmaPlan", "plan_surprise", "temporal_kl"),
    "prefix_index": ("Insertion", "Lease", "Match", "PrefixIndex"),
    "surprise": ("Scoring", "SurpriseWriter"),
}

__all__ = [
    "EmaPlan",
    "HotColdReplay",
    "Insertion",
    "Lease",
    "Match",
    "PrefixIndex",
    "Scoring",
    "SurpriseWriter",
    "attention_cost",
    "bandwidth_efficiency",
    "effective_cost",
    "importance_weights",
    "plan_surprise",
    "rollout_priorities",
    "temporal_kl",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            value.__module__ = __name__  # as the other packages do: no message or pickle names a file that may move
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
