"""The places of vLLM that the plugin hooks: loads of artifacts, ends of workers' starts, metrics.

`vllm.compilation.decorators._try_load_aot_compiled_fn` is called with the path of the one artifact that vLLM
looks for, in the process that will run it, before anything is compiled. Whatever fails here is one line in
the log, and vLLM goes on as without.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from warmrank.orchestrator.vllm_plugin import graphs
from warmrank.orchestrator.vllm_plugin.access import Access, access
from warmrank.orchestrator.vllm_plugin.entries import Entry, Outcome, read_outcomes
from warmrank.orchestrator.vllm_plugin.factors import components
from warmrank.orchestrator.vllm_plugin.publishing import Publisher
from warmrank.orchestrator.vllm_plugin.visits import Visit, visit_entry

logger = logging.getLogger("vllm.warmrank")

_WARM_UP = "compile_or_warm_up_model"
_NOT_LOADED = "vLLM could not load the artifact that was there"


def install() -> None:
    """Hook vLLM in this process; a second call changes nothing.

    Raises:
        AttributeError, ImportError: this vLLM has not what is hooked.
        BadArgument, StoreError: the settings cannot be used.
    """
    from prometheus_client import REGISTRY
    from vllm import envs
    from vllm.compilation import decorators
    from vllm.compilation.backends import VllmBackend
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
    graphs.hook(VllmBackend, opened, publisher, compilation_counter)
    REGISTRY.register(OutcomeCollector(Path(envs.VLLM_CACHE_ROOT), time.time()))


def _hook_warm_up(wrapper: Any, publisher: Publisher) -> None:
    """Tell the publisher when a worker's start is over, whatever class of worker it is."""
    original = wrapper.__getattr__

    def getattr_(self: Any, name: str) -> Any:
        found = original(self, name)
        if name != _WARM_UP:
            return found

        def warm_up(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            publisher.begin()
            return result

        return warm_up

    wrapper.__getattr__ = getattr_
    publisher.waits_for_warm_up = True


class Loader:
    """Takes the place of vLLM's function that loads an artifact, ``original``; ``counter`` is vLLM's."""

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
        entry = Entry(root=path.parent.parent, rank=path.parent.name)
        visit = visit_entry(
            self._access, entry, model.vllm_config, lambda: components(model, entry.rank, entry.top.name)
        )
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

    def _note(self, visit: Visit, model: Any, *, is_loaded: bool) -> None:
        def outcome() -> Outcome:
            seconds = float(getattr(model.vllm_config.compilation_config, "compilation_time", 0.0))
            why = "" if is_loaded else _NOT_LOADED
            return visit.outcome(is_loaded=is_loaded, compile_s=seconds, why=why)

        if is_loaded:
            self._publisher.loaded(visit.entry, outcome())
        else:
            self._publisher.will_compile(visit.entry, visit.components, outcome)


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


FAMILIES = {
    "warmrank_vllm_artifact": "1 for each rank's artifact, by its outcome and source.",
    "warmrank_vllm_compile_seconds": "Seconds of torch.compile, loads included.",
    "warmrank_vllm_fetch_seconds": "Seconds that vLLM waited for the store.",
    "warmrank_vllm_fetched_bytes": "Bytes copied from the store.",
}


class OutcomeCollector:
    """Reads the outcomes below a ``VLLM_CACHE_ROOT`` of starts that began no earlier than this process."""

    def __init__(self, root: Path, since_s: float) -> None:
        self._root = root
        self._since_s = since_s

    def collect(self) -> Iterator[Any]:
        """See `prometheus_client.registry.Collector`."""
        from prometheus_client.core import GaugeMetricFamily

        names = ("entry", "rank", "outcome", "source")
        gauges = [GaugeMetricFamily(name, text, labels=names) for name, text in FAMILIES.items()]
        for one in read_outcomes(self._root, since_s=self._since_s):
            labels = (one.entry[:12], one.rank, one.outcome, one.source)
            values = (1.0, one.compile_s, one.fetch_s, float(one.fetched_bytes))
            for gauge, value in zip(gauges, values, strict=True):
                gauge.add_metric(labels, value)
        yield from gauges
