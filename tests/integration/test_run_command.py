"""``warmrank run``, beside modules named like our folders; code that stands in no file, as a notebook's."""

from __future__ import annotations

import linecache
import subprocess
import sys
import types
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.support.checkout import ended
from tests.support.launching import counts, data_of
from warmrank.inference import cache_compile
from warmrank.orchestrator.launch.report import from_json


def run(script: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script.write_text(text)
    return ended("-m", "warmrank", "run", script.name, *arguments, cwd=script.parent)


def test_script_is_the_main_module_with_its_arguments_and_status(tmp_path: Path) -> None:
    text = """
import os, pickle, sys
class Local: pass
assert isinstance(pickle.loads(pickle.dumps(Local())), Local)
print(__name__, os.path.isabs(__file__), sys.path[0] == os.path.dirname(__file__), *sys.argv)
sys.exit(3)
"""
    done = run(tmp_path / "script.py", text, "--lr", "0.1", "-x", "--", "last")
    assert done.stdout == "__main__ True True script.py --lr 0.1 -x -- last\n"
    assert done.returncode == 3


def test_error_shows_the_script_alone_and_says_that_there_is_no_npu(tmp_path: Path) -> None:
    done = run(tmp_path / "script.py", "import torch, torch_npu\ntorch.ones(2, device='npu')\n")
    assert done.returncode == 1
    _, _, traceback = done.stderr.partition("Traceback")
    assert traceback.count("File ") == 1
    assert 'script.py", line 2' in traceback
    assert "torch_npu is not installed" in traceback


def test_module_is_run_as_python_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "other.py").write_text("import torchair\n")
    text = """
import sys, torch_npu
from . import other
from .other import torchair
print(__name__, __spec__.name, sys.path[0], torchair.get_npu_backend.__module__, *sys.argv)
raise ValueError("of the module")
"""
    (tmp_path / "package" / "main.py").write_text(text)
    done = ended("-m", "warmrank", "run", "-m", "package.main", "--lr", "1", cwd=tmp_path)
    file = tmp_path / "package" / "main.py"
    assert done.stdout == f"__main__ package.main {tmp_path} warmrank.inference {file} --lr 1\n", done.stderr
    assert (done.returncode, done.stderr.count("File "), "of the module" in done.stderr) == (1, 1, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [(["nope.py"], "nope.py is no file; expected"), (["-m", "nope"], "No module named nope")],
)
def test_what_is_not_there_is_named(given: list[str], said: str, tmp_path: Path) -> None:
    done = ended("-m", "warmrank", "run", *given, cwd=tmp_path)
    assert said in done.stderr
    assert done.returncode == (2 if given[0] == "nope.py" else 1)


def test_child_process_repeats_no_warning_and_explains_its_own_error(tmp_path: Path) -> None:
    text = """
import subprocess, sys, torch_npu
code = "import torch, torch_npu; torch.ones(2, device='npu')"
sys.exit(subprocess.run([sys.executable, "-c", code]).returncode)
"""
    done = run(tmp_path / "script.py", text)
    assert done.returncode == 1
    assert done.stderr.count(".npu() does nothing") == 1
    assert done.stderr.count("it has no device 'npu'. Use .npu()") == 1


def test_process_group_of_npus_is_one_of_cpus(tmp_path: Path) -> None:
    text = """
import torch, torch_npu, torch.distributed as dist
torch.npu.config.allow_internal_format = False
dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(2).npu()
dist.all_reduce(x)
print(dist.get_backend(), x.tolist(), dist.get_world_size(dist.new_group([0])))
"""
    done = run(tmp_path / "script.py", text)
    assert done.stdout == "hccl [1.0, 1.0] 1\n", done.stderr


def test_missing_part_of_torch_npu_is_named(tmp_path: Path) -> None:
    text = """
import torch, torch_npu, torchair
for holder, name in ((torch.npu, "Stream"), (torch_npu, "npu_rms_norm"), (torchair, "dynamo_export"),
                     (torchair, "register_fx_node_ge_converter")):
    try:
        getattr(holder, name)
    except AttributeError as error:
        print(name in str(error), "torch_npu" in str(error), "not installed" in str(error))
try:
    from torch_npu.contrib import transfer_to_npu
except ModuleNotFoundError as error:
    print("contrib" in str(error), error.name == "torch_npu.contrib", "not installed" in str(error))
"""
    done = run(tmp_path / "script.py", text)
    assert done.stdout.splitlines() == ["True True True"] * 5, done.stdout + done.stderr


