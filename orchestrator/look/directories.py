"""Directories of other tools in a store, vLLM's entries among them."""

from __future__ import annotations

from dataclasses import dataclass

from warmrank.cache_store.store import Store

_MODEL = "model.hf_config.architectures"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLine:
    """The newest push of one directory.

    Attributes:
        tool: whose directory.
        created: when it was pushed, ISO 8601, UTC.
        what: of vLLM's entries the model's class, rank and world; of others the keys that a user gave.
        num_files: its files.
        size_bytes: their size.
        components: all that has to be equal for it to come back.
    """

    tool: str
    created: str
    what: str
    num_files: int
    size_bytes: int
    components: dict[str, str]


def list_directories(store: Store) -> tuple[DirectoryLine, ...]:
    """The directories of other tools, newest first; raises `StoreError` where the store cannot be listed."""
    listings = [stored.listing for stored in store.directories()]
    lines = (
        DirectoryLine(
            tool=one.tool,
            created=one.created,
            what=_what(one.components),
            num_files=len(one.files),
            size_bytes=one.size_bytes,
            components=one.components,
        )
        for one in listings
    )
    return tuple(sorted(lines, key=lambda line: line.created, reverse=True))


def _what(components: dict[str, str]) -> str:
    if _MODEL in components:
        model = components[_MODEL].strip('[]"')
        return f"{model}, {components['rank']} of {components['world']}, {components['device']}"
    known = ("key python", "key torch", "key cuda", "key cann", "key driver", "key accelerator", "key cpu")
    own = {name: value for name, value in components.items() if name.startswith("key ") and name not in known}
    return ", ".join(f"{name.removeprefix('key ')}={value}" for name, value in own.items())
