"""A backend made from a configuration: handed to `cache_compile`, and to ``torch.compile``."""

from __future__ import annotations

import logging

import torch
import torch_npu
import torchair
from torchair import logger, patch_for_hcom

logger.setLevel(logging.INFO)
patch_for_hcom()

config = torchair.CompilerConfig()
config.mode = "reduce-overhead"
npu_backend = torchair.get_npu_backend(compiler_config=config)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cached = torchair.inference.cache_compile(self.add, config=config, backend=npu_backend)
        self.cached_by_backend = torchair.inference.cache_compile(self.subtract, backend=npu_backend)

    def forward(self, x, y):
        return torch.add(x, y)

    def add(self, x, y):
        return torch.add(x, y)

    def subtract(self, x, y):
        return torch.sub(x, y)


model = Model().npu()
x, y = torch.rand(2, 2).npu(), torch.rand(2, 2).npu()
torch.testing.assert_close(model.cached(x, y), x + y)
torch.testing.assert_close(model.cached_by_backend(x, y), x - y)
torch.testing.assert_close(torch.compile(model, backend=npu_backend)(x, y), x + y)
