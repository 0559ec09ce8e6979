"""The reference's example of custom_decompositions, and beside it one whose effect shows in the artifact."""

import logging
from pathlib import Path

import torch
from torch._decomp import get_decompositions, register_decomposition

import warmrank as torchair

torchair.logger.setLevel(logging.INFO)


@register_decomposition(torch.ops.aten.add.default)
def test_add_decomp(t1, t2):
    return t1 + t2


@register_decomposition(torch.ops.aten.addbmm.default)
def add_products(total, ones, others):
    return total + torch.bmm(ones, others).sum(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cached = torchair.inference.cache_compile(
            self.inner_forward, custom_decompositions=get_decompositions([torch.ops.aten.add.default])
        )
        self.cached_products = torchair.inference.cache_compile(
            self.products, custom_decompositions=get_decompositions([torch.ops.aten.addbmm.default])
        )

    def inner_forward(self, t1, t2):
        return torch.ops.aten.add(t1, t2)

    def forward(self, t1, t2):
        return self.cached(t1, t2)

    def products(self, t1, t2):
        return torch.addbmm(t1, t2, t2)


t1, t2, pair = torch.rand(2, 2).npu(), torch.rand(2, 2).npu(), torch.rand(3, 2, 2).npu()
model = Model().npu()
torch.testing.assert_close(model(t1, t2), t1 + t2, rtol=0, atol=0)
torch.testing.assert_close(model.cached_products(t1, pair), t1 + (pair @ pair).sum(0))
(artifact,) = Path(".torchair_cache").glob("*/products/compiled_module")
torchair.inference.readable_cache(str(artifact), file="readable.py")
