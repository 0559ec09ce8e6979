"""Looks at the store of a config, as a launch would use it. Input only.

What is put there for a try is removed again.

No place is waited for longer than a launch would: its ``answer_s``, and the second that finds it out.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from warmrank.cache_store import connect
from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.layout import FORMAT_FILE, TMP, TOP_LEVEL
from warmrank.cache_store.node.private_files import temporary_name
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest
from warmrank.cache_store.store import Store
from warmrank.orchestrator.bounded import all_within
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.store import StoreConfig, TierConfig, is_url
from warmrank.orchestrator.doctor.clocks import Clock
from warmrank.orchestrator.doctor.look_disk import nearest
from warmrank.orchestrator.doctor.store import Keys, Place
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.store import stores

MAX_RANKS_SUMMED = 16
"""Ranks of a node at most, as on the largest nodes; so many partitions are what a node needs room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What the store holds of this config's launch.

    Attributes:
        needed_bytes: size of the newest launch's partitions, of `MAX_RANKS_SUMMED` ranks at most; 0 for none.
        newest_ahead_s: how far the newest record lies in the future; None where there is none.
        num_captures: function -> graphs of it that the newest launch captured on its first rank.
    """

    needed_bytes: int = 0
    newest_ahead_s: float | None = None
    num_captures: Mapping[str, int] = field(default_factory=dict)


def look_at_places(config: StoreConfig) -> tuple[tuple[Place, ...], tuple[Clock, ...]]:
    """Every place of the store, side by side, and the clocks of those that were written."""
    patience_s = max(tier.answer_s for tier in config.tiers) + 1.0
    found = all_within([partial(_look_at, tier) for tier in config.tiers], timeout_s=patience_s)
    pairs = [pair or (_silent(tier), ()) for tier, pair in zip(config.tiers, found, strict=True)]
    return tuple(place for place, _ in pairs), tuple(clock for _, clocks in pairs for clock in clocks)


def look_at_keys(config: StoreConfig) -> Keys:
    """The keys that the config names, read as a launch would."""
    decided = stores.decided(config)
    trust, problem, remedy = decided.trust, "", ""
    num_trusted = 0
    try:
        num_trusted = len(stores.load(config, to_sign=True).trusted)
    except (StoreError, BadArgument, OSError) as error:
        problem, remedy = _described(error)
    return Keys(
        policy=trust.policy or "",
        was_decided=config.trust.policy is None,
        signing_key=str(trust.signing_key or ""),
        num_trusted=num_trusted,
        problem=problem,
        remedy=remedy,
    )


def look_at_launches(config: Config) -> Launches:
    """What the store holds of the config's launch; nothing where it cannot be read: others say so."""
    if config.store is None:
        return Launches()
    try:
        store = stores.open_store(config.store, create=False, to_sign=False)
        records = store.launches(launch_key(config))
    except (StoreError, BadArgument, OSError):
        return Launches()
    if not records:
        return Launches()
    made = datetime.fromisoformat(records[0].created)
    manifests = _manifests(store, records[0])
    captures = Counter(capture.function for capture in manifests[0].captures) if manifests else {}
    return Launches(
        needed_bytes=sum(entry.size_bytes for manifest in manifests for entry in manifest.artifacts),
        newest_ahead_s=(made - datetime.now(UTC)).total_seconds(),
        num_captures=dict(captures),
    )


def _manifests(store: Store, record: LaunchRecord) -> list[PartitionManifest]:
    """Those of the first ranks, as far as they can be read."""
    found = []
    for ref in sorted(record.partitions, key=lambda ref: ref.rank)[:MAX_RANKS_SUMMED]:
        try:
            found.append(store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256))
        except StoreError:
            continue
    return found


def _look_at(tier: TierConfig) -> tuple[Place, tuple[Clock, ...]]:
    """One place; raises nothing."""
    spec = connect.TierSpec(
        location=tier.path, mode=tier.mode, flush=tier.flush, answer_s=tier.answer_s, options=tier.options
    )
    try:
        backend = connect.open_backend(spec, create=False)
    except (StoreError, OSError) as error:
        return _not_open(tier, error), ()
    if tier.mode == "ro":
        return _place(tier), ()
    try:
        clock = _try_to_write(backend, tier.path)
    except (StoreError, OSError) as error:
        problem, _ = _described(error)
        return _place(tier, write_problem=problem), ()
    return _place(tier, was_written=True), (clock,)


def _try_to_write(backend: BlobBackend, location: str) -> Clock:
    """Put a file, look at it, and remove it; raises `StoreError`."""
    data = temporary_name().encode()
    name = f"{TMP}{data.decode()}/doctor"
    before = time.time()
    backend.put_new([NewFile(name=name, source=data, expected=digest_bytes(data))])
    after = time.time()
    try:
        info = backend.stat([name])[name]
    finally:
        backend.move(name, None)
    return Clock(
        check="clocks.store", name=f"the store {location}", ahead_s=nearest(info.modified_s, before, after)
    )


def _not_open(tier: TierConfig, error: Exception) -> Place:
    problem, remedy = _described(error)
    if is_url(tier.path) or not _is_absent(Path(tier.path)):
        return _place(tier, state="refused", problem=problem, remedy=remedy)
    above = next(parent for parent in Path(tier.path).absolute().parents if parent.exists())
    if tier.mode == "rw" and not os.access(above, os.W_OK | os.X_OK):
        return _place(
            tier, state="absent", problem=f"nothing there, and {above} may not be written", remedy=remedy
        )
    return _place(tier, state="absent")


def _is_absent(path: Path) -> bool:
    """Whether a launch could make a store there: nothing is there, or only what belongs to one."""
    try:
        names: Iterable[str] = (entry.name for entry in path.iterdir())
        return not path.exists() or set(names) <= TOP_LEVEL - {FORMAT_FILE}
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _silent(tier: TierConfig) -> Place:
    return _place(tier, state="silent")


def _place(
    tier: TierConfig,
    *,
    state: str = "open",
    problem: str = "",
    remedy: str = "",
    write_problem: str = "",
    was_written: bool = False,
) -> Place:
    return Place(
        location=tier.path,
        mode=tier.mode,
        state=state,  # type: ignore[arg-type]  # one of PlaceState, from the lines above
        problem=problem,
        remedy=remedy,
        answer_s=tier.answer_s,
        write_problem=write_problem,
        was_written=was_written,
    )


def _described(error: Exception) -> tuple[str, str]:
    """What an error says happened, and what to do."""
    reason = str(getattr(error, "reason", "") or getattr(error, "actual", "") or error)
    return reason, str(getattr(error, "remedy", ""))
