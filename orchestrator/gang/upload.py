"""Upload of the current directory to a cluster, with a job or with a driver that joins one.

`warmrank` goes along where the directory does not hold it, so it need not be installed there.
Invariant: no private key goes along.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from warmrank.cache_store.backends.deadline import all_within
from warmrank.cache_store.text import brief_names
from warmrank.orchestrator import import_root
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.config.store import LOOK_S, is_url
from warmrank.orchestrator.errors import ConfigError, ConfigProblem

EXCLUDED_NAMES = (
    ".git", ".venv", "venv", "__pycache__", "*.egg-info", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    ".import_linter_cache", ".hypothesis", ".coverage", ".torchair_cache", "build", "warmrank-out",
)  # fmt: skip
"""Names that never go along, at any depth (gitwildmatch patterns without a slash)."""

_PRIVATE_KEY = re.compile(rb"\s*-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")
_HEADER_BYTES = 128


def private_keys(directory: Path) -> tuple[str, ...]:
    """Files that begin as a private key in PEM does, relative to the directory, whatever their names.

    Links to directories are followed, as Ray follows them.
    """
    found = []
    for here, directories, files in os.walk(directory, followlinks=True):
        directories[:] = [name for name in directories if _is_followed(Path(here, name))]
        keys = (path for name in files if _is_private_key(path := Path(here, name)))
        found += [path.relative_to(directory).as_posix() for path in keys]
    return tuple(sorted(found))


def _is_followed(path: Path) -> bool:
    never_goes = any(fnmatch.fnmatchcase(path.name, pattern) for pattern in EXCLUDED_NAMES)
    is_loop = path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())
    return not (never_goes or is_loop)


def _is_private_key(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _PRIVATE_KEY.match(file.read(_HEADER_BYTES)) is not None
    except OSError:
        return False  # Ray cannot read it either, and says so


def _inside(path: Path, directory: Path) -> str:
    """The path relative to the directory; empty where it does not lie under it."""
    (real,) = all_within([partial(os.path.realpath, path)], timeout_s=LOOK_S)  # its disk may give no answer
    places = (Path(os.path.normpath(path)), directory), (Path(real or path), directory.resolve())
    for place, root in places:
        if place != root and place.is_relative_to(root):
            return place.relative_to(root).as_posix()
    return ""


def say_kept(directory: Path, say: Callable[[str], object]) -> None:
    """Name the private keys that do not go to the cluster with a directory."""
    if keys := private_keys(directory):
        say(
            f"private keys are not uploaded: {brief_names(keys, max_names=3)}. Where ranks sign, name a "
            "key that lies on their nodes by its absolute path"
        )


def refuse_in_job(places: Mapping[str, str], place: str, directory: Path | None = None) -> None:
    """Refuse a cache or store, by config key, in a job's directory, which is a copy, and which Ray deletes.

    All that is relative lies in it, and, where the job runs, what lies under the ``directory``.

    Raises:
        ConfigError: there is one; names the config's file, ``place``.
    """
    expected = (
        "an absolute path on the nodes, such as --set {key}=/var/tmp/warmrank/{name} (a store: what all "
        "nodes mount, or a URL); a relative one lies in Ray's copy of this directory, which goes with the job"
    )
    problems = []
    for key, found in places.items():
        path = Path(found).expanduser()
        if path.is_absolute() and not (directory and _inside(path, directory)):
            continue
        text = expected.format(key=key, name="cache" if key == "cache_dir" else "store")
        problems.append(ConfigProblem(place=place, key=key, found=repr(found), expected=text))
    if problems:
        raise ConfigError(problems)


def runtime_env(directory: Path, config: Config | None = None) -> dict[str, Any]:
    """Ray's runtime environment for the job: the directory, and `warmrank` where it does not hold it.

    Private keys stay here, and with a config its signing key, cache and store.
    """
    kept = list(private_keys(directory))
    if config is not None:
        places: list[Path | None] = [config.cache_dir]
        if store := config.store:
            places += [Path(tier.path) for tier in store.tiers if not is_url(tier.path)]
            places.append(store.trust.signing_key)
        kept += [_inside(place, directory) for place in places if place]
    # As gitwildmatch patterns of exactly these paths.
    paths = ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path) for path in dict.fromkeys(kept) if path]
    env: dict[str, Any] = {"working_dir": str(directory), "excludes": [*EXCLUDED_NAMES, *paths]}
    if not (directory / "warmrank" / "__init__.py").is_file():
        env["py_modules"] = [str(import_root() / "warmrank")]
    return env
