"""What do the store's verbs cost beside the commands that do the same without a store?

A tree like compiler output (2,168 files, 1.6 GiB, 467 unique: 8 ranks, most functions equal on all), made
anew from fixed seeds, its pages in memory. In one run, in turn: a durable publish and ``cp -r`` with
``sync``; the second publish and ``rsync -a``; a fetch that verifies every byte and ``cp -r``. Then trees in
which no byte repeats (3,200 files of 20 KiB; one of 2 GiB): publish, fetch, ``sync push`` and ``sync pull``,
with their CPU time beside that of hashing and copying everything once. Then how one launch grows with its
number of partitions. Ratios are what counts; absolute seconds are this machine's.

Run: ``python benchmarks/store.py [--small] [--rounds N] [--work DIRECTORY] [--json FILE]``. As root it runs
all of it on a loop-mounted xfs with reflinks too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks import running  # noqa: E402 - also where nothing is installed
from benchmarks.store_parts.timing import shell  # noqa: E402 - likewise
from benchmarks.store_parts.tree import MIB, SMALL, Shape  # noqa: E402 - likewise
from benchmarks.store_parts.unique import UNIQUE, UNIQUE_SMALL, unique  # noqa: E402 - likewise
from benchmarks.store_parts.verbs import fetch_memory, launch, verbs  # noqa: E402 - likewise

XFS_BYTES = 12 << 30  # sparse


class NoXfs(Exception):
    """Why no xfs can be mounted here."""


@contextmanager
def xfs(work: Path) -> Iterator[Path]:
    """A new xfs with reflinks in a file below ``work``, mounted.

    Raises:
        NoXfs: this user cannot, or the machine cannot.
    """
    if os.geteuid() != 0:
        raise NoXfs("only root can mount")
    image, point = work / "xfs.image", work / "xfs"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(XFS_BYTES)
    try:
        prepare("mkfs.xfs", "-q", "-m", "reflink=1", str(image))
        prepare("mount", "-o", "loop", str(image), str(point))
        try:
            yield point
        finally:
            shell("umount", str(point))
    finally:
        image.unlink()


def prepare(*command: str) -> None:
    """Run a command that not every machine has or allows."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise NoXfs(str(error)) from error
    except subprocess.CalledProcessError as error:
        raise NoXfs(error.stderr.strip()) from error


def child(options: argparse.Namespace, work: Path, *arguments: str) -> dict[str, Any]:
    """Figures of a process of its own."""
    words = ("--work", work, "--rounds", options.rounds, *arguments)
    figures: dict[str, Any] = running.child(__file__, *words, *(["--small"] if options.small else []))
    return figures


def all_verbs(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Figures of all verbs in one directory."""
    figures = child(options, work, "--child", "verbs")
    figures["fetch"] |= child(options, work, "--child", "fetch_memory")
    return figures


def on_xfs(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The same on xfs, or why not."""
    try:
        with xfs(work) as mounted:
            return all_verbs(options, mounted)
    except NoXfs as error:
        return {"skipped": f"no xfs could be mounted: {error}"}


def main() -> None:
    """Run the comparison and print it."""
    parser = running.arguments(__doc__)
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes; ratios mean little")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--work", type=Path, help="where to write; by default the temporary directory")
    parser.add_argument("--only-unique", action="store_true", help="only the data in which no byte repeats")
    parser.add_argument("--child")
    parser.add_argument("--world", type=int)
    parser.add_argument("--shape", type=int)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.small else 5)
    shape = SMALL if options.small else Shape()
    if options.child == "verbs":
        print(json.dumps(verbs(options.work, shape, options.rounds)))
    elif options.child == "fetch_memory":
        print(json.dumps(fetch_memory(options.work)))
    elif options.child == "unique":
        shapes = UNIQUE_SMALL if options.small else UNIQUE
        print(json.dumps(unique(options.work, shapes[options.shape], options.rounds)))
    elif options.child == "launch":
        print(json.dumps(launch(options.work, options.world)))
    else:
        figures = measure(options, shape)
        running.write(options, figures)


