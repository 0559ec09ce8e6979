"""Artifacts are compiled with torch's settings as torch ships them, whatever a program or a variable sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.fx.experimental._config as shapes_config

from tests.support.tracing import compiles_ahead, in_mode
from warmrank.inference import cache_compile
from warmrank.worker.torch_private.as_shipped import as_shipped

MODULES = [dynamo_config, functorch_config, inductor_config, shapes_config]


class Layer(torch.nn.Module):
    """Looks like another one to who compares their graphs, and differs in a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.numbers = torch.nn.Linear(4, 4), {"bias": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.nn.functional.gelu(self.linear(x)).relu() + self.numbers["bias"]
        return out


@pytest.mark.parametrize("config", MODULES, ids=lambda config: config.__name__)
def test_settings_are_those_of_a_process_that_changes_none(
    config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def kept(name: str, _shipped: Any) -> bool:
        return name == "error_on_custom_op_aliasing"  # which the variable CI sets

    before = config.get_config_copy()
    with as_shipped(config, kept):
        assert config.get_config_copy() == before
    assert not caplog.records
    name = next(name for name, value in before.items() if value is False and name != "TYPE_CHECKING")
    with config.patch({name: True}), as_shipped(config, kept):
        assert config.get_config_copy() == before
    assert f"{config.__name__}: {name}=True" in caplog.text


@pytest.mark.parametrize(
    ("config", "setting", "mode"),
    [
        (dynamo_config, "use_graph_deduplication", "reduce-overhead"),
        (dynamo_config, "prepare_freezing", "reduce-overhead"),
        (dynamo_config, "install_free_tensors", "reduce-overhead"),
        (dynamo_config, "verify_correctness", "reduce-overhead"),
        (functorch_config, "fake_tensor_propagate_real_tensors", "reduce-overhead"),
        (inductor_config, "freezing", "reduce-overhead"),
        *(
            pytest.param(inductor_config, setting, "max-autotune", marks=[compiles_ahead, pytest.mark.slow])
            for setting in ("trace.enabled", "cpp.inject_relu_bug_TESTING_ONLY")
        ),
    ],
)
def test_no_setting_of_the_program_changes_an_artifact(
    config: Any, setting: str, mode: str, tmp_path: Path
) -> None:
    first, second, x = Layer(), Layer(), torch.randn(3, 4)
    model = torch.nn.Sequential(first, second)
    function = cache_compile(model.forward, config=in_mode(mode), cache_dir=tmp_path)
    value = "accuracy" if "inject" in setting else True
    with config.patch({setting: value}), torch.no_grad():
        for bias in (1.0, 7.0) if mode == "reduce-overhead" else (1.0,):
            second.numbers["bias"] = bias
            torch.testing.assert_close(function(x), model.forward(x))


def test_no_variable_of_the_environment_counts(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "import torch._inductor.config as config\n"
        "from warmrank.worker.torch_private.as_shipped import as_shipped\n"
        "assert config.freezing and config.cpp.enable_unsafe_math_opt_flag\n"
        "os.chdir('/')\n"  # where a directory of Inductor's would be another one
        "with as_shipped(config, lambda *_: False):\n"
        "    assert not config.freezing and not config.cpp.enable_unsafe_math_opt_flag\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    environ |= {"TORCHINDUCTOR_FREEZING": "1", "TORCHINDUCTOR_CPP_ENABLE_UNSAFE_MATH_OPT_FLAG": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = [part.partition("=")[0] for part in done.stderr.rpartition(": ")[2].split(", ")]
    assert names == ["cpp.enable_unsafe_math_opt_flag", "freezing"], done.stderr
