"""What the ranks of a launch would do with what is stored for it, in one line that begins with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from cache_store.keys import changed_components
from cache_store.records.manifest import LaunchRecord
from orchestrator.config.reading import Config
from orchestrator.show.figures import count_text, time_text

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
        return "load", (
            "load, if the model's code is unchanged: a launch here loads what "
            f"{count_text(chosen.world_size, 'rank')} stored at {time_text(chosen.created)}"
        )
    if chosen:
        return "adopt", (
            f"adopt: stored by {count_text(chosen.world_size, 'rank')}, launched with {config.ranks}: "
            "ranks adopt what their guards allow, and compile the rest"
        )
    if not has_store:
        return "compile", (
            f"compile: there is no store at {config.store.location} yet (no FORMAT file); the first launch "
            "makes it. A launch here compiles, unless its cache holds it"
        )
    if not records:
        return "compile", (
            "compile: this launch is not in the store: a launch here compiles, unless its cache holds it"
        )
    near = nearest_record(records, here)
    changes = changes_of(near.environment, here) if near else ()
    return "compile", f"compile: stored for another environment only: {'; '.join(changes)}"


def judge_away(reason: str) -> tuple[Outlook, str]:
    """The same where the store cannot be used now."""
    return "compile", f"compile, unless the cache holds it: a launch goes on without the store: {reason}"


def nearest_record(records: Sequence[LaunchRecord], here: Mapping[str, str]) -> LaunchRecord | None:
    """The record whose environment differs least; none without records."""
    return min(records, key=lambda record: len(changes_of(record.environment, here)), default=None)


def changes_of(stored: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """Components that differ, from stored to here."""
    return tuple(str(change) for change in changed_components(stored, here))
