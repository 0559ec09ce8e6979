"""The aclgraph script, end to end: a backend for ``torch.compile``, with collectives patched and logs on."""

import logging

import torch

import warmrank as torchair
from warmrank import logger

logger.setLevel(logging.INFO)
torch._logging.set_logs(  # type: ignore[attr-defined]
    dynamo=logging.DEBUG, aot=logging.DEBUG, output_code=True, graph_code=True
)
from warmrank import patch_for_hcom  # noqa: E402 - where the script has it

patch_for_hcom()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        return torch.add(x, y)


model = Model().cpu()
config = torchair.CompilerConfig()
config.mode = "reduce-overhead"
npu_backend = torchair.get_npu_backend(compiler_config=config)
opt_model = torch.compile(model, backend=npu_backend)
x = torch.randn(2, 2).cpu()
y = torch.randn(2, 2).cpu()
out = opt_model(x, y)
print(out)  # noqa: T201 - as in the script
torch.testing.assert_close(out, x + y, rtol=0, atol=0)
