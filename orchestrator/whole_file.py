"""Files of which a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

from pathlib import Path

from warmrank.orchestrator.errors import ConfigError, ConfigProblem


def make_way(path: Path, *, option: str = "--json") -> None:
    """Remove an older file, or raise `ConfigError`, naming the ``option``, if none can be written there.

    Should what the file tells of be killed, the older one must not stand for it.
    """
    draft = _draft_of(path)
    try:
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.touch()
        draft.unlink()
    except OSError as error:
        expected = "a file that can be written, or - for stdout"
        found = f"{path} ({error.strerror or error})"
        problem = ConfigProblem(place=option, key="", found=found, expected=expected)
        raise ConfigError([problem], document="file") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file, in a directory that is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(path)
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")
