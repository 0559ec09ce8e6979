"""File systems of one's own, in image files, that can lose power: loop mounts and the shutdown ioctl.

Invariants: everything here runs in a mount namespace of its own (`NAMESPACE`), so that no mount and no loop
device outlives the process that made it, however it ends. The shutdown ioctl with `NO_LOG_FLUSH` drops what
the file system had not written to its device, journal included, as a power cut does; what a disk loses
out of its own write cache, it cannot show.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FileSystem = Literal["ext4", "xfs"]

NAMESPACE = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
# XFS_IOC_GOINGDOWN, in ext4 EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32); linux/fs/xfs/libxfs/xfs_fs.h
_SHUTDOWN = 2 << 30 | 4 << 16 | ord("X") << 8 | 125
NO_LOG_FLUSH = 2
_SIZES = {"ext4": 96 << 20, "xfs": 320 << 20}  # mkfs.xfs refuses less than 300 MiB
_MKFS = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}
_BUSY_TIMEOUT_S = 10.0


def why_not(file_system: FileSystem) -> str | None:
    """Why this machine cannot mount such a file system; None when it can."""
    if os.geteuid() != 0:
        return "mounting an image needs root"
    needed = (NAMESPACE[0], "mount", "umount", _MKFS[file_system][0])
    if missing := [tool for tool in needed if _found(tool) is None]:
        return f"no {missing[0]} on this machine"
    if not Path("/dev/loop-control").exists():
        return "no loop devices on this machine"
    trial = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return f"no mount namespace: {trial.stderr.strip()}" if trial.returncode else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopMount:
    """An image file and where it is mounted.

    Attributes:
        file_system: its type.
        image: the image file.
        point: an empty directory.
        size_bytes: size of the image; None for the least that suits the type.
    """

    file_system: FileSystem
    image: Path
    point: Path
    size_bytes: int | None = None

    def make(self) -> None:
        """Make a new file system in the image."""
        self.image.unlink(missing_ok=True)
        with self.image.open("xb") as file:
            file.truncate(self.size_bytes or _SIZES[self.file_system])
        _run(*_MKFS[self.file_system], str(self.image))

    def mount(self) -> None:
        """Mount it; replays its journal if there is something in it."""
        self.point.mkdir(exist_ok=True)
        _run("mount", "-o", "loop", "-t", self.file_system, str(self.image), str(self.point))

    def unmount(self) -> None:
        """Unmount it, as soon as the kernel is done with the files of processes that were killed."""
        deadline = time.monotonic() + _BUSY_TIMEOUT_S
        while (error := _try("umount", str(self.point))) and time.monotonic() < deadline:
            time.sleep(0.002)
        if error:
            raise AssertionError(error)

    def cut_power(self) -> None:
        """From now on nothing reaches the image any more."""
        descriptor = os.open(self.point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)


def _found(tool: str) -> str | None:
    """Where a tool lies; those that make file systems often lie outside of PATH."""
    return shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _run(*command: str) -> None:
    if error := _try(*command):
        raise AssertionError(error)


def _try(*command: str) -> str | None:
    done = subprocess.run(
        [_found(command[0]) or command[0], *command[1:]], capture_output=True, text=True, check=False
    )
    return f"{' '.join(command)}: {done.stderr.strip()}" if done.returncode else None
