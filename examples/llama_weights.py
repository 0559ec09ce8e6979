"""Sizes and weights of the example's Llama decoder: made whole from a seed, then split over the ranks.

Every rank makes all weights, so that each can compare the split model with the whole one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSizes:
    """Sizes of the model; the defaults compile in seconds on a laptop."""

    layers: int = 8  # blocks
    dim: int = 256  # width of the model
    heads: int = 8  # query heads
    kv_heads: int = 4  # key and value heads; each serves `heads / kv_heads` query heads
    hidden: int = 688  # width inside the feed-forward layers
    vocab: int = 256  # tokens: one per byte
    batch: int = 2  # sequences in the KV cache
    max_seq: int = 256  # positions in the KV cache
    seed: int = 0  # of the weights

    def __post_init__(self) -> None:
        """Check what the shapes rely on.

        Raises:
            ValueError: a size is not positive, or sizes do not divide each other.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            smallest = 0 if field.name == "seed" else 1
            if type(value) is not int or value < smallest:
                msg = f"llama: {field.name} = {value!r}; expected an int of {smallest} or more"
                raise ValueError(msg)
        for number, divisor in (("dim", "heads"), ("heads", "kv_heads")):
            if getattr(self, number) % getattr(self, divisor):
                msg = (
                    f"llama: {number} = {getattr(self, number)} is no multiple of "
                    f"{divisor} = {getattr(self, divisor)}"
                )
                raise ValueError(msg)
        if self.head_dim % 2:
            msg = f"llama: dim / heads = {self.head_dim} is odd; rotary embeddings turn pairs"
            raise ValueError(msg)

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        return self.dim // self.heads


def check_split(sizes: LlamaSizes, num_ranks: int) -> None:
    """Refuse a group over which the model cannot be split.

    Raises:
        ValueError: heads, key heads or hidden width are no multiple of the number of ranks.
    """
    for name in ("heads", "kv_heads", "hidden"):
        if getattr(sizes, name) % num_ranks:
            msg = (
                f"llama: {name} = {getattr(sizes, name)} cannot be split over {num_ranks} tensor-parallel "
                f"ranks; choose a multiple of {num_ranks}, or fewer ranks"
            )
            raise ValueError(msg)


def full_weights(sizes: LlamaSizes) -> Weights:
    """All weights of the unsplit model, equal on every rank and in every process."""
    generator = torch.Generator().manual_seed(sizes.seed)
    kv_dim = sizes.kv_heads * sizes.head_dim

    def normal(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    weights = {"embedding.weight": torch.randn(sizes.vocab, sizes.dim, generator=generator)}
    for layer in range(sizes.layers):
        at = f"layers.{layer}"
        weights[f"{at}.attention_norm.weight"] = torch.ones(sizes.dim)
        weights[f"{at}.attention.wq.weight"] = normal(sizes.dim, sizes.dim)
        weights[f"{at}.attention.wk.weight"] = normal(kv_dim, sizes.dim)
        weights[f"{at}.attention.wv.weight"] = normal(kv_dim, sizes.dim)
        weights[f"{at}.attention.wo.weight"] = normal(sizes.dim, sizes.dim)
        weights[f"{at}.feed_forward_norm.weight"] = torch.ones(sizes.dim)
        weights[f"{at}.feed_forward.gate.weight"] = normal(sizes.hidden, sizes.dim)
        weights[f"{at}.feed_forward.up.weight"] = normal(sizes.hidden, sizes.dim)
        weights[f"{at}.feed_forward.down.weight"] = normal(sizes.dim, sizes.hidden)
    weights["norm.weight"] = torch.ones(sizes.dim)
    weights["output.weight"] = normal(sizes.vocab, sizes.dim)
    return weights


def shard(weights: Mapping[str, torch.Tensor], rank: int, num_ranks: int) -> Weights:
    """One rank's part: columns of what is summed afterwards, rows of what feeds it, all of the rest."""
    split_rows = ("wq.weight", "wk.weight", "wv.weight", "gate.weight", "up.weight")
    split_columns = ("wo.weight", "down.weight")
    parts = {}
    for name, weight in weights.items():
        if name.endswith(split_rows):
            parts[name] = weight.chunk(num_ranks, dim=0)[rank]
        elif name.endswith(split_columns):
            parts[name] = weight.chunk(num_ranks, dim=1)[rank]
        else:
            parts[name] = weight
    return parts
