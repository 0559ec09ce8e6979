"""Facts about torch: all are declared, one that does not hold is an error that names it, new torches warn."""

from __future__ import annotations

import ast
import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import cached
from warmrank.worker.errors import TorchUnsupported
from warmrank.worker.torch_private import facts
from warmrank.worker.torch_private.patching import Watch

ROOM = Path(facts.__file__).parent


@pytest.fixture(autouse=True)
def nothing_was_checked() -> Iterator[None]:
    facts._require.cache_clear()
    yield
    facts._require.cache_clear()


class Scaled(nn.Module):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.scale = scale

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    def triple(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


def declared(name: str) -> dict[str, str]:
    module = importlib.import_module(f"warmrank.worker.torch_private.{name}")
    found: dict[str, str] = {}
    for owner, names in facts.declared(module):
        found[owner] = " ".join((found.get(owner, ""), *names))
    return found


def lazily(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when a function is called; all others run, and fail, when the module is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from ast.walk(node)


def relied_on(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Private modules of torch, each with a name taken of it; and ``replaced`` with what is replaced."""
    for node in lazily(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("torch._", "torch.fx.exp")):
            yield from ((node.module or "", item.name) for item in node.names)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("replaced", "Hook"):
            literals = (item.value for item in node.args if isinstance(item, ast.Constant))
            yield from (("replaced", str(name)) for name in literals)


def asked_for(tree: ast.AST) -> set[str]:
    """Names that a module itself asks for, because not every release has them."""
    return {
        str(argument.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "hasattr"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_module_relies_on_is_declared(path: Path) -> None:
    known = declared(path.stem)
    modules = {owner.partition(":")[0] for owner in known}
    names = {name for names in known.values() for name in names.replace("(", " ").split()}
    owners = {owner.partition(":")[2].removesuffix("()") for owner in known}
    tree = ast.parse(path.read_text("utf-8"))
    for module, name in relied_on(tree):
        assert module == "replaced" or module in modules or f"{module}.{name}" in modules, (module, name)
        assert (
            name in names | owners | asked_for(tree) or f"{module}.{name}" in modules or name == "__init__"
        ), (module, name)


@pytest.mark.parametrize("group", facts.GROUPS)
def test_facts_hold_here(group: str) -> None:
    assert [fact for fact in facts.examined(group) if fact.instead] == []


def test_fact_that_does_not_hold_is_named_before_anything_is_traced(monkeypatch, tmp_path):
    from torch._dynamo.side_effects import SideEffects

    monkeypatch.delattr(SideEffects, "codegen_update_mutated")
    with pytest.raises(TorchUnsupported, match="no codegen_update_mutated") as caught:
        cached(Scaled().scaled, tmp_path)(torch.ones(3))
    assert caught.value.torch == torch.__version__
    assert caught.value.works == "2.11 to 2.15"
    assert torch.__version__ in str(caught.value)
    assert "torch 2.11 to 2.15" in str(caught.value)


def test_newer_torch_compiles_with_one_warning(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.99.0.dev20300101"))
    model, x = Scaled(), torch.ones(3)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(cached(model.scaled, tmp_path)(x), x * 2)
        assert torch.equal(cached(model.triple, tmp_path)(x), x * 3)
    warnings = [record.getMessage() for record in caplog.records]
    assert [text for text in warnings if "2.99.0" in text] == warnings
    assert len(warnings) == 1


def test_newer_torch_that_traces_otherwise_is_refused(monkeypatch, tmp_path):
    from torch._subclasses.meta_utils import MetaTensorDescriber

    from warmrank.worker.torch_private import trial

    def whatever(self: object, tensor: torch.Tensor, **options: object) -> None:
        raise NotImplementedError

    trial._traced.cache_clear()
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.99.0"))
    monkeypatch.setattr(MetaTensorDescriber, "describe_tensor", whatever)
    with pytest.raises(TorchUnsupported, match="a method is traced without being run"):
        cached(Scaled().scaled, tmp_path)(torch.ones(3))
    trial._traced.cache_clear()


class Names(Watch):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen.append(str(func))
        return func(*args, **kwargs)
