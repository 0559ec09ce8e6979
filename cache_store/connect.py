"""Opening a store by the places that keep it.

All are opened side by side, each within its ``answer_s``; one that is away, or no store that this release
reads, is left out and said so in `Store.problems`, unless it is required or the only one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.backends.deadline import Call, Ticks, wait_for
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.backends.durability import FlushChoice
from warmrank.cache_store.backends.places import ANSWER_S, Circuit, Tier, TieredBackend, TierState, away
from warmrank.cache_store.errors import StoreError, StoreUnavailable
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store

SpecMode = Literal["off", "ro", "rw", "required"]
# One for each place, whatever the number of stores opened in this process: none waits for a dead one again.
_circuits: dict[tuple[str, frozenset[tuple[str, str]]], Circuit] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """One place of a store: a directory, or an URL of an object store such as ``s3://bucket/prefix``.

    Mode ``off`` is not opened at all, ``ro`` never written; ``required`` is ``rw``, and the launch fails when
    it is away.
    """

    location: str
    mode: SpecMode = "rw"
    flush: FlushChoice = "auto"  # of a directory; ``auto`` chooses by the type of its file system
    answer_s: float = ANSWER_S  # until it is left alone for the rest of the process
    options: Mapping[str, str] = field(default_factory=dict)  # of the object store's client


def open_store(tiers: Sequence[TierSpec], *, trust: Trust, create: bool = True) -> Store:
    """Open the store that lies in ``tiers``: one place, or a near one and a far one.

    An absent or empty place whose mode is ``rw`` is made into a store if ``create``.

    Raises:
        StoreUnavailable: a required place, or every place, is away or cannot be used.
        Corrupt: its FORMAT is damaged.
    """
    asked = [spec for spec in tiers if spec.mode != "off"]
    if len(asked) > 2:
        raise ValueError("a store has one near and one far place")
    if not asked:
        reason, remedy = "every place of it is off", "name one whose mode is ro, rw or required"
        raise StoreUnavailable(what="store", where="the configuration", reason=reason, remedy=remedy)
    calls = [_start(spec, create=create) for spec in asked]
    spent_s = 0.0
    for spec, call in zip(asked, calls, strict=True):
        spent_s = _wait(spec, call, spent_s)
    found = [(spec, _outcome(spec, call)) for spec, call in zip(asked, calls, strict=True)]
    open_tiers = [outcome for _, outcome in found if isinstance(outcome, Tier)]
    if not open_tiers:
        raise next(outcome for _, outcome in reversed(found) if isinstance(outcome, StoreError))
    away_tiers = (
        TierState(location=spec.location, mode=spec.mode, state="away", reason=str(outcome))
        for spec, outcome in found
        if isinstance(outcome, StoreError)
    )
    off = (TierState(location=spec.location, mode="off", state="off") for spec in tiers if spec.mode == "off")
    location = ", ".join(spec.location for spec in asked)
    return Store(TieredBackend(open_tiers), trust=trust, location=location, left_out=(*away_tiers, *off))


def is_left_alone(location: str, options: Mapping[str, str]) -> bool:
    """Return True if a place fell silent in this process, so that no other needs to wait for it either."""
    return _circuit_of(location, options).is_open


def leave_alone(location: str, options: Mapping[str, str], *, reason: str) -> None:
    """Ask a place no more in this process: others have waited for it already."""
    _circuit_of(location, options).open(reason, where=location)


def _circuit_of(location: str, options: Mapping[str, str]) -> Circuit:
    return _circuits.setdefault((location, frozenset(options.items())), Circuit())


def _start(spec: TierSpec, *, create: bool) -> Call[BlobBackend] | None:
    """Begin to open a place, in a thread of its own; None for one that is left alone."""
    if _circuit_of(spec.location, spec.options).is_open:
        return None
    # What is required must be there: in its place, a disk that is not mounted would get a new store.
    opening = functools.partial(open_backend, spec, create=create and spec.mode == "rw")
    return Call(opening, name="store-open")


def _wait(spec: TierSpec, call: Call[BlobBackend] | None, spent_s: float) -> float:
    """Wait until it ended, or was silent for too long; takes and returns the seconds since all began."""
    circuit = _circuit_of(spec.location, spec.options)
    if call is None or circuit.is_open:
        return spent_s
    spent_s = wait_for(call.ended, spec.answer_s, spent_s=spent_s, ticks=Ticks())
    if not call.ended.is_set():
        circuit.open(f"no answer within {spec.answer_s:g} s", where=spec.location)
    return spent_s


def _outcome(spec: TierSpec, call: Call[BlobBackend] | None) -> Tier | StoreError:
    """The open place, or why it is left out; raises what is no reason to go on without it."""
    circuit, is_required = _circuit_of(spec.location, spec.options), spec.mode == "required"
    error = call.error if call is not None and call.ended.is_set() else None
    if error is None and call is not None and not circuit.is_open and spec.mode != "off":
        backend = call.result()
        return Tier(
            name=spec.location, backend=backend, mode=spec.mode, answer_s=spec.answer_s, circuit=circuit
        )
    error = error or away(spec.location, circuit.reason, required=is_required)
    if not isinstance(error, StoreError):
        raise error
    if isinstance(error, StoreUnavailable):
        if error.transport:  # another fault is an answer, and may be mended while this process runs
            circuit.open(error.reason, where=spec.location)
        error = error.but(required=is_required)
    if is_required:
        raise error
    return error


def open_backend(spec: TierSpec, *, create: bool) -> BlobBackend:
    """Open one place, however long that takes; raises `StoreError`."""
    if "://" in spec.location:
        from warmrank.cache_store.backends.object_store import ObjectBackend

        return ObjectBackend(
            spec.location,
            create=create,
            writable=spec.mode != "ro",
            answer_s=spec.answer_s,
            options=spec.options,
        )
    return DirectoryBackend(Path(spec.location), create=create, flush=spec.flush)
