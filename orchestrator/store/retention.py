"""How long and how much, as people write it on a command line."""

from __future__ import annotations

import re

import typer

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|min|h|d|w)", re.ASCII)
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|[kMGT]B|[KMGT]iB)", re.ASCII)
_PREFIXES = "kMGT"


def parse_duration_s(text: str) -> float:
    """Seconds of a duration such as ``30d``, ``12h``, ``90min``; raises ``typer.BadParameter``."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"expected a number with s, min, h, d or w, such as 30d; found {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size_bytes(text: str) -> int:
    """Bytes of a size such as ``500GiB`` or ``2TB``; raises ``typer.BadParameter``."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"expected a number with GiB, GB, MiB and so on, such as 500GiB; found {text!r}"
        )
    unit = match[2]
    base = 1024 if "i" in unit else 1000
    power = 0 if unit == "B" else _PREFIXES.index(unit[0].replace("K", "k")) + 1
    return int(float(match[1]) * base**power)
