"""What the ranks of a launch would do with what is stored for it, in one line that begins with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from warmrank.cache_store.errors import NoStoreYet
from warmrank.cache_store.keys import changed_components
from warmrank.cache_store.records.manifest import LaunchRecord
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.text import count_text, time_text


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRanks:
    """Ranks of a launch in the store that ran in an environment which is not this one.

    Attributes:
        ranks: which.
        changes: components that differ, from stored to here.
    """

    ranks: tuple[int, ...]
    changes: tuple[str, ...]


Outlook = Literal["load", "adopt", "compile"]


def judge(
    config: Config,
    records: Sequence[LaunchRecord],
    chosen: LaunchRecord | None,
    here: Mapping[str, str],
    *,
    has_store: bool,
) -> tuple[Outlook, str]:
    """What the ranks would do, and why, in one line that begins with it."""
    if config.store is None:
        return (
            "compile",
            "compile: no store is configured: ranks load what their own cache directory holds, or compile",
        )
    if chosen and chosen.world_size == config.ranks:
        num_here = len(chosen.made_in(here))
        of = "" if num_here == chosen.world_size else f"the {num_here} in this environment of "
        return "load", (
            "load, if the model's code is unchanged: a launch here loads what "
            f"{of}{count_text(chosen.world_size, 'rank')} stored at {time_text(chosen.created)}"
        )
    if chosen:
        return "adopt", (
            f"adopt: stored by {count_text(chosen.world_size, 'rank')}, launched with {config.ranks}: "
            "ranks adopt what their guards allow, and compile the rest"
        )
    if not has_store:
        return "compile", (
            f"compile, unless the cache holds it: {NoStoreYet(what='store', where=config.store.location)}; "
            f"relative paths are read from {Path.cwd()}"
        )
    if not records:
        return "compile", (
            "compile: this launch is not in the store: a launch here compiles, unless its cache holds it"
        )
    near = nearest_record(records, here)
    changes = record_changes(near, here) if near else ()
    return "compile", f"compile: stored for another environment only: {'; '.join(changes)}"


def judge_away(reason: str) -> tuple[Outlook, str]:
    """The same where the store cannot be used now."""
    return "compile", f"compile, unless the cache holds it: a launch goes on without the store: {reason}"


def nearest_record(records: Sequence[LaunchRecord], here: Mapping[str, str]) -> LaunchRecord | None:
    """The record with the environment that differs least; none without records."""
    return min(records, key=lambda record: len(record_changes(record, here)), default=None)


def record_changes(record: LaunchRecord, here: Mapping[str, str]) -> tuple[str, ...]:
    """Components that differ, from the nearest environment of a record to here; none where one is equal."""
    return min((changes_of(stored, here) for stored in record.environments), key=len)


def other_ranks(record: LaunchRecord, here: Mapping[str, str]) -> tuple[OtherRanks, ...]:
    """The ranks of other environments than this one; empty where all ranks ran in a single environment."""
    if not record.others:
        return ()
    return tuple(
        OtherRanks(ranks=tuple(ref.rank for ref in record.made_in(stored)), changes=changes)
        for stored in record.environments
        if (changes := changes_of(stored, here))
    )


def changes_of(stored: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """Components that differ, from stored to here."""
    return tuple(str(change) for change in changed_components(stored, here))
