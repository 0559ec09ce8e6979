"""The tables of directories of other tools, and of what a node's vLLM made of its entries."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from warmrank.orchestrator.look.directories import DirectoryLine
from warmrank.orchestrator.text import size_text, time_text
from warmrank.orchestrator.ui.table import table_of
from warmrank.orchestrator.vllm_plugin.entries import Outcome


def render_directories(lines: Sequence[DirectoryLine]) -> RenderableType:
    """A table of directories."""
    table = table_of("=directory of", "=pushed", "what", ">files", ">size")
    for line in lines:
        cells = (str(line.num_files), size_text(line.size_bytes))
        table.add_row(line.tool, time_text(line.created), line.what, *cells)
    return table


def render_outcomes(outcomes: Sequence[Outcome]) -> RenderableType:
    """What the ranks of this node did at their last starts, newest first."""
    nothing = "nothing of its own to publish"
    lines = [f"{one.model}: {one.line()}\n  {one.published or nothing}" for one in outcomes]
    return Group(*(Text(line) for line in lines or ["no vLLM started here with WARMRANK_STORE"]))
