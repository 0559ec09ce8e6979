"""The model that ``benchmarks/stale_matrix.py`` changes, one thing at a time, between two processes."""

from __future__ import annotations

import enum
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

importlib.import_module("stale_operators")  # defines what `Model.step` calls
SCALE = 2.0
STEPS = [1.0, 0.5]
TABLE = torch.linspace(-1.0, 1.0, 8)
BLOCKS = {"number": 16}


class Mode(enum.Enum):
    """How the last step is done."""

    SOFT = 1
    HARD = 2


def installed() -> tuple[str, ...]:
    """The releases that this process sees."""
    torch_npu: Any = importlib.import_module("torch_npu")

    cann = torch_npu.npu.utils.get_cann_version()
    return torch.__version__, torch_npu.__version__, cann, str(torch_npu.npu.get_soc_version())


# Stands for a model that chooses its kernels by what is installed.
NEWER = any(text in release for release in installed() for text in ("2.13.9", "post9", "9.0.0", "250"))


def shifted(x: torch.Tensor, by: float = 0.25) -> torch.Tensor:
    """Called by the cached function."""
    return x + by


def scaler(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function with a value in its closure."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scaled


def num_blocks() -> int:
    """A size that is measured at run time and leaks into the graph, such as a KV cache's."""
    return BLOCKS["number"]


def other_spread(x: torch.Tensor) -> torch.Tensor:
    """Takes the place of a method of an instance."""
    return x.abs().mean(-1, keepdim=True)


def other_forward(_self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Takes the place of a method of a class."""
    return x * 0.5


def doubled(_module: nn.Module, _given: Any, result: torch.Tensor) -> torch.Tensor:
    """A forward hook."""
    return result * 2.0


def clamp_low(x: torch.Tensor, low: float, _high: float) -> torch.Tensor:
    """A decomposition."""
    return torch.clamp_min(x, low / 8.0)


def clamp_high(x: torch.Tensor, _low: float, high: float) -> torch.Tensor:
    """Another decomposition of the same operator."""
    return torch.clamp_max(x, high / 8.0)


def bounded(limit: float) -> Callable[..., None]:
    """A pass of the user's that reads a value from its closure."""

    def post_pass(graph_module: torch.fx.GraphModule, *_: Any) -> None:
        for node in graph_module.graph.nodes:
            if node.target is torch.ops.aten.clamp.default:
                node.args = (node.args[0], -limit, limit)

    return post_pass


def searched(x: torch.Tensor) -> Any:
    """A pattern of the user's."""
    return torch.ops.aten.sigmoid.default(x)


def replaced(x: torch.Tensor) -> Any:
    """What stands for it."""
    return torch.ops.aten.tanh.default(x)


def replaced_otherwise(x: torch.Tensor) -> Any:
    """What stands for it in another version of the script."""
    return torch.ops.aten.relu.default(x)


@dataclass
class Options:
    """Configuration of the model."""

    residual: float = 0.5
    mode: Mode = Mode.SOFT


@dataclass
class Batch:
    """Input of the model."""

    tokens: torch.Tensor
    mask: torch.Tensor | None = None
    temperature: float = 1.0


class Norm(nn.Module):
    """A layer with a constant of its class."""

    eps = 0.01

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """Mean of the squares."""
        return x.pow(2).mean(-1, keepdim=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scaled to a spread of one."""
        return x * torch.rsqrt(self.spread(x) + self.eps)


class Gate(nn.Module):
    """A layer of which another one prints alike."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sigmoid."""
        return torch.sigmoid(x)


class OtherGate(nn.Module):
    """Prints like `Gate`."""

    def _get_name(self) -> str:
        return "Gate"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tanh."""
        return torch.tanh(x)


class Model(nn.Module):
    """Reads what a model can read: parameters, buffers, attributes, globals, closures, arguments, state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.gate = Gate()
        self.head = nn.Linear(8, 8)
        self.register_buffer("offset", torch.linspace(0.0, 1.0, 8))
        self.offset: torch.Tensor
        self.register_buffer("seen", torch.zeros(8))
        self.seen: torch.Tensor
        self.options = Options()
        self.flip = False
        self.layers = [1.0, 2.0]
        self.scaled = scaler(1.25)
        self.group: torch.distributed.ProcessGroup | None = None
        self.cached: Any = self.step

    def step(
        self, batch: Batch, parts: list[torch.Tensor], cache: torch.Tensor, gain: float, *, reverse: bool
    ) -> Any:
        """The cached function."""
        x = self.norm(batch.tokens)
        x = shifted(self.scaled(x)) * SCALE
        x = self.gate(self.head(x.to(self.head.weight.dtype))) + self.offset * STEPS[1]
        for part in parts:
            x = x + part
        for number in self.layers:
            x = x * number
        x = x - TABLE if self.flip else x + TABLE
        x = x * batch.mask if batch.mask is not None else x
        x = x * gain / batch.temperature + self.options.residual
        x = x.clamp(-3.0, 3.0) if self.options.mode is Mode.HARD else x.clamp(-9.0, 9.0)
        x = x + torch.full((8,), 0.1)
        x = x.flip(-1) if reverse else x
        x = x * 0.9 if self.training else x
        x = x * 3.0 if batch.tokens.shape[0] > 16 else x
        x = x * 1.5 if NEWER else x
        x = x * 0.8 if os.environ.get("STALE_MODEL_SWITCH") == "on" else x
        x = torch.ops.stale_model.twist(torch.ops.stale_model.blend(x))
        part = torch.ops.stale_model.cut(x)
        x = x + part.sum(-1, keepdim=True) / part.shape[-1]
        x = x + num_blocks() / 16
        if self.group is not None:
            size = torch.distributed.get_world_size(self.group)
            x = torch.distributed._functional_collectives.all_reduce(x, "sum", self.group) / size  # noqa: SLF001
        cache.add_(x)
        self.seen.add_(x.sum(0))
        return x @ torch.ones(8, 8, dtype=x.dtype).tril() + x

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Calls what ``cache_compile`` made of `step`, from this file, whose globals TorchAir then takes."""
        result: torch.Tensor = self.cached(*args, **kwargs)
        return result


def build() -> Model:
    """The model, the same in every process."""
    torch.manual_seed(0)
    return Model().eval()


def batch(rows: int = 3) -> Batch:
    """An input."""
    return Batch(tokens=torch.linspace(-2.0, 2.0, rows * 8).reshape(rows, 8))
