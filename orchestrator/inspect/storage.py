"""Checks on the store of a config, its keys, and the directory that artifacts are laid out in.

Files that are made for a try are removed again, and no directory is made. No place of the store is waited for
longer than a launch would: its ``answer_s``, and the second that finds it out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from warmrank.cache_store import connect
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.private_files import FILE_MODE, create_private, temporary_name
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.layout import TMP
from warmrank.orchestrator.bounded import all_within
from warmrank.orchestrator.config.store import StoreConfig, TierConfig, is_url
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.inspect.findings import Finding, error, ok, warning
from warmrank.orchestrator.inspect.store_contents import can_be_made
from warmrank.orchestrator.store import stores
from warmrank.orchestrator.text import count_text, size_text

PATIENCE_S = 5.0
LEAST_FREE_BYTES = 2**30
LEAST_FREE_INODES = 10_000


def check_store(config: StoreConfig) -> Iterator[Finding]:
    """Check that each place of the store answers and takes files, side by side; then the keys."""
    patience_s = max(tier.answer_s for tier in config.tiers) + 1.0
    found = all_within([partial(_tier, tier) for tier in config.tiers], timeout_s=patience_s)
    for index, (tier, findings) in enumerate(zip(config.tiers, found, strict=True)):
        is_farthest = index == len(config.tiers) - 1
        for finding in findings or [_unusable(tier, "no answer in time")]:
            # A launch goes on without a nearer place, unless it is required.
            spared = finding.level == "error" and tier.mode != "required" and not is_farthest
            yield replace(finding, level="warning") if spared else finding
    try:
        num_trusted = len(stores.load(config, to_sign=True).trusted)
    except (StoreError, BadArgument, OSError) as fault:
        what, remedy = _described(fault)
        yield error("store.keys", f"keys of the config: {what}", remedy or "see `warmrank keys --help`")
    else:
        policy = stores.decided(config).trust.policy
        yield ok("store.keys", f"trust policy {policy}, {count_text(num_trusted, 'trusted key')}")


def _tier(tier: TierConfig) -> list[Finding]:
    """One place; raises nothing."""
    try:
        backend = connect.open_backend(stores.tier_spec(tier), create=False)
    except (StoreError, OSError) as fault:
        if not is_url(tier.path) and tier.mode == "rw" and _can_be_made(Path(tier.path)):
            return [ok("store.reachable", f"there is no store at {tier.path} yet; the first launch makes it")]
        return [_unusable(tier, *_described(fault))]
    reachable = ok("store.reachable", f"{tier.path} ({tier.mode}) is a store")
    if tier.mode == "ro":
        return [reachable]
    data = temporary_name().encode()
    name = f"{TMP}{data.decode()}/doctor"
    try:
        backend.put_new([NewFile(name=name, source=data, expected=digest_bytes(data))])
        backend.move(name, None)
    except (StoreError, OSError) as fault:
        what = f"nothing is published at {tier.path} ({tier.mode}): {_described(fault)[0]}"
        remedy = "correct owner, rights, free space or the clock of this node, or set its mode to ro"
        level = error if tier.mode == "required" else warning
        return [reachable, level("store.writable", what, remedy)]
    return [reachable, ok("store.writable", f"{tier.path} takes files")]


def _unusable(tier: TierConfig, why: str, remedy: str = "") -> Finding:
    without = "fails" if tier.mode == "required" else "goes on"
    return error(
        "store.reachable",
        f"a launch {without} without {tier.path} ({tier.mode}): {why}",
        remedy or "check that its file system is mounted, or its server up, on this node",
    )


def _can_be_made(path: Path) -> bool:
    """True if a launch could make a store there: nothing is there, or only parts of one."""
    try:
        return os.access(_nearest_there(path), os.W_OK | os.X_OK) and can_be_made(str(path))
    except StoreError:
        return False


def check_disk(path: Path) -> Iterator[Finding]:
    """Check that a cache directory can hold artifacts: private files, with room for them."""
    (found,) = all_within([partial(_disk, path.absolute())], timeout_s=PATIENCE_S)
    yield from found or [_no_cache(f"no answer within {PATIENCE_S:g} s")]


def _disk(path: Path) -> list[Finding]:
    """The findings on a cache directory, or on the nearest one above it that is there; raises nothing."""
    there = _nearest_there(path)
    try:
        status, room = there.stat(), os.statvfs(there)
        why = _directory_fault(there, status, exists=there == path)
    except OSError as fault:
        return [_no_cache(str(fault))]
    if why:
        return [_no_cache(f"{there}: {why}")]
    findings = [ok("disk.cache_dir", f"{path} {'is private' if there == path else 'can be made'}")]
    free_bytes = room.f_frsize * room.f_bavail
    has_inodes = room.f_favail >= LEAST_FREE_INODES or not room.f_files  # 0 of 0: without such a limit
    there_is = f"{size_text(free_bytes)} and {room.f_favail if room.f_files else 'any number of'} files"
    if free_bytes >= LEAST_FREE_BYTES and has_inodes:
        findings.append(ok("disk.free", f"{there_is} are free"))
    else:
        what = f"{there_is} free at {there}, expected {size_text(LEAST_FREE_BYTES)} and {LEAST_FREE_INODES}"
        remedy = "remove old cache directories, which can go whole, or name another cache_dir"
        level = warning if free_bytes and (room.f_favail or not room.f_files) else error
        findings.append(level("disk.free", what, remedy))
    if room.f_flag & os.ST_NOEXEC:
        what = "the file system is mounted noexec, so compiled libraries of mode max-autotune do not load"
        findings.append(warning("disk.execution", what, "mount it without noexec, or name another cache_dir"))
    return findings


def _directory_fault(there: Path, status: os.stat_result, *, exists: bool) -> str:
    """Obstacle to private files in a directory; empty for none."""
    if not stat.S_ISDIR(status.st_mode):
        return "it is no directory"
    if exists and status.st_uid != os.geteuid():
        return f"it belongs to uid {status.st_uid}, not {os.geteuid()}"
    if exists and status.st_mode & 0o022:
        return f"others can write it (mode {stat.S_IMODE(status.st_mode):04o}); chmod 700 makes it private"
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return "this user may not write it"
    return _scratch_fault(there / f".doctor-{temporary_name()}") if exists else ""


def _scratch_fault(path: Path) -> str:
    """Obstacle to a trial file that is made, flushed, and stays private; empty for none."""
    try:
        with create_private(path) as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        status = path.stat()
    except OSError as fault:
        return fault.strerror or str(fault)
    finally:
        path.unlink(missing_ok=True)
    is_private = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == FILE_MODE
    return "" if is_private else "its file system does not keep owners and modes (vfat, SMB, squashed NFS)"


def _no_cache(why: str) -> Finding:
    what = f"the cache directory, which only this user may write, cannot be used: {why}"
    return error("disk.cache_dir", what, "mend that, or name another cache_dir")


def _nearest_there(path: Path) -> Path:
    """The path, or the nearest directory above it that can be looked at."""
    for candidate in (path.absolute(), *path.absolute().parents):
        try:
            candidate.stat()
        except OSError:
            continue
        return candidate
    return Path("/")


def _described(fault: Exception) -> tuple[str, str]:
    """Reason and remedy of an error."""
    reason = str(getattr(fault, "reason", "") or getattr(fault, "actual", "") or fault)
    return reason, str(getattr(fault, "remedy", ""))
