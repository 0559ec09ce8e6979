"""The environment variables that the worker reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmrank.worker.settings import settings


def test_settings_without_variables_are_the_defaults() -> None:
    found = settings()
    assert (found.cache_home, found.no_compile, found.journal) == (Path(".torchair_cache"), False, None)


def test_cache_home_is_taken_from_torchairs_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHAIR_CACHE_HOME", "/data/cache")
    assert settings().cache_home == Path("/data/cache")


def test_cache_home_that_is_empty_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHAIR_CACHE_HOME", "")
    assert settings().cache_home == Path(".torchair_cache")


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_no_compile_is_on_for_1_only(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("WARMRANK_NO_COMPILE", value)
    assert settings().no_compile is expected


def test_journal_is_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMRANK_JOURNAL", "/run/journal.jsonl")
    assert settings().journal == Path("/run/journal.jsonl")


def test_settings_are_read_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not settings().no_compile
    monkeypatch.setenv("WARMRANK_NO_COMPILE", "1")
    assert settings().no_compile


def test_keyring_lies_below_the_config_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/xdg")
    assert settings().keyring == Path("/etc/xdg/warmrank/keys")


@pytest.mark.parametrize("value", ["", "relative"])
def test_config_home_that_is_not_absolute_counts_as_not_set(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert settings().keyring == Path("/home/somebody/.config/warmrank/keys")
