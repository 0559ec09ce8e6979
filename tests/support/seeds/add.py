"""One function cached with every default, for two shapes, then its artifact as a file to read."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
import torch_npu
import torchair
from torchair import logger

logger.setLevel(logging.INFO)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cached_forward = torchair.inference.cache_compile(self._forward)

    def forward(self, x, y):
        return self.cached_forward(x, y)

    def _forward(self, x, y):
        return x + y


model = Model()
for rows in (2, 5):
    x, y = torch.rand(rows, 3).npu(), torch.rand(rows, 3).npu()
    torch.testing.assert_close(model(x, y), x + y)
(artifact,) = Path(".torchair_cache").glob("*/_forward/compiled_module")
torchair.inference.readable_cache(str(artifact), file="readable.py")
