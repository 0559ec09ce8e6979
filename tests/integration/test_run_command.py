"""``warmrank run``: a script's arguments, status and errors are as Python would have them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.checkout import ended


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
