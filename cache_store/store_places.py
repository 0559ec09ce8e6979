"""What every verb of a store goes through: its places, the trust with which it is used, and what went wrong.

Invariants: every verb runs under `cache_store.backends.supervisor`, so a place that falls silent costs
seconds, and the verb goes on with the others; it never touches the object, because it may be left behind in
its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from warmrank.cache_store import spreading
from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.backends.supervisor import Supervisor
from warmrank.cache_store.backends.tier import Tier, TierState
from warmrank.cache_store.backends.tiers import TieredBackend
from warmrank.cache_store.cache_dir.marks import admit
from warmrank.cache_store.cache_dir.placing import Destination, Destinations, admitted
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.signing.trust import Trust, TrustPolicy

T = TypeVar("T")


class StorePlaces:
    """The places of one store, and how a verb is done on them.

    Attributes:
        location: where it is, as it was named.
        problems: what was skipped, or failed although a verb went on, since this object was made; one line
            each.
    """

    def __init__(
        self, backend: BlobBackend, *, trust: Trust, location: str, left_out: Sequence[TierState] = ()
    ) -> None:
        tiers = (
            backend.tiers if isinstance(backend, TieredBackend) else (Tier(name=location, backend=backend),)
        )
        self._supervisor = Supervisor(tiers)
        self._trust = trust
        self._left_out = tuple(left_out)
        self.location = location
        self.problems = self._supervisor.problems
        self.problems.extend(tier.reason for tier in left_out if tier.state == "away")

    @property
    def policy(self) -> TrustPolicy:
        """The trust policy under which this process uses the store."""
        return self._trust.policy

    @property
    def tiers(self) -> tuple[TierState, ...]:
        """Its places and what became of each, those in use first, nearest first."""
        return (*(tier.state for tier in self._supervisor.tiers), *self._left_out)

    @property
    def is_behind(self) -> bool:
        """Whether a writable place is away, so that what is published now must be published to it later."""
        return any(tier.state == "away" and tier.mode != "ro" for tier in self.tiers)

    def admit(self, cache_root: Path) -> None:
        """Make sure that copies from here may go below ``cache_root``; see `admission.admit`."""
        admit(cache_root, self._trust.policy, self._trust.revoked)

    def admitted(self, destinations: Destinations) -> tuple[dict[str, Destination], tuple[str, ...]]:
        """The node caches that node artifacts from here may go to; see `placing.admitted`."""
        return admitted(destinations, self._trust.policy, self._trust.revoked)

    def _spread(self, copies: Sequence[NewFile], names: Sequence[str]) -> None:
        """Put blobs, and documents by their names, into the nearer places."""
        if len(self._supervisor.tiers) == 1:
            return
        try:
            self._supervisor.run(lambda view: spreading.fill(view, copies, names))
        except StoreUnavailable as error:
            if error.required:
                raise
            self.problems.append(str(error))

    def _write(self, verb: Callable[[Documents], T]) -> T:
        """Do ``verb`` in the farthest writable place that answers; see `_run`."""
        trust = self._trust
        return self._supervisor.run(lambda view: spreading.write(view, trust, verb))

    def _run(self, verb: Callable[[Documents], T]) -> T:
        """Do ``verb`` on the places that answer.

        What it is handed is for it alone: it must not touch this object, because it may be left behind in
        its thread.
        """
        trust = self._trust
        return self._supervisor.run(lambda view: verb(Documents(backend=view, trust=trust)))

    def _noting(self, verb: Callable[[Documents, list[str]], T]) -> T:
        """As `_run`, for what skips faulty files: they become problems, each once whatever was repeated."""

        def with_problems(documents: Documents) -> tuple[T, list[str]]:
            problems: list[str] = []
            return verb(documents, problems), problems

        result, problems = self._run(with_problems)
        self.problems.extend(problems)
        return result
