"""What `warmrank doctor` says: findings of checks, and which of them are alike on many nodes.

A finding is plain data, so that it crosses Ray and becomes JSON as it stands. Invariants: a finding that is
not ``ok`` says what was expected, what was found, and what to do (in its first line, where that is another
module's text); a check that cannot be made is a note that says why, never an error of the command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from warmrank.orchestrator.nodes import Node

SCHEMA_VERSION = 1
"""Of the JSON that ``doctor --json`` prints; a change of meaning needs a new number."""

Level = Literal["ok", "note", "warning", "error"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "error")
"""From the best to the worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found.

    Attributes:
        check: its name, ``topic.subject``, such as ``disk.free``.
        level: ``ok``; ``note``: worth knowing; ``warning``: works, but slowly or not always; ``error``: a
            launch on this node fails, or gives up a promise.
        what: one line for people.
        expected: what should be; empty where all is well.
        actual: what is.
        remedy: what to do; empty where there is nothing to do.
    """

    check: str
    level: Level
    what: str
    expected: str = ""
    actual: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFindings:
    """All findings of one node.

    Attributes:
        node: the node.
        findings: in the order of the checks.
        environment: its fingerprint, by which artifacts are keyed; empty where the node gave no answer.
        seconds: wall time of its checks.
    """

    node: Node
    findings: tuple[Finding, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the command prints.

    Attributes:
        schema_version: see `SCHEMA_VERSION`.
        device: the device kind that the nodes were checked for.
        config: the config's name; empty without one.
        worst: the worst level of all findings.
        cluster: findings on what the nodes have in common, or do not.
        nodes: the nodes, by host name.
    """

    schema_version: int
    device: str
    config: str
    worst: Level
    cluster: tuple[Finding, ...]
    nodes: tuple[NodeFindings, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Findings of several nodes that say the same, but for what was found there.

    Attributes:
        finding: that of the first of them.
        found: what was found (where all is well: its line), with the hosts where it was.
    """

    finding: Finding
    found: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts that have it."""
        return tuple(host for _, hosts in self.found for host in hosts)


def diagnosis(
    device: str, config: str, nodes: Sequence[NodeFindings], cluster: Sequence[Finding] = ()
) -> Diagnosis:
    """Everything together, with its worst level."""
    every = [*cluster, *(finding for node in nodes for finding in node.findings)]
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        device=device,
        config=config,
        worst=worst(every),
        cluster=tuple(cluster),
        nodes=tuple(nodes),
    )


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level among findings; ``ok`` for none."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


def fold(nodes: Iterable[NodeFindings]) -> tuple[Folded, ...]:
    """Findings that differ in nothing but what was found, once; in the order of the checks."""
    alike: dict[tuple[str, ...], list[tuple[Finding, str]]] = {}
    order: dict[str, int] = {}
    for node in nodes:
        seen: Counter[str] = Counter()
        for finding in node.findings:
            order.setdefault(finding.check, len(order))
            key = _key(finding, seen[finding.check])
            seen[finding.check] += 1
            alike.setdefault(key, []).append((finding, node.node.host))
    ordered = sorted(alike.values(), key=lambda members: order[members[0][0].check])
    return tuple(_folded(members) for members in ordered)


def _key(finding: Finding, number: int) -> tuple[str, ...]:
    """Fine checks are told apart by their place only: a node has several of one name, as for tiers."""
    if finding.level == "ok":
        return finding.check, finding.level, str(number)
    return finding.check, finding.level, finding.what, finding.expected, finding.remedy


def _folded(members: Sequence[tuple[Finding, str]]) -> Folded:
    hosts: dict[str, list[str]] = {}
    for finding, host in members:
        text = finding.what if finding.level == "ok" else finding.actual
        hosts.setdefault(text, []).append(host)
    found = tuple((text, tuple(names)) for text, names in hosts.items())
    return Folded(finding=members[0][0], found=found)


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check=check, level="ok", what=what)


def unknown(check: str, why: str) -> Finding:
    """A check that could not be made."""
    return Finding(check=check, level="note", what="not checked", actual=why)
