"""Causal language models of Hugging Face's transformers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.backbones.paged import Flat, PagedBackbone, PagedCache
from echo_shm.planning.backbones.protocol import Part
from echo_shm.replay.validation import integer
from echo_shm.spec import Array

with needs("planning.backbones", "Hugging Face transformers", "torch", "transformers", extra="planning-huggingface"):
    import torch
    from transformers.cache_utils import DynamicCache, DynamicLayer


class HuggingFaceBackbone(PagedBackbone):
    """A causal model of transformers: a :class:`LocalBackbone`.

    Its keys and values lie in our blocks. At each call the blocks of the sequences' beginnings are gathered into a
    ``DynamicCache``, and what is new is copied back. So prefixes are shared, and a call costs one copy of what is
    cached of its sequences beside the model's own work. Parts of about the same length go through the model together,
    filled up to at most twice their length.

    Args:
        model: An instance of a ``...ForCausalLM`` class, whose layers keep the keys and values of all tokens: no
            sliding windows, no recurrent states. Positions are given to it, so any kind of them is right.
        num_blocks: Blocks of the cache. A cache takes ``num_blocks * block_bytes`` bytes, at once. None: as many as
            128 sequences of the greatest length take, within 256 MiB: see :class:`PagedCache`. With too few of them
            rollouts take each other's, and compute their contexts again: ``engine.counts.preempted``.
        block_size: Tokens of a block.
        max_length: The longest sequence, in tokens. None: the model's ``max_position_embeddings``.

    Raises:
        TypeError: The model does not take a cache as ``past_key_values``, or keeps something else.

    """

    def __init__(
        self, model: Any, num_blocks: int | None = None, block_size: int = 16, max_length: int | None = None
    ) -> None:
        config = model.config.get_text_config()
        if max_length is None:
            max_length = getattr(config, "max_position_embeddings", None)
            if max_length is None:
                raise ValueError("the model's configuration has no max_position_embeddings: give max_length")
        self.model = model.eval()
        max_length = integer("max_length", max_length, 1)
        layers = self._layers_of_one_token()
        heads, head_dim = layers[0].keys.shape[1], layers[0].keys.shape[3]
        dtype, device = layers[0].keys.dtype, layers[0].keys.device
        cache = PagedCache(len(layers), num_blocks, max_length, heads, block_size, head_dim, dtype, device)
        super().__init__(int(config.vocab_size), max_length, cache)

    def _layers_of_one_token(self) -> list[Any]:
        """The layers of a cache with one token, which say what the model keeps."""
        cache = DynamicCache(config=self.model.config)
        one = torch.zeros(1, 1, dtype=torch.int64, device=self.model.device)
        with torch.inference_mode():
            self.model(one, past_key_values=cache, use_cache=True)
        for layer in cache.layers:
            if type(layer) is not DynamicLayer or layer.keys is None:
                raise TypeError(
                    f"{type(self.model).__name__} keeps a {type(layer).__name__}: use a model all of whose layers keep "
                    "the keys and values of all tokens"
                )
            if layer.keys.shape != cache.layers[0].keys.shape or layer.values.shape != layer.keys.shape:
                raise TypeError(f"{type(self.model).__name__} keeps keys and values of several shapes: use another one")
        if not cache.layers:
            raise TypeError(f"{type(self.model).__name__} keeps nothing in past_key_values: use another one")
        return list(cache.layers)

    def extend(self, parts: Sequence[Part]) -> Array:
        """Reads new tokens of several sequences. See :meth:`LocalBackbone.extend`."""
        groups: dict[int, list[int]] = {}
        for i, part in enumerate(parts):
            groups.setdefault((len(part.tokens) - 1).bit_length(), []).append(i)
        result = np.empty((len(parts), self._vocab_size), np.float32)
        with torch.inference_mode():
            for group in groups.values():
                result[group] = self._extend([parts[i] for i in group])
        return result

    def _extend(self, parts: Sequence[Part]) -> Array:
        paged, n = self.cache, len(parts)
        flat = Flat(parts, paged)
        paged.empty(flat.fresh)
        past, room = self._gathered(parts)
        lengths = np.array([len(part.tokens) for part in parts])
        longest = int(lengths.max())
        starts = np.array([part.start for part in parts])
        tokens = np.zeros((n, longest), np.int64)
        for row, part in zip(tokens, parts, strict=True):
            row[: len(part.tokens)] = part.tokens
        mask = np.concatenate([np.arange(room) < starts[:, None], np.arange(longest) < lengths[:, None]], axis=1)
        positions = np.minimum(starts[:, None] + np.arange(longest), self._max_length - 1)  # fillers, too, have one
        last = torch.from_numpy(lengths - 1).to(paged.device)
        logits = self.model(
            torch.from_numpy(tokens).to(paged.device),
            attention_mask=torch.from_numpy(mask.astype(np.int64)).to(paged.device),
            position_ids=torch.from_numpy(positions).to(paged.device),
            past_key_values=past,
            use_cache=True,
        ).logits
        rows = torch.from_numpy(np.repeat(np.arange(n), lengths)).to(paged.device)
        columns = flat.positions - torch.from_numpy(np.repeat(starts, lengths)).to(paged.device) + room
        for number, layer in enumerate(past.layers):
            paged.write(number, flat.blocks, flat.places, layer.keys[rows, :, columns], layer.values[rows, :, columns])
        result: Array = logits[torch.arange(n, device=paged.device), last].float().cpu().numpy()
        return result

    def _gathered(self, parts: Sequence[Part]) -> tuple[Any, int]:
        """The keys and values of what comes before the parts, and how many places each has for it."""
        past = DynamicCache(config=self.model.config)
        before = [Part(part.tokens[:0], part.start, part.blocks) for part in parts]
        if not any(part.start for part in parts):
            return past, 0
        table = self.cache.table(before)
        for layer in range(self.cache.tensor.shape[0]):
            past.update(*self.cache.read(layer, table), layer)
        return past, table.shape[1] * self.cache.block_size


class HuggingFaceTokenizer:
    """A tokenizer of transformers as the engine takes it. An answer ends with ``eos_token_id``."""

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no eos_token: set one, so that an answer can end")
        self._tokenizer = tokenizer
        self.end = int(tokenizer.eos_token_id)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text
