"""Facts about torch are declared, and named where they do not hold; what an import brings into a process."""

from __future__ import annotations

import ast
import importlib
import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from inspect import Signature, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.checkout import python
from tests.support.tracing import cached
from warmrank.worker.errors import TorchUnsupported
from warmrank.worker.torch_private import facts
from warmrank.worker.torch_private.patching import targets_of

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
    facts_of_module = (*facts.imported(path.stem), *facts.replaced_by(module), *facts.declared("compile"))
    known = {(owner, name.partition("(")[0]) for owner, names in facts_of_module for name in names}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("torch._", "torch.fx.exp")):
            assert {(node.module, item.name) for item in node.names} <= known
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "replaced":
            literals = {item.value for item in node.args[:2] if isinstance(item, ast.Constant)}
            assert literals <= {name for _, name in known}


@pytest.mark.parametrize("group", facts.GROUPS)
def test_facts_hold_here(group: str) -> None:
    assert [fact for fact in facts.examined(group) if fact.instead] == []


def functions_stepped_in(module: ModuleType) -> Iterator[tuple[Signature, Signature]]:
    """Signatures of the steps of a module, and of the functions of torch that each is called for."""
    for kind in (value for value in vars(module).values() if isinstance(value, type)):
        for step in vars(kind).values():
            for owner, name in (place for target in targets_of(step) for place in target.places()):
                original: Any = (owner if isinstance(owner, dict) else vars(owner))[name]
                with suppress(ValueError):  # of C
                    yield signature(step), signature(getattr(original, "__func__", original))


@pytest.mark.filterwarnings("ignore:.*script_method. is deprecated")  # Inductor's import, if it is the first
@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_step_takes_every_argument_that_torch_passes_by_name_alone(path: Path) -> None:
    module = importlib.import_module(f"warmrank.worker.torch_private.{path.stem}")
    for step, original in functions_stepped_in(module):
        named = [each.name for each in original.parameters.values() if each.kind is each.KEYWORD_ONLY]
        step.bind_partial(**dict.fromkeys(named))


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

    def whatever(self: object, tensor: torch.Tensor, **options: object) -> None:
        raise NotImplementedError

    facts._trial.cache_clear()
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.99.0"))
    monkeypatch.setattr(MetaTensorDescriber, "describe_tensor", whatever)
    with pytest.raises(TorchUnsupported, match="a method is traced without being run"):
        cached(Scaled().scaled, tmp_path)(torch.ones(3))
    facts._trial.cache_clear()


TRACERS = {"torch._dynamo", "torch._inductor", "sympy", "ray"}


def imported_by(code: str) -> set[str]:
    """Modules in a fresh process after it ran some code."""
    code += "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    return set(json.loads(python("-c", code).splitlines()[-1]))


FOR_DRIVERS = (
    "worker", "warmrank.worker.results", "warmrank.worker.errors", "warmrank.worker.rank.rank_worker",
    "warmrank.worker.rank.workload", "warmrank.worker.keys.request", "warmrank.orchestrator.config.reading",
    "warmrank.orchestrator.launch.driver", "warmrank.orchestrator.inspect.doctor",
)  # fmt: skip


def test_import_of_what_a_driver_needs_imports_neither_torch_nor_ray() -> None:
    assert not {"torch", "ray"} & imported_by(f"import {', '.join(FOR_DRIVERS)}")


def test_surface_and_a_cached_function_do_not_import_a_tracer() -> None:
    found = imported_by(
        "import warmrank\nfor name in dir(warmrank): getattr(warmrank, name)\n"
        "from tests.support.small_models import Plain\n"
        "from warmrank.inference import cache_compile\n"
        "cache_compile(Plain().affine).request()\n"
    )
    assert {"torch", "warmrank.inference"} <= found
    assert not TRACERS & found
    assert not any(name.startswith("warmrank.worker.compile.") for name in found)


MAX_MODULES_OF_A_HIT = 41


def test_warm_first_call_imports_what_a_hit_needs(tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "from tests.support.small_models import Plain\n"
        "from warmrank.inference import cache_compile\n"
        f"cached = cache_compile(Plain().affine, cache_dir={str(tmp_path)!r})\n"
        "with torch.no_grad(): cached(torch.ones(2, 4))\n"
    )
    imported_by(code)
    found = {name for name in imported_by(code) if name.partition(".")[0] == "warmrank"}
    assert len(found) <= MAX_MODULES_OF_A_HIT, sorted(found)


def test_load_of_gears_imports_no_tracer(tmp_path: Path) -> None:
    code = (
        "import torch, warmrank\nx = torch.ones(2, 4)\n"
        "warmrank.inference.set_dim_gears(x, {0: [2, 4]})\n"
        "from tests.support.small_models import Plain\n"
        f"cached = warmrank.inference.cache_compile(Plain().affine, cache_dir={str(tmp_path)!r})\n"
        "with torch.no_grad(): cached(x)\n"
        "print(cached.last_result.outcome)\n"
    )
    imported_by(code)
    assert not TRACERS & imported_by(f"{code}assert cached.last_result.outcome == 'loaded'")


WORKER = Path(__file__).parents[2] / "worker"
# What the linter, which forbids private modules and attributes of torch, does not see.
BY_TEXT = re.compile(
    r"""(?:[gs]et|has|del)attr\([^()]*["']_(?!fields|dynamo_static)[a-z]|import_module\(["']torch[\w.]*\._"""
)


def test_private_parts_of_torch_are_reached_by_text_in_one_room_only() -> None:
    others = [path for path in WORKER.rglob("*.py") if path.parent != WORKER / "torch_private"]
    found = {path.name: BY_TEXT.findall(path.read_text("utf-8")) for path in others}
    assert {name: texts for name, texts in found.items() if texts} == {}
