"""Facts about torch: all are declared, one that does not hold is an error that names it, new torches warn."""

from __future__ import annotations

import ast
import importlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.tracing import cached
from warmrank.worker.errors import TorchUnsupported
from warmrank.worker.torch_private import facts

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


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_module_imports_or_replaces_is_a_fact(path: Path) -> None:
    module = importlib.import_module(f"warmrank.worker.torch_private.{path.stem}")
    facts_of_module = (*facts.imported(path.stem), *facts.declared(module))
    known = {(owner, name.partition("(")[0]) for owner, names in facts_of_module for name in names}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("torch._", "torch.fx.exp")):
            assert {(node.module, item.name) for item in node.names} <= known
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("replaced", "Hook"):
            literals = {item.value for item in node.args if isinstance(item, ast.Constant)}
            assert literals <= {name for _, name in known}


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
