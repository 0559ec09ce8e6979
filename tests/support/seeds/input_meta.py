"""The cache test script: a dataclass and a list as inputs; a flag chooses prompt or decode."""

import dataclasses
import logging
from typing import List

import torch
import torch_npu
import torchair
from torchair import logger
from torchair.configs.compiler_config import CompilerConfig

config = CompilerConfig()

logger.setLevel(logging.INFO)


@dataclasses.dataclass
class InputMeta:
    data: torch.Tensor
    is_prompt: bool


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = torch.nn.Linear(2, 1)
        self.linear2 = torch.nn.Linear(2, 1)
        for param in self.parameters():
            torch.nn.init.ones_(param)

        self.cached_prompt = torchair.inference.cache_compile(self.prompt, config=config)
        self.cached_decode = torchair.inference.cache_compile(self.decode, config=config)

    @torch.inference_mode()
    def forward(self, x: InputMeta, kv: List[torch.Tensor]):
        if x.is_prompt:
            return self.cached_prompt(x, kv)
        return self.cached_decode(x, kv)

    def _forward(self, x, kv):
        return self.linear2(x.data) + self.linear2(kv[0])

    def prompt(self, x, y):
        return self._forward(x, y)

    def decode(self, x, y):
        return self._forward(x, y)


x = InputMeta(data=torch.randn(2, 2).npu(), is_prompt=True)
kv = [torch.randn(2, 2).npu()]
model = Model().npu()
res_prompt = model(x, kv)
torch.testing.assert_close(res_prompt, model._forward(x, kv), rtol=0, atol=0)
x.is_prompt = False
res_decode = model(x, kv)
torch.testing.assert_close(res_decode, model._forward(x, kv), rtol=0, atol=0)
