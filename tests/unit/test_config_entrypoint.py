"""Entrypoints that are certain to fail, found without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmrank.orchestrator.config.entrypoint import entrypoint_fault, shadow

MODULE = """
import functools
from collections.abc import Callable
from there import build as imported, decorated as imported_too
from there import build as maybe

raise RuntimeError("it ran")

try:
    from absent import maybe
except ImportError:
    pass

def workload(context, layers=2, *, dim): return make(dim)
def anything(context, **arguments): return make(arguments)
def raises(context): raise NotImplementedError
def nothing(): ...
def forgets(context):
    def inner():
        return 3
    made = inner()
async def waits(context): return make(3)
def yields(context): yield make(3)

@functools.cache
def cached(context): ...

other = workload
size: int = 3
number = 3
class Builds:
    def __call__(self, context): ...
class Model(torch.nn.Module): ...
class Derived(make): ...
class Made(Model):
    def __new__(cls, context): return make(3)
builds = Builds()
def _set():
    global late
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen.py").write_text(MODULE)
    (tmp_path / "there.py").write_text("def build(context, *, layers): ...\ndecorated = map\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "model.py").touch()
    (tmp_path / "broken.py").write_text("def workload(:\n")
    (tmp_path / "open.py").write_text("from there import *\n")
    return tmp_path


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "said"),
    [
        ("qwen:wrkload", {"dim": 1}, "has no function 'wrkload'; did you mean qwen:workload?"),
        ("qwen:workload", {"dim": 1, "layerz": 2}, "unexpected keyword argument 'layerz'"),
        ("qwen:workload", {"layers": 2}, "it takes the rank's context and layers=2, dim"),
        ("qwen:nothing", {}, "too many positional arguments"),
        ("qwen:other", {}, "'dim'"),
        ("qwen:imported", {"layerz": 2}, "'layers'"),
        ("qwen:number", {}, "has no function 'number'"),
        ("qwen:Model", {}, "returns Model; expected a function that returns a warmrank.Workload"),
        ("qwen:Builds", {}, "returns Builds"),
        ("qwen:forgets", {}, "returns None"),
        ("qwen:waits", {}, "returns a coroutine"),
        ("qwen:yields", {}, "returns a generator"),
        ("broken:workload", {}, "does not import: SyntaxError"),
        ("absent_of_all:f", {}, "No module named 'absent_of_all'. It"),
        ("qwne:workload", {}, "No module named 'qwne'; did you mean qwen:workload? It"),
        ("pack.modell:f", {}, "No module named 'pack.modell'; did you mean pack.model:f?"),
        ("qwen.py:workload", {}, "No module named 'qwen.py'; leave out .py"),
    ],
)
def test_call_that_is_certain_to_fail_is_named(entrypoint: str, arguments: dict[str, object], said: str):
    fault = entrypoint_fault(entrypoint, arguments)
    assert fault is not None
    assert said in str(fault.error)


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        ("warmrank.py", True),
        ("warmrank/__init__.py", True),
        ("warmrank/a.py", False),
        ("worker.py", False),
    ],
)
def test_module_with_the_name_of_a_package_of_ours_is_found(here: Path, name: str, is_found: bool):
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).touch()
    assert shadow(here) == (here / name if is_found else None)
