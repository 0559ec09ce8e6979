"""The only place where warmrank's ranks read their settings from environment variables.

Elsewhere variables are only handed on: `worker.rank.script` gives a script those of its launch,
`worker.rank.start` gives HCCL its time-outs and TorchAir this rank's place on its node, and
`worker.torch_private.inductor` sets one of Inductor's while it compiles.
"""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_CACHE_DIR = ".torchair_cache"
_ASCEND = ("ASCEND_", "ATB_", "HCCL_")


class Settings:
    """Settings in this process's environment variables; each is read when it is asked for."""

    @property
    def cache_home(self) -> Path:
        """``TORCHAIR_CACHE_HOME``, or ``.torchair_cache`` in the working directory."""
        return Path(os.environ.get("TORCHAIR_CACHE_HOME") or DEFAULT_CACHE_DIR)

    @property
    def no_compile(self) -> bool:
        """``WARMRANK_NO_COMPILE`` is 1: a miss is an error."""
        return os.environ.get("WARMRANK_NO_COMPILE") == "1"

    @property
    def journal(self) -> Path | None:
        """``WARMRANK_JOURNAL``: file to which each look-up's outcome is appended, or None."""
        return _path("WARMRANK_JOURNAL")

    @property
    def journal_dir(self) -> Path | None:
        """``WARMRANK_JOURNAL_DIR``: as `journal`, which comes first; a directory with a file per process."""
        return _path("WARMRANK_JOURNAL_DIR")

    @property
    def journals(self) -> bool:
        """True if outcomes of look-ups are appended to a file."""
        return self.journal is not None or self.journal_dir is not None

    @property
    def keyring(self) -> Path | None:
        """``warmrank/keys`` below ``XDG_CONFIG_HOME`` or ``~/.config``; None for a user without a home."""
        return _home("XDG_CONFIG_HOME", "~/.config", "warmrank/keys")

    @property
    def last_report(self) -> Path | None:
        """Report of the last launch, below ``XDG_STATE_HOME`` or ``~/.local/state``; None likewise."""
        return _home("XDG_STATE_HOME", "~/.local/state", "warmrank/last-launch.json")

    @property
    def compiler(self) -> str:
        """``CXX``: the C++ compiler, a name or a path; ``g++`` where it is not set."""
        return os.environ.get("CXX") or "g++"

    @property
    def cuda_home(self) -> str:
        """``CUDA_HOME``; empty where it is not set."""
        return os.environ.get("CUDA_HOME", "")

    @property
    def ascend(self) -> dict[str, str]:
        """Variables of Ascend's software: those that begin with ``ASCEND_``, ``ATB_`` and ``HCCL_``."""
        return {name: value for name, value in os.environ.items() if name.startswith(_ASCEND)}

    @property
    def op_compiler_cache(self) -> str:
        """``ACL_OP_COMPILER_CACHE_DIR``, where CANN keeps compiled operators."""
        return os.environ.get("ACL_OP_COMPILER_CACHE_DIR", "")

    @property
    def local_rank(self) -> int:
        """``LOCAL_RANK`` as torchrun sets it."""
        return _number("LOCAL_RANK")

    @property
    def rank(self) -> int:
        """``RANK`` as torchrun sets it."""
        return _number("RANK")

    @property
    def world_size(self) -> int:
        """``WORLD_SIZE`` as torchrun sets it."""
        return max(1, _number("WORLD_SIZE"))


_SETTINGS = Settings()


def settings() -> Settings:
    """The settings of this process."""
    return _SETTINGS


def _path(name: str) -> Path | None:
    text = os.environ.get(name)
    return Path(text) if text else None


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def expanded(path: str) -> str:
    """A path with the user's home in place of ``~``, and variables of the environment; others stay."""
    try:
        return str(Path(os.path.expandvars(path)).expanduser())
    except RuntimeError:  # a user without a home
        return path


def _home(variable: str, usual: str, path: str) -> Path | None:
    """A path of this user's, below the directory that a variable names, or else below the usual one."""
    home = Path(os.environ.get(variable, ""))
    if not home.is_absolute():  # not set, or to be ignored: XDG Base Directory Specification
        try:
            home = Path(usual).expanduser()
        except RuntimeError:
            return None
    return home / path
