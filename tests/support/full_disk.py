"""A real disk that runs full: ``unshare ... python -m tests.support.full_disk WORK SEED`` says what happened.

A small ext4 holds the store and a cache directory. Launches are published until there is no room, then a
fetch meets the same disk; then ballast is taken away, and both must go through.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.support.fault_child import half_laid_out
from tests.support.loop_mounts import LoopMount
from tests.support.sealed_launches import fetch_laid, lay_launch, publish_laid
from tests.support.stored import open_store
from warmrank.cache_store.errors import StoreError

WORLD_SIZE = 2
_SIZE_BYTES = 8 << 20
_BALLAST_BYTES = 2 << 20


def run(work: Path, first_seed: int) -> dict[str, Any]:
    mount = LoopMount(
        file_system="ext4", image=work / "image", point=work / "mounted", size_bytes=_SIZE_BYTES
    )
    mount.make()
    mount.mount()
    try:
        return _fill_and_free(mount.point, work, first_seed)
    finally:
        mount.unmount()


def _fill_and_free(point: Path, work: Path, seed: int) -> dict[str, Any]:
    root, cache, ballast = point / "store", point / "cache", point / "ballast"
    with ballast.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, _BALLAST_BYTES)
    committed, refusal = 0, None
    while refusal is None:
        seed += 1
        refusal = _publish(root, work, seed)
        committed += refusal is None
    _use_up(point / "rest")
    fetched, errors = _fetch(root, cache, seed - 1)
    faults = [*open_store(root).verify().faults, *half_laid_out(cache, seed - 1)]
    found: dict[str, Any] = {"committed": committed, "refusal": refusal, "fetch on the full disk": errors}
    for path in (ballast, point / "rest"):
        path.unlink()
    again = _publish(root, work, seed)
    fetched, errors = _fetch(root, cache, seed)
    found["afterwards"] = [again, *errors] if again or errors or fetched != WORLD_SIZE else []
    return found | {"faults": [*faults, *open_store(root).verify().faults]}


def _use_up(path: Path) -> None:
    """Take what room is left."""
    with path.open("xb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def _publish(root: Path, work: Path, seed: int) -> str | None:
    source = work / "source"
    shutil.rmtree(source, ignore_errors=True)
    try:
        publish_laid(open_store(root), source, seed, lay_launch(source, seed, WORLD_SIZE))
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _fetch(root: Path, cache: Path, seed: int) -> tuple[int, list[str]]:
    try:
        num_partitions, errors = fetch_laid(open_store(root), cache, seed)
    except StoreError as error:
        return 0, [f"{type(error).__name__}: {error}"]
    return num_partitions, [f"{type(error).__name__}: {error}" for error in errors]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]))))
