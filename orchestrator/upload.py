"""What of the current directory goes to a cluster, with a job or with a driver that joins one.

The three packages go along where the directory does not hold them, so they need not be installed there.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import Config
from orchestrator.report_table import size_text

EXCLUDED_NAMES = (
    ".git",
    ".venv",
    "venv",
    "__pycache__",
    "*.egg-info",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".import_linter_cache",
    ".hypothesis",
    ".coverage",
    ".torchair_cache",
    "build",
    "warmrank-out",
)
"""What never goes along; names match at any depth (they are gitwildmatch patterns without a slash)."""

LARGE_UPLOAD_BYTES = 100 * 2**20
"""Above this the user is told: Ray refuses packages of half a gigabyte, and keeps the others on its head."""

PACKAGES = ("cache_store", "worker", "orchestrator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What of a directory goes to the cluster, at most (`.gitignore` may leave out more).

    Attributes:
        num_files: number of files.
        size_bytes: their size before compression.
        largest: path relative to the directory and size in bytes of the largest files, largest first.
    """

    num_files: int
    size_bytes: int
    largest: tuple[tuple[str, int], ...]


def measure_upload(directory: Path, *, num_largest: int = 3) -> Upload:
    """Walk a directory as Ray will, leaving out `EXCLUDED_NAMES`."""
    sizes = sorted(_files(directory, directory), key=lambda item: (-item[1], item[0]))
    return Upload(
        num_files=len(sizes),
        size_bytes=sum(size for _, size in sizes),
        largest=tuple(sizes[:num_largest]),
    )


def _files(directory: Path, root: Path) -> Iterator[tuple[str, int]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in EXCLUDED_NAMES):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path), root)
            elif entry.is_file():
                yield Path(entry.path).relative_to(root).as_posix(), entry.stat().st_size


def upload_notes(directory: Path) -> tuple[str, ...]:
    """What the user should know before a large directory goes to the cluster."""
    upload = measure_upload(directory)
    if upload.size_bytes < LARGE_UPLOAD_BYTES:
        return ()
    largest = ", ".join(f"{path} ({size_text(size)})" for path, size in upload.largest)
    note = (
        f"the current directory goes to the cluster, up to {size_text(upload.size_bytes)}; largest of its "
        f"{upload.num_files} files: {largest}. List what the job does not need in .rayignore"
    )
    return (note,)


def place_notes(config: Config, directory: Path) -> tuple[str, ...]:
    """Warn of a store or cache that lies in the current directory: the job has a copy, which Ray deletes."""
    places = {"cache_dir": config.cache_dir}
    if config.store is not None:
        places["store.path"] = config.store.path
    return tuple(
        f"{key} lies in the current directory; on the cluster that is a copy that Ray deletes in the end. "
        "Give an absolute path to keep it"
        for key, path in places.items()
        if path.is_relative_to(directory)
    )


def package_root() -> Path:
    """The directory that holds the three packages."""
    return Path(__file__).resolve().parent.parent


def runtime_env(directory: Path, package_root: Path) -> dict[str, Any]:
    """Ray's runtime environment for the job: the directory, and the packages where it does not hold them."""
    env: dict[str, Any] = {"working_dir": str(directory), "excludes": list(EXCLUDED_NAMES)}
    missing = [name for name in PACKAGES if not (directory / name / "__init__.py").is_file()]
    if missing:
        env["py_modules"] = [str(package_root / name) for name in missing]
    return env
