"""A visit of vLLM to an entry: what is on this disk is checked, and what is not there fetched.

Whatever fails here is one line in the log, and vLLM goes on as without.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from warmrank.cache_store.cache_dir.marks import check_marks
from warmrank.cache_store.errors import NoStoreYet, NotInStore, RefusedCache, StoreError
from warmrank.orchestrator.stores import load, open_to_fetch
from warmrank.orchestrator.vllm_plugin import ascend
from warmrank.orchestrator.vllm_plugin.access import Access, bounded
from warmrank.orchestrator.vllm_plugin.entries import (
    Entry,
    Outcome,
    discard,
    files_digest,
    node_lock,
    note_published,
    read_components,
    set_aside,
)
from warmrank.orchestrator.vllm_plugin.factors import differences
from warmrank.orchestrator.vllm_plugin.publishing import NO_STORE

logger = logging.getLogger("vllm.warmrank")


@dataclass(slots=True, kw_only=True)
class Visit:
    """State of one artifact while vLLM looks for it."""

    entry: Entry  # the artifact's place
    model: str  # path or name of the model
    components: dict[str, str] = field(default_factory=dict)  # what it depends on
    source: Literal["store", "disk"] = "disk"  # where it came from, if it is there
    may_load: bool = True  # vLLM may load what is there
    is_over: bool = False  # vLLM does not wait any more
    why: str = ""  # why there is none, or none that may be loaded
    fetch_s: float = 0.0  # seconds that vLLM waited for the store
    fetched_bytes: int = 0  # bytes copied

    def outcome(self, *, is_loaded: bool, compile_s: float, why: str) -> Outcome:
        """The visit once vLLM has loaded or compiled; ``why`` counts where the visit knows no reason."""
        return Outcome(
            entry=self.entry.top.name,
            rank=self.entry.rank,
            model=self.model,
            outcome="loaded" if is_loaded else "compiled",
            source=self.source if is_loaded else "",
            why=why if is_loaded else self.why or why,
            fetch_s=self.fetch_s,
            fetched_bytes=self.fetched_bytes,
            compile_s=compile_s,
            at_s=time.time(),
        )


def visit_entry(
    opened: Access, entry: Entry, config: Any, components: Callable[[], dict[str, str]]
) -> Visit | None:
    """Have the artifact there if the store has it; None where the plugin cannot serve this vLLM.

    ``config`` is vLLM's; ``components`` gives what the entry depends on.
    """
    visit = Visit(entry=entry, model=str(getattr(config.model_config, "model", "")))
    started_s = time.monotonic()
    try:
        visit.components = components()
        _drop_another(visit)
        bounded(lambda: _prepare(opened, visit), opened.timeout_s)
    except (StoreError, TimeoutError, OSError) as error:
        _explain(visit, f"{NO_STORE}: {error}")
    except Exception as error:  # noqa: BLE001 - vLLM has to start whatever happens here
        logger.warning("warmrank: %s is not served: %s", entry.rank, error)
        return None
    visit.is_over = True
    visit.fetch_s = time.monotonic() - started_s
    _drop_another(visit)
    return visit


def _drop_another(visit: Visit) -> None:
    """Remove an artifact from this disk that was compiled for something else, or nobody knows for what.

    vLLM's own hash says enough of what was compiled without the plugin; vllm-ascend's does not.
    """
    if not visit.entry.artifact.exists():
        return
    stored = read_components(visit.entry)
    changes = differences(stored, visit.components) if stored else ""
    if changes:
        _explain(visit, f"the artifact on this disk is another one: {changes}")
    elif not stored and ascend.OPERATORS in visit.components:
        _explain(visit, "the artifact on this disk is of unknown custom operators, made without the plugin")
    else:
        return
    try:
        discard(visit.entry)
    except OSError:
        visit.may_load = False


def _explain(visit: Visit, why: str) -> None:
    visit.why = "; ".join(filter(None, (visit.why, why)))


def _prepare(opened: Access, visit: Visit) -> None:
    entry = visit.entry
    with node_lock(entry, timeout_s=opened.timeout_s):
        if visit.is_over:
            return
        trust = load(opened.config, to_sign=False)
        try:
            check_marks(entry.root, trust.policy, trust.revoked)
        except RefusedCache as refusal:
            logger.warning("warmrank: %s; moved to %s", refusal, set_aside(entry))
        if entry.artifact.exists():
            return
        try:
            store = open_to_fetch(opened.config)
            report = store.pull_directory(entry.kind.value, entry.root, visit.components)
        except NoStoreYet:
            _explain(visit, "there is no store yet")
            return
        except NotInStore as miss:
            _explain(visit, f"the store has no such entry: {miss.remedy}")
            return
        visit.source, visit.fetched_bytes = "store", report.bytes_copied
        note_published(entry, files_digest(entry.root))
