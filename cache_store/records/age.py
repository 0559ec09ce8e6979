"""Which of several records is the newest: by the store's clock, because those of nodes may be off.

Invariants: pure functions; a record's own date only decides between two that the store's clock does not tell
apart (an object store's has whole seconds).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from warmrank.cache_store.backends.backend import FileInfo

MAX_AHEAD_S = 60.0
"""By so much may a record's own date be later than the store's, before it is said."""

Age = tuple[float, float, str]


def age(info: FileInfo, created_s: float) -> Age:
    """Sorts records, the newest first, by when the store got them.

    Args:
        info: of the record, in the store.
        created_s: the record's own date, in seconds since the epoch.
    """
    return -info.written_s, -created_s, info.name


def seconds_of(created: str) -> float:
    """A document's own date in seconds since the epoch."""
    return datetime.fromisoformat(created).timestamp()


def dated_ahead(infos: Mapping[str, FileInfo], created_s: Mapping[str, float]) -> tuple[str, ...]:
    """One line if records, by name, are dated later than the store got them; none otherwise."""
    ahead = {name: date - infos[name].written_s for name, date in created_s.items() if name in infos}
    wrong = sorted((seconds, name) for name, seconds in ahead.items() if seconds > MAX_AHEAD_S)
    if not wrong:
        return ()
    seconds, name = wrong[-1]
    records = f"{len(wrong)} records are" if len(wrong) > 1 else "a record is"
    how_far = timedelta(seconds=round(seconds))
    line = (
        f"{records} dated in the future, by up to {how_far} ({name}): the clock of the node that made it "
        "is off; set it. What is newest is told by the store's own"
    )
    return (line,)
