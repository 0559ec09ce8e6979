"""The places of vLLM that the plugin hooks: the load of an artifact, and the end of a worker's start.

`vllm.compilation.decorators._try_load_aot_compiled_fn` is called with the path of the one artifact that vLLM
looks for, in the process that will run it, before anything is compiled. Whatever fails here is one line in
the log, and vLLM goes on as without.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from warmrank.cache_store.errors import NoStoreYet, NotInStore, RefusedCache, StoreError
from warmrank.orchestrator.vllm_plugin import metrics
from warmrank.orchestrator.vllm_plugin.access import Access, access, bounded
from warmrank.orchestrator.vllm_plugin.entries import (
    Entry,
    Outcome,
    aot_root,
    files_digest,
    node_lock,
    note_published,
    read_components,
    set_aside,
)
from warmrank.orchestrator.vllm_plugin.factors import components, differences
from warmrank.orchestrator.vllm_plugin.publishing import NO_STORE, Publisher

logger = logging.getLogger("vllm.warmrank")

_WARM_UP = "compile_or_warm_up_model"
_NOT_LOADED = "vLLM could not load the artifact that was there"


@dataclass(slots=True, kw_only=True)
class Visit:
    """What is known of one artifact while vLLM looks for it.

    Attributes:
        entry: the artifact's place.
        model: path or name of the model.
        components: what it depends on.
        source: where it came from, if it is there.
        may_load: vLLM may load what is there.
        is_over: vLLM does not wait any more.
        why: why there is none, or none that may be loaded.
        fetch_s: seconds that vLLM waited for the store.
        fetched_bytes: bytes copied.
    """

    entry: Entry
    model: str
    components: dict[str, str] = field(default_factory=dict)
    source: Literal["store", "disk"] = "disk"
    may_load: bool = True
    is_over: bool = False
    why: str = ""
    fetch_s: float = 0.0
    fetched_bytes: int = 0

    def outcome(self, model: Any, *, is_loaded: bool) -> Outcome:
        """The visit once vLLM has loaded or compiled."""
        return Outcome(
            entry=self.entry.root.name,
            rank=self.entry.rank,
            model=self.model,
            outcome="loaded" if is_loaded else "compiled",
            source=self.source if is_loaded else "",
            why="" if is_loaded else self.why or _NOT_LOADED,
            fetch_s=self.fetch_s,
            fetched_bytes=self.fetched_bytes,
            compile_s=float(getattr(model.vllm_config.compilation_config, "compilation_time", 0.0)),
            at_s=time.time(),
        )


def install() -> None:
    """Hook vLLM in this process; a second call changes nothing.

    Raises:
        AttributeError, ImportError: this vLLM has not what is hooked.
        BadArgument, StoreError: the settings cannot be used.
    """
    from vllm import envs
    from vllm.compilation import decorators
    from vllm.compilation.caching import aot_compile_hash_factors  # noqa: F401 - `factors` needs it
    from vllm.compilation.counter import compilation_counter
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = decorators._try_load_aot_compiled_fn  # noqa: SLF001 - vLLM has no public hook
    if hasattr(original, "warmrank") or envs.VLLM_DISABLE_COMPILE_CACHE:
        return
    opened = access()
    publisher = Publisher(opened, compilation_counter)
    loader = Loader(opened, publisher, original, compilation_counter)
    decorators._try_load_aot_compiled_fn = loader  # noqa: SLF001
    _hook_warm_up(WorkerWrapperBase, publisher)
    metrics.register(aot_root(Path(envs.VLLM_CACHE_ROOT)))


def _hook_warm_up(wrapper: Any, publisher: Publisher) -> None:
    """Tell the publisher when a worker's start is over, whatever class of worker it is."""
    original = wrapper.__getattr__

    def getattr_(self: Any, name: str) -> Any:
        found = original(self, name)
        return _then(found, publisher.begin) if name == _WARM_UP else found

    wrapper.__getattr__ = getattr_
    publisher.waits_for_warm_up = True


