"""A small causal transformer of our own: it trains here, and decodes with its KV cache in blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from echo_shm.missing import needs
from echo_shm.planning.backbones.paged import Flat, PagedBackbone, PagedCache
from echo_shm.planning.backbones.protocol import Part
from echo_shm.replay.validation import integer
from echo_shm.spec import Array

with needs("planning.backbones", "PyTorch", "torch", extra="planning"):
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes of a :class:`CausalTransformer`."""

    vocab_size: int
    layers: int = 2
    width: int = 64
    heads: int = 4
    #: The longest sequence, in tokens, with its prefix.
    max_length: int = 512

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "width", "heads", "max_length"):
            integer(name, getattr(self, name), 1)
        if self.width % (2 * self.heads):
            raise ValueError(f"width={self.width} with heads={self.heads}: use a width that 2 * heads divides")


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary positions (Su et al., 2021, https://arxiv.org/abs/2104.09864, eq. 34, halves instead of neighbours).

    Args:
        x: ``(..., head_dim)``.
        angles: Broadcasts against ``(..., head_dim / 2)``.

    """
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """Attention and a layer of two matrices, each behind a norm and around which the residual goes."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, width = config.heads, config.width
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def project(self, x: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values ``(..., heads, head_dim)`` of ``(..., width)``. Keys are turned to their place."""
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return rotate(q, angles), rotate(k, angles), v

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """What comes after attention, whose result is ``(..., heads, head_dim)``."""
        x = x + self.out(attended.flatten(-2))
        return x + self.mlp(self.before_mlp(x))


class CausalTransformer(nn.Module):
    """A decoder-only transformer: norms before, rotary positions, no dropout; input and output share their matrix."""

    frequencies: torch.Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        half = config.width // config.heads // 2
        self.register_buffer("frequencies", 10_000.0 ** (-torch.arange(half) / half), persistent=False)

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """By how much each position turns: ``(*positions.shape, 1, head_dim / 2)``."""
        return (positions[..., None] * self.frequencies)[..., None, :]

    def hidden(self, tokens: torch.Tensor, prefix: torch.Tensor | None = None) -> torch.Tensor:
        """What the last layer says of each token.

        Args:
            tokens: int64 ``(n, t)``. Fill shorter sequences up at their end: no token sees a later one.
            prefix: ``(n, p, width)``: embeddings that come before the tokens, and that they all see.

        Returns:
            ``(n, t, width)``, normed.

        """
        x = self.embedding(tokens)
        if prefix is not None:
            x = torch.cat([prefix, x], dim=1)
        if x.shape[1] > self.config.max_length:
            raise ValueError(f"{x.shape[1]} tokens: max_length={self.config.max_length}")
        angles = self.angles(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            q, k, v = (one.transpose(1, 2) for one in block.project(x, angles))
            x = block.finish(x, scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2))
        normed: torch.Tensor = self.norm(x[:, -tokens.shape[1] :])
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits ``(..., vocab_size)`` of ``(..., width)``."""
        return hidden @ self.embedding.weight.T

    def forward(self, tokens: torch.Tensor, prefix: torch.Tensor | None = None) -> torch.Tensor:
        """The logits ``(n, t, vocab_size)`` of what comes after each token. See :meth:`hidden`."""
        return self.logits(self.hidden(tokens, prefix))


class TransformerBackbone(PagedBackbone):
    """A :class:`CausalTransformer` that decodes: a :class:`LocalBackbone`.

    It uses the model's weights as they are at each call. Whoever changes them must forget what is cached:
    :meth:`RolloutEngine.update` does both.

    Args:
        model: On the device on which the cache is to be.
        num_blocks: Blocks of the cache. A cache takes ``num_blocks * block_bytes`` bytes, at once. None: as many as
            128 sequences of the greatest length take, within 256 MiB: see :class:`PagedCache`. With too few of them
            rollouts take each other's, and compute their contexts again: ``engine.counts.preempted``.
        block_size: Tokens of a block.

    """

    def __init__(self, model: CausalTransformer, num_blocks: int | None = None, block_size: int = 16) -> None:
        config: TransformerConfig = model.config
        weight = model.embedding.weight
        cache = PagedCache(
            config.layers,
            num_blocks,
            config.max_length,
            config.heads,
            block_size,
            config.width // config.heads,
            weight.dtype,
            weight.device,
        )
        super().__init__(config.vocab_size, config.max_length, cache)
        self.model = model

    @property
    def width(self) -> int:
        """Numbers of an embedding of a soft prefix."""
        return self.model.config.width

    def extend(self, parts: Sequence[Part]) -> Array:
        """Reads new tokens of several sequences. See :meth:`LocalBackbone.extend`.

        Nothing is padded but the tables of blocks: all but attention runs over the new tokens one after the other, and
        attention over all parts of one token at once, and over each longer part by itself.
        """
        with torch.inference_mode():
            return self._extend(parts)

    def _extend(self, parts: Sequence[Part]) -> Array:
        flat = Flat(parts, self.cache)
        self.cache.empty(flat.fresh)
        attention = _Attention(parts, flat, self.cache)
        x = self._embedded(parts, flat)
        angles = self.model.angles(flat.positions)
        for layer, block in enumerate(self.model.blocks):
            q, k, v = block.project(x, angles)
            self.cache.write(layer, flat.blocks, flat.places, k, v)
            x = block.finish(x, attention(layer, q))
        logits = self.model.logits(self.model.norm(x[flat.last]))
        result: Array = logits.float().cpu().numpy()
        return result

    def _embedded(self, parts: Sequence[Part], flat: Flat) -> torch.Tensor:
        """The embeddings of the new tokens, and of the soft prefix where that is new."""
        x: torch.Tensor = self.model.embedding(flat.tokens.clamp(min=0))
        for part, begin in zip(parts, flat.starts, strict=True):
            if part.prefix is not None and part.start < len(part.prefix):
                new = torch.from_numpy(part.prefix[part.start : part.start + len(part.tokens)])
                x[begin : begin + len(new)] = new.to(x)
        return x


class _Attention:
    """Attention of new tokens over the cache, which has their own keys and values, too."""

    def __init__(self, parts: Sequence[Part], flat: Flat, cache: PagedCache) -> None:
        self._cache = cache
        device = cache.device
        singles = [i for i, part in enumerate(parts) if len(part.tokens) == 1]
        #: Of the parts of one token: where it is, their blocks, and which places are theirs.
        self._singles: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        if singles:
            where, table = torch.tensor(flat.starts[singles], device=device), cache.table([parts[i] for i in singles])
            places = torch.arange(table.shape[1] * cache.block_size, device=device)
            mask = places <= flat.positions[where][:, None]
            self._singles = where, table, mask[:, None, None]
        #: Of each longer part: where its tokens are, its blocks, and what each token sees.
        self._longer: list[tuple[slice, torch.Tensor, torch.Tensor]] = []
        for i, part in enumerate(parts):
            if len(part.tokens) > 1:
                span, table = slice(flat.starts[i], flat.ends[i]), cache.table([part])
                places = torch.arange(table.shape[1] * cache.block_size, device=device)
                self._longer.append((span, table, places <= flat.positions[span][:, None]))

    def __call__(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """The attention of queries ``(tokens, heads, head_dim)``, of that shape."""
        out = torch.empty_like(q)
        if self._singles is not None:
            where, table, mask = self._singles
            k, v = self._cache.read(layer, table)
            out[where] = scaled_dot_product_attention(q[where][:, :, None], k, v, attn_mask=mask)[:, :, 0]
        for span, table, mask in self._longer:
            k, v = self._cache.read(layer, table)
            attended = scaled_dot_product_attention(q[span].transpose(0, 1)[None], k, v, attn_mask=mask)
            out[span] = attended[0].transpose(0, 1)
        return out
