"""How nodes are seeded: bandwidth limit, verification, and where the bytes come from."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from warmrank.orchestrator.errors import BadArgument

FanOut = Literal["auto", "always", "never"]

MIN_RATE = 1024.0
_RATE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kKMGT]?i?)B?(?:/s)?", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    """How each node is seeded.

    Attributes:
        limit_bytes_per_s: how much each node takes in a second at most; None for no limit.
        verify: read what is there already again, though nothing says that it changed.
        fan_out: whether nodes get their bytes from one node that read them, instead of from the store.
    """

    limit_bytes_per_s: float | None = None
    verify: bool = False
    fan_out: FanOut = "auto"


def parse_rate(text: str) -> float:
    """Bytes a second of ``100MB/s``, ``1.5GiB/s``, ``800k``, ``250000``.

    Raises:
        BadArgument: it is none, or less than `MIN_RATE`.
    """
    match = _RATE.fullmatch(text.strip())
    unit = match[2].replace("K", "k") if match else ""
    factor = (_UNITS | _BINARY).get(unit)
    rate = float(match[1]) * factor if match and factor else math.nan
    if not rate >= MIN_RATE:
        msg = (
            f"--limit: expected bytes a second such as 100MB/s, 1.5GiB/s or 250000, "
            f"at least {MIN_RATE:g}; found {text!r}"
        )
        raise BadArgument(msg)
    return rate
