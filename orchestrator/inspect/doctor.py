"""Run the checks: on this machine, or by a Ray task on every node of the cluster that a config joins.

A check that fails becomes a note, and the others go on. No node is waited for longer than `NODE_S`, and no
place of the store longer than a launch would wait for it. Files that are made for a try are removed again,
and no directory is made.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.deadline import all_within
from warmrank.cache_store.cache_dir.private_files import FILE_MODE, create_private, temporary_name
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.layout import TMP
from warmrank.cache_store.store import open_backend
from warmrank.orchestrator import stores
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.store import StoreConfig, TierConfig, is_url
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.eligible import nodes_of_ray
from warmrank.orchestrator.gang.node_group import Lost, NodeGroup
from warmrank.orchestrator.inspect import machine
from warmrank.orchestrator.inspect.findings import (
    Diagnosis,
    Finding,
    NodeFindings,
    diagnosis,
    error,
    note,
    ok,
    warning,
)
from warmrank.orchestrator.inspect.store_contents import can_be_made
from warmrank.orchestrator.nodes import Node, this_node
from warmrank.orchestrator.text import brief_names, count_text, grouped, size_text
from warmrank.worker.keys.request import environment

NODE_S = 180.0
"""Longest wait for a node: a first import of torch, and every place of the store silent, in one."""

SKEW_S = 900.0  # object stores refuse signed requests whose time is 15 minutes off (S3: RequestTimeTooSkewed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Requirements that a node is checked for."""

    device: str  # device kind
    config: Config | None  # the launch that it should serve; None for the node by itself
    in_cluster: bool  # the node belongs to a cluster that the config joins


def request_of(config: Config | None, device: str | None) -> Request:
    """The request for the device kind asked for, else the config's, else what there seems to be here."""
    way = ray_session.way_in(config.ray, os.environ, initialized=False) if config else "local"
    there = next((kind for kind in ("npu", "cuda") if machine.device_files(kind)), "cpu")
    wanted = device or (config.device if config else there)
    return Request(device=wanted, config=config, in_cluster=way != "local")


def diagnose_here(config: Config | None, device: str | None) -> Diagnosis:
    """Check this machine."""
    request = request_of(config, device)
    found, _ = examine(request, this_node())
    return diagnosis(request.device, config.name if config else "", [found])


def examine(request: Request, node: Node) -> tuple[NodeFindings, float]:
    """Check the machine that this process runs on; what its clock shows at the end comes along."""
    findings: list[Finding] = []
    for topic, check in _checks(request, os.environ):
        try:
            findings += check()
        except Exception as fault:  # noqa: BLE001 - a node with one odd file must still hear of all else
            findings.append(note(topic, f"{type(fault).__name__}: {fault}"))
    found = NodeFindings(node=node, findings=tuple(findings), environment=dict(environment()))
    return found, time.time()


def _checks(
    request: Request, environ: Mapping[str, str]
) -> Iterator[tuple[str, Callable[[], Iterable[Finding]]]]:
    """Topics and their checks, in the order in which people read them."""
    device, config = request.device, request.config
    probe = machine.probe_torch(device, environ)
    yield "versions", lambda: machine.check_software(device, probe)
    if device != "cpu":
        yield "devices", lambda: machine.check_devices(device, environ, probe)
    num_ranks = config.ranks if config and not request.in_cluster else 0
    yield "limits", lambda: machine.check_limits(num_ranks)
    address = (config.ray.address or environ.get("RAY_ADDRESS", "")) if config and request.in_cluster else ""
    yield (
        "network",
        lambda: machine.check_network(device, environ, spans_nodes=request.in_cluster, ray_address=address),
    )
    if config is not None:
        store = config.store
        if store is not None:
            yield "store", lambda: check_store(store)
        yield "disk", lambda: check_disk(config.cache_dir)


