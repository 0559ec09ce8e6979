"""The environment variables that the worker reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmrank.worker.settings import settings


def test_cache_home_is_taken_from_torchairs_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHAIR_CACHE_HOME", "/data/cache")
    assert settings().cache_home == Path("/data/cache")


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_no_compile_is_on_for_1_only(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("WARMRANK_NO_COMPILE", value)
    assert settings().no_compile is expected
