"""The plugin's access to the store, and what it publishes in the background, once for each node.

A thread looks at the entries of this process: when the worker's start is over and their files rest, they are
published unless the store has them already, and again whenever files were added, as a first warm start does.
The lock of the entry makes one process of the node publish for all of its ranks.
"""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

from warmrank.cache_store.backends.deadline import all_within
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.signing.trust import TrustPolicy
from warmrank.cache_store.text import count_text
from warmrank.orchestrator.config.store import StoreConfig, TrustConfig, locate_trust, tier_at
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.stores import decided, is_writable, may_publish, open_store
from warmrank.orchestrator.vllm_plugin.entries import (
    Entry,
    Outcome,
    files_digest,
    node_lock,
    note_published,
    published_digest,
    ranks_of,
    write_components,
    write_outcome,
)

logger = logging.getLogger("vllm.warmrank")

NO_STORE = "the store gave nothing"
_LOOK_EVERY_S = 0.5
_REST_S = 2.0
"""Files that do not change for so long are whole."""
_LATER_S = 60.0
"""Between looks once everything is published: what a request compiles later is small."""
_AT_EXIT_S = 10.0


class Publisher:
    """The entries of this process, and the thread that publishes them once the worker ``is_warm``."""

    def __init__(self, opened: Access) -> None:
        self.is_warm = threading.Event()  # it has compiled and warmed up all that it starts with
        self._access = opened
        self._entries: dict[Entry, Outcome] = {}
        self._seen: dict[Entry, tuple[str, float]] = {}
        self._given_up: set[Entry] = set()
        self._stepping = threading.Lock()  # one look at a time: the last waits for what is being published
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, entry: Entry, outcome: Outcome, components: dict[str, str] | None = None) -> None:
        """Take over an entry that vLLM loaded, or that it compiled for ``components`` and saved."""
        if components is not None and entry.artifact.exists():
            write_components(entry.artifact, components)
        logger.info("warmrank: %s", outcome.line())
        write_outcome(entry, outcome)
        self._entries[entry] = outcome
        self._wake.set()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="warmrank-publish", daemon=True)
        self._thread.start()
        # Runs in children of multiprocessing too, where atexit does not.
        multiprocessing.util.Finalize(None, self._at_exit, exitpriority=100)

    def _run(self) -> None:
        self.is_warm.wait()
        while True:
            try:
                waits = self.step()
            except Exception as error:  # noqa: BLE001 - the thread's edge
                logger.warning("warmrank: nothing more is published: %s", error)
                return
            self._wake.wait(waits)
            self._wake.clear()

    def step(self, *, is_last: bool = False) -> float:
        """Look once; returns seconds until the next look."""
        with self._stepping:
            entries = [entry for entry in tuple(self._entries) if entry not in self._given_up]
            rests = [self._look(entry, is_last=is_last) for entry in entries]
        return _LATER_S if all(rests) else _LOOK_EVERY_S

    def _look(self, entry: Entry, *, is_last: bool) -> bool:
        """Publish an entry whose files rest; returns whether it is done for now."""
        digest, now_s = files_digest(entry.root), time.monotonic()
        if digest == published_digest(entry):
            return True
        before, since_s = self._seen.get(entry, ("", now_s))
        if digest != before:
            self._seen[entry] = digest, now_s
            since_s = now_s
        if now_s - since_s < _REST_S and not is_last:
            return False
        with node_lock(entry, timeout_s=0) as is_held:
            if not is_held:
                return False
            if digest == published_digest(entry):
                return True
            self._publish(entry, digest)
        return True

    def _publish(self, entry: Entry, digest: str) -> None:
        ranks = ranks_of(entry)
        unknown = [rank for rank, components in ranks.items() if not components]
        if unknown and entry.rank not in unknown:
            return  # another rank of this start has not noted its own yet, and publishes for all when it has
        if not ranks:
            said = "nothing to publish: vLLM saved no artifact"
        elif unknown:
            said = f"not published: it was compiled without the plugin; remove {entry.root} to have it so"
        elif not self._access.publishes:
            said = "not published: the store takes only what is signed, and WARMRANK_SIGNING_KEY names no key"
        else:
            said = self._push(entry, ranks, digest)
        if said.startswith("not"):
            self._given_up.add(entry)
        outcome = self._entries[entry]
        outcome.published = said
        is_known = said.startswith("not") and outcome.why.startswith(NO_STORE)
        level = logging.DEBUG if is_known else logging.INFO
        logger.log(level, "warmrank: %s of %s: %s", entry.rank, entry.top.name[:12], said)
        write_outcome(entry, outcome)

    def _push(self, entry: Entry, ranks: dict[str, dict[str, str]], digest: str) -> str:
        started_s = time.monotonic()
        try:
            store = open_store(self._access.config)
            reports = [store.push_directory(entry.tool, entry.root, ranks[rank]) for rank in ranks]
        except (StoreError, OSError) as error:
            return f"not published: {error}"
        note_published(entry, digest)
        files = count_text(reports[0].num_files, "file")
        if not any(report.created for report in reports):
            return f"the store has all of its {files}"
        seconds, num_bytes = time.monotonic() - started_s, sum(report.bytes_new for report in reports)
        return (
            f"published {files} for {', '.join(ranks)}: {num_bytes} bytes new to the "
            f"store, in {seconds:.2f} s"
        )

    def _at_exit(self) -> None:
        """Publish what a short program added, without keeping it for long."""
        try:
            bounded(lambda: self.step(is_last=True), _AT_EXIT_S)
        except Exception as error:  # noqa: BLE001 - vLLM is leaving
            logger.warning("warmrank: not published at exit: %s", error)