def diagnose_nodes(config: Config, device: str | None) -> Diagnosis:
    """Check every node of the cluster that the config joins; raises `BadArgument`, or `CannotStart`."""
    request = request_of(config, device)
    if not request.in_cluster:
        raise BadArgument(
            f"--all-nodes: expected a cluster, and config {config.name} starts a Ray of its own here; "
            "set ray.address (or RAY_ADDRESS), or leave --all-nodes out"
        )
    session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
    try:
        known = nodes_of_ray()
        environ = ray_session.rank_environ(config.ray, request.device, session.way_in)
        # No device is asked for: all that the node has are to be seen.
        group = NodeGroup(NodeDoctor, {"env_vars": environ}, num_calls=1)
        for each in known:
            group.start(each.node.node_id)
        sent_s = time.time()
        asked = {each.node.node_id: (request, each.node) for each in known}
        answers = group.ask(NodeDoctor.examine, asked, timeout_s=NODE_S)
        received_s = time.time()
    finally:
        ray_session.leave(session)
    found = [_of_node(each.node, answers[each.node.node_id], sent_s, received_s) for each in known]
    bundle = ray_session.rank_resources(config.ray, request.device)
    resources = [each.resources for each in known]
    together = [*check_resources(resources, bundle, config.ranks), *check_environments(found)]
    return diagnosis(request.device, config.name, found, together)


class NodeDoctor:
    """The actor that checks the node it runs on."""

    def examine(self, request: Request, node: Node) -> tuple[NodeFindings, float]:
        """See `examine`."""
        return examine(request, node)


def _of_node(
    node: Node, answer: tuple[NodeFindings, float] | Lost, sent_s: float, received_s: float
) -> NodeFindings:
    """The findings on a node, with that on its clock; or that it could not be checked."""
    if isinstance(answer, Lost):
        what = f"the node belongs to the cluster and gave no findings: {answer.reason}"
        remedy = "look into Ray's logs there (/tmp/ray/session_latest/logs), or run `warmrank doctor` there"
        return NodeFindings(node=node, findings=(error("cluster.answer", what, remedy),))
    found, clock_s = answer
    clock = check_clock(clock_s, sent_s=sent_s, received_s=received_s)
    return replace(found, findings=(*found.findings, clock))


def check_clock(clock_s: float, *, sent_s: float, received_s: float) -> Finding:
    """Compare a node's clock with the driver's between question and answer."""
    off_s = max(clock_s - received_s, sent_s - clock_s, 0.0)
    if off_s < SKEW_S:
        return ok("clocks.driver", f"the node's clock is within {SKEW_S / 60:g} minutes of the driver's")
    what = "object stores refuse this node's requests, or the driver's: their clocks are about "
    what += f"{off_s / 60:.0f} minutes apart"
    return error("clocks.driver", what, "synchronise both (chronyc tracking, timedatectl)")


def check_resources(
    nodes: Sequence[Mapping[str, float]], bundle: Mapping[str, float], num_ranks: int
) -> Iterator[Finding]:
    """Check that the cluster has room for the ranks, by Ray's count."""
    where, ranks = count_text(len(nodes), "node"), count_text(num_ranks, "rank")
    for name, need in bundle.items():
        total = sum(node.get(name, 0.0) for node in nodes)
        most = sum(int(node.get(name, 0.0) // need) for node in nodes)
        if most >= num_ranks:
            yield ok("cluster.resources", f"{total:g} {name} on {where} for {ranks}")
            continue
        yield error(
            "cluster.resources",
            f"{ranks} of {need:g} {name} each, but {total:g} on {where} have room for {most}",
            "lower ranks or what each asks for, or start nodes with more: "
            f"`ray start --resources='{{\"{name}\": 8}}'` where Ray does not see devices by itself",
        )


def check_environments(nodes: Iterable[NodeFindings]) -> Iterator[Finding]:
    """Check that artifacts of one node can be loaded on the others."""
    answered = [node for node in nodes if node.environment]
    names = sorted({name for node in answered for name in node.environment})
    differing = False
    for name in names:
        hosts = grouped((node.environment.get(name, ""), node.node.host) for node in answered)
        if len(hosts) == 1:
            continue
        differing = True
        values = "; ".join(f"{value!r} on {brief_names(who, max_names=8)}" for value, who in hosts.items())
        yield warning(
            "cluster.environment",
            f"nodes differ in {name}, so they do not share artifacts: {values}",
            "install the same versions on all nodes, or make a cluster of each kind",
        )
    if len(answered) > 1 and not differing:
        yield ok(
            "cluster.environment", f"{len(answered)} nodes have one environment, so they share artifacts"
        )


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
        backend = open_backend(stores.tier_spec(tier), create=False)
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
