"""A script as it is written for TorchAir on two NPUs; knows nothing of a launch."""

# Where torch_npu is installed, torch and its tensors have what the checker misses here.
# mypy: disable-error-code="attr-defined,operator"

import os

import torch
import torch.distributed as dist
import torch_npu

import warmrank as torchair
from warmrank import CompilerConfig

config = CompilerConfig()
config.mode = "reduce-overhead"
torch.npu.set_device(0)
dist.init_process_group("hccl")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4, 4), 0.5), requires_grad=False)
        self.cached_decode = torchair.inference.cache_compile(self.decode, config=config)

    def decode(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(1)
        y = x @ self.weight + cache
        dist.all_reduce(y)
        return y


model = Model().npu()
assert torch_npu.npu.get_device_name().startswith("Ascend")
assert dist.get_rank() == int(os.environ["LOCAL_RANK"])
for step in range(1, 4):
    cache = torch.zeros(2, 4).npu()
    rank = dist.get_rank()
    y = model.cached_decode(torch.full((2, 4), float(rank + step)).npu(), cache)
    # Of both ranks: 4 * 0.5 * (rank + step) + 1.
    assert torch.equal(y, torch.full((2, 4), 2.0 * (2 * step + 1) + 2)), y
    assert torch.equal(cache, torch.ones(2, 4))
dist.barrier()
dist.destroy_process_group()
