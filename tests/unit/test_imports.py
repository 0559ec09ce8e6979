"""What an import brings into a process, and what may reach into torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

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
