"""Real disks that run full, or hang: ``python -m tests.support.bad_disks full|hung DIRECTORY WHAT``.

Run in a mount namespace of its own (`tests.support.loop_mounts.NAMESPACE`); mounts an ext4 in DIRECTORY, and
prints as JSON what happened. A small one holds the store and a cache directory; launches (WHAT: from which
seed on) are published until there is no room, then a fetch meets the same disk; then ballast is taken away,
and both must go through. Another one is frozen while a launch is published to a store there (WHAT: ``far``),
or to a near one outside of it too (``near,far``). A frozen file system makes every writer wait, killed or
not, so a timer thaws it whatever happens.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.fault_actions import half_laid_out
from tests.support.loop_mounts import LoopMount
from tests.support.sealed_launches import fetch_laid, lay_launch, publish_laid
from tests.support.stored import LAUNCH_KEY, OFF, make_partition, open_store
from warmrank.cache_store.backends import deadline
from warmrank.cache_store.backends.deadline import Tier
from warmrank.cache_store.backends.places import Places
from warmrank.cache_store.errors import StoreError, StoreUnavailable
from warmrank.cache_store.store import Store

WORLD_SIZE = 2
_SIZE_BYTES = 8 << 20
_BALLAST_BYTES = 2 << 20
_THAW_AFTER_S = 60.0
_ANSWER_S = {"near": 60.0, "far": 1.0}
# Numbers 119 and 120 of group X, which hand an int back and forth; linux/fs.h
_FIFREEZE = 0xC0045877
_FITHAW = 0xC0045878


@contextmanager
def _mounted(directory: Path, size_bytes: int | None = None) -> Iterator[Path]:
    image, point = directory / "image", directory / "mounted"
    mount = LoopMount(file_system="ext4", image=image, point=point, size_bytes=size_bytes)
    mount.make()
    mount.mount()
    try:
        yield point
    finally:
        mount.unmount()


def full(work: Path, first_seed: str) -> dict[str, Any]:
    with _mounted(work, _SIZE_BYTES) as point:
        return _fill_and_free(point, work, int(first_seed))


def hung(directory: Path, places: str) -> dict[str, Any]:
    with _mounted(directory) as point:
        return _publish_frozen(directory, point, places.split(","))


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


def _publish_frozen(directory: Path, point: Path, places: list[str]) -> dict[str, Any]:
    roots = {"near": directory / "near", "far": point / "store"}
    # Put together by hand: to open it there would be as little time as for an answer.
    tiers = [
        Tier(
            name=place,
            backend=_backend(roots[place], create=True),
            is_farthest=place == places[-1],
            answer_s=_ANSWER_S[place],
        )
        for place in places
    ]
    store = Store(Places(tiers), trust=OFF, location=",".join(places))
    manifest = make_partition(directory / "cache")
    publish = _outcome_of(lambda: store.publish_partition(LAUNCH_KEY, manifest, directory / "cache").created)
    descriptor = os.open(point, os.O_RDONLY)
    thaw_in_any_case = threading.Timer(_THAW_AFTER_S, fcntl.ioctl, (descriptor, _FITHAW, 0))
    thaw_in_any_case.start()
    try:
        fcntl.ioctl(descriptor, _FIFREEZE, 0)
        outcome = publish()
        was_frozen = thaw_in_any_case.is_alive()
    finally:
        thaw_in_any_case.cancel()
        if thaw_in_any_case.is_alive():
            fcntl.ioctl(descriptor, _FITHAW, 0)
        os.close(descriptor)
    return {"outcome": outcome, "was_frozen": was_frozen, **_afterwards(store, roots["far"])}


def _outcome_of(publish: Callable[[], bool]) -> Callable[[], str]:
    def run() -> str:
        try:
            return f"created: {publish()}"
        except StoreUnavailable as error:
            return str(error)

    return run


def _afterwards(store: Store, far: Path) -> dict[str, Any]:
    """What the store looks like once the calls that were left behind have ended."""
    give_up_s = time.monotonic() + _THAW_AFTER_S
    while sum(thread.name == "store-call" for thread in threading.enumerate()) > len(deadline._idle):
        assert time.monotonic() < give_up_s, "a call is left behind"
        time.sleep(0.01)
    after = Store(_backend(far, create=False), trust=OFF, location=str(far))
    return {
        "states": [tier.state for tier in store.tiers],
        "problems": store.problems,
        "faults_after": list(after.verify().faults),
        "manifests_after": after.verify().num_manifests,
    }


def _backend(root: Path, *, create: bool) -> Any:
    from warmrank.cache_store.backends.directory import DirectoryBackend

    return DirectoryBackend(root, create=create)


if __name__ == "__main__":
    what, directory, argument = sys.argv[1:]
    print(json.dumps({"full": full, "hung": hung}[what](Path(directory), argument)), flush=True)  # noqa: T201
