"""Calls as TorchAir's users write them: keywords, options, and every path that its names are imported by."""

import importlib
import logging

import npugraph_ex
import torch
import torch_npu
import torch_npu.dynamo.torchair as tng
import torchair
import torchair.ge_concrete_graph.ge_converter.experimental.patch_for_hcom_allreduce
from torch_npu.dynamo import torchair as again
from torchair import CompilerConfig, patch_for_hcom
from torchair.core.utils import logger
from torchair.ge_concrete_graph.ge_converter.experimental import hcom_allgather

assert importlib.import_module("torchair").logger is torchair.logger is tng.logger is again.logger
logger.setLevel(logging.INFO)
patch_for_hcom()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.lm_head = torch.nn.Linear(4, 4, bias=False)

    def decode(self, x):
        return self.linear(x) * 2

    def head(self, x, lm_head):
        return lm_head(self.linear(x))


def frozen():
    config = CompilerConfig()
    config.experimental_config.frozen_parameter = True
    config.experimental_config.tiling_schedule_optimize = True
    return config


class Keywords(Model):
    def __init__(self):
        super().__init__()
        cache_compile = torchair.inference.cache_compile
        self.cached = cache_compile(
            self.decode, dynamic=True, fullgraph=True, config=frozen(), ge_cache=False
        )


class Options(Model):
    def __init__(self):
        super().__init__()
        options = {"clone_input": False}
        self.cached = npugraph_ex.inference.cache_compile(self.decode, dynamic=False, options=options)


class ModeValue(Model):
    def __init__(self):
        super().__init__()
        config = CompilerConfig()
        config.mode.value = "reduce-overhead"
        assert config.mode.value == "reduce-overhead"
        cache_compile = torchair.inference.cache_compile
        self.cached = cache_compile(self.decode, config=config, dynamic=None, some_later_keyword=1)


class Head(Model):
    def __init__(self):
        super().__init__()
        self.cached = torchair.inference.cache_compile(self.head, config=frozen(), dynamic=True)


class OtherPaths(Model):
    def __init__(self):
        super().__init__()
        backend = torchair.get_npu_backend(compiler_config=CompilerConfig())
        self.cached = tng.inference.cache_compile(self.decode, backend=backend)


x = torch.randn(2, 4).npu()
with torch.no_grad():
    for model in (Keywords().npu(), Options().npu(), ModeValue().npu(), OtherPaths().npu()):
        torch.testing.assert_close(model.cached(x), model.decode(x))
    model = Head().npu()
    torch.testing.assert_close(model.cached(x, model.lm_head), model.head(x, model.lm_head))
    linear = torch.nn.Linear(4, 4).npu()
    backend = torchair.get_npu_backend()
    compiled = torch.compile(linear, backend=backend, dynamic=None, options={"clone_input": False})
    torch.testing.assert_close(compiled(x), linear(x))
