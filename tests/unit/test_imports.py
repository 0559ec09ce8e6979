"""What an import brings into a process, and what may reach into torch."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import python

TRACERS = {"torch._dynamo", "torch._inductor", "sympy", "ray"}


def imported_by(code: str) -> set[str]:
    """Modules in a fresh process after it ran some code."""
    code += "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    return set(json.loads(python("-c", code).splitlines()[-1]))


FOR_DRIVERS = (
    "worker",
    "warmrank.worker.results",
    "warmrank.worker.errors",
    "warmrank.worker.rank.rank_worker",
    "warmrank.worker.rank.workload",
    "warmrank.worker.keys.request",
)


def test_import_of_what_a_driver_needs_does_not_import_torch() -> None:
    assert "torch" not in imported_by(f"import {', '.join(FOR_DRIVERS)}")


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


@pytest.mark.parametrize(
    ("model", "x"),
    [
        ("Forwards().forward", "torch.ones(2, 4)"),
        ("Plain().affine", "torch.ones(2, 4); warmrank.inference.set_dim_gears(x, {0: [2, 4]})"),
    ],
    ids=["forwarded by Python", "with gears"],
)
def test_load_imports_no_tracer(tmp_path: Path, model: str, x: str) -> None:
    code = (
        f"import torch, warmrank\nx = {x}\n"
        "from tests.support.small_models import Forwards, Plain\n"
        f"cached = warmrank.inference.cache_compile({model}, cache_dir={str(tmp_path)!r})\n"
        "with torch.no_grad(): cached(x)\n"
        "print(cached.last_result.outcome)\n"
    )
    imported_by(code)
    assert not TRACERS & imported_by(f"{code}assert cached.last_result.outcome == 'loaded'")


WORKER = Path(__file__).parents[2] / "worker"
ROOM = WORKER / "torch_private"
BY_TEXT = {"getattr", "hasattr", "setattr", "delattr", "import_module"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_private_path(path: str) -> bool:
    first, *others = path.split(".")
    if first not in ("torch", "torch_npu"):
        return False
    return any(map(is_private, others)) or others[:2] == ["fx", "experimental"]


def imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Local name and path of whatever a statement imports."""
    if isinstance(node, ast.Import):
        for item in node.names:
            yield item.asname or item.name.partition(".")[0], item.name
    elif isinstance(node, ast.ImportFrom):
        for item in node.names:
            yield item.asname or item.name, f"{node.module}.{item.name}"


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute of a name; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    owner = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{owner}.{node.attr}" if owner and isinstance(node, ast.Attribute) else ""


def foreign_attribute(node: ast.AST) -> str:
    """The private attribute that an expression reads of something that is not ``self``, or by its text."""
    if isinstance(node, ast.Attribute) and is_private(node.attr):
        return "" if dotted(node.value) in ("self", "cls") else node.attr
    if not isinstance(node, ast.Call) or dotted(node.func).rpartition(".")[2] not in BY_TEXT:
        return ""
    texts = [item.value for item in node.args if isinstance(item, ast.Constant)]
    return next((text for text in texts if isinstance(text, str) and is_private(text)), "")


def known_in_the_room() -> frozenset[str]:
    """Private attributes of torch's objects: those that the room reads of objects that are not its own."""
    trees = [ast.parse(path.read_text("utf-8")) for path in ROOM.glob("*.py")]
    return frozenset(name for tree in trees for node in ast.walk(tree) if (name := foreign_attribute(node)))


KNOWN = known_in_the_room() - {"_getframe"}  # of Python's own sys


def touches(source: str) -> list[str]:
    """Lines of a module that reach into torch, each with what it reaches for."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {name: path for node in nodes for name, path in imported(node)}
    names |= {name: name for name in names if name in ("torch", "torch_npu")}  # of `import torch.a.b`
    found: list[str] = []
    for node in nodes:
        reached = [path for _, path in imported(node) if is_private_path(path)]
        first, _, rest = dotted(node).partition(".")
        path = f"{names.get(first, '')}.{rest}"
        if isinstance(node, ast.Attribute) and is_private_path(path):
            reached.append(path)
        elif foreign_attribute(node) in KNOWN:
            reached.append(foreign_attribute(node))
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module"):
            texts = (str(item.value) for item in node.args if isinstance(item, ast.Constant))
            reached.extend(text for text in texts if is_private_path(text))
        found.extend(f"line {node.lineno}: {item}" for item in reached if hasattr(node, "lineno"))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "import torch.fx.experimental.symbolic_shapes as shapes",
        "from torch import _C",
        "from torch.utils import _pytree",
        "from torch.utils._device import DeviceContext",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "def inner():\n    from torch._guards import tracing",
        "import torch\ntorch._C._get_mkldnn_enabled()",
        "import torch.distributed as dist\ndist._world",
        "from torch.nn.modules import module as hooks\nhooks._global_forward_hooks",
        "import torch_npu\ntorch_npu._C.anything",
        "names = [item.name for item in node.target._schema.arguments]",
        "hasattr(node.target, '_schema')",
        "importlib.import_module('torch._dynamo')",
    ],
)
def test_reach_into_torch_is_seen(source: str) -> None:
    assert touches(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.nn.Module.__call__",
        "from torch.fx import Node",
        "from warmrank.worker.torch_private import warm\nwarm.mkldnn_enabled()",
        "self._schema = 1",
        "PREFIXES = ('torch._dynamo', 'torch.fx.experimental')",
    ],
)
def test_public_names_and_mere_text_are_let_through(source: str) -> None:
    assert touches(source) == []


@pytest.mark.parametrize(
    "path",
    sorted(path for path in WORKER.rglob("*.py") if path.parent != ROOM),
    ids=lambda path: str(path.relative_to(WORKER)),
)
def test_module_reaches_into_torch_through_the_room_only(path: Path) -> None:
    assert touches(path.read_text("utf-8")) == []
