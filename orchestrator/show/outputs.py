"""Where a launch leaves what it has to tell: files in four formats, each written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.show.report import Report, to_json
from warmrank.orchestrator.show.whole_file import make_way, write_whole

STDOUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files that were asked for; None for none.

    Attributes:
        json: the report as JSON; `STDOUT` is the caller's business.
        html: the report as one page.
        trace: the timeline for Perfetto.
        metrics: the totals for Prometheus.
    """

    json: Path | None = None
    html: Path | None = None
    trace: Path | None = None
    metrics: Path | None = None

    @property
    def json_to_stdout(self) -> bool:
        """Whether stdout is for the report, and nothing else."""
        return self.json == STDOUT

    def prepare(self) -> None:
        """Make way for the files before anything is done that they tell of.

        Metrics stay: a collector reads them at any time, and keeps the last launch's until the next ones.

        Raises:
            ConfigError: one of them cannot be written.
            BadArgument: two of them are the same file.
        """
        self._refuse_the_same_twice()
        for option, path in (("--json", self.json), ("--report", self.html), ("--trace", self.trace)):
            if path is not None and path != STDOUT:
                make_way(path, option=option)

    def _refuse_the_same_twice(self) -> None:
        options = {
            "--json": self.json,
            "--report": self.html,
            "--trace": self.trace,
            "--metrics": self.metrics,
        }
        seen: dict[Path, str] = {}
        for option, path in options.items():
            if path is None or path == STDOUT:
                continue
            earlier = seen.setdefault(path.resolve(), option)
            if earlier != option:
                msg = f"{earlier} and {option}: expected a file for each, found {path} for both"
                raise BadArgument(msg)

    def write(self, report: Report) -> tuple[tuple[str, Path], ...]:
        """Write every file; returns what each is, and where."""
        written = []
        for what, path, render in (
            ("report", self.json, to_json),
            ("report", self.html, _html),
            ("trace", self.trace, _trace),
            ("metrics", self.metrics, _metrics),
        ):
            if path is not None and path != STDOUT:
                write_whole(path, render(report))
                written.append((what, path))
        return tuple(written)


def _html(report: Report) -> str:
    from warmrank.orchestrator.show.html_report import render_html

    return render_html(report)


def _trace(report: Report) -> str:
    from warmrank.orchestrator.show.chrome_trace import trace_json

    return trace_json(report)


def _metrics(report: Report) -> str:
    from warmrank.orchestrator.show.metrics import exposition, samples

    return exposition(samples(report))
