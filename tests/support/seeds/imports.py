"""Every way to import TorchAir, in the script and in processes that it starts."""

import importlib
import multiprocessing
import subprocess
import sys

import npugraph_ex
import torch
import torch_npu
import torch_npu.dynamo.torchair as third
import torch_npu.dynamo.torchair.inference
import torchair
import torchair as tng
import torchair.configs.compiler_config as configs
from npugraph_ex.inference import cache_compile as flat_cache_compile
from torch_npu.dynamo import torchair as fourth
from torchair import CompilerConfig, get_npu_backend, inference, logger
from torchair.configs.compiler_config import CompilerConfig as SameConfig
from torchair.core.utils import logger as same_logger

CHILD = "import torch_npu.dynamo.torchair, torchair; print(torchair.get_npu_backend.__module__)"


def is_ours(function):
    return function.__module__.startswith("warmrank.")


def in_a_spawned_process(answers):
    answers.put(
        is_ours(importlib.import_module("torchair").inference.cache_compile) and is_ours(get_npu_backend)
    )


if __name__ == "__main__":
    same = (third, fourth, torch_npu.dynamo.torchair, importlib.import_module("torchair"), tng)
    assert all(module is torchair for module in same)
    assert importlib.import_module(".inference", package="torchair") is inference
    assert torch_npu.dynamo.torchair.inference is inference
    assert SameConfig is CompilerConfig is configs.CompilerConfig
    assert same_logger is logger
    assert is_ours(inference.cache_compile)
    assert is_ours(flat_cache_compile)
    assert is_ours(get_npu_backend)
    names: dict[str, object] = {}
    exec("from torchair import *", names)  # noqa: S102
    assert {"CompilerConfig", "get_npu_backend", "logger", "patch_for_hcom"} <= set(names)
    assert npugraph_ex.CompilerConfig is not CompilerConfig

    try:
        from torchair import register_fx_node_ge_converter
    except ImportError as error:
        said = str(error)
    else:
        said = "comes with torch_npu" if register_fx_node_ge_converter else ""
    assert "comes with torch_npu" in said, said

    command = [sys.executable, "-c", CHILD]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == "warmrank.inference\n", printed
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=in_a_spawned_process, args=(answers,))
    process.start()
    assert answers.get(timeout=300)
    process.join()
