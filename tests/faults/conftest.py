"""Fixtures for tests of faults."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import Rooms

_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory below it is made by tempfile
_ENOUGH_BYTES = 4 << 30


@pytest.fixture
def rooms(tmp_path: Path) -> Iterator[Rooms]:
    """Rooms in memory where there is enough: these faults do not come from the disk, which costs time."""
    enough = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES
    root = Path(tempfile.mkdtemp(prefix="warmrank-faults-", dir=_MEMORY if enough else tmp_path))
    yield Rooms(root / "room")
    shutil.rmtree(root)


@pytest.fixture
def room(rooms: Rooms) -> Path:
    """One empty directory, as `rooms` makes them."""
    return rooms.fresh()
