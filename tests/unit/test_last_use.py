from __future__ import annotations

from datetime import date

import pytest

from tests.support.backends import MemoryBackend
from tests.support.stored import OFF, open_store, publish_launch
from warmrank.cache_store.connect import TierSpec
from warmrank.cache_store.connect import open_store as open_tiers
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.gc.trash import last_uses, mark_used
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


def test_newest_mark_counts_whatever_day_it_names(backend):
    mark_used(backend, RECORD, today=TUESDAY)
    backend.now_s += 10
    mark_used(backend, RECORD, today=MONDAY)  # by a node whose clock is off
    assert last_uses(backend.list("used/"))[RECORD].name == used_name(RECORD, "2026-02-02")


def test_use_of_a_store_that_is_only_read_is_a_problem_once(root, tmp_path):
    publish_launch(open_store(root), tmp_path / "cache")
    reader = open_tiers([TierSpec(location=str(root), mode="ro")], trust=OFF)
    for _ in range(2):
        reader.mark_used(reader.stored_launches()[0].name)
    (problem,) = reader.problems
    assert "use not noted" in problem
    assert "read-only" in problem
