"""Run the doctor's checks: on this machine, or on every node of the cluster that a config joins.

A check that fails becomes a note, and the others go on. No node is waited for longer than `NODE_S`, and no
place of the store longer than a launch would wait for it. Files that are made for a try are removed again,
and no directory is made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.deadline import all_within
from warmrank.cache_store.cache_dir.private_files import (
    check_private,
    create_private,
    ensure_cache_dir,
    temporary_name,
)
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.layout import TMP
from warmrank.cache_store.store import open_backend
from warmrank.cache_store.text import brief_names, count_text, grouped, size_text
from warmrank.orchestrator import stores
from warmrank.orchestrator.config.lint import LintFinding
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.store import StoreConfig, TierConfig
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_group import Lost
from warmrank.orchestrator.gang.placement import nodes_of_ray
from warmrank.orchestrator.inspect import machine
from warmrank.orchestrator.inspect.machine import PATIENCE_S, Finding, Level, judged
from warmrank.orchestrator.inspect.store_contents import can_be_made
from warmrank.orchestrator.nodes import Node, this_node
from warmrank.worker.keys.request import environment

SCHEMA_VERSION = 3
"""Of the JSON that ``doctor --json`` prints; removing a check or a field needs a new number."""

NODE_S = 180.0
"""Longest wait for a node: a first import of torch, and every place of the store silent, in one."""

SKEW_S = 900.0  # object stores refuse signed requests whose time is 15 minutes off (S3: RequestTimeTooSkewed)
LEAST_FREE_BYTES = 2**30
LEAST_FREE_INODES = 10_000
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFindings:
    """The findings of one node, and its environment fingerprint; that is empty where it gave no answer."""

    node: Node
    findings: tuple[Finding, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings, as the command prints them."""

    schema_version: int  # see `SCHEMA_VERSION`
    device: str  # the device kind that the nodes were checked for
    config: str  # the config's name; empty without one
    worst: Level  # the worst level of all findings
    cluster: tuple[Finding, ...]  # findings on what the nodes have in common, and on the config
    nodes: tuple[NodeFindings, ...]  # the nodes, by host name


def diagnose(
    config: Config | None,
    device: str | None,
    *,
    all_nodes: bool = False,
    config_findings: Sequence[LintFinding] = (),
) -> Diagnosis:
    """Check this machine, or every node of the cluster that the config joins.

    Without a ``device`` it is the config's kind, else what there seems to be here. ``config_findings`` is
    what `lint` found. Raises `BadArgument`, or `CannotStart`.
    """
    way = ray_session.way_in(config.ray, os.environ, initialized=False) if config else "local"
    there = next((kind for kind in ("npu", "cuda") if machine.device_files(kind)), "cpu")
    device = device or (config.device if config else there)
    cluster: Sequence[Finding] = ()
    if config is None or not all_nodes:
        nodes = [examine(device, config, this_node(), in_cluster=way != "local")[0]]
    elif way == "local":
        raise BadArgument(
            f"--all-nodes: expected a cluster, and config {config.name} starts a Ray of its own here; "
            "set ray.address (or RAY_ADDRESS), or leave --all-nodes out"
        )
    else:
        nodes, cluster = _on_nodes(config, device)
    ill_set = [
        Finding(f"config.{each.keys[0]}", each.level, each.found, each.remedy) for each in config_findings
    ]
    cluster = [*ill_set, *cluster]
    every = [*cluster, *(finding for node in nodes for finding in node.findings)]
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        device=device,
        config=config.name if config else "",
        worst=max((finding.level for finding in every), key=LEVELS.index, default="ok"),
        cluster=tuple(cluster),
        nodes=tuple(nodes),
    )


def examine(
    device: str, config: Config | None, node: Node, *, in_cluster: bool
) -> tuple[NodeFindings, float]:
    """Check the machine that this process runs on; what its clock shows at the end comes along."""
    environ = os.environ
    probe = machine.probe_torch(device, environ)
    address = (config.ray.address or environ.get("RAY_ADDRESS", "")) if config and in_cluster else ""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {  # by topic, in the order in which people read them
        "versions": partial(machine.check_software, device, probe),
        "limits": machine.check_limits,
        "network": partial(
            machine.check_network, device, environ, spans_nodes=in_cluster, ray_address=address
        ),
    }
    if device != "cpu":
        checks["devices"] = partial(machine.check_devices, device, environ, probe)
    if config is not None and config.store is not None:
        checks["store"] = partial(check_store, config.store)
    if config is not None:
        checks["disk"] = partial(check_disk, config.cache_dir)
    findings: list[Finding] = []
    for topic, check in checks.items():
        try:
            findings += check()
        except Exception as fault:  # noqa: BLE001 - a node with one odd file must still hear of all else
            findings.append(Finding(topic, "note", f"not checked: {type(fault).__name__}: {fault}"))
    return NodeFindings(node=node, findings=tuple(findings), environment=dict(environment())), time.time()


