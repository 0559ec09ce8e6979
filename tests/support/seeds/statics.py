"""Inputs whose shapes were marked as fixed, under ``dynamic=True``."""

from __future__ import annotations

import logging

import torch

import worker as torchair
from worker import logger

logger.setLevel(logging.INFO)


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cached = torchair.inference.cache_compile(self.decode, dynamic=True)

    def forward(self, x, xa):
        torch._dynamo.mark_static(x)
        torch._dynamo.mark_static(xa)
        return self.cached(x, xa)

    def decode(self, x, xa):
        return x * x.size(0) + xa


x, xa = torch.rand(3, 2), torch.rand(3, 2)
torch.testing.assert_close(Decoder()(x, xa), x * 3 + xa)
