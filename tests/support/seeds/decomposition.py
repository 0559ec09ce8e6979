"""Decompositions of the user's, by operator: one for the seed's overload of add, one for a fused product."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch._decomp import get_decompositions, register_decomposition

import worker as torchair
from worker import logger

logger.setLevel(logging.INFO)


@register_decomposition(torch.ops.aten.add.default)
def add(t1, t2):
    return t1 + t2


@register_decomposition(torch.ops.aten.addbmm.default)
def add_products(total, ones, others):
    return total + torch.bmm(ones, others).sum(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cached = torchair.inference.cache_compile(
            self.inner_forward,
            custom_decompositions=get_decompositions(
                [torch.ops.aten.add.default, torch.ops.aten.addbmm.default]
            ),
        )

    def forward(self, t1, t2):
        return self.cached(t1, t2)

    def inner_forward(self, t1, t2):
        return torch.addbmm(torch.ops.aten.add(t1, t1), t2, t2)


t1, t2 = torch.rand(2, 2).cpu(), torch.rand(3, 2, 2).cpu()
torch.testing.assert_close(Model()(t1, t2), 2 * t1 + (t2 @ t2).sum(0))
(artifact,) = Path(".torchair_cache").glob("*/inner_forward/compiled_module")
torchair.inference.readable_cache(str(artifact), file="readable.py")
