"""Variants on their way into a cache directory: copied into a staging directory, then given their names.

Layout: ``<cache root>/.tmp-<unique>/<n>/compiled_module[.N]``, files beside variants under their own names,
where ``n`` counts the functions, so that a function which is new to the cache directory gets all of its
variants by one rename.

Invariants: what fails is a fault of its target alone; a staged file is verified, and a blob is read once,
whatever the number of its copies; at most `NUM_THREADS` copies are made at once.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator
from pathlib import Path

from warmrank.cache_store.errors import Corrupt, StoreError, UnusableCache, is_final
from warmrank.cache_store.fetching.copying import Blobs, clone
from warmrank.cache_store.fetching.fetch_plan import Target, by_digest, by_function_dir
from warmrank.cache_store.fetching.progress import Meter
from warmrank.cache_store.node.admission import Permit
from warmrank.cache_store.node.companions import place_companion
from warmrank.cache_store.node.digest_index import DigestIndex
from warmrank.cache_store.node.local import place, place_directory, variant_name
from warmrank.cache_store.node.private_files import (
    date_back,
    discard_tree,
    make_directories_below,
    make_private_directories,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)
from warmrank.cache_store.parallel import each, each_short, is_short
from warmrank.cache_store.steps import Step, reached

NUM_THREADS = 8
_STAGING = ".tmp-"


class Staging:
    """Where ``targets`` are made before they get their names; `staging` makes one."""

    def __init__(self, permit: Permit, directory: Path, targets: Collection[Target]) -> None:
        self._cache_root = permit.root
        self._directories: dict[str, Path] = {}
        self._num_planned: dict[str, int] = {}
        self._paths: dict[Target, Path] = {}
        for number, (function_dir, mine) in enumerate(by_function_dir(targets).items()):
            self._directories[function_dir] = directory / str(number)
            self._num_planned[function_dir] = len(mine)
            numbers = itertools.count()
            for target in mine:
                name = target.name or variant_name(next(numbers))
                self._paths[target] = self._directories[function_dir] / name

    def fill(self, blobs: Blobs, meter: Meter) -> dict[Target, StoreError]:
        """Copy everything out of the store, verified.

        Returns:
            Why targets could not be made.

        Raises:
            StoreUnavailable: of a place of the store that is required.
            UnusableCache: there is no room for the staging directories.
        """
        for directory in self._directories.values():
            with os_errors_are_unusable("directory", directory):
                make_private_directories(directory)

        def run(copies: list[Target]) -> dict[Target, StoreError]:
            return self._copy(blobs, copies, meter)

        faults: dict[Target, StoreError] = {}
        groups = list(by_digest(self._paths).values())
        size_bytes = sum(group[0].digest.size_bytes for group in groups)
        run_each = each_short if is_short(len(groups), size_bytes) else each
        for found in run_each(run, groups, num_threads=NUM_THREADS):
            faults.update(found)
        return faults

    def _copy(self, blobs: Blobs, targets: list[Target], meter: Meter) -> dict[Target, StoreError]:
        first, *others = targets
        origin = self._paths[first]
        try:
            blobs.copy(first.digest, origin, meter.count)
        except StoreError as error:
            if is_final(error):
                raise
            return dict.fromkeys(targets, error)
        meter.count(0, num_files=1)
        faults: dict[Target, StoreError] = {}
        for target in others:
            try:
                clone(origin, self._paths[target], meter.count)
            except UnusableCache as error:
                faults[target] = error
            else:
                meter.count(0, num_files=1)
        return faults

    def place(
        self, targets: Collection[Target], index: DigestIndex
    ) -> tuple[dict[Target, Path], dict[Target, StoreError]]:
        """Give those of the staged ``targets`` their names.

        Returns:
            Where they are now, and why others could not be placed.
        """
        placed: dict[Target, Path] = {}
        faults: dict[Target, StoreError] = {}
        ready: set[Path] = set()
        for function_dir, mine in by_function_dir(targets).items():
            target_dir = self._cache_root / function_dir
            parent = target_dir.parent
            try:
                with os_errors_are_unusable("directory", target_dir):
                    for target in mine:
                        date_back(self._paths[target])
                if parent not in ready:
                    make_directories_below(self._cache_root, parent)
                    ready.add(parent)
                found = self._place(target_dir, mine, index)
            except (Corrupt, UnusableCache) as error:
                faults.update(dict.fromkeys(mine, error))
                continue
            for target, path in found.items():
                index.remember_own(path, target.digest)
            placed.update(found)
            reached(Step.FETCH_PLACED)
        return placed, faults

    def _place(self, function_dir: Path, targets: list[Target], index: DigestIndex) -> dict[Target, Path]:
        staged = self._directories[targets[0].function_dir]
        if len(targets) == self._num_planned[targets[0].function_dir] and place_directory(
            function_dir, staged
        ):
            return {target: function_dir / self._paths[target].name for target in targets}
        return {target: self._place_one(function_dir, target, index) for target in targets}

    def _place_one(self, function_dir: Path, target: Target, index: DigestIndex) -> Path:
        staged = self._paths[target]
        make_directories_below(self._cache_root, function_dir)
        if not target.name:
            return place(function_dir, staged, target.digest, digest_of=index.digest)
        return place_companion(function_dir, target.name, staged, target.digest, digest_of=index.digest)


def sweep_staging(cache_root: Path) -> None:
    """Remove staging directories of processes that were killed; also a fetch that copies nothing does so."""
    sweep_debris(cache_root, _STAGING)


@contextlib.contextmanager
def staging(permit: Permit, targets: Collection[Target]) -> Iterator[Staging]:
    """A staging directory, gone afterwards.

    Raises:
        UnusableCache: it cannot be made.
    """
    path = permit.root / f"{_STAGING}{temporary_name()}"
    with os_errors_are_unusable("directory", path):
        make_private_directories(path)
    try:
        yield Staging(permit, path, targets)
    finally:
        discard_tree(path)
