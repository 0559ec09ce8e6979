"""A store on a file system that hangs: ``python -m tests.support.hung_store DIRECTORY PLACES``.

Run in a mount namespace of its own (`tests.support.loop_mounts.NAMESPACE`). Mounts an ext4 in DIRECTORY,
opens a store there (PLACES ``far``), or a near one outside of it too (``near,far``), freezes the file system,
and publishes. A frozen file system makes every writer wait, killed or not, so a timer thaws it whatever
happens. Prints one line of JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.loop_mounts import LoopMount
from tests.support.stored import LAUNCH_KEY, OFF, make_partition
from warmrank.cache_store.backends import deadline
from warmrank.cache_store.backends.deadline import Tier
from warmrank.cache_store.backends.places import Places
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.store import Store

_THAW_AFTER_S = 60.0
_ANSWER_S = {"near": 60.0, "far": 1.0}
# Numbers 119 and 120 of group X, which hand an int back and forth; linux/fs.h
_FIFREEZE = 0xC0045877
_FITHAW = 0xC0045878


def main(directory: Path, places: list[str]) -> dict[str, Any]:
    mount = LoopMount(file_system="ext4", image=directory / "image", point=directory / "mounted")
    mount.make()
    mount.mount()
    try:
        return _publish_frozen(directory, mount.point, places)
    finally:
        mount.unmount()


def _publish_frozen(directory: Path, point: Path, places: list[str]) -> dict[str, Any]:
    roots = {"near": directory / "near", "far": point / "store"}
    # Put together by hand: to open it there would be as little time as for an answer.
    tiers = [
        Tier(name=place, backend=_backend(roots[place], create=True), answer_s=_ANSWER_S[place])
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
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2].split(","))), flush=True)  # noqa: T201
