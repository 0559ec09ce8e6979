"""The package as a whole: what importing it costs."""

from __future__ import annotations

import subprocess
import sys

from tests.support.stored import REPOSITORY

HEAVY = {"pydantic", "cryptography", "filelock", "torch", "ray", "ctypes", "asyncio"}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    return set(
        subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    )


def test_warm_load_imports_the_standard_library_only():
    statement = "from warmrank.cache_store.cache_dir import marks, names"
    assert loaded_by(statement) & HEAVY == set()


def test_whole_package_imports_neither_torch_nor_ray():
    assert (
        loaded_by("import warmrank.cache_store.seed, warmrank.cache_store.store") & {"torch", "ray"} == set()
    )
