"""The package as a whole: its public names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.stored import REPOSITORY
from warmrank import cache_store

HEAVY = {"pydantic", "cryptography", "filelock", "torch", "ray", "ctypes", "asyncio"}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    return set(
        subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize("name", cache_store.__all__)
def test_public_name_is_there(name):
    assert getattr(cache_store, name).__module__.startswith(("warmrank.cache_store", "typing"))


def test_public_names_are_listed():
    assert set(cache_store.__all__) <= set(dir(cache_store))


def test_public_names_are_those_that_load_lazily():
    assert set(cache_store._MODULE_OF) == set(cache_store.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'stroe'"):
        _ = cache_store.stroe


def test_warm_load_imports_the_standard_library_only():
    statement = (
        "from warmrank.cache_store import digests, errors, keys\nfrom warmrank.cache_store.node import local"
    )
    assert loaded_by(statement) & HEAVY == set()


def test_whole_package_imports_neither_torch_nor_ray():
    assert (
        loaded_by("import warmrank.cache_store.seed, warmrank.cache_store.store") & {"torch", "ray"} == set()
    )
