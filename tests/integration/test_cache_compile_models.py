"""Every module of `tests/support/zoo`: compiled in one process, loaded in the next, always equal to eager.

Two cold processes have different hash seeds and caches; their artifacts must be equal byte for byte. Each
process runs the modules that the session asks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import printed_by, selected
from tests.support.zoo import memory, programs  # noqa: F401 - fill the zoo, with what they import
from tests.support.zoo.case import CASES, REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one process found: modules that it imported and should not, and results by name of the case."""

    imported: list[str]
    found: Mapping[str, Mapping[str, Any]]


def run(cache: Path, *arguments: str, hash_seed: int) -> Ran:
    printed = printed_by("tests.support.zoo_child", str(cache), *arguments, PYTHONHASHSEED=str(hash_seed))
    return Ran(**json.loads(printed))


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("zoo")
    return root / "one", root / "other"


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> list[str]:
    """The modules that this session runs, as arguments of a child."""
    chosen = selected(request, "name", "compared")
    return [f"only={name}" for name in (*CASES, *REFUSED) if name in chosen]


@pytest.fixture(scope="module")
def cold(caches: tuple[Path, Path], asked: list[str]) -> Ran:
    return run(caches[0], *asked, hash_seed=1)


@pytest.fixture(scope="module")
def cold_elsewhere(request: pytest.FixtureRequest, caches: tuple[Path, Path]) -> Ran:
    """The modules that this session compares, compiled by another process."""
    chosen = selected(request, "compared")
    ran = run(caches[1], *(f"only={name}" for name in CASES if name in chosen), hash_seed=2)
    assert ran.found.keys() == chosen
    return ran


@pytest.fixture(scope="module")
def warm(caches: tuple[Path, Path], cold: Ran, asked: list[str]) -> Ran:
    kept = [name for name in asked if name.removeprefix("only=") in CASES]
    return run(caches[0], "captured", *kept, hash_seed=3)


@pytest.mark.one_in(24)
@pytest.mark.parametrize("name", CASES)
def test_cold_calls_equal_eagers(name: str, cold: Ran) -> None:
    found = cold.found[name]
    assert [fault for fault in found["faults"] if fault] == []
    assert tuple(found["outcomes"]) == CASES[name].cold, found["reason"]


@pytest.mark.one_in(24)
@pytest.mark.parametrize("name", CASES)
def test_warm_calls_load_and_equal_eagers(name: str, warm: Ran) -> None:
    found = warm.found[name]
    assert [fault for fault in found["faults"] if fault] == []
    assert tuple(found["outcomes"]) == CASES[name].warm, found["reason"]


def test_warm_process_imports_no_tracer(warm: Ran) -> None:
    assert warm.imported == []


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_is_refused(name: str, cold: Ran) -> None:
    assert tuple(cold.found[name]["outcomes"]) == REFUSED[name].cold


@pytest.mark.slow
@pytest.mark.usefixtures("cold", "cold_elsewhere")
@pytest.mark.parametrize("compared", CASES)
def test_artifacts_of_two_processes_are_equal_bytes(compared: str, caches: tuple[Path, Path]) -> None:
    one, other = (
        {file.relative_to(cache): file.read_bytes() for file in artifacts(cache / compared)}
        for cache in caches
    )
    assert len(one) == CASES[compared].cold.count("compiled")
    assert one == other


def artifacts(cache: Path) -> list[Path]:
    return sorted(cache.rglob("compiled_module*"))