def measure(options: argparse.Namespace, shape: Shape) -> dict[str, Any]:
    """Measure all, and print each part as soon as it is known."""
    figures: dict[str, Any] = {
        "place": running.machine(),
        "shape": asdict(shape),
        "launches": [],
        "unique": [],
    }
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        for number in range(len(UNIQUE)):
            path = subdirectory(work, f"unique{number}")
            item = child(options, path, "--child", "unique", "--shape", str(number))
            shutil.rmtree(path)
            figures["unique"].append(item)
            report_unique(item)
        if options.only_unique:
            return figures
        local = subdirectory(work, "local")
        figures |= all_verbs(options, local)
        shutil.rmtree(local)
        report_tree(figures)
        report_verbs("", figures)
        figures["xfs"] = on_xfs(options, subdirectory(work, "loop"))
        report_verbs("xfs: ", figures["xfs"])
        print(f"{'partitions':>10}{'s':>9}{'ms each':>9}{'CPU ms each':>12}{'peak MiB':>9}", end="")
        print(f"{'MiB':>8}{'files':>7}")
        for world in shape.worlds:
            path = subdirectory(work, f"world{world}")
            item = child(options, path, "--child", "launch", "--world", str(world))
            figures["launches"].append(item)
            report_launch(item)
    return figures


def subdirectory(work: str, name: str) -> Path:
    """A new directory."""
    (Path(work) / name).mkdir()
    return Path(work) / name


def report_tree(figures: dict[str, Any]) -> None:
    """Print what is published, and where."""
    print(
        f"{figures['num_files']} files, {figures['num_unique']} unique, "
        f"{figures['size_bytes'] / MIB:.0f} MiB, {figures['unique_bytes'] / MIB:.0f} MiB unique; "
        f"{figures['place']}"
    )


def report_unique(item: dict[str, Any]) -> None:
    """Print one line for each verb over one tree in which no byte repeats."""
    print(f"{item['num_files']} unique files of {item['size_bytes'] / MIB:g} MiB")
    for verb, found in item["verbs"].items():
        print(
            f"  {verb:<14}{found['ours_s']:>8.3f} s, peer {found['theirs_s']:>8.3f} s, "
            f"ratio {found['ratio']:>6.2f}, CPU {found['cpu_s']:>7.3f} s, "
            f"{found['cpu_ratio']:.2f} of hashing and copying",
            flush=True,
        )


def report_launch(item: dict[str, Any]) -> None:
    """Print one line for a launch of one size."""
    print(
        f"{item['world_size']:>10}{item['seconds']:>9.2f}{item['seconds_per_partition'] * 1e3:>9.2f}"
        f"{item['cpu_s_per_partition'] * 1e3:>12.2f}{item['peak_bytes'] / MIB:>9.1f}"
        f"{item['store_bytes'] / MIB:>8.1f}{item['store_files']:>7}",
        flush=True,
    )


def report_verbs(where: str, figures: dict[str, Any]) -> None:
    """Print one line for each verb and its peer."""
    if "skipped" in figures:
        print(f"{where}skipped: {figures['skipped']}", flush=True)
        return
    peers = {"publish": "cp -r; sync", "publish_again": "rsync -a", "fetch": "cp -r"}
    for verb, peer in peers.items():
        item = figures[verb]
        if "skipped" in item:
            print(f"{where + verb:<22}skipped: {item['skipped']}")
            continue
        print(
            f"{where + verb:<22}{item['ours_s']:>8.3f} s, {peer:<12}{item['theirs_s']:>8.3f} s, "
            f"ratio {item['ratio']:>6.2f}, hashed {item['bytes_hashed'] / MIB:>7.0f} MiB"
        )
    print(
        f"{where}peak memory of the fetch: {figures['fetch']['peak_bytes'] / MIB:.1f} MiB; "
        f"all files hashed and nothing else: {figures['publish']['hash_alone_s']:.3f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
