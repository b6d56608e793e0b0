"""Language models of agents, by specification."""

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_shm.missing import needs
from echo_shm.planning.backbones.protocol import LocalBackbone, RemoteBackbone
from echo_shm.planning.backbones.tokenizers import Tokenizer
from echo_shm.planning.evaluation.tasks import Task

#: Bytes of a KV cache, at most.
_CACHE = 1 << 30

#: Kinds of servers, and the class of each.
_SERVERS = {"openai": "OpenAIBackbone", "anthropic": "AnthropicBackbone", "gemini": "GeminiBackbone"}

#: Of an answer of a model that was not trained here.
_MOST_TOKENS = 200


@dataclass(frozen=True)
class Model:
    """A language model that can be asked."""

    backbone: LocalBackbone | RemoteBackbone
    #: None with a server.
    tokenizer: Tokenizer | None
    #: Whether it has to be told how to answer. One that was trained on the format need not.
    told: bool
    max_tokens: int

    def count(self, text: str) -> int | None:
        """The tokens of a text; None with a server, which has the tokens."""
        return None if self.tokenizer is None else len(self.tokenizer.encode(text))


def check(spec: str) -> None:
    """Looks at a specification.

    Raises:
        ValueError: There is no such kind, or the name is missing.

    """
    kind, _, name = spec.partition(":")
    if spec == "own":
        return
    if kind not in ("hf", *_SERVERS) or not name.partition("@")[0]:
        raise ValueError(
            f"backbone {spec!r} is unknown: use own, hf:NAME_OR_PATH, openai:MODEL@URL, anthropic:MODEL or gemini:MODEL"
        )


def misfit(spec: str, task: Task) -> str | None:
    """Why this backbone cannot play this task; None if it can."""
    if spec == "own" and task.env_name != "TextWorld":
        return "the backbone own is trained by imitation, and only text worlds have demonstrations"
    return None


async def look(spec: str) -> None:
    """Looks whether a server could be asked, and asks none.

    Raises:
        ModuleNotFoundError: Its client is not installed.
        ValueError: There is no key.

    """
    if spec.partition(":")[0] in _SERVERS:
        try:
            await _server(spec).close()
        except ValueError as error:
            raise ValueError(f"backbone {spec!r}: {' '.join(str(error).split())}") from error


def _server(spec: str) -> RemoteBackbone:
    kind, _, name = spec.partition(":")
    model, _, url = name.partition("@")
    made = getattr(importlib.import_module(f"echo_shm.planning.backbones.{kind}"), _SERVERS[kind])
    given: dict[str, Any] = {"base_url": url} if url else {}
    if kind == "openai" and url and "OPENAI_API_KEY" not in os.environ:
        given["api_key"] = "none"  # a server of one's own takes any
    backbone: RemoteBackbone = made(model, **given)
    return backbone


def open_model(spec: str, task: Task, updates: int, folder: Path) -> Model:
    """The model of a specification.

    Args:
        spec: ``"own"``: trained here by imitation, once for a task; others load a model, or ask a server.
        task: What it plays.
        updates: Of ``"own"``: how long it is trained.
        folder: Of ``"own"``: where it is kept.

    Raises:
        ModuleNotFoundError: What it needs is not installed.
        ValueError: There is no key for a server.
        Exception: What a package raises if there is no such model.

    """
    check(spec)
    kind, _, name = spec.partition(":")
    if kind == "own":
        from echo_shm.planning.evaluation.own import open_own

        return Model(*open_own(task, updates, folder), told=False, max_tokens=24)
    if kind == "hf":
        return Model(*_hugging_face(name), told=True, max_tokens=_MOST_TOKENS)
    return Model(_server(spec), None, told=True, max_tokens=_MOST_TOKENS)


def _hugging_face(name: str) -> tuple[LocalBackbone, Tokenizer]:
    with needs(
        "planning.evaluation", "Hugging Face transformers", "torch", "transformers", extra="planning-huggingface"
    ):
        transformers: Any = importlib.import_module("transformers")
    from echo_shm.planning.backbones.huggingface import HuggingFaceBackbone, HuggingFaceTokenizer

    model = transformers.AutoModelForCausalLM.from_pretrained(name)
    small = HuggingFaceBackbone(model, num_blocks=1)
    blocks = max(64, min(16_384, _CACHE // small.block_bytes))
    return (
        HuggingFaceBackbone(model, num_blocks=blocks),
        HuggingFaceTokenizer(transformers.AutoTokenizer.from_pretrained(name)),
    )
