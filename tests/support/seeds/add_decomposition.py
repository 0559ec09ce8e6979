"""The reference's example of custom_decompositions: a function of the user's in place of aten.add."""

import logging

import torch
from torch._decomp import get_decompositions, register_decomposition

import worker as torchair

torchair.logger.setLevel(logging.INFO)


@register_decomposition(torch.ops.aten.add.default)
def test_add_decomp(t1, t2):
    return t1 + t2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cached = torchair.inference.cache_compile(
            self.inner_forward, custom_decompositions=get_decompositions([torch.ops.aten.add.default])
        )

    def inner_forward(self, t1, t2):
        return torch.ops.aten.add(t1, t2)

    def forward(self, t1, t2):
        return self.cached(t1, t2)


t1, t2 = torch.rand(2, 2).cpu(), torch.rand(2, 2).cpu()
torch.testing.assert_close(Model().cpu()(t1, t2), t1 + t2, rtol=0, atol=0)
