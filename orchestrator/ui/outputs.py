"""Where a launch leaves what it has to tell: files in four formats, each written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch.report import Report, to_json
from warmrank.orchestrator.whole_file import make_way, write_whole

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
        named = {"--json": self.json, "--report": self.html, "--trace": self.trace, "--metrics": self.metrics}
        files = {option: path for option, path in named.items() if path is not None and path != STDOUT}
        seen: dict[Path, str] = {}
        for option, path in files.items():
            earlier = seen.setdefault(path.resolve(), option)
            if earlier != option:
                msg = f"{earlier} and {option}: expected a file for each, found {path} for both"
                raise BadArgument(msg)
        for option, path in files.items():
            if option != "--metrics":
                make_way(path, option=option)

    def write(self, report: Report) -> tuple[tuple[str, Path], ...]:
        """Write every file; returns what each is, and where."""
        written: list[tuple[str, Path]] = []

        def put(what: str, path: Path, text: str) -> None:
            write_whole(path, text)
            written.append((what, path))

        if self.json is not None and not self.json_to_stdout:
            put("report", self.json, to_json(report))
        if self.html is not None:
            from warmrank.orchestrator.ui.page import render_html

            put("report", self.html, render_html(report))
        if self.trace is not None:
            from warmrank.orchestrator.ui.trace import trace_json

            put("trace", self.trace, trace_json(report))
        if self.metrics is not None:
            from warmrank.orchestrator.ui.metrics import exposition

            put("metrics", self.metrics, exposition(report))
        return tuple(written)