TIMEOUT_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The store of this process."""

    config: StoreConfig  # its place, and whom to trust; the policy is decided
    timeout_s: float  # the longest that vLLM waits for it

    @property
    def publishes(self) -> bool:
        """The store may be written, and what is published could be believed."""
        return is_writable(self.config.tiers) and may_publish(self.config.trust)


def access(environ: Mapping[str, str] = os.environ) -> Access:
    """The access that this process's environment asks for.

    ``WARMRANK_STORE`` is the place, ``WARMRANK_SIGNING_KEY`` a key's name in the keyring or a PEM file,
    ``WARMRANK_KEYRING`` the keyring, ``WARMRANK_TRUST`` the policy, ``WARMRANK_TIMEOUT_S`` the time-out.

    Raises:
        BadArgument: a variable cannot be used.
        StoreError: the keyring is damaged.
    """
    policy, timeout = environ.get("WARMRANK_TRUST"), environ.get("WARMRANK_TIMEOUT_S")
    if policy not in {None, *get_args(TrustPolicy)}:
        allowed = ", ".join(get_args(TrustPolicy))
        raise BadArgument(f"WARMRANK_TRUST: expected one of {allowed}; found {policy!r}")
    try:
        timeout_s = float(timeout) if timeout else TIMEOUT_S
    except ValueError:
        raise BadArgument(f"WARMRANK_TIMEOUT_S: expected seconds, found {timeout!r}") from None
    named = {"signing_key": "WARMRANK_SIGNING_KEY", "keyring": "WARMRANK_KEYRING"}
    paths = {key: Path(environ[name]) for key, name in named.items() if environ.get(name)}
    trust = TrustConfig.model_validate({"policy": policy, **paths})
    config = StoreConfig(
        tiers=(tier_at(environ["WARMRANK_STORE"]),), trust=locate_trust(trust, base=Path.cwd())
    )
    return Access(config=decided(config), timeout_s=timeout_s)


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """The call's outcome, in a thread of its own; raises what it raised, or TimeoutError while it goes on."""
    (found,) = all_within([lambda: (call(),)], timeout_s=timeout_s)
    if found is None:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return found[0]
