"""npugraph_ex's own `cache_compile`, with options as a dict; its flat configuration and name as backends."""

import logging

import npugraph_ex
import torch
import torch_npu
from npugraph_ex.core.utils import logger
from npugraph_ex.inference import cache_compile

logger.setLevel(logging.INFO)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(4, 4)
        options = {"inplace_pass": True, "clone_input": False, "static_kernel_compile": False}
        self.cached = cache_compile(self.decode, cache_dir="flat", dynamic=False, options=options)
        self.other = npugraph_ex.inference.cache_compile(self.doubled, options={"clone_output": True})

    def decode(self, x):
        return self.project(x)

    def doubled(self, x):
        return self.project(x) * 2


model = Model().npu()
config = npugraph_ex.CompilerConfig()
config.clone_output = True
backend = npugraph_ex.get_npu_backend(compiler_config=config)
compiled = torch.compile(model.decode, backend=backend, fullgraph=True, dynamic=True)
by_name = torch.compile(model.doubled, backend="npugraph_ex", fullgraph=True, dynamic=False)
with torch.no_grad():
    x = torch.rand(2, 4).npu()
    for _ in range(2):
        torch.testing.assert_close(model.cached(x), model.decode(x))
    torch.testing.assert_close(by_name(x), model.doubled(x))
    torch.testing.assert_close(model.other(x), model.doubled(x))
    for rows in (2, 3):
        x = torch.rand(rows, 4).npu()
        torch.testing.assert_close(compiled(x), model.decode(x))
