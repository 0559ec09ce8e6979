"""The gears script: two inputs, whose sizes are paired in order (zip), then combined freely (product)."""

import torch
import torch_npu
import torchair


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x1, x2):
        return x1 + x2


for policy in ("zip", "product"):
    input1 = torch.ones(2, 2).npu()
    input2 = torch.ones(2, 2).npu()
    config = torchair.CompilerConfig()
    config.inference_config.dynamic_gears_merge_policy = policy
    npu_backend = torchair.get_npu_backend(compiler_config=config)
    model = Model().npu()
    model = torch.compile(model, fullgraph=True, backend=npu_backend)  # type: ignore[assignment] # as in the script
    torchair.inference.set_dim_gears(input1, dim_gears={0: [2, 4]})
    torchair.inference.set_dim_gears(input2, dim_gears={0: [2, 4]})
    print(model(input1, input2))
    input1 = torch.ones(4, 2).npu()
    input2 = torch.ones(4, 2).npu()
    print(model(input1, input2))
