"""Reuse of memory between captured graphs: one pool for two functions, by the options of the guide."""

import logging

import torch
import torch_npu
import torchair

torchair.logger.setLevel(logging.INFO)

config = torchair.CompilerConfig()
config.mode = "reduce-overhead"
config.aclgraph_config.use_custom_pool = torch.npu.graph_pool_handle()
config.debug.aclgraph.disable_mempool_reuse_in_same_fx = True
config.debug.aclgraph.clone_input = False
config.debug.aclgraph.enable_output_clone = True
npu_backend = torchair.get_npu_backend(compiler_config=config)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.cached = torchair.inference.cache_compile(self.inner_forward, backend=npu_backend)

    def forward(self, x):
        return self.linear(x).relu() @ self.linear.weight

    def inner_forward(self, x):
        return self.forward(x)


model = Model().npu()
opt_model = torch.compile(model, backend=npu_backend)
with torch.no_grad():
    inputs = [torch.rand(rows, 8).npu() for rows in (16, 4, 2)]
    outputs = [function(x) for x in inputs for function in (opt_model, model.cached)]
    wanted = [model(x) for x in inputs for _ in range(2)]
torch.testing.assert_close(outputs, wanted, rtol=0, atol=0)
