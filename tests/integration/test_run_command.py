"""``warmrank run``: a script's arguments, status and errors are as Python would have them."""

from __future__ import annotations

import subprocess
from pathlib import Path

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


def test_missing_part_of_torch_npu_is_named(tmp_path: Path) -> None:
    text = """
import torch, torch_npu, torchair
for holder, name in ((torch.npu, "Stream"), (torch_npu, "npu_rms_norm"), (torchair, "dynamo_export"),
                     (torchair, "register_fx_node_ge_converter")):
    try:
        getattr(holder, name)
    except AttributeError as error:
        print(name in str(error), "torch_npu" in str(error), "not installed" in str(error))
"""
    done = run(tmp_path / "script.py", text)
    assert done.stdout.splitlines() == ["True True True"] * 4, done.stdout + done.stderr
