"""A row of the tables beside this: a part's slots, and its changes by kind."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz.program import Change, Part

Slots = Mapping[str, str]


def part(
    name: str,
    slots: Slots,
    *,
    sources: Mapping[str, Slots] | None = None,
    mutations: Mapping[str, str] | None = None,
    contexts: Mapping[str, str] | None = None,
    environments: Mapping[str, Mapping[str, str | None]] | None = None,
    environment: Mapping[str, str | None] | None = None,
    refused: str = "",
    said: str = "",
) -> Part:
    changes = [Change(name=f"{name}: {key}", slots=value) for key, value in (sources or {}).items()]
    changes += [Change(name=f"{name}: {key}", mutate=value) for key, value in (mutations or {}).items()]
    changes += [Change(name=f"{name}: {key}", context=value) for key, value in (contexts or {}).items()]
    changes += [
        Change(name=f"{name}: {key}", environment=value) for key, value in (environments or {}).items()
    ]
    return Part(
        name=name,
        slots=slots,
        changes=tuple(changes),
        environment=environment or {},
        refused=refused,
        said=said,
    )
