"""Variables set for a while."""

from __future__ import annotations

import os

import pytest

from warmrank.orchestrator.gang.ray_session import inherited

NAME = "WARMRANK_TEST_VARIABLE"


@pytest.mark.parametrize("before", [None, "old"])
def test_variable_is_set_inside_and_as_before_outside(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    with inherited(NAME, "new"):
        assert os.environ[NAME] == "new"
    assert os.environ.get(NAME) == before


def test_variable_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    with pytest.raises(KeyError), inherited(NAME, "new"):
        raise KeyError
    assert NAME not in os.environ
