"""What an evict does with listings of other tools' directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sealed_launches import DAY_S, SHARED, Evicting, at_step, put
from warmrank.cache_store.errors import EvictRefused
from warmrank.cache_store.steps import Step


@pytest.fixture
def memory(tmp_path: Path) -> Evicting:
    return Evicting(tmp_path)


def pushed(memory: Evicting, root: Path, data: bytes, *, model: str = "8b") -> str:
    """Push a directory of another tool; its listing's name."""
    before = memory.names("dir/")
    root.mkdir(exist_ok=True, mode=0o700)
    (root / "kernel").write_bytes(data)
    memory.store.push_directory("mine", root, {"model": model})
    (new,) = memory.names("dir/") - before
    return new


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return tmp_path / "tool"


def test_old_listing_goes_with_what_only_it_needs(memory, tool):
    memory.launch()
    pushed(memory, tool, b"first")
    newest = pushed(memory, tool, b"second")
    memory.pass_time(30 * DAY_S)
    report = memory.evict(older_than_s=7 * DAY_S)
    assert [choice.kind for choice in report.taken] == ["record", "blob"]
    assert memory.names("dir/") == {newest}
    assert (memory.has(b"first"), memory.has(b"second"), memory.has(SHARED)) == (False, True, True)


def test_pinned_listing_stays_with_its_blobs(memory, tool):
    old, new = pushed(memory, tool, b"first"), pushed(memory, tool, b"second")
    memory.store.pin(old.rpartition("/")[2])
    memory.pass_time(30 * DAY_S)
    memory.evict(older_than_s=DAY_S)
    assert memory.names("dir/") == {old, new}
    assert memory.has(b"first")


def test_push_while_its_blob_goes_leaves_a_whole_listing(memory, tool, monkeypatch):
    memory.launch()
    pushed(memory, tool, b"first")
    pushed(memory, tool, b"second")
    memory.pass_time(30 * DAY_S)
    # A third push of the first bytes finds their blob, and writes its listing while an evict takes it.
    at_step(monkeypatch, Step.EVICT_MARKED, lambda: pushed(memory, tool, b"first"))
    memory.evict(older_than_s=7 * DAY_S)
    assert memory.has(b"first")
    assert memory.store.verify().faults == ()


def test_damaged_listing_is_refused_with_the_remedy(memory, tool):
    name = pushed(memory, tool, b"first")
    memory.backend.move(name, None)
    put(memory, name, b"damaged")
    with pytest.raises(EvictRefused, match="verify --repair"):
        memory.evict()
