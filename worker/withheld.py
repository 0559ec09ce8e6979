"""Artifacts that no other partition takes by itself: their audits are not through, or found a fault.

A mark beside an artifact, ``.withheld_<sha256>``, stands before the artifact does; the launch takes it away
when nothing was found (`orchestrator.launch.rounds`). The rank whose partition it lies in uses it as any
other. What bears a mark is not published, so nothing of it is in any store.

A rank's warm load imports this module, so it needs the standard library only.
"""

from __future__ import annotations

from pathlib import Path

from warmrank.cache_store.cache_dir.private_files import make_private_directories, os_errors_are_unusable


def withhold(function_dir: Path, sha256: str) -> None:
    """Keep other partitions from an artifact that is there, or about to be.

    Raises:
        UnusableCache: the directory cannot be written.
    """
    mark = _mark(function_dir, sha256)
    make_private_directories(function_dir)
    with os_errors_are_unusable("file", mark):
        mark.touch(mode=0o600)


def release(function_dir: Path, sha256: str) -> None:
    """Let other partitions have an artifact.

    Raises:
        UnusableCache: the directory cannot be written.
    """
    mark = _mark(function_dir, sha256)
    with os_errors_are_unusable("file", mark):
        mark.unlink(missing_ok=True)


def is_withheld(function_dir: Path, sha256: str) -> bool:
    """Whether an artifact is for its own partition alone."""
    return _mark(function_dir, sha256).exists()


def _mark(function_dir: Path, sha256: str) -> Path:
    return function_dir / f".withheld_{sha256}"
