"""The cache test script before its conversion: prompt and decode through ``torch.compile``."""

import dataclasses
from typing import List  # noqa: UP035 - as in the script

import torch

import warmrank as torchair
from warmrank.configs.compiler_config import CompilerConfig

config = CompilerConfig()
config.mode = "reduce-overhead"
npu_backend = torchair.get_npu_backend(compiler_config=config)


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

    @torch.inference_mode()
    def forward(self, x: InputMeta, kv: List[torch.Tensor]):  # noqa: UP006 - as in the script
        return self.linear2(x.data) + self.linear2(kv[0])


x = InputMeta(data=torch.randn(2, 2).cpu(), is_prompt=True)
kv = [torch.randn(2, 2).cpu()]
model = Model().cpu()
compiled_model = torch.compile(model, backend=npu_backend)
res_prompt = compiled_model(x, kv)
torch.testing.assert_close(res_prompt, model(x, kv), rtol=0, atol=0)
x.is_prompt = False
res_decode = compiled_model(x, kv)
torch.testing.assert_close(res_decode, model(x, kv), rtol=0, atol=0)
