"""Checks on the store of a config: its places, and the keys that say whose artifacts may run. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from warmrank.orchestrator.doctor.findings import Finding, Level, ok

PlaceState = Literal["open", "absent", "silent", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What is known of one place of the store.

    Attributes:
        location: directory or URL.
        mode: as the config has it.
        state: ``absent``: nothing is there yet that a launch could not make a store of; ``silent``: no answer
            within ``answer_s``; ``refused``: it answered, but cannot be opened.
        problem: why it is not open, or cannot be made; empty if neither.
        remedy: what the error said about it.
        answer_s: seconds that a launch would wait for it.
        write_problem: why a file cannot be put there; empty if one was, or none was tried.
        was_written: a file was put there, and removed again.
    """

    location: str
    mode: str
    state: PlaceState
    problem: str
    remedy: str
    answer_s: float
    write_problem: str
    was_written: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Whom the config trusts.

    Attributes:
        policy: the policy, decided where the config left it open.
        was_decided: the config left it open.
        signing_key: file of the private key; empty for none.
        num_trusted: public keys that are believed.
        problem: why the keys cannot be used; empty if they can.
        remedy: what the error said about it.
    """

    policy: str
    was_decided: bool
    signing_key: str
    num_trusted: int
    problem: str
    remedy: str


def check_places(places: tuple[Place, ...]) -> Iterator[Finding]:
    """All findings on the places of the store, the farthest last."""
    for index, place in enumerate(places):
        yield _place(place, is_farthest=index == len(places) - 1)
        yield from _written(place)


def _place(place: Place, *, is_farthest: bool) -> Finding:
    if place.state == "open":
        return ok("store.reachable", f"{place.location} ({place.mode}) is a store")
    if place.state == "absent" and not place.problem:
        return _absent(place)
    level: Level = "error" if is_farthest or place.mode == "required" else "warning"
    without = "a launch fails without it" if place.mode == "required" else "a launch goes on without it"
    return Finding(
        check="store.reachable",
        level=level,
        what=f"{place.location} ({place.mode}) cannot be used; {without}",
        expected=f"a store that answers within {place.answer_s:g} s",
        actual=place.problem or "no answer in time",
        remedy=place.remedy or "check that its file system is mounted, or its server up, on this node",
    )


def _absent(place: Place) -> Finding:
    made_by_hand = place.mode in {"required", "ro"}
    return Finding(
        check="store.reachable",
        level="error" if place.mode == "required" else "warning" if place.mode == "ro" else "note",
        what=f"there is no store at {place.location} ({place.mode}) yet"
        + ("" if made_by_hand else "; the first launch makes it"),
        expected="a store",
        actual="nothing there",
        remedy="mount it, if it lies on a disk that nodes share; else run `warmrank init CONFIG` once, with "
        "mode rw",
    )


def _written(place: Place) -> Iterator[Finding]:
    if place.was_written:
        yield ok("store.writable", f"{place.location} takes files, and gives them back")
    elif place.write_problem:
        yield Finding(
            check="store.writable",
            level="error" if place.mode == "required" else "warning",
            what=f"{place.location} is {place.mode}, and takes no files, so nothing is published there",
            expected="that a file can be put there, read and removed",
            actual=place.write_problem,
            remedy="correct owner, rights or free space there, or set its mode to ro",
        )


def check_keys(keys: Keys) -> Iterator[Finding]:
    """All findings on trust."""
    if keys.problem:
        yield Finding(
            check="store.keys",
            level="error",
            what="the keys that the config names cannot be used on this node",
            expected="readable key files of this user or root, which nobody else can write",
            actual=keys.problem,
            remedy=keys.remedy or "see `warmrank keys --help`",
        )
        return
    decided = "chosen by place" if keys.was_decided else "as configured"
    signs = f"signs with {keys.signing_key}" if keys.signing_key else "signs nothing"
    if keys.policy != "require":
        yield ok("store.keys", f"trust policy {keys.policy}, {decided}; {signs}")
        return
    if keys.signing_key:
        yield ok(
            "store.keys", f"trust policy require, {decided}; {signs}, believes {keys.num_trusted} more keys"
        )
        return
    yield Finding(
        check="store.keys",
        level="note" if keys.num_trusted else "warning",
        what="trust policy require without a signing key: launches read the store and publish nothing"
        + ("" if keys.num_trusted else ", and believe nobody, so they load nothing from it"),
        expected="store.trust.signing_key where launches publish; trusted keys where they only read",
        actual=f"no signing key, {keys.num_trusted} trusted keys",
        remedy="warmrank keys generate NAME, and set store.trust.signing_key; warmrank keys trust FILE",
    )
