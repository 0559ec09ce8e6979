"""The README's model and the quickstart of transformers, run as they stand in their documents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from tests.support.checkout import PYTHONPATH, ROOT
from tests.support.in_process import InProcessLauncher
from tests.support.stored import store_config
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.launch.driver import launch

README, QUICKSTART = ROOT / "README.md", ROOT / "docs" / "quickstart-huggingface.md"
_FILE = re.compile(
    r"`(?P<name>[\w.]+)`[^`\n]*:\n\n```(?:python|yaml)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)
_COMMANDS = re.compile(r"^```sh\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory that modules are found in; transformers leaves a function in `nn.Module`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    if "smart_apply" in vars(nn.Module):
        delattr(nn.Module, "smart_apply")
    for name in ("my_model", "served_llama"):
        sys.modules.pop(name, None)


def write_files(document: Path) -> Path:
    """Write the files that a document shows; return its config's name."""
    found = {match["name"]: match["text"] for match in _FILE.finditer(document.read_text(encoding="utf-8"))}
    for name, text in found.items():
        Path(name).write_text(text, encoding="utf-8")
    (config,) = (name for name in found if name.endswith(".yaml"))
    return Path(config)


@pytest.mark.parametrize(
    ("document", "smaller"),
    [(README, ()), pytest.param(QUICKSTART, ("workload.arguments.layers=1",), marks=pytest.mark.slow)],
    ids=["readme", "hf"],
)
def test_model_of_a_document_is_warm_on_an_empty_node(tmp_path, document, smaller):
    overrides = (*smaller, f"store={store_config(tmp_path / 'store')}", "ranks=1", "parallel={}")
    config = load(write_files(document), overrides)
    cold = launch(config, launcher=InProcessLauncher())
    assert cold.totals.num_compiled == len(cold.ranks[0].functions)
    empty = config.model_copy(update={"cache_dir": tmp_path / "empty"})
    warm = launch(empty, no_compile=True, launcher=InProcessLauncher())
    assert warm.totals.num_loaded == cold.totals.num_compiled


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("document", [README, QUICKSTART], ids=["readme", "hf"])
def test_commands_of_a_document_end_well(tmp_path: Path, document: Path):
    write_files(document)
    script = tmp_path / "bin" / "warmrank"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m warmrank "$@"\n')
    script.chmod(0o755)
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "PATH": f"{script.parent}:{os.environ['PATH']}"}
    commands = "".join(match["text"] for match in _COMMANDS.finditer(document.read_text(encoding="utf-8")))
    assert "--no-compile" in commands
    words = ["/bin/sh", "-ec", commands]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_fits_a_screen_and_says_first_what_it_ran_on():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 85
    assert "CPUs and an emulated NPU only" in "\n".join(lines[:10])
