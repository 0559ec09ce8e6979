"""The Llama decoder of the example: its layers, and the two functions that are cached.

RMSNorm, rotary embeddings, grouped-query attention, SwiGLU and a KV cache that is updated in place. The
linear layers are split over the ranks of a tensor-parallel group, which sum their parts with an all-reduce.

Legend of shapes: B batch, S positions of one call, D width of the model, H and K heads of queries and of
keys on this rank, E size of one head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from warmrank.examples.llama_weights import LlamaSizes, check_split, shard
from warmrank.inference import cache_compile


class RMSNorm(nn.Module):
    """Scales a vector to a root mean square of one (https://arxiv.org/abs/1910.07467)."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., D) -> (..., D)."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        normed: torch.Tensor = (wide * scale).to(x.dtype) * self.weight
        return normed


class RowParallelLinear(nn.Module):
    """A linear layer whose input is split over the ranks; they sum their results."""

    def __init__(self, in_features: int, out_features: int, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features of this rank) -> (..., out_features)."""
        y = functional.linear(x, self.weight)
        if self.group is not None:
            dist.all_reduce(y, group=self.group)
        return y


class Attention(nn.Module):
    """Grouped-query attention over a KV cache that it updates in place."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor

    def __init__(self, sizes: LlamaSizes, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        ranks = group.size() if group is not None else 1
        self.heads = sizes.heads // ranks
        self.kv_heads = sizes.kv_heads // ranks
        self.head_dim = sizes.head_dim
        self.wq = nn.Linear(sizes.dim, self.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(sizes.dim, self.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(sizes.dim, self.kv_heads * self.head_dim, bias=False)
        self.wo = RowParallelLinear(self.heads * self.head_dim, sizes.dim, group)
        cache = (sizes.batch, self.kv_heads, sizes.max_seq, self.head_dim)
        self.register_buffer("k_cache", torch.zeros(cache), persistent=False)
        self.register_buffer("v_cache", torch.zeros(cache), persistent=False)

    def prefill(self, x: torch.Tensor, angles: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Attend within the prompt: (B, S, D) -> (B, S, D)."""
        q, k, v = self._project(x, angles, positions)
        visible = positions[None, :] <= positions[:, None]
        return self._attend(q, k, v, visible)

    def decode(self, x: torch.Tensor, angles: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Attend to all that the cache holds: (B, 1, D) -> (B, 1, D)."""
        q, _, _ = self._project(x, angles, positions)
        cached = torch.arange(self.k_cache.size(2), device=x.device)
        visible = cached[None, :] <= positions[:, None]
        return self._attend(q, self.k_cache, self.v_cache, visible)

    def _project(
        self, x: torch.Tensor, angles: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries (B, H, S, E), keys and values (B, K, S, E), which are put into the cache too."""
        q = rotate(self._heads(self.wq(x), self.heads), angles)
        k = rotate(self._heads(self.wk(x), self.kv_heads), angles)
        v = self._heads(self.wv(x), self.kv_heads)
        self.k_cache.index_copy_(2, positions, k)
        self.v_cache.index_copy_(2, positions, v)
        return q, k, v

    def _heads(self, x: torch.Tensor, num_heads: int) -> torch.Tensor:
        return x.view(x.size(0), x.size(1), num_heads, self.head_dim).transpose(1, 2)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        # Written out: torch tags scaled_dot_product_attention as a random operator, for its dropout.
        repeats = self.heads // self.kv_heads
        k = k.repeat_interleave(repeats, dim=1)
        v = v.repeat_interleave(repeats, dim=1)
        scores = (q @ k.transpose(-1, -2)) * self.head_dim**-0.5
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
        y: torch.Tensor = self.wo((weights @ v).transpose(1, 2).flatten(2))
        return y


class FeedForward(nn.Module):
    """SwiGLU (https://arxiv.org/abs/2002.05202)."""

    def __init__(self, sizes: LlamaSizes, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        hidden = sizes.hidden // (group.size() if group is not None else 1)
        self.gate = nn.Linear(sizes.dim, hidden, bias=False)
        self.up = nn.Linear(sizes.dim, hidden, bias=False)
        self.down = RowParallelLinear(hidden, sizes.dim, group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, D) -> (B, S, D)."""
        y: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to what came in."""

    def __init__(self, sizes: LlamaSizes, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(sizes.dim)
        self.attention = Attention(sizes, group)
        self.feed_forward_norm = RMSNorm(sizes.dim)
        self.feed_forward = FeedForward(sizes, group)

    def prefill(self, x: torch.Tensor, angles: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(B, S, D) -> (B, S, D)."""
        x = x + self.attention.prefill(self.attention_norm(x), angles, positions)
        y: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return y

    def decode(self, x: torch.Tensor, angles: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(B, 1, D) -> (B, 1, D)."""
        x = x + self.attention.decode(self.attention_norm(x), angles, positions)
        y: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return y


class Llama(nn.Module):
    """The decoder; `forward` chooses between its two cached functions.

    Args:
        sizes: sizes of the whole model.
        group: the tensor-parallel group, or None for an unsplit model.

    Raises:
        ValueError: the sizes cannot be split over the group.
    """

    angles: torch.Tensor
    layers: Sequence[Block]

    def __init__(self, sizes: LlamaSizes, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        check_split(sizes, group.size() if group is not None else 1)
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocab, sizes.dim)
        blocks = nn.ModuleList(Block(sizes, group) for _ in range(sizes.layers))
        self.layers = blocks  # type: ignore[assignment] # its elements are Blocks
        self.norm = RMSNorm(sizes.dim)
        self.output = nn.Linear(sizes.dim, sizes.vocab, bias=False)
        self.register_buffer("angles", rotary_angles(sizes.max_seq, sizes.head_dim), persistent=False)
        # One cached function for each way of calling, so that each is traced once.
        self.cached_prefill = cache_compile(self.prefill)
        self.cached_decode = cache_compile(self.decode)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits of the token that follows: (B, S) and (S,) -> (B, vocab)."""
        function = self.cached_prefill if tokens.size(1) > 1 else self.cached_decode
        logits: torch.Tensor = function(tokens, positions)
        return logits

    def prefill(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Read a prompt that starts at position 0: (B, S) and (S,) -> (B, vocab)."""
        x = self.embedding(tokens)
        angles = self.angles[positions]
        for layer in self.layers:
            x = layer.prefill(x, angles, positions)
        logits: torch.Tensor = self.output(self.norm(x[:, -1]))
        return logits

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Read one more token at a position given as a tensor: (B, 1) and (1,) -> (B, vocab)."""
        x = self.embedding(tokens)
        angles = self.angles[positions]
        for layer in self.layers:
            x = layer.decode(x, angles, positions)
        logits: torch.Tensor = self.output(self.norm(x[:, -1]))
        return logits


class EagerLlama(Llama):
    """The same decoder, with nothing compiled."""

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits of the token that follows: (B, S) and (S,) -> (B, vocab)."""
        return self.prefill(tokens, positions) if tokens.size(1) > 1 else self.decode(tokens, positions)


def rotary_angles(num_positions: int, head_dim: int, base: float = 10000.0) -> torch.Tensor:
    """Cosine and sine by position, (positions, 2, E / 2) (https://arxiv.org/abs/2104.09864)."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn the first half of a head against the second: (B, H, S, E) and (S, 2, E / 2) -> (B, H, S, E)."""
    cos, sin = angles.unbind(1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def build_model(
    sizes: LlamaSizes,
    weights: Mapping[str, torch.Tensor],
    *,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
    cached: bool = True,
) -> Llama:
    """The model with this rank's part of the weights, ready for inference."""
    if group is not None and group.size() == 1:
        group = None
    model = Llama(sizes, group) if cached else EagerLlama(sizes, group)
    part = shard(weights, group.rank(), group.size()) if group is not None else weights
    model.load_state_dict(part)
    return model.to(device).requires_grad_(False).eval()
