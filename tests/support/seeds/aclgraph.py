"""The aclgraph script, end to end: a backend for ``torch.compile``, with collectives patched and logs on."""

import logging

import torch
import torch_npu
import torchair
from torchair import logger

logger.setLevel(logging.INFO)
torch._logging.set_logs(  # type: ignore[attr-defined]
    dynamo=logging.DEBUG, aot=logging.DEBUG, output_code=True, graph_code=True
)
from torchair import patch_for_hcom

patch_for_hcom()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        return torch.add(x, y)


model = Model().npu()
config = torchair.CompilerConfig()
config.mode = "reduce-overhead"
npu_backend = torchair.get_npu_backend(compiler_config=config)
opt_model = torch.compile(model, backend=npu_backend)
x = torch.randn(2, 2).npu()
y = torch.randn(2, 2).npu()
out = opt_model(x, y)
print(out)
torch.testing.assert_close(out, x + y, rtol=0, atol=0)
