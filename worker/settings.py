"""The only place where warmrank's ranks read their settings from environment variables.

Elsewhere variables are only handed on: `worker.rank.script` gives a script those of its launch,
`worker.rank.start` gives HCCL its time-outs and TorchAir this rank's place on its node, and
`worker.torch_private.inductor` sets one of Inductor's while it compiles.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from warmrank.worker.values import Value

DEFAULT_CACHE_DIR = ".torchair_cache"
_ASCEND = ("ASCEND_", "ATB_", "HCCL_")


class Settings(Value):
    """What the environment says.

    Attributes:
        cache_home: ``TORCHAIR_CACHE_HOME``, or ``.torchair_cache`` in the working directory.
        no_compile: ``WARMRANK_NO_COMPILE`` is 1: a miss is an error.
        journal: ``WARMRANK_JOURNAL``: file to which each look-up's outcome is appended, or None.
        journal_dir: ``WARMRANK_JOURNAL_DIR``: directory in which each process appends them to a file of
            its own, or None; ``WARMRANK_JOURNAL`` comes first.
        keyring: ``warmrank/keys`` below ``XDG_CONFIG_HOME`` or ``~/.config``; None for a user without a home.
        last_report: report of the last launch, below ``XDG_STATE_HOME`` or ``~/.local/state``; None likewise.
        compiler: ``CXX``: the C++ compiler, a name or a path; ``g++`` where it is not set.
        cuda_home: ``CUDA_HOME``; empty where it is not set.
        ascend: all variables of Ascend's software: those that begin with ``ASCEND_``, ``ATB_`` and ``HCCL_``.
        op_compiler_cache: ``ACL_OP_COMPILER_CACHE_DIR``, where CANN keeps compiled operators.
        local_rank: ``LOCAL_RANK``, ``RANK`` and ``WORLD_SIZE`` as torchrun sets them.
    """

    cache_home: Path
    no_compile: bool
    journal: Path | None
    keyring: Path | None
    last_report: Path | None
    compiler: str
    cuda_home: str
    ascend: Mapping[str, str]
    op_compiler_cache: str = ""
    local_rank: int = 0
    journal_dir: Path | None = None
    rank: int = 0
    world_size: int = 1

    @property
    def journals(self) -> bool:
        """Whether outcomes of look-ups are appended to a file."""
        return self.journal is not None or self.journal_dir is not None


def settings() -> Settings:
    """Read the environment of this process."""
    journal, journal_dir = os.environ.get("WARMRANK_JOURNAL"), os.environ.get("WARMRANK_JOURNAL_DIR")
    return Settings(
        cache_home=Path(os.environ.get("TORCHAIR_CACHE_HOME") or DEFAULT_CACHE_DIR),
        no_compile=os.environ.get("WARMRANK_NO_COMPILE") == "1",
        journal=Path(journal) if journal else None,
        keyring=_home("XDG_CONFIG_HOME", "~/.config", "warmrank/keys"),
        last_report=_home("XDG_STATE_HOME", "~/.local/state", "warmrank/last-launch.json"),
        compiler=os.environ.get("CXX") or "g++",
        cuda_home=os.environ.get("CUDA_HOME", ""),
        ascend={name: value for name, value in os.environ.items() if name.startswith(_ASCEND)},
        op_compiler_cache=os.environ.get("ACL_OP_COMPILER_CACHE_DIR", ""),
        local_rank=_number("LOCAL_RANK"),
        journal_dir=Path(journal_dir) if journal_dir else None,
        rank=_number("RANK"),
        world_size=max(1, _number("WORLD_SIZE")),
    )


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
