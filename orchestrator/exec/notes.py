"""Notes that the hosts of one run leave for each other in a store.

A note is a pushed directory with one file, so it is signed as others are, and no evict keeps it as the newest
of its key.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.errors import NotInStore
from warmrank.cache_store.records.manifest import OF_ONE_RUN

if TYPE_CHECKING:
    from warmrank.cache_store.store import Store

_TOOL, _FILE = "exec-world", "partitions.json"


def exchange(store: Store, run: Mapping[str, str], host: str, hosts: Iterable[str], note: str) -> list[str]:
    """Leave the note of ``host``, and return the notes of those ``hosts`` that left one.

    ``run`` has the run's name as `OF_ONE_RUN`, and whatever else must be equal on all hosts.

    Raises:
        NotInStore: a note is there and cannot be used; says why.
        StoreError: the store cannot be written or read.
    """
    assert OF_ONE_RUN in run  # noqa: S101 - else the notes stay for ever
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="warmrank-") as directory:
        own = Path(directory, "own")
        own.mkdir(mode=0o700)
        (own / _FILE).write_text(note)
        (own / _FILE).chmod(0o600)
        store.push_directory(_TOOL, own, {**run, "node": host})
        for name in hosts:
            try:
                store.pull_directory(_TOOL, Path(directory, name), {**run, "node": name})
            except NotInStore as miss:
                if miss.refused:
                    remedy = "; ".join(miss.refused)
                    raise miss.but(what=f"a usable note of host {name}", remedy=remedy) from miss
            else:
                found.append(Path(directory, name, _FILE).read_text())
    return found
