"""The outcomes of a node's ranks for Prometheus, on vLLM's own ``/metrics`` page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from warmrank.orchestrator.vllm_plugin.entries import Outcome, read_outcomes

FAMILIES = {
    "warmrank_vllm_artifact": "1 for each rank's artifact, by its outcome and source.",
    "warmrank_vllm_compile_seconds": "Seconds of torch.compile, loads included.",
    "warmrank_vllm_fetch_seconds": "Seconds that vLLM waited for the store.",
    "warmrank_vllm_fetched_bytes": "Bytes copied from the store.",
}


class OutcomeCollector:
    """Reads the outcomes of starts that began no earlier than this process.

    Args:
        root: vLLM's ``VLLM_CACHE_ROOT``.
        since_s: outcomes before are another start's.
    """

    def __init__(self, root: Path, since_s: float) -> None:
        self._root = root
        self._since_s = since_s

    def collect(self) -> Iterator[Any]:
        """See `prometheus_client.registry.Collector`."""
        yield from gauges(read_outcomes(self._root, since_s=self._since_s))


def gauges(outcomes: Iterable[Outcome]) -> Iterator[Any]:
    """The outcomes as gauges of `prometheus_client`."""
    from prometheus_client.core import GaugeMetricFamily

    made = {
        name: GaugeMetricFamily(name, text, labels=("entry", "rank", "outcome", "source"))
        for name, text in FAMILIES.items()
    }
    for one in outcomes:
        labels = (one.entry[:12], one.rank, one.outcome, one.source)
        values = (1.0, one.compile_s, one.fetch_s, float(one.fetched_bytes))
        for name, value in zip(FAMILIES, values, strict=True):
            made[name].add_metric(labels, value)
    yield from made.values()


def register(root: Path) -> None:
    """Add the outcomes to this process's metrics, once."""
    from prometheus_client import REGISTRY

    REGISTRY.register(OutcomeCollector(root, time.time()))
