"""Programs as TorchAir's users write them, run unchanged: cold, then warm in a new process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.checkout import python

HEAD = """
import logging

import torch
import torch_npu
import torchair
from torchair.core.utils import logger

logger.setLevel(logging.INFO)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.lm_head = torch.nn.Linear(4, 4, bias=False)
{init}
    def decode(self, x, *more):
        return self.linear(x) * 2
{more}

torch.manual_seed(0)
model = Model().npu()
x = torch.randn(2, 4).npu()
with torch.no_grad():
    torch.testing.assert_close({call}, {eager})
"""


def program(
    init: str, *, more: str = "", call: str = "model.cached(x)", eager: str = "model.decode(x)"
) -> str:
    """A script: what stands in ``__init__``, further methods, and the call."""
    lines = "\n".join(f"        {line}" for line in init.strip().splitlines())
    return HEAD.format(init=lines, more=more, call=call, eager=eager)


CONFIG = """
from torchair.configs.compiler_config import CompilerConfig
config = CompilerConfig()
"""
PROGRAMS = {
    "fullgraph": program(
        CONFIG + "import torchair.ge_concrete_graph.ge_converter.experimental.patch_for_hcom_allreduce\n"
        "from torchair.ge_concrete_graph.ge_converter.experimental import hcom_allgather\n"
        "config.experimental_config.frozen_parameter = True\n"
        "config.experimental_config.tiling_schedule_optimize = True\n"
        "cached = torchair.inference.cache_compile\n"
        "self.cached = cached(self.decode, dynamic=True, fullgraph=True, config=config, ge_cache=False)"
    ),
    "options": program(
        "import npugraph_ex\n"
        "options = {'clone_input': False}\n"
        "self.cached = npugraph_ex.inference.cache_compile(self.decode, dynamic=False, options=options)"
    ),
    "mode.value": program(
        CONFIG + "config.mode.value = 'reduce-overhead'\n"
        "assert config.mode.value == 'reduce-overhead'\n"
        "cached = torchair.inference.cache_compile\n"
        "self.cached = cached(self.decode, config=config, dynamic=None, some_later_keyword=1)"
    ),
    "module as an argument": program(
        CONFIG + "config.experimental_config.frozen_parameter = True\n"
        "self.cached = torchair.inference.cache_compile(self.head, config=config, dynamic=True)",
        more="    def head(self, x, lm_head):\n        return lm_head(self.linear(x))\n",
        call="model.cached(x, model.lm_head)",
        eager="model.head(x, model.lm_head)",
    ),
    "other paths": program(
        "import torch_npu.dynamo.torchair as tng\n"
        "from torch_npu.dynamo import torchair as again\n"
        "import importlib\n"
        "assert importlib.import_module('torchair').logger is torchair.logger is tng.logger is again.logger\n"
        "from torchair import CompilerConfig, patch_for_hcom\n"
        "patch_for_hcom()\n"
        "backend = torchair.get_npu_backend(compiler_config=CompilerConfig())\n"
        "self.cached = tng.inference.cache_compile(self.decode, backend=backend)"
    ),
}
COMPILED = """
import torch, torch_npu, torchair
model = torch.nn.Linear(4, 4).npu()
x = torch.randn(2, 4).npu()
expected = model(x)
backend = torchair.get_npu_backend()
with torch.no_grad():
    compiled = torch.compile(model, backend=backend, dynamic=None, options={"clone_input": False})
    torch.testing.assert_close(compiled(x), expected)
"""
SCOPE = """
import torch_npu, torchair
try:
    from torchair.scope import npu_stream_switch
except ModuleNotFoundError as error:
    assert "torch_npu, which is not installed here" in str(error), error
try:
    torchair.register_fx_node_ge_converter
except AttributeError as error:
    assert "torchair.register_fx_node_ge_converter is TorchAir's own" in str(error), error
else:
    raise AssertionError
print("as expected")
"""


SCRIPTS = {**PROGRAMS, "torch.compile": COMPILED, "names that are the vendor's": SCOPE}
# Each script as a program of its own, in a directory with a cache of its own; one process for all of them.
DRIVER = """
import os, runpy, sys

here = os.getcwd()
for number in range(int(sys.argv[1])):
    os.chdir(f"{here}/{number}")
    print(f"# program {number}", flush=True)
    runpy.run_path("program.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Output of each script, by name: of a cold process and of a warm one."""
    root = tmp_path_factory.mktemp("drop_in")
    (root / "driver.py").write_text(DRIVER)
    for number, script in enumerate(SCRIPTS.values()):
        (root / str(number)).mkdir()
        (root / str(number) / "program.py").write_text(script)
    return [dict(zip(SCRIPTS, ran(root), strict=True)) for _ in range(2)]


def ran(root: Path) -> list[str]:
    printed = python("-m", "warmrank", "run", "driver.py", str(len(SCRIPTS)), cwd=root)
    return re.split(r"(?m)^# program \d+$", printed)[1:]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_torchair_s_users_runs_unchanged_cold_and_warm(name, printed):
    for outputs, verb in zip(printed, ("saved to", "loaded from"), strict=True):
        assert outputs[name].count(f" {verb} ") == 1, outputs[name]


def test_scripts_without_a_cache_run_unchanged(printed: list[dict[str, str]]) -> None:
    for outputs in printed:
        assert "Cache ModelCacheMeta" not in outputs["torch.compile"]
        assert "as expected" in outputs["names that are the vendor's"]
