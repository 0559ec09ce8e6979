"""A decomposition of the user's, by name of the operator."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch._decomp import get_decompositions, register_decomposition

import worker as torchair
from worker import logger

logger.setLevel(logging.INFO)


@register_decomposition(torch.ops.aten.addcmul.default)
def multiply_then_add(total, one, other):
    return total + one * other


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cached = torchair.inference.cache_compile(
            self.inner_forward,
            custom_decompositions=get_decompositions([torch.ops.aten.addcmul.default]),
        )

    def forward(self, t1, t2):
        return self.cached(t1, t2)

    def inner_forward(self, t1, t2):
        return torch.ops.aten.addcmul(t1, t1, t2)


t1, t2 = torch.rand(2, 2).cpu(), torch.rand(2, 2).cpu()
torch.testing.assert_close(Model()(t1, t2), t1 + t1 * t2)
(artifact,) = Path(".torchair_cache").glob("*/inner_forward/compiled_module")
torchair.inference.readable_cache(str(artifact), file="readable.py")
