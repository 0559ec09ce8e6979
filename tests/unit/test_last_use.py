from __future__ import annotations

from datetime import date

import pytest

from tests.support.backends import MemoryBackend
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.gc.trash import mark_used
from warmrank.cache_store.layout import launch_name, used_name

RECORD = launch_name("1" * 64, "2" * 64)
MONDAY, TUESDAY = date(2026, 2, 2), date(2026, 2, 3)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


def marks(backend: MemoryBackend) -> list[str]:
    return sorted(info.name for info in backend.list("used/"))


def test_use_leaves_one_mark_a_day(backend):
    for day in (MONDAY, MONDAY, TUESDAY):
        assert mark_used(backend, RECORD, today=day) == ""
    assert marks(backend) == [used_name(RECORD, "2026-02-02"), used_name(RECORD, "2026-02-03")]


@pytest.mark.parametrize("call", ["stat", "put_new"])
def test_store_that_fails_is_no_error(backend, monkeypatch, call):
    def fail(_: object) -> None:
        raise StoreUnavailable(what="mark", where="memory", reason="Read-only file system")

    monkeypatch.setattr(backend, call, fail)
    reason = mark_used(backend, RECORD, today=MONDAY)
    monkeypatch.undo()
    assert marks(backend) == []
    assert "Read-only file system" in reason
    assert "`warmrank store pin`" in reason
