"""The outcome of a launch in a sentence: pure, shared by page and table."""

from __future__ import annotations

from warmrank.orchestrator.show.figures import count_text
from warmrank.orchestrator.show.folding import brief_names, brief_ranks
from warmrank.orchestrator.show.report import Report


def headline(report: Report) -> str:
    """What became of the launch, in one sentence."""
    totals = report.totals
    if report.failure is not None:
        return f"Failed after {totals.wall_s:.1f} s{_where(report)}"
    everyone = "The one rank is" if report.world_size == 1 else f"All {report.world_size:,} ranks are"
    done = [
        f"{count:,} {what}"
        for count, what in (
            (totals.num_compiled, "compiled"),
            (totals.num_adopted, "adopted"),
            (totals.num_loaded, "loaded"),
        )
        if count
    ]
    how = f"{everyone} warm after {totals.wall_s:.1f} s"
    if not done:
        return f"{how}."
    return f"{how}: {'nothing compiled, ' if not totals.num_compiled else ''}{', '.join(done)}."


def parallel_text(report: Report) -> str:
    """The parallel axes that are larger than one, such as ``tp 8 x pp 4``."""
    return " x ".join(f"{name} {size}" for name, size in report.parallel.items() if size > 1)


def _where(report: Report) -> str:
    failure = report.failure
    if failure is None:
        return ""
    stage = f" in stage {failure.stage.replace('_', ' ')}" if failure.stage else ""
    if not failure.causes:
        first = failure.message.splitlines()[0] if failure.message else failure.kind
        return f"{stage}: {first.rstrip(':')}."
    cause = failure.causes[0]
    on = f" ({brief_names(cause.hosts)})" if cause.hosts else ""
    more = len(failure.causes) - 1
    others = f", and {count_text(more, 'other cause')}" if more else ""
    return f"{stage}: {cause.kind} on {brief_ranks(cause.ranks)}{on}{others}."
