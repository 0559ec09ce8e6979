"""Prefill and decode of a transformer, chosen by the length of the input; a KV cache in a dict."""

from __future__ import annotations

import logging

import torch
import torch_npu
import torchair
from torchair import logger

logger.setLevel(logging.INFO)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(4, 4)
        config = torchair.CompilerConfig()
        self.cached_prefill = torchair.inference.cache_compile(self.prefill, config=config)
        self.cached_decode = torchair.inference.cache_compile(self.decode, config=config)

    def forward(self, x, kv_cache, position):
        if x.size(1) > 1:
            return self.cached_prefill(x, kv_cache, position)
        return self.cached_decode(x, kv_cache, position)

    def prefill(self, x, kv_cache, position):
        kv_cache["key"].index_copy_(1, position, self.project(x))
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x

    def decode(self, x, kv_cache, position):
        kv_cache["key"].index_copy_(1, position, self.project(x))
        key = kv_cache["key"]
        return torch.softmax(x @ key.transpose(1, 2), -1) @ key


torch.manual_seed(0)
model = Model().npu()
with torch.no_grad():
    for start, length in ((0, 3), (3, 1), (4, 1), (0, 5), (5, 1)):
        x = torch.rand(2, length, 4)
        kept = torch.rand(2, 8, 4)
        mine, expected = {"key": kept.clone()}, {"key": kept.clone()}
        position = torch.arange(start, start + length)
        eager = model.prefill if length > 1 else model.decode
        torch.testing.assert_close(model(x, mine, position), eager(x, expected, position))
        torch.testing.assert_close(mine["key"], expected["key"])
