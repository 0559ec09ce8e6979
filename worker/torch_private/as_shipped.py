"""Torch's own settings as it ships them, for the time of a trace or a compile.

An artifact is for every process with its key, which tells neither what a program set in
``torch._dynamo.config`` and its like nor the environment variables that these read when they are imported.
Some would make another graph, or a wrong one (``use_graph_deduplication``, ``freezing``). So none counts but
those that let more be traced, and each that would have counted is named in a warning.

Relied on (``tests/unit/test_as_shipped.py``): a module of settings reads the environment through its name
``os``, and once it was run has a default for each setting in ``_config``.
"""

from __future__ import annotations

import builtins
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

_log = logging.getLogger(__name__)


def as_shipped(
    config: Any, kept: Callable[[str, Any], bool], **settings: Any
) -> AbstractContextManager[object]:
    """A context in which a module of settings is as torch ships it, but for ``settings``.

    Args:
        config: the module, such as ``torch._dynamo.config``.
        kept: tells by its name, and the value that torch ships, if a setting stays as the program wants it.
        settings: wanted values, by name; dots in names count.
    """
    current = config.get_config_copy()
    changed = {
        name: value
        for name, value in _shipped(config).items()
        if name in current and name not in settings and current[name] != value and not kept(name, value)
        if not (isinstance(value, str) and Path(value).is_absolute())  # it has the working directory in it
    }
    if changed:
        _warn(config.__name__, tuple(f"{name}={current[name]!r}" for name in sorted(changed)))
    return config.patch({**changed, **settings})  # type: ignore[no-any-return]


@functools.cache
def _warn(module: str, changed: tuple[str, ...]) -> None:
    """Once for each set of settings."""
    what = ", ".join(changed)
    _log.warning("Not followed, because artifacts are compiled with torch's defaults of %s: %s", module, what)


@functools.cache
def _shipped(config: Any) -> Mapping[str, Any]:
    """Settings and their defaults, from a second run of a module's code for which no variable is set."""
    bare = ModuleType("os")
    vars(bare).update(vars(os), environ={}, getenv=lambda _name, default=None: default)

    def imported(name: str, *rest: Any) -> Any:
        return bare if name == "os" else builtins.__import__(name, *rest)

    again = ModuleType(f"{config.__name__}_as_shipped")
    vars(again).update(
        __file__=config.__file__,
        __package__=config.__package__,
        __builtins__={**vars(builtins), "__import__": imported},
    )
    sys.modules[again.__name__] = again
    try:
        exec(config.__spec__.loader.get_code(config.__name__), vars(again))  # noqa: S102 - torch's own code
    finally:
        del sys.modules[again.__name__]
    return {name: entry.default for name, entry in again._config.items() if entry.alias is None}
