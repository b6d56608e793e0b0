"""Planning: what rollouts cost and share, and how surprising a plan is.

A module is loaded when one of its names is used.
"""

from typing import TYPE_CHECKING

from echo_shm import lazy

if TYPE_CHECKING:
    from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig, TextConfig, TrainingConfig
    from echo_shm.planning.agents.encoder import TrajectoryEncoder
    from echo_shm.planning.agents.planner import LatentPlanner
    from echo_shm.planning.agents.policies import CommandPolicy, PolicyNetwork, SoftPrefixPolicy
    from echo_shm.planning.agents.ppo import PPO
    from echo_shm.planning.agents.segments import Segments
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
    from echo_shm.planning.evaluation.configs import EvaluationConfig
    from echo_shm.planning.evaluation.evaluation import Evaluation
    from echo_shm.planning.hot_cold import HotColdReplay
    from echo_shm.planning.importance import importance_weights
    from echo_shm.planning.plans import EmaPlan, plan_surprise, temporal_kl
    from echo_shm.planning.prefix_index import Insertion, Lease, Match, PrefixIndex
    from echo_shm.planning.rollouts.config import Counts, Planned, RolloutConfig, RolloutError, RolloutResult, Turn
    from echo_shm.planning.rollouts.engine import RolloutEngine
    from echo_shm.planning.rollouts.scheduler import BandwidthAwareScheduler, BandwidthConfig
    from echo_shm.planning.rollouts.steps import TextSteps
    from echo_shm.planning.rollouts.tracker import Efficiency, EfficiencyTracker
    from echo_shm.planning.rollouts.workers import TextEnvironment
    from echo_shm.planning.surprise import Scoring, SurpriseWriter
    from echo_shm.planning.training.metrics import TrainingMetrics
    from echo_shm.planning.training.trainer import EchoRLTrainer

#: For each module, its public names.
_NAMES = {
    "agents.configs": ("PPOConfig", "PlanningConfig", "ReplayConfig", "TextConfig", "TrainingConfig"),
    "agents.encoder": ("TrajectoryEncoder",),
    "agents.planner": ("LatentPlanner",),
    "agents.policies": ("CommandPolicy", "PolicyNetwork", "SoftPrefixPolicy"),
    "agents.ppo": ("PPO",),
    "agents.segments": ("Segments",),
    "training.metrics": ("TrainingMetrics",),
    "training.trainer": ("EchoRLTrainer",),
    "evaluation.configs": ("EvaluationConfig",),
    "evaluation.evaluation": ("Evaluation",),
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
        "Planned",
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
    "hot_cold": ("HotColdReplay",),
    "importance": ("importance_weights",),
    "plans": ("EmaPlan", "plan_surprise", "temporal_kl"),
    "prefix_index": ("Insertion", "Lease", "Match", "PrefixIndex"),
    "surprise": ("Scoring", "SurpriseWriter"),
}

__all__ = [
    "PPO",
    "AnthropicBackbone",
    "BackboneError",
    "BandwidthAwareScheduler",
    "BandwidthConfig",
    "BudgetSpentError",
    "ByteTokenizer",
    "CausalTransformer",
    "CommandPolicy",
    "Completion",
    "Counts",
    "EchoRLTrainer",
    "Efficiency",
    "EfficiencyTracker",
    "EmaPlan",
    "Evaluation",
    "EvaluationConfig",
    "GeminiBackbone",
    "HotColdReplay",
    "HuggingFaceBackbone",
    "HuggingFaceTokenizer",
    "Insertion",
    "LatentPlanner",
    "Lease",
    "LocalBackbone",
    "Match",
    "Message",
    "OpenAIBackbone",
    "PPOConfig",
    "Part",
    "Planned",
    "PlanningConfig",
    "PolicyNetwork",
    "PrefixIndex",
    "RemoteBackbone",
    "RemoteLimits",
    "ReplayConfig",
    "RolloutConfig",
    "RolloutEngine",
    "RolloutError",
    "RolloutResult",
    "Scoring",
    "Segments",
    "SoftPrefixPolicy",
    "SurpriseWriter",
    "TextConfig",
    "TextEnvironment",
    "TextSteps",
    "Tokenizer",
    "TrainingConfig",
    "TrainingMetrics",
    "TrajectoryEncoder",
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

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.names(__name__, _NAMES)
