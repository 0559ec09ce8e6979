"""The print of a trace: what differs, in words; and what two engines' artifacts have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.rank.audit import TracePrint, first_difference, print_of
from warmrank.worker.runtime.files import release
from warmrank.worker.runtime.find import StoredArtifact
from warmrank.worker.runtime.function import CachedFunction


class Sliced(torch.nn.Module):
    def __init__(self, size: int, name: str = "") -> None:
        super().__init__()
        self.size, self.name = size, name

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return x[: self.size] * 2 if not self.name else x + 1


def outlined(cache: Path, *, size: int = 2, name: str = "", rows: int = 4, **options: Any) -> TracePrint:
    function = cache_compile(Sliced(size, name).head, cache_dir=str(cache), **options)
    assert isinstance(function, CachedFunction)
    return print_of(function.outline((torch.ones(rows),), {}))


def test_outline_is_what_a_compile_traces(tmp_path: Path) -> None:
    function = cache_compile(Sliced(2).head, cache_dir=str(tmp_path))
    variant = function.compile((torch.ones(4),), {}, reason="")
    assert print_of(variant.stored.artifact) == outlined(tmp_path)
    assert print_of(StoredArtifact.read(variant.stored.path).artifact) == outlined(tmp_path)


@pytest.mark.slow  # it calls the C++ compiler
@pytest.mark.parametrize("dynamic", [True, False])
def test_outline_is_what_a_compile_with_kernels_traces(tmp_path: Path, dynamic: bool) -> None:
    config = CompilerConfig()
    config.mode = "max-autotune"
    function = cache_compile(Sliced(2).head, cache_dir=str(tmp_path), config=config, dynamic=dynamic)
    variant = function.compile((torch.ones(4),), {}, reason="")
    outline = outlined(tmp_path, config=config, dynamic=dynamic)
    assert first_difference(print_of(variant.stored.artifact), outline) == ""


@pytest.mark.parametrize("dynamic", [True, False])
def test_outline_makes_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    config = CompilerConfig()
    config.mode = "max-autotune"
    monkeypatch.setenv("PATH", "")  # so that there is no compiler
    found = outlined(tmp_path, config=config, dynamic=dynamic)
    assert any("mul" in line for line in found.parts["graph"])


def test_sizes_of_the_very_call_are_no_part_of_a_dynamic_outline_with_kernels(tmp_path: Path) -> None:
    config = CompilerConfig()
    config.mode = "max-autotune"
    four, five = (outlined(tmp_path, config=config, dynamic=True, rows=rows) for rows in (4, 5))
    assert first_difference(four, five) == ""


def test_difference_of_graphs_names_line_and_source(tmp_path: Path) -> None:
    difference = first_difference(outlined(tmp_path), outlined(tmp_path, size=3))
    assert difference.startswith("graph ")
    assert "0, 2)" in difference
    assert "0, 3)" in difference
    assert "Sliced.head: return x[: self.size] * 2" in difference


def test_withheld_artifact_is_its_own_partitions_alone(tmp_path: Path) -> None:
    from warmrank.worker.runtime.options import LaunchDefaults, launch_scope

    def found(rank: int) -> str:
        with launch_scope.of(LaunchDefaults(place=(rank, 2))):
            function = cache_compile(Sliced(2).head, cache_dir=str(tmp_path))
            if rank == 0 and not list(tmp_path.rglob("compiled_module")):
                function.compile((torch.ones(4),), {}, reason="", withheld=True)
            found = function.find((torch.ones(4),), {})
        return found.reason if found.stored is None else "own" if found.own else "sibling's"

    assert found(0) == "own"
    assert "has not compared it" in found(1)
    (path,) = tmp_path.rglob(".withheld_*")
    release(path.parent, path.name.removeprefix(".withheld_"))
    assert found(1) == "sibling's"