NAMES = ("worker", "orchestrator", "cache_store", "examples", "cluster_configs", "utils", "tests")

WORKER = """
import torch
from warmrank import Call, Workload
from warmrank.inference import cache_compile
import {names}

assert all(module.OWNER == "user" for module in ({names},))


class Model(torch.nn.Module):
    def forward(self, x):
        for name in {{"a", "b", "c", "d", "e"}}:  # in one order in every launch
            x = x * len(name) + 0
        return x * utils.SCALE


def workload(context):
    model = Model()
    return Workload(model=model, calls=(Call(function=cache_compile(model.forward), args=(torch.ones(2),)),))


if __name__ == "__main__":
    print(cache_compile(Model().forward)(torch.ones(2)).tolist())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a module of each name; `worker` is the model's and has the entrypoint."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text('OWNER = "user"\nSCALE = 3\n')
    others = ", ".join(name for name in NAMES if name != "worker")
    (tmp_path / "worker.py").write_text(WORKER.format(names=others))
    return tmp_path


def python_in(project: Path, *command: str) -> str:
    """Run Python in the project, which knows of nothing but what is installed."""
    done = subprocess.run(
        [sys.executable, *command], cwd=project, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_script_beside_modules_of_those_names_runs(project: Path):
    assert python_in(project, "worker.py").splitlines()[-1] == "[3.0, 3.0]"


@pytest.mark.slow
@pytest.mark.ray
def test_launch_beside_modules_of_those_names_compiles_and_loads(project: Path):
    data: dict[str, Any] = data_of(project, workload={"entrypoint": "worker:workload"})
    (project / "tiny.yaml").write_text(yaml.safe_dump(data))
    launch = ("-m", "warmrank", "launch", "tiny.yaml", "--json", "-")
    first = from_json(python_in(project, *launch))
    second = from_json(python_in(project, *launch, "--no-compile"))
    assert counts(first)[0] == 1
    assert counts(second)[0] == 0


CELLS = (
    """
import torch
from torch import nn
SCALE = 2.0
act = lambda x: x.relu() + 0
def helper(x):
    return x * SCALE
def untraced(x):
    return x
""",
    """
import dataclasses
@dataclasses.dataclass
class Config:
    k: float = 3.0
    def twice(self):
        return self.k * 2
class Inner(nn.Module):
    def forward(self, x):
        def local(y):
            return y + 1
        return local(helper(x))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.config = Inner(), Config()
    def parts(self, x):
        for step in range(2):
            yield x + step
    @property
    def factor(self):
        return 4.0
    def forward(self, x):
        return act(self.inner(x)) + self.config.twice() + sum(self.parts(x)) * self.factor
""",
)
_KERNELS = count()


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the cells in a new `__main__`, under names of their own; returns the outcome of a call."""

    def run(edit: str = "") -> str:
        old, _, new = edit.partition(" => ")
        main, kernel = types.ModuleType("__main__"), next(_KERNELS)
        monkeypatch.setitem(sys.modules, "__main__", main)
        for number, cell in enumerate(CELLS):
            assert not old or any(old in text for text in CELLS)
            text = cell.replace(old, new) if old else cell
            name = f"/nowhere/ipykernel_{kernel}/{number}.py"
            monkeypatch.setitem(
                linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name)
            )
            exec(compile(text, name, "exec"), vars(main))  # noqa: S102 - as a notebook does
        with torch.no_grad():
            model = vars(main)["Model"]()
            cached = cache_compile(model.forward, cache_dir=tmp_path)
            x = torch.arange(6.0).reshape(2, 3) - 2
            assert torch.equal(cached(x), model.forward(x))
        assert cached.last_result is not None
        return cached.last_result.outcome

    return run


def test_cells_load_what_the_same_cells_compiled(notebook: Callable[..., str]) -> None:
    untraced = "def untraced(x):\n    return x => def untraced(x):\n    return -x"
    assert [notebook(), notebook(), notebook(untraced)] == ["compiled", "loaded", "loaded"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "edit",
    [
        "y + 1 => y + 2", "x * SCALE => x / SCALE", "SCALE = 2.0 => SCALE = 3.0",
        "x.relu() + 0 => x.relu() + 1", "self.k * 2 => self.k * 3", "k: float = 3.0 => k: float = 4.0",
        "yield x + step => yield x - step", "return 4.0 => return 5.0", "+ self.config => - self.config",
    ],
)  # fmt: skip
def test_edited_cell_is_compiled_again(notebook: Callable[..., str], edit: str) -> None:
    assert [notebook(), notebook(edit)] == ["compiled", "compiled"]
