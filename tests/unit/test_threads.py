"""Threads of one process that call, load and import at once; each test runs a step of another one's."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.support.small_models import Plain
from tests.support.tracing import ROWS, cached
from warmrank.worker.configs.options import Part
from warmrank.worker.configs.sections import AclGraph
from warmrank.worker.keys.code import forget_types, patches, type_name
from warmrank.worker.runtime.runner import call_lock
from warmrank.worker.torch_private.warm import ambient

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.mark.parametrize("name", ["numpy.random", "torch.fx._symbolic_trace", "einops"])
def test_module_that_another_thread_imports_is_not_asked(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Plain()
    function = cached(model.affine, cache)
    expected = function(ROWS).clone()
    partial = ModuleType(name)
    partial.__spec__ = ModuleSpec(name, None)
    partial.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, partial)
    assert torch.equal(function(ROWS), expected)
    assert torch.equal(cached(model.affine, cache)(ROWS), expected)


def test_module_that_another_thread_puts_more_into() -> None:
    module = ModuleType("growing")

    class Grows:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            setattr(module, f"submodule_{len(vars(module))}", 1)
            return int

    vars(module).update(first=Grows(), second=Grows())
    assert patches(module) == []
    assert len(vars(module)) > len(vars(ModuleType("growing"))) + 2


def test_kernels_in_python_that_another_thread_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Name(str):
        __slots__ = ()

        def endswith(self, *ending: Any) -> bool:
            torch.library._impls.add(f"other/{len(torch.library._impls)}/CPU")
            return super().endswith(*ending)

    monkeypatch.setattr(
        torch.library, "_impls", {*torch.library._impls, Name("aten/sin/CPU"), Name("a/b/CPU")}
    )
    assert "sin" in str(ambient("cpu"))


class Meta(type):
    within = False

    def __getattribute__(cls, name: str) -> Any:
        if name == "__module__" and not Meta.within:
            Meta.within = True
            forget_types()
            Meta.within = False
        return super().__getattribute__(name)


class First(metaclass=Meta):
    pass


class Second(metaclass=Meta):
    pass


def test_names_of_classes_that_another_thread_forgets() -> None:
    names = [type_name(First), type_name(Second)]
    forget_types()
    assert [type_name(First), type_name(Second)] == names


def test_section_of_options_that_another_thread_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part[Any]("AclGraph")
    original = importlib.import_module

    def imported_elsewhere(name: str) -> Any:
        monkeypatch.setattr(importlib, "import_module", original)
        assert part.kind is AclGraph
        return original(name)

    monkeypatch.setattr(importlib, "import_module", imported_elsewhere)
    assert part.kind is AclGraph


class Counting(torch.nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * 2


def test_calls_of_several_threads_lose_no_update(cache: Path) -> None:
    model = Counting()
    function = cached(model.forward, cache)
    function(ROWS)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: [function(ROWS) for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert model.count == 401


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_lock_of_a_call_that_another_thread_is_in_is_free_in_a_forked_process() -> None:
    lock, is_held, may_end = call_lock(), threading.Event(), threading.Event()

    def call() -> None:
        with lock:
            is_held.set()
            may_end.wait()

    thread = threading.Thread(target=call)
    thread.start()
    is_held.wait()
    if not (child := os.fork()):
        os._exit(0 if lock.acquire(timeout=5) else 1)
    may_end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
