"""Planning: what rollouts cost and share, and how surprising a plan is.

A module is loaded when one of its names is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echo_shm.planning.backbones.anthropic import AnthropicBackbone
    from echo_shm.planning.backbones.gemini import GeminiBackbone
    from echo_shm.planning.backbones.huggingface import HuggingFaceBackbone, HuggingFaceTokenizer
    from echo_shm.planning.backbones.limits import BudgetSpentError, RemoteLimits
    from echo_shm.planning.backbones.openai import OpenAIBackbone
    from echo_shm.planning.backbones.protocol import (
        BackboneError,
        Completion,
        LocalBackbone,
        Message,
        Part,
        RemoteBackbone,
    )
    from echo_shm.planning.backbones.tokenizers import ByteTokenizer, Tokenizer
    from echo_shm.planning.backbones.transformer import CausalTransformer, TransformerBackbone, TransformerConfig
    from echo_shm.planning.costs import attention_cost, bandwidth_efficiency, effective_cost, rollout_priorities
    from echo_shm.planning.importance import importance_weights
    from echo_shm.planning.plans import EmaPlan, plan_surprise, temporal_kl
    from echo_shm.planning.prefix_index import Insertion, Lease, Match, PrefixIndex
    from echo_shm.planning.rollouts.config import Counts, RolloutConfig, RolloutError, RolloutResult, Turn
    from echo_shm.planning.rollouts.engine import RolloutEngine
    from echo_shm.planning.rollouts.scheduler import BandwidthAwareScheduler, BandwidthConfig
    from echo_shm.planning.rollouts.steps import TextSteps
    from echo_shm.planning.rollouts.tracker import Efficiency, EfficiencyTracker
    from echo_shm.planning.rollouts.workers import TextEnvironment

#: For each module, its public names.
_NAMES = {
    "backbones.anthropic": ("AnthropicBackbone",),
    "backbones.gemini": ("GeminiBackbone",),
    "backbones.huggingface": (
        "HuggingFaceBackbone",
        "HuggingFaceTokenizer",
    ),
    "backbones.limits": (
        "BudgetSpentError",
        "RemoteLimits",
    ),
    "backbones.openai": ("OpenAIBackbone",),
    "backbones.protocol": (
        "BackboneError",
        "Completion",
        "LocalBackbone",
        "Message",
        "Part",
        "RemoteBackbone",
    ),
    "backbones.tokenizers": (
        "ByteTokenizer",
        "Tokenizer",
    ),
    "backbones.transformer": (
        "CausalTransformer",
        "TransformerBackbone",
        "TransformerConfig",
    ),
    "rollouts.config": (
        "Counts",
        "RolloutConfig",
        "RolloutError",
        "RolloutResult",
        "Turn",
    ),
    "rollouts.engine": ("RolloutEngine",),
    "rollouts.scheduler": (
        "BandwidthAwareScheduler",
        "BandwidthConfig",
    ),
    "rollouts.steps": ("TextSteps",),
    "rollouts.tracker": (
        "Efficiency",
        "EfficiencyTracker",
    ),
    "rollouts.workers": ("TextEnvironment",),
    "costs": ("attention_cost", "bandwidth_efficiency", "effective_cost", "rollout_priorities"),
    "importance": ("importance_weights",),
    "plans": ("EmaPlan", "plan_surprise", "temporal_kl"),
    "prefix_index": ("Insertion", "Lease", "Match", "PrefixIndex"),
}

__all__ = [
    "AnthropicBackbone",
    "BackboneError",
    "BandwidthAwareScheduler",
    "BandwidthConfig",
    "BudgetSpentError",
    "ByteTokenizer",
    "CausalTransformer",
    "Completion",
    "Counts",
    "Efficiency",
    "EfficiencyTracker",
    "EmaPlan",
    "GeminiBackbone",
    "HuggingFaceBackbone",
    "HuggingFaceTokenizer",
    "Insertion",
    "Lease",
    "LocalBackbone",
    "Match",
    "Message",
    "OpenAIBackbone",
    "Part",
    "PrefixIndex",
    "RemoteBackbone",
    "RemoteLimits",
    "RolloutConfig",
    "RolloutEngine",
    "RolloutError",
    "RolloutResult",
    "TextEnvironment",
    "TextSteps",
    "Tokenizer",
    "TransformerBackbone",
    "TransformerConfig",
    "Turn",
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
