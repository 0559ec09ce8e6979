"""The only place where warmrank's ranks read their settings from environment variables.

Elsewhere variables are only handed on: `worker.script` gives a script those of its launch, and
`worker.torch_private.inductor` sets one of Inductor's while it compiles.
"""

from __future__ import annotations

import os
from pathlib import Path

from worker.values import Value

DEFAULT_CACHE_DIR = ".torchair_cache"


class Settings(Value):
    """What the environment says.

    Attributes:
        cache_home: ``TORCHAIR_CACHE_HOME``, or ``.torchair_cache`` in the working directory.
        no_compile: ``WARMRANK_NO_COMPILE`` is 1: a miss is an error.
        journal: ``WARMRANK_JOURNAL``: file to which each look-up's outcome is appended, or None.
        keyring: ``warmrank/keys`` below ``XDG_CONFIG_HOME``, or below ``~/.config``; None for a user without
            a home.
        compiler: ``CXX``: the C++ compiler, a name or a path; ``g++`` where it is not set.
        cuda_home: ``CUDA_HOME``, where the CUDA toolkit is; empty where it is not set.
    """

    cache_home: Path
    no_compile: bool
    journal: Path | None
    keyring: Path | None
    compiler: str
    cuda_home: str


def settings() -> Settings:
    """Read the environment of this process."""
    journal = os.environ.get("WARMRANK_JOURNAL")
    return Settings(
        cache_home=Path(os.environ.get("TORCHAIR_CACHE_HOME") or DEFAULT_CACHE_DIR),
        no_compile=os.environ.get("WARMRANK_NO_COMPILE") == "1",
        journal=Path(journal) if journal else None,
        keyring=_keyring(),
        compiler=os.environ.get("CXX") or "g++",
        cuda_home=os.environ.get("CUDA_HOME", ""),
    )


def _keyring() -> Path | None:
    config_home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not config_home.is_absolute():  # not set, or to be ignored: XDG Base Directory Specification
        try:
            config_home = Path("~/.config").expanduser()
        except RuntimeError:
            return None
    return config_home / "warmrank" / "keys"
