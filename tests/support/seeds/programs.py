"""What public programs call: recipes, serving engines and model ports, on small modules."""

import logging
import types

import torch
import torch_npu
import torchair as tng
from torchair import logger, patch_for_hcom
from torchair.configs.compiler_config import CompilerConfig
from torchair.ge_concrete_graph.ge_converter.experimental import patch_for_hcom_allreduce as patches

logger.setLevel(logging.INFO)
patches.patch_for_hcom_allreduce()
torch.npu.set_device(0)
torch.npu.set_compile_mode(jit_compile=False)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(4, 4)

    def forward(self, hidden, positions=None, kv_caches=None, lm_head=None):
        if kv_caches is not None:
            kv_caches[0].index_copy_(0, positions, hidden)
            hidden = hidden + kv_caches[0].sum(0)
        hidden = self.project(hidden)
        return hidden if lm_head is None else lm_head(hidden)

    def decode_step(self, hidden):
        return self(hidden)

    def decode(self, hidden, positions, kv_caches, lm_head):
        return self(hidden, positions, kv_caches, lm_head)

    def switched(self, hidden):
        with tng.scope.npu_stream_switch("21", 1):
            half = hidden / 2
        with tng.scope.limit_core_num(12, 24):
            return self(hidden) + half


def config_with(**options):
    config = CompilerConfig()
    config.mode.value = "reduce-overhead"
    for name, value in options.items():
        setattr(config.experimental_config, name, value)
    return config


def frozen():
    return config_with(
        frozen_parameter=True, tiling_schedule_optimize=True, topology_sorting_strategy="StableRDFS"
    )


def caches():
    return [torch.zeros(8, 4).npu()]


model = Model().npu()
with torch.inference_mode():
    hidden = torch.rand(2, 4).npu()
    recipe = tng.inference.cache_compile(
        model.decode_step,
        cache_dir="./graphs",
        config=frozen(),
        dynamic=False,
        fullgraph=True,
        ge_cache=False,
    )
    for _ in range(3):
        torch.testing.assert_close(recipe(hidden), model(hidden))

    for batch in (2, 4):  # one method per batch size, whose code is forward's
        name = f"decode_{batch}"
        function = Model.forward
        method = types.FunctionType(function.__code__, globals(), name, function.__defaults__)
        method.__qualname__ = f"Model.{name}"
        setattr(model, name, types.MethodType(method, model))
        patch_for_hcom()
        compiled = tng.inference.cache_compile(
            getattr(model, name), dynamic=True, fullgraph=True, config=frozen(), cache_dir="batches"
        )
        hidden, positions = torch.rand(batch, 4).npu(), torch.arange(batch).npu()
        kv, wanted_kv = caches(), caches()
        for tensor in (hidden, positions, *kv):
            torch._dynamo.mark_static(tensor)
        found = compiled(hidden, positions=positions, kv_caches=kv)
        torch.testing.assert_close(found, model(hidden, positions, wanted_kv))
        torch.testing.assert_close(kv, wanted_kv)

    head, kv, wanted_kv = torch.nn.Linear(4, 2).npu(), caches(), caches()
    decode = tng.inference.cache_compile(model.decode, config=frozen())  # the head is an argument
    for position in range(3):
        hidden, positions = torch.rand(1, 4).npu(), torch.tensor([position]).npu()
        found = decode(hidden, positions, kv, head)
        torch.testing.assert_close(found, model(hidden, positions, wanted_kv, head))

    switched = tng.inference.cache_compile(model.switched, config=config_with(), fullgraph=True)
    torch.testing.assert_close(switched(hidden), model(hidden) + hidden / 2)

    bucket = tng.inference.cache_compile(model.forward, config=config_with(), cache_dir="buckets")
    gears = config_with()
    gears.inference_config.dynamic_gears_merge_policy = "product"
    backend = tng.get_npu_backend(compiler_config=gears)
    optimized = torch.compile(model, dynamic=True, fullgraph=True, backend=backend)
    for rows in (8, 16):
        hidden = torch.rand(rows, 4).npu()
        torch.testing.assert_close(bucket(hidden), model(hidden))
        hidden = hidden.clone()
        tng.inference.set_dim_gears(hidden, {0: [8, 16]})
        torch.testing.assert_close(optimized(hidden), model(hidden))
