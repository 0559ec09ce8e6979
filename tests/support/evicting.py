"""Stores in memory, with a clock that tests move, for everything about eviction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.memory_backend import MemoryBackend
from tests.support.stored import ENVIRONMENT, LAUNCH_KEY, OFF, make_partition, make_record
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.gc import evict as evicting
from warmrank.cache_store.gc.evict import EvictReport, evict
from warmrank.cache_store.gc.evict_plan import EvictPolicy
from warmrank.cache_store.keys import key_of
from warmrank.cache_store.layout import launch_name
from warmrank.cache_store.records.manifest import LaunchRecord
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.steps import Step
from warmrank.cache_store.store import Store

GRACE_S = 3600.0
DAY_S = 86400.0
SHARED = b"def shared(): ...\n"


class Evicting:
    """One store in memory and what tests do with it."""

    def __init__(self, work: Path, trust: Trust = OFF) -> None:
        self.backend = MemoryBackend()
        self.store = Store(self.backend, trust=trust, location="memory")
        self._work = work
        self._num_launches = 0
        self._num_records = 0

    def launch(
        self,
        *,
        key: str = LAUNCH_KEY,
        own: bytes | None = None,
        environment: Mapping[str, str] = ENVIRONMENT,
    ) -> str:
        """Commit a launch with a function of its own and one that all share; its record's name."""
        self._num_launches += 1
        number = self._num_launches
        functions = {"Llama.own": own or f"own {number}".encode(), "Llama.shared": SHARED}
        return self.commit(self.publish(functions, number, key=key, environment=environment))

    def publish(
        self,
        functions: Mapping[str, bytes],
        number: int,
        *,
        key: str = LAUNCH_KEY,
        environment: Mapping[str, str] = ENVIRONMENT,
    ) -> LaunchRecord:
        root = self._work / f"cache{number}"
        manifest = make_partition(root, functions=functions, environment=environment)
        partition_key = key_of({"launch": key, "number": str(number)})
        ref = self.store.publish_partition(partition_key, manifest, root).ref
        self._num_records += 1
        created = datetime.fromtimestamp(1e9 + self._num_records, UTC).isoformat()
        return make_record((ref,), launch_key=key, environment=environment, created=created)

    def commit(self, record: LaunchRecord) -> str:
        return launch_name(record.launch_key, self.store.commit_launch(record))

    def evict(self, *, dry_run: bool = False, **policy: float | bool | None) -> EvictReport:
        rules = EvictPolicy(**{"grace_s": GRACE_S, **policy})  # type: ignore[arg-type]
        return evict(
            self.backend,
            rules,
            trust=self.store._trust,
            location="memory",
            dry_run=dry_run,
            clock=lambda: self.backend.now_s,
        )

    def pass_time(self, seconds: float) -> None:
        self.backend.now_s += seconds

    def names(self, prefix: str) -> set[str]:
        return {info.name for info in self.backend.list(prefix)}

    def has(self, data: bytes) -> bool:
        return any(name.endswith(digest_bytes(data).sha256) for name in self.names("cas/"))


def put(memory: Evicting, name: str, data: bytes = b"x") -> None:
    memory.backend.put_new([NewFile(name=name, source=data, expected=digest_bytes(data))])


def at_step(
    monkeypatch: pytest.MonkeyPatch, step: Step, act: Callable[[], object], *, of: object = evicting
) -> None:
    """Do something else at the first time that an evict, or the code of another module, reaches a step."""
    done: list[Step] = []

    def reached(now: Step) -> None:
        if now == step and not done:
            done.append(now)
            act()

    monkeypatch.setattr(of, "reached", reached)
