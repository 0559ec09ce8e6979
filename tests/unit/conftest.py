"""Keeps tests apart: switches of torch and variables that a test may change, and a developer may have set."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from warmrank.cache_store.store import Store

if TYPE_CHECKING:
    from tests.support.backends import NearAndFar
    from tests.support.sealed_launches import Evicting

_VARIABLES = (
    "TORCHAIR_CACHE_HOME", "WARMRANK_NO_COMPILE", "WARMRANK_JOURNAL",
    "ASCEND_RT_VISIBLE_DEVICES", "HCCL_OP_EXPANSION_MODE", "RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        if name in os.environ:
            monkeypatch.delenv(name)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Nothing that ``torch.compile`` keeps in the process, before the test and after it."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def forget_modules() -> Iterator[None]:
    """Takes modules that a test imported out of ``sys.modules`` again."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            if name.startswith("made_"):
                del sys.modules[name]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache directory that is not there yet."""
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Another cache directory that is not there yet, from which a test publishes."""
    return tmp_path / "source"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store's directory that is not there yet."""
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Store:
    """An empty store in `root`, where nothing is signed."""
    from tests.support.stored import open_store

    return open_store(root)


@pytest.fixture(scope="session")
def compiled_affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that holds `Plain.affine`, compiled once for all tests."""
    import torch

    from tests.support.small_models import Plain
    from tests.support.tracing import warm

    root = tmp_path_factory.mktemp("compiled") / "cache"
    with torch.no_grad():
        warm(Plain().affine, root)
    return root


@pytest.fixture
def affine_artifact(compiled_affine: Path, cache: Path) -> Path:
    """The artifact of `Plain.affine` in this test's own cache directory."""
    shutil.copytree(compiled_affine, cache)
    return next(cache.rglob("compiled_module"))


@pytest.fixture
def memory(tmp_path: Path) -> Evicting:
    """A store in memory, with a clock of its own."""
    from tests.support.sealed_launches import Evicting

    return Evicting(tmp_path)


@pytest.fixture
def places() -> NearAndFar:
    """A near and a far place of a store, in memory."""
    from tests.support.backends import NearAndFar

    return NearAndFar()


@pytest.fixture
def own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's keyring, in which there is nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "warmrank" / "keys"


@pytest.fixture
def heeds_signals() -> Iterator[None]:
    """A shell's background, or nohup, ignores one of these, and so do the tests that run there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hang_up_before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hang_up_before)


@pytest.fixture
def mark() -> str:
    """What all that a test starts has in its environment."""
    return uuid.uuid4().hex
