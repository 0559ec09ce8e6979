"""The same Llama decoder once more, to compare with: unsplit, without a KV cache, nothing compiled.

It is written apart from the model on purpose, so that a mistake in one shows in the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from warmrank.examples.llama_weights import LlamaSizes


def reference_logits(
    sizes: LlamaSizes, weights: Mapping[str, torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    """Logits after every token: (batch, positions) -> (batch, positions, vocab)."""
    x = weights["embedding.weight"][tokens]
    for layer in range(sizes.layers):
        block = _below(weights, f"layers.{layer}.")
        normed = _rms_norm(x, block["attention_norm.weight"])
        x = x + _attention(sizes, _below(block, "attention."), normed)
        normed = _rms_norm(x, block["feed_forward_norm.weight"])
        x = x + _feed_forward(_below(block, "feed_forward."), normed)
    return _rms_norm(x, weights["norm.weight"]) @ weights["output.weight"].T


def _below(weights: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.size(-1),), weight, eps=1e-5)


def _attention(sizes: LlamaSizes, weights: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    q, k, v = (
        (x @ weights[f"w{which}.weight"].T).view(*x.shape[:-1], num_heads, sizes.head_dim).transpose(1, 2)
        for which, num_heads in (("q", sizes.heads), ("k", sizes.kv_heads), ("v", sizes.kv_heads))
    )
    attended = functional.scaled_dot_product_attention(
        _rotate(q), _rotate(k), v, is_causal=True, enable_gqa=True
    )
    return attended.transpose(1, 2).flatten(2) @ weights["wo.weight"].T


def _rotate(x: torch.Tensor) -> torch.Tensor:
    """Pairs as complex numbers, each turned by its position times its frequency."""
    half = x.size(-1) // 2
    frequencies = 10000.0 ** (-torch.arange(half) / half)
    turns = torch.outer(torch.arange(x.size(-2)), frequencies)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(turns), turns)
    return torch.cat((turned.real, turned.imag), dim=-1)


def _feed_forward(weights: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    gated = functional.silu(x @ weights["gate.weight"].T) * (x @ weights["up.weight"].T)
    return gated @ weights["down.weight"].T
