"""TorchAir's configuration objects: which of the two one is, and its options by dotted name, read and set.

Nothing here imports TorchAir. What is relied on (read in torch_npu 2.13): an option is an attribute of the
object or of a section of it; it holds either its value, or an object whose class has a property ``value``.
"""

from __future__ import annotations

import os
from typing import Any


def is_flat(theirs: Any, mode: str) -> bool:
    """Whether an object of TorchAir's is that of mode ``npugraph_ex``, whose options lie in no sections.

    Raises:
        TypeError: it is none of TorchAir's, or not that of the mode.
    """
    nested, flat = hasattr(theirs, "debug"), hasattr(theirs, "force_eager")
    if nested == flat or flat != (mode == "npugraph_ex"):
        wanted = "npugraph_ex" if mode == "npugraph_ex" else "torchair"
        msg = f"mode {mode} needs an object of {wanted}.CompilerConfig, not {type(theirs).__qualname__}"
        raise TypeError(msg)
    return flat


def their_options(theirs: Any, prefix: str = "") -> dict[str, Any]:
    """Every option of an object of TorchAir's, by dotted name, as TorchAir reads it."""
    found: dict[str, Any] = {}
    of_class = {
        name: value
        for kind in reversed(type(theirs).__mro__[:-1])
        for name, value in vars(kind).items()
        if not (name.startswith("__") or name.isupper() or callable(value))
        and not isinstance(value, property | staticmethod | classmethod)
    }
    for name, value in {**of_class, **vars(theirs)}.items():
        public = name.removeprefix("_")
        seen = public if isinstance(getattr(type(theirs), public, None), property) else name
        if name == "_fixed_attrs":
            continue
        if hasattr(value, "__dict__") and not _is_option(value) and not callable(value):
            found |= their_options(value, f"{prefix}{seen}.")
        else:
            found[f"{prefix}{seen}"] = _plain(value)
    return found


def has(theirs: Any, name: str) -> bool:
    """Whether an object of TorchAir's has an option; some of its sections take any name without a word."""
    section, last = _place(theirs, name)
    return section is not None and hasattr(section, last)


def holds(theirs: Any, name: str, value: Any) -> bool:
    """Whether an option of TorchAir's holds a value of ours; it reads flags as "0" and "1", ints as text."""
    section, last = _place(theirs, name)
    held = _plain(getattr(section, last))
    if isinstance(value, bool):
        return held is value or held == str(int(value))
    if isinstance(value, int):
        return not isinstance(held, bool) and held in (value, str(value))
    if isinstance(value, str):
        return held in (value, os.path.realpath(value))  # a directory, as TorchAir keeps it
    return held is value or (type(held) is type(value) and bool(held == value))


def put(theirs: Any, name: str, value: Any) -> str:
    """Set an option of TorchAir's and read it back; why that failed, or nothing."""
    section, last = _place(theirs, name)
    try:
        setattr(section, last, value)
    except Exception as error:  # noqa: BLE001 - whatever its check raises
        return (str(error) or type(error).__name__).splitlines()[0]
    return "" if holds(theirs, name, value) else "it keeps another value"


def _place(theirs: Any, name: str) -> tuple[Any, str]:
    """The section that an option stands in, None if there is none, and the option's name in it."""
    *parts, last = name.split(".")
    for part in parts:
        theirs = getattr(theirs, part, None)
    return theirs, last


def _is_option(value: Any) -> bool:
    return isinstance(getattr(type(value), "value", None), property)


def _plain(value: Any) -> Any:
    """What an attribute holds, whether it is an option object or the value itself."""
    return value.value if _is_option(value) else value
