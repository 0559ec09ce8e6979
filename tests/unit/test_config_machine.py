"""What is looked at on the machine that a command is started on."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from warmrank.orchestrator.config.doubts import Machine, look
from warmrank.orchestrator.config.entrypoint import missing_module
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.reading import parse


def seen(**data: Any) -> Machine:
    least = {"workload": {"entrypoint": "json:dumps"}, "ranks": 1, "cache_dir": "/cache"}
    config: Config = parse({**least, **data})
    return look(config)


def test_look_finds_the_module_and_the_way_to_the_cache_directory(tmp_path: Path):
    (tmp_path / "file").touch()
    assert (seen().entrypoint, seen().obstacle) == (None, "")
    machine = seen(workload={"entrypoint": "absent_of_all:f"}, cache_dir=str(tmp_path / "file" / "below"))
    assert machine.entrypoint is not None
    assert "No module named 'absent_of_all'" in machine.entrypoint.error.message
    assert machine.obstacle == str(tmp_path / "file")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that commands are started in, with modules that say when they run."""
    monkeypatch.chdir(tmp_path)
    for name in ("plain_m.py", "whole_p/__init__.py", "whole_p/inner.py", "open_p/deep/leaf.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('it ran')\n")
    return tmp_path


@pytest.mark.parametrize("name", ["plain_m", "whole_p", "whole_p.inner", "open_p.deep.leaf", "json.decoder"])
def test_module_of_the_current_directory_is_found_and_does_not_run(here: Path, name: str):
    assert str(here) not in sys.path
    assert missing_module(name) == ""
    assert not {"plain_m", "whole_p", "whole_p.inner", "open_p.deep.leaf"} & sys.modules.keys()
    assert str(here) not in sys.path


@pytest.mark.parametrize("name", ["absent_m", "absent_m.inner", "open_p.absent", "plain_n.inner"])
def test_module_that_is_missing_is_told_in_the_words_of_its_import(here: Path, name: str, monkeypatch: Any):
    (here / "plain_n.py").touch()
    found = missing_module(name)
    monkeypatch.syspath_prepend(here)
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(name)
    assert found == str(caught.value)


@pytest.mark.parametrize(
    "code",
    ["raise RuntimeError('it ran')", "import absent_of_all", "import sys; sys.modules['odd_p.made'] = sys"],
)
def test_package_that_may_have_the_module_all_the_same_is_left_to_the_ranks(here: Path, code: str):
    (here / "odd_p").mkdir()
    (here / "odd_p" / "__init__.py").write_text(code)
    try:
        assert missing_module("odd_p.made") == ""
    finally:
        for name in ("odd_p", "odd_p.made"):
            sys.modules.pop(name, None)