def _then(call: Callable[..., Any], follow: Callable[[], None]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        follow()
        return result

    return called


class Loader:
    """Takes the place of vLLM's function that loads an artifact.

    Args:
        opened: the store.
        publisher: takes what this process adds.
        original: vLLM's function.
        counter: vLLM's `compilation_counter`.
    """

    warmrank = True

    def __init__(
        self, opened: Access, publisher: Publisher, original: Callable[..., Any], counter: Any
    ) -> None:
        self._access = opened
        self._publisher = publisher
        self._original = original
        self._counter = counter
        self._visited: set[Path] = set()

    def __call__(self, model: Any, aot_compilation_path: str) -> Any:
        """As vLLM's: the loaded function, or None."""
        path = Path(aot_compilation_path)
        if path in self._visited:  # another layer of the same class
            return self._original(model, aot_compilation_path)
        self._visited.add(path)
        visit = self._visit(model, path)
        if visit is None:
            return self._original(model, aot_compilation_path)
        num_before = self._counter.num_aot_artifacts_loaded
        loaded = None
        if visit.may_load:
            with _reason(visit):
                loaded = self._original(model, aot_compilation_path)
        try:
            self._note(visit, model, is_loaded=self._counter.num_aot_artifacts_loaded > num_before)
        except Exception as error:  # noqa: BLE001 - vLLM has to start whatever happens here
            logger.warning("warmrank: %s: %s", visit.entry.rank, error)
        return loaded

    def _visit(self, model: Any, path: Path) -> Visit | None:
        """Have the artifact there if the store has it; None where the plugin cannot serve this vLLM."""
        entry = Entry(root=path.parent.parent, rank=path.parent.name)
        visit = Visit(entry=entry, model=str(getattr(model.vllm_config.model_config, "model", "")))
        started_s = time.monotonic()
        try:
            visit.components = components(model, entry.rank, entry.root.name)
            bounded(lambda: self._prepare(visit), self._access.timeout_s)
        except (StoreError, TimeoutError, OSError) as error:
            visit.why = f"{NO_STORE}: {error}"
        except Exception as error:  # noqa: BLE001 - vLLM has to start whatever happens here
            logger.warning("warmrank: %s is not served: %s", entry.rank, error)
            return None
        visit.is_over = True
        visit.fetch_s = time.monotonic() - started_s
        stored = read_components(entry) if entry.artifact.exists() else {}
        if stored and (changes := differences(stored, visit.components)):
            visit.may_load = False
            visit.why = f"the artifact on this disk is another one: {changes}"
        return visit

    def _prepare(self, visit: Visit) -> None:
        entry = visit.entry
        with node_lock(entry, timeout_s=self._access.timeout_s):
            if visit.is_over:
                return
            self._admit(visit)
            if not entry.artifact.exists():
                self._pull(visit)

    def _admit(self, visit: Visit) -> None:
        """Put an entry aside whose copies the trust policy refuses."""
        try:
            self._access.admit(visit.entry.root)
        except RefusedCache as refusal:
            aside = set_aside(visit.entry)
            logger.warning("warmrank: %s; moved to %s", refusal, aside)

    def _pull(self, visit: Visit) -> None:
        try:
            report = self._access.pull(visit.entry.root, visit.components)
        except NoStoreYet:
            visit.why = "there is no store yet"
            return
        except NotInStore as miss:
            visit.why = f"the store has no such entry: {miss.remedy}"
            return
        visit.source, visit.fetched_bytes = "store", report.bytes_copied
        note_published(visit.entry, files_digest(visit.entry.root))

    def _note(self, visit: Visit, model: Any, *, is_loaded: bool) -> None:
        if is_loaded:
            self._publisher.loaded(visit.entry, visit.outcome(model, is_loaded=True))
        else:
            self._publisher.will_compile(
                visit.entry, visit.components, lambda: visit.outcome(model, is_loaded=False)
            )


@contextlib.contextmanager
def _reason(visit: Visit) -> Iterator[None]:
    """Take vLLM's own words for why it could not load an artifact."""

    class Words(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "load failure" in str(record.msg):
                visit.why = f"{_NOT_LOADED}: {record.getMessage().rpartition('reason: ')[2][:200]}"

    words, log = Words(), logging.getLogger("vllm.compilation.decorators")
    log.addHandler(words)
    try:
        yield
    finally:
        log.removeHandler(words)
