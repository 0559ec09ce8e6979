"""Pydantic's refusals of a config, told by the key as the user wrote it; no secret is ever shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from warmrank.cache_store.backends.object_client import KNOWN_OPTIONS
from warmrank.orchestrator.config import models
from warmrank.orchestrator.config import store as store_config
from warmrank.orchestrator.errors import ConfigProblem

MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    (): models.Config,
    ("workload", "entrypoint"): models.EntrypointWorkload,
    ("workload", "script"): models.ScriptWorkload,
    ("parallel",): models.Parallel,
    ("store", "short"): store_config.StoreInShort,
    ("store", "short", "trust"): store_config.TrustConfig,
    ("store", "full"): store_config.StoreConfig,
    ("store", "full", "tiers"): store_config.TierConfig,
    ("store", "full", "trust"): store_config.TrustConfig,
    ("ray",): models.RayConfig,
    ("timeouts",): models.Timeouts,
    ("retries",): models.Retries,
    ("watch",): models.WatchConfig,
    ("node_caches",): models.NodeCacheConfig,
    ("exec",): models.ExecConfig,
    ("exec", "sync"): models.SyncedCache,
}
"""The model at each place of a config; a workload's and a store's have the tag of its kind, a tier's has no
index, and a node cache's no name."""

AXES = "ranks, parallel"
"""Stands for a key where the axes do not fill the ranks, which nothing else of a config depends on."""

_WORD = re.compile(r"\w+")
_PATTERNS = {
    models.ENTRYPOINT_PATTERN: "",
    models.NAME_PATTERN: "",
    models.TOOL_PATTERN: "a name of at most 64 characters: a-z, 0-9, '-', '_'",
    models.VARIABLE_PATTERN: "a name of letters, digits and '_'",
    models.PATH_PATTERN: "",
    store_config.KEY_ID_PATTERN: "32 digits, each 0-9 or a-f",
}
"""The patterns of a config in words; none where the key's description says the same."""

_OF_JSON = {"an object": "a mapping", "a valid dictionary": "a mapping", "a valid array": "a list"}
"""Pydantic's word for a value of JSON: YAML's word."""

_HIDDEN = "(a value that is not shown here)"


def translate(detail: ErrorDetails, place: str, overrides: tuple[str, ...]) -> ConfigProblem:
    """One problem out of one of pydantic's details."""
    where, given = tuple(str(part) for part in detail["loc"]), detail["input"]
    if (option := detail.get("ctx", {}).get("option")) is not None:  # of a mapping of options that one
        where, given = (*where, option), given[option]
    dotted = _as_written(where)
    key = ".".join(dotted) or AXES
    secret = detail["type"] == "secret" or _is_secret(where)
    found, nearest = _HIDDEN if secret else shown(given), ""
    if detail["type"] == "unknown_option":
        found, expected = f"an unknown option with value {found}", detail["msg"]
        close = difflib.get_close_matches(where[-1], KNOWN_OPTIONS, n=1)
        nearest = ".".join((*dotted[:-1], *close)) if close else ""
    elif detail["type"] == "extra_forbidden":
        found = f"an unknown key with value {found}"
        known = tuple(MODELS[_place(where[:-1])].model_fields)
        known += ("tiers",) if where[:-1] == ("store", "short") else ()
        expected, nearest = f"only {', '.join(known)}", _nearest(where, dotted, known)
    elif detail["type"] == "missing":
        found, expected = "nothing", f"this key: {_description(where)}"
    elif not where:
        found, expected = str(detail["ctx"]["error"]), "the product of all axes to be the number of ranks"
    else:
        expected = detail["msg"] if detail["type"] == "secret" else _expected(detail, where)
    place = place_of(key, place, overrides, hides=secret)
    return ConfigProblem(place=place, key=key, found=found, expected=expected, nearest=nearest)


def place_of(key: str, place: str, overrides: Sequence[str], *, hides: bool = False) -> str:
    """The source of the values of dotted keys with commas between them: an override, or the file.

    The last override that set any of the keys counts; its value can be left out (``hides``).
    """
    for override in reversed(overrides):
        name = override.partition("=")[0]
        if any(_covers(name, each) or _covers(each, name) for each in key.split(", ")):
            return f"--set {name if hides or _is_secret(tuple(name.split('.'))) else override}"
    return place


def _is_secret(where: tuple[str, ...]) -> bool:
    return bool(where) and (where[-1] == "options" or store_config.is_secret(where[-1]))


def _as_written(where: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that a user wrote: without the tag of a workload's or a store's kind."""
    return (*where[:1], *where[2:]) if where[:1] in {("workload",), ("store",)} else where


def _place(where: tuple[str, ...]) -> tuple[str, ...]:
    """The key of `MODELS` for what stands at a location."""
    if where[:1] == ("node_caches",):
        return (*where[:1], *where[2:])
    return tuple(part for part in where if not part.isdigit())


def _expected(detail: ErrorDetails, where: tuple[str, ...]) -> str:
    """Allowed values in pydantic's words and the key's own; not twice where those list the same."""
    description = _description(where)
    pattern = str(detail.get("ctx", {}).get("pattern"))  # which few can read
    what = detail["msg"].removeprefix("Input should be ")
    what = _PATTERNS.get(pattern, _OF_JSON.get(what, what))
    words = [word for word in _WORD.findall(what) if word != "a"]
    if pattern not in _PATTERNS and _WORD.findall(description)[: len(words)] == words:
        return description
    return ": ".join(filter(None, (what, description)))


def _covers(override_key: str, key: str) -> bool:
    return key == override_key or key.startswith(f"{override_key}.")


def _nearest(where: tuple[str, ...], dotted: tuple[str, ...], known: tuple[str, ...]) -> str:
    """Dotted path of the nearest key at the same level, else of the same key at another; empty for none."""
    close = difflib.get_close_matches(where[-1], known, n=1)
    if close:
        return ".".join((*dotted[:-1], close[0]))
    for place, model in MODELS.items():
        if where[-1] in model.model_fields:
            return ".".join((*_as_written(place), where[-1]))
    return ""


def _description(where: tuple[str, ...]) -> str:
    """The schema's description of a key, or of the nearest key above it that has one."""
    for depth in range(len(where), 0, -1):
        model = MODELS.get(_place(where[: depth - 1]))
        if model is not None and where[depth - 1] in model.model_fields:
            return model.model_fields[where[depth - 1]].description or ""
    return ""


def shown(value: object) -> str:
    """A value with its type, cut short."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