class NodeDoctor:
    """The actor that checks the node it runs on."""

    def examine(self, device: str, config: Config, node: Node) -> tuple[NodeFindings, float]:
        """See `examine`."""
        return examine(device, config, node, in_cluster=True)


def _on_nodes(config: Config, device: str) -> tuple[list[NodeFindings], list[Finding]]:
    """The findings of each node of the cluster, and those on what they have in common."""
    with ray_session.group_on(config, NodeDoctor, device=device) as group:
        known = nodes_of_ray()
        for each in known:  # No device is asked for: all that the node has are to be seen.
            group.start(each.node.node_id)
        sent_s = time.time()
        asked = {each.node.node_id: (device, config, each.node) for each in known}
        answers = group.ask(NodeDoctor.examine, asked, timeout_s=NODE_S)
        received_s = time.time()
    nodes = []
    for node, answer in ((each.node, answers[each.node.node_id]) for each in known):
        if isinstance(answer, Lost):
            what = f"the node belongs to the cluster and gave no findings: {answer.reason}"
            logs = "/tmp/ray/session_latest/logs"  # noqa: S108 - Ray's own
            remedy = f"look into Ray's logs there ({logs}), or run `warmrank doctor` there"
            lost = Finding("cluster.answer", "error", what, remedy)
            nodes.append(NodeFindings(node=node, findings=(lost,)))
        else:
            found, clock_s = answer
            clock = check_clock(clock_s, sent_s=sent_s, received_s=received_s)
            nodes.append(replace(found, findings=(*found.findings, clock)))
    bundle = ray_session.rank_resources(config.ray, device)
    room = check_resources([each.resources for each in known], bundle, config.ranks)
    return nodes, [*room, *check_environments(nodes)]


def check_clock(clock_s: float, *, sent_s: float, received_s: float) -> Finding:
    """Compare a node's clock with the driver's between question and answer."""
    off_s = max(clock_s - received_s, sent_s - clock_s, 0.0)
    return judged(
        "clocks.driver",
        off_s < SKEW_S,
        f"the node's clock is within {SKEW_S / 60:g} minutes of the driver's",
        "object stores refuse this node's requests, or the driver's: their clocks are about "
        f"{off_s / 60:.0f} minutes apart",
        "synchronise both (chronyc tracking, timedatectl)",
    )


