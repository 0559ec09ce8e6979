"""The example's Llama in pipeline stages: each rank holds a slice of the layers, split over its group ``tp``.

`workload` is the entrypoint of a launch (``warmrank.examples.llama_stage:workload``) with ``parallel.pp``
stages. A stage's function takes what the stage before it returns; sending that on is the serving loop's part,
which is not here. Weights are random, and each stage is compared with itself run eagerly.

Legend of shapes: B batch, S positions of one call, D width of the model.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import nn

from warmrank.examples.llama_model import Block, RMSNorm, rotary_angles
from warmrank.examples.llama_weights import LlamaSizes, check_split
from warmrank.inference import cache_compile
from warmrank.worker.errors import WorkloadError
from warmrank.worker.rank.workload import Call, RankContext, Workload
from warmrank.worker.results import Verification

TOLERANCE = 1e-5


class Stage(nn.Module):
    """Some layers of the decoder; the first stage has the embedding as well, the last one the output.

    Args:
        sizes: sizes of the whole model.
        layers: numbers of this stage's layers.
        group: the tensor-parallel group, or None for unsplit layers.
    """

    angles: torch.Tensor

    def __init__(self, sizes: LlamaSizes, layers: range, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        check_split(sizes, group.size() if group is not None else 1)
        is_first, is_last = layers.start == 0, layers.stop == sizes.layers
        self.embedding = nn.Embedding(sizes.vocab, sizes.dim) if is_first else None
        self.layers = nn.ModuleDict({str(number): Block(sizes, group) for number in layers})
        self.norm = RMSNorm(sizes.dim) if is_last else None
        self.output = nn.Linear(sizes.dim, sizes.vocab, bias=False) if is_last else None
        self.register_buffer("angles", rotary_angles(sizes.max_seq, sizes.head_dim), persistent=False)
        self.cached_decode = cache_compile(self.decode)

    def decode(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """One more position: tokens (B, 1) or (B, 1, D), and (1,) -> (B, 1, D) or logits (B, 1, vocab)."""
        if self.embedding is not None:
            x = self.embedding(x)
        angles = self.angles[positions]
        for layer in self.layers.values():
            x = layer.decode(x, angles, positions)  # type: ignore[operator] # a Block
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x


def workload(context: RankContext, **sizes: int) -> Workload:
    """This rank's stage, one call of its function, and the comparison with the same stage run eagerly.

    Raises:
        WorkloadError: the layers cannot be dealt out evenly.
        ValueError: sizes that do not fit each other.
    """
    model_sizes = LlamaSizes(**sizes)
    num_stages, stage = context.group_size("pp"), context.group_rank("pp")
    if model_sizes.layers % num_stages:
        msg = f"examples.llama_stage: {model_sizes.layers} layers cannot be dealt out to {num_stages} stages"
        raise WorkloadError(msg, argument="layers")
    count = model_sizes.layers // num_stages
    group = context.groups.get("tp") if context.group_size("tp") > 1 else None
    torch.manual_seed(model_sizes.seed + stage)
    model = Stage(model_sizes, range(stage * count, (stage + 1) * count), group)
    for parameter in model.parameters():  # some layers leave them empty, to have their weights loaded
        nn.init.normal_(parameter, std=0.1)
    model = model.to(context.device).requires_grad_(requires_grad=False).eval()
    if stage == 0:
        x = torch.zeros(model_sizes.batch, 1, dtype=torch.int64, device=context.device)
    else:
        x = torch.randn(model_sizes.batch, 1, model_sizes.dim).to(context.device)
    positions = torch.arange(1, device=context.device)
    return Workload(
        model=model,
        calls=(Call(function=model.cached_decode, args=(x, positions)),),
        check=functools.partial(check, model, x, positions),
    )


def check(model: Stage, x: torch.Tensor, positions: torch.Tensor) -> Verification:
    """Compare the stage's cached function with the plain one."""
    found = model.cached_decode(x, positions).clone()
    error = float((found - model.decode(x, positions)).abs().nan_to_num(nan=float("inf")).max())
    return Verification(
        ok=error <= TOLERANCE,
        max_error=error,
        tolerance=TOLERANCE,
        compared="the stage with itself run eagerly",
    )
