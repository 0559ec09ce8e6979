from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sealed_launches import Evicting


@pytest.fixture
def memory(tmp_path: Path) -> Evicting:
    return Evicting(tmp_path)


def test_pin_is_listed_with_its_reason_and_removed_again(memory):
    record = memory.launch()
    prefix = record.rpartition("/")[2][:12]
    memory.store.pin(prefix, reason="baseline")
    assert [(pin.record, pin.reason) for pin in memory.store.pins()] == [(record, "baseline")]
    assert memory.store.unpin(prefix) == (record,)
    assert memory.store.pins() == ()


def test_launch_key_pins_all_its_records(memory):
    records = {memory.launch(), memory.launch()}
    memory.store.pin(next(iter(records)).split("/")[2])
    assert {pin.record for pin in memory.store.pins()} == records