def check_resources(
    nodes: Sequence[Mapping[str, float]], bundle: Mapping[str, float], num_ranks: int
) -> Iterator[Finding]:
    """Check that the cluster has room for the ranks, by Ray's count."""
    where, ranks = count_text(len(nodes), "node"), count_text(num_ranks, "rank")
    for name, need in bundle.items():
        total = sum(node.get(name, 0.0) for node in nodes)
        most = sum(int(node.get(name, 0.0) // need) for node in nodes)
        yield judged(
            "cluster.resources",
            most >= num_ranks,
            f"{total:g} {name} on {where} for {ranks}",
            f"{ranks} of {need:g} {name} each, but {total:g} on {where} have room for {most}",
            "lower ranks or what each asks for, or start nodes with more: "
            f"`ray start --resources='{{\"{name}\": 8}}'` where Ray does not see devices by itself",
        )


def check_environments(nodes: Iterable[NodeFindings]) -> Iterator[Finding]:
    """Check that artifacts of one node can be loaded on the others."""
    answered = [node for node in nodes if node.environment]
    differing = {}
    for name in sorted({name for node in answered for name in node.environment}):
        hosts = grouped((node.environment.get(name, ""), node.node.host) for node in answered)
        if len(hosts) > 1:
            differing[name] = "; ".join(
                f"{value!r} on {brief_names(who, max_names=8)}" for value, who in hosts.items()
            )
    for name, values in differing.items():
        what = f"nodes differ in {name}, so they do not share artifacts: {values}"
        remedy = "install the same versions on all nodes, or make a cluster of each kind"
        yield Finding("cluster.environment", "warning", what, remedy)
    if len(answered) > 1 and not differing:
        what = f"{len(answered)} nodes have one environment, so they share artifacts"
        yield Finding("cluster.environment", "ok", what)


def check_store(config: StoreConfig) -> Iterator[Finding]:
    """Check that each place of the store answers and takes files, side by side; then the keys."""
    patience_s = max(tier.answer_s for tier in config.tiers) + 1.0
    found = all_within([partial(_tier, tier) for tier in config.tiers], timeout_s=patience_s)
    for tier, findings in zip(config.tiers, found, strict=True):
        for finding in findings or [_unusable(tier, "no answer in time")]:
            # A launch goes on without a nearer place, unless it is required.
            spared = finding.level == "error" and tier.mode != "required" and tier is not config.tiers[-1]
            yield replace(finding, level="warning") if spared else finding
    try:
        trust = stores.load(config, to_sign=True)
        trust.check_signer()
    except (StoreError, BadArgument, OSError) as fault:
        remedy = str(getattr(fault, "remedy", "")) or "see `warmrank keys --help`"
        where = f"{fault.where}: " if isinstance(fault, StoreError) else ""
        yield Finding("store.keys", "error", f"keys of the config: {where}{_reason(fault)}", remedy)
    else:
        num_trusted = count_text(len(trust.trusted), "trusted key")
        what = f"trust policy {stores.decided(config).trust.policy}, {num_trusted}"
        yield Finding("store.keys", "ok", what)


def _tier(tier: TierConfig) -> list[Finding]:
    """One place; raises nothing."""
    try:
        is_new = tier.mode == "rw" and can_be_made(tier.path)
        if is_new and os.access(_nearest_there(Path(tier.path)), os.W_OK | os.X_OK):
            what = f"there is no store at {tier.path} yet; the first launch makes it"
            return [Finding("store.reachable", "ok", what)]
        backend = open_backend(stores.tier_spec(tier), create=False)
    except (StoreError, OSError) as fault:
        return [_unusable(tier, _reason(fault), str(getattr(fault, "remedy", "")))]
    reachable = Finding("store.reachable", "ok", f"{tier.path} ({tier.mode}) is a store")
    if tier.mode == "ro":
        return [reachable]
    data, problem = temporary_name().encode(), ""
    name = f"{TMP}{data.decode()}/doctor"
    try:
        backend.put_new([NewFile(name=name, source=data, expected=digest_bytes(data))])
        backend.move(name, None)
    except (StoreError, OSError) as fault:
        problem = _reason(fault)
    writable = judged(
        "store.writable",
        not problem,
        f"{tier.path} takes files",
        f"nothing is published at {tier.path} ({tier.mode}): {problem}",
        "correct owner, rights, free space or the clock of this node, or set its mode to ro",
        "error" if tier.mode == "required" else "warning",
    )
    return [reachable, writable]


def _unusable(tier: TierConfig, why: str, remedy: str = "") -> Finding:
    what = f"a launch {'fails' if tier.mode == 'required' else 'goes on'} without {tier.path} ({tier.mode})"
    usual = "check that its file system is mounted, or its server up, on this node"
    return Finding("store.reachable", "error", f"{what}: {why}", remedy or usual)


def _reason(fault: Exception) -> str:
    said = (getattr(fault, name, "") for name in ("detail", "reason", "actual"))
    return str(next(filter(None, said), fault))


def check_disk(path: Path) -> Iterator[Finding]:
    """Check that a cache directory can hold artifacts: private files, with room for them."""
    (found,) = all_within([partial(_disk, path.absolute())], timeout_s=PATIENCE_S)
    yield from found or [_no_cache(f"no answer within {PATIENCE_S:g} s")]


def _disk(path: Path) -> list[Finding]:
    """The findings on a cache directory, or on the nearest one above it that is there; raises nothing."""
    there = _nearest_there(path)
    try:
        if there == path:
            ensure_cache_dir(path)
            _try_private_file(path)
        elif not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            return [_no_cache(f"it cannot be made in {there}, where this user may not write")]
        room = os.statvfs(there)
    except (StoreError, OSError) as fault:
        return [_no_cache(str(fault))]
    findings = [Finding("disk.cache_dir", "ok", f"{path} {'is private' if there == path else 'can be made'}")]
    free_bytes = room.f_frsize * room.f_bavail
    num_files = room.f_favail if room.f_files else LEAST_FREE_INODES  # 0 of 0: without such a limit
    free = f"{size_text(free_bytes)} and {room.f_favail if room.f_files else 'any number of'} files"
    findings.append(
        judged(
            "disk.free",
            free_bytes >= LEAST_FREE_BYTES and num_files >= LEAST_FREE_INODES,
            f"{free} are free",
            f"{free} free at {there}, expected {size_text(LEAST_FREE_BYTES)} and {LEAST_FREE_INODES}",
            "remove old cache directories, which can go whole, or name another cache_dir",
            "warning" if free_bytes and num_files else "error",
        )
    )
    if room.f_flag & os.ST_NOEXEC:
        what = "the file system is mounted noexec, so compiled libraries of mode max-autotune do not load"
        remedy = "mount it without noexec, or name another cache_dir"
        findings.append(Finding("disk.execution", "warning", what, remedy))
    return findings


def _try_private_file(directory: Path) -> None:
    """Write a private file; file systems without owners and modes (vfat, SMB, squashed NFS) keep none."""
    trial = directory / f".doctor-{temporary_name()}"
    try:
        with create_private(trial) as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        check_private(trial)
    finally:
        trial.unlink(missing_ok=True)


def _no_cache(why: str) -> Finding:
    what = f"the cache directory, which only this user may write, cannot be used: {why}"
    return Finding("disk.cache_dir", "error", what, "mend that, or name another cache_dir")


def _nearest_there(path: Path) -> Path:
    """The path, or the nearest directory above it that can be looked at."""
    places = (path.absolute(), *path.absolute().parents)
    return next((place for place in places if os.path.lexists(place)), Path("/"))
