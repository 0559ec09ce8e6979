"""`warmrank store publish`: brings to the store what launches left on this node while it was away.

Knows neither torch nor Ray. A launch that stretched over several nodes needs this on each of them, on the
driver's last, because only there its record waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from warmrank.cache_store.publish_pending import QueueReport, publish_pending
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import NothingThere
from warmrank.orchestrator.store.stores import open_store
from warmrank.orchestrator.text import count_text


def publish_late(config: Config) -> QueueReport:
    """Publish this node's queue.

    Raises:
        NothingThere: the config names no store.
        cache_store.errors.StoreError: the store is away still, or cannot be used.
    """
    if config.store is None:
        msg = f"config {config.name} names no store to publish to; expected store.path in it"
        raise NothingThere(msg)
    return publish_pending(open_store(config.store), config.cache_dir)


def render_late(report: QueueReport, cache_dir: Path) -> RenderableType:
    """What of a cache directory was published, what waits still, what is lost, and what went wrong."""
    return Group(*_lines(report, cache_dir))


def _lines(report: QueueReport, cache_dir: Path) -> Iterator[Text]:
    if not (report.published or report.committed or report.kept or report.dropped or report.problems):
        yield Text(f"nothing waits on this node in {cache_dir}")
        return
    published = count_text(len(report.published), "partition")
    committed = count_text(len(report.committed), "launch")
    yield Text(f"from {cache_dir}: published {published}, committed {committed}")
    for what, reason in report.kept.items():
        yield Text(f"waits: {what}: {reason}", style="yellow")
    for what, reason in report.dropped.items():
        yield Text(f"dropped: {what}: {reason}", style="bold red")
    for problem in report.problems:
        yield Text(f"problem: {problem}", style="bold red")
