"""The only place that reads environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_CACHE_DIR = ".torchair_cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says.

    Attributes:
        cache_home: ``TORCHAIR_CACHE_HOME``, or ``.torchair_cache`` in the working directory.
        no_compile: ``WARMRANK_NO_COMPILE`` is 1: a miss is an error.
        journal: ``WARMRANK_JOURNAL``: file to which each look-up's outcome is appended, or None.
    """

    cache_home: Path
    no_compile: bool
    journal: Path | None


def settings() -> Settings:
    """Read the environment of this process."""
    journal = os.environ.get("WARMRANK_JOURNAL")
    return Settings(
        cache_home=Path(os.environ.get("TORCHAIR_CACHE_HOME") or DEFAULT_CACHE_DIR),
        no_compile=os.environ.get("WARMRANK_NO_COMPILE") == "1",
        journal=Path(journal) if journal else None,
    )
