"""What does a launch-bound decode step cost on a CUDA device: eager, ``torch.compile``, warmrank's replay?

One token for a batch of one through a small decoder with a static KV cache: so little work per kernel that
launching the kernels is what takes the time. All ways run in one process and take turns; a round is the mean
of many steps between two synchronisations, a figure the median of the rounds. Each way's output is compared
with eager's.

Without a CUDA device it says so and ends well: there is nothing to measure. Run:
``python benchmarks/gpu_decode.py [--layers 16] [--width 512] [--rounds 20] [--steps 100] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.running import arguments, machine, write  # noqa: E402 - also where nothing is installed
from warmrank import CompilerConfig, inference  # noqa: E402 - also where nothing is installed

Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_LENGTH = 128
_HEADS = 8


class Layer(nn.Module):
    """Attention over a static cache, and a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, cache: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """One step; shapes: x [1, width], cache [2, heads, length, width / heads], where [1]."""
        q, k, v = self.into(self.norm(x)).view(3, _HEADS, 1, -1)
        cache[0].index_copy_(1, where, k)
        cache[1].index_copy_(1, where, v)
        found = functional.scaled_dot_product_attention(q[None], cache[0][None], cache[1][None])
        x = x + self.out(found.reshape(1, -1))
        fed: torch.Tensor = self.down(functional.silu(self.up(self.after(x))))
        return x + fed


class Decoder(nn.Module):
    """Layers in a row."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def decode(self, x: torch.Tensor, caches: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """One step through all layers; shape of caches: [layers, 2, heads, length, width / heads]."""
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, where)
        return x


def ways(model: Decoder, cache_dir: str) -> dict[str, Step]:
    """What is compared, by name."""
    tuned = CompilerConfig()
    tuned.mode = "max-autotune"
    return {
        "eager": model.decode,
        'torch.compile(mode="reduce-overhead")': torch.compile(model.decode, mode="reduce-overhead"),
        "warmrank, reduce-overhead": inference.cache_compile(model.decode, cache_dir=cache_dir),
        "warmrank, max-autotune": inference.cache_compile(model.decode, config=tuned, cache_dir=cache_dir),
    }


def check_captured(name: str) -> None:
    """Nothing that was compiled so far may have gone without CUDA graphs: times of that would say nothing."""
    from torch._dynamo.utils import counters

    skips = counters["inductor"]["cudagraph_skips"]
    if skips:
        msg = f"{name}: torch.compile left out CUDA graphs {skips} times; TORCH_LOGS=cudagraphs says why"
        raise SystemExit(msg)


def measured(step: Step, inputs: tuple[torch.Tensor, ...], steps: int) -> float:
    """Mean seconds of a step."""
    torch.cuda.synchronize()
    started = perf_counter()
    for _ in range(steps):
        step(*inputs)
    torch.cuda.synchronize()
    return (perf_counter() - started) / steps


def compare(args: argparse.Namespace, cache_dir: str) -> dict[str, float]:
    """Median seconds of a step, by way."""
    from torch._dynamo import mark_static_address

    torch.manual_seed(0)
    model = Decoder(args.layers, args.width).cuda().eval()
    shape = (args.layers, 2, _HEADS, _LENGTH, args.width // _HEADS)
    inputs = (
        torch.randn(1, args.width, device="cuda"),
        torch.zeros(shape, device="cuda"),
        torch.tensor([5], device="cuda"),
    )
    # Inductor captures no graph that writes to an input, unless the input is said to stay where it is.
    mark_static_address(inputs[1])
    compared = ways(model, cache_dir)
    expected = model.decode(*inputs).clone()
    for name, step in compared.items():
        for _ in range(5):
            found = step(*inputs)
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
            msg = f"{name}: the output is {(found - expected).abs().max().item():.2g} away from eager's"
            raise SystemExit(msg)
        check_captured(name)
    rounds: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(args.rounds):
        for name, step in compared.items():
            rounds[name].append(measured(step, inputs, args.steps))
    return {name: statistics.median(values) for name, values in rounds.items()}


def main() -> int:
    """Measure, and print a table."""
    parser = arguments(__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return 0
    with torch.no_grad(), tempfile.TemporaryDirectory() as cache_dir:
        seconds = compare(args, cache_dir)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.layers} layers of {args.width}")
    for name, value in seconds.items():
        print(f"{name:40} {value * 1e6:9.1f} us   {seconds['eager'] / value:6.2f} x eager")
    device = torch.cuda.get_device_name()
    about = machine("torch", device=device, layers=args.layers, width=args.width)
    write(args, {"about": about, "seconds": seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
