"""Findings of the doctor: obstacles to launches on a node or a cluster, each with its remedy.

A finding is plain data: it crosses Ray, and becomes JSON as it stands. A check that cannot be made is a note
that says why, never an error of the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from warmrank.orchestrator.nodes import Node

SCHEMA_VERSION = 2
"""Of the JSON that ``doctor --json`` prints; removing a check or a field needs a new number."""

Level = Literal["ok", "note", "warning", "error"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "error")
"""``note``: not checked; ``warning``: some launches fail; ``error``: a launch on this node fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Outcome of one check, named ``topic.subject``; ``remedy`` is empty where there is nothing to do."""

    check: str
    level: Level
    what: str
    remedy: str = ""


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
    cluster: tuple[Finding, ...]  # findings on what the nodes have in common
    nodes: tuple[NodeFindings, ...]  # the nodes, by host name


def diagnosis(
    device: str, config: str, nodes: Sequence[NodeFindings], cluster: Sequence[Finding] = ()
) -> Diagnosis:
    """All findings, with their worst level."""
    every = [*cluster, *(finding for node in nodes for finding in node.findings)]
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        device=device,
        config=config,
        worst=max((finding.level for finding in every), key=LEVELS.index, default="ok"),
        cluster=tuple(cluster),
        nodes=tuple(nodes),
    )


def ok(check: str, what: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(check=check, level="ok", what=what)


def note(check: str, why: str) -> Finding:
    """A check that could not be made."""
    return Finding(check=check, level="note", what=f"not checked: {why}")


def judged(check: str, is_fine: bool, fine: str, fault: str, remedy: str, level: Level = "error") -> Finding:
    """What is ``fine``, or else the ``fault`` with its remedy."""
    return ok(check, fine) if is_fine else Finding(check=check, level=level, what=fault, remedy=remedy)


def warning(check: str, what: str, remedy: str) -> Finding:
    """Something that stops some launches."""
    return Finding(check=check, level="warning", what=what, remedy=remedy)


def error(check: str, what: str, remedy: str) -> Finding:
    """Something that stops launches on this node."""
    return Finding(check=check, level="error", what=what, remedy=remedy)
