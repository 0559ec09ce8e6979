"""Processes that publish."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.checkout import ROOT, ended


def run_child(*arguments: str) -> subprocess.CompletedProcess[str]:
    return ended("-m", "tests.support.store_processes", *arguments)


def race(*calls: Sequence[str]) -> list[dict[str, Any]]:
    """Run one child for each call; all are ready before any acts."""
    children = [
        subprocess.Popen(_command(call), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for call in calls
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    results = []
    for child in children:
        output, _ = child.communicate()
        assert child.returncode == 0
        results.append(json.loads(output))
    return results


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tests.support.store_processes", *arguments]


KILLED = 9


def publish(store_root: str, cache_root: str) -> dict[str, Any]:
    from tests.support.stored import LAUNCH_KEY, make_partition, open_store

    store = open_store(Path(store_root))
    manifest = make_partition(Path(cache_root))
    _wait()
    report = store.publish_partition(LAUNCH_KEY, manifest, Path(cache_root))
    return {"created": report.created, "sha256": report.ref.manifest_sha256}


def add_variant(function_dir: str, text: str) -> dict[str, Any]:
    from warmrank.cache_store.cache_dir.local import add_variant

    _wait()
    return {"path": str(add_variant(Path(function_dir), text.encode()))}


def publish_and_die(store_root: str, cache_root: str, step: str, nth: str) -> dict[str, Any]:
    """Publish and commit a launch, and end without any clean-up at the nth time that ``step`` is reached."""
    from tests.support.stored import LAUNCH_KEY, make_partition, make_record, open_store
    from warmrank.cache_store.steps import EVENT

    times = 0

    def die(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal times
        if event == EVENT and arguments[0] == step:
            times += 1
            if times == int(nth):
                os._exit(KILLED)

    sys.addaudithook(die)
    store = open_store(Path(store_root))
    manifest = make_partition(Path(cache_root))
    report = store.publish_partition(LAUNCH_KEY, manifest, Path(cache_root))
    store.commit_launch(make_record((report.ref,)))
    return {}


def _wait() -> None:
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()


VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "publish": publish,
    "add_variant": add_variant,
    "publish_and_die": publish_and_die,
}


def main() -> None:
    result = VERBS[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(result), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
