"""What people see of a launch, as a browser without a window draws it."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.terminal_theme import MONOKAI

from tests.support.browser import find_browser, picture_of, run_browser
from tests.support.made_reports import made_report, until_compile
from warmrank.orchestrator.causes import Cause
from warmrank.orchestrator.launch.report import Failure, Report
from warmrank.orchestrator.launch.state import LaunchState
from warmrank.orchestrator.ui.live import LiveView
from warmrank.orchestrator.ui.page import render_html

KEEP = os.environ.get("WARMRANK_SCREENSHOTS", "")
"""A directory to keep the pictures in, for the documentation; they are larger then."""

SCALE = 0.8 if KEEP else 0.5

COMPILE_ORANGE = (224, 138, 44)
PAGE_LIGHT, PAGE_DARK = (246, 247, 249), (17, 21, 28)


@pytest.fixture
def browser() -> str:
    found = find_browser()
    if found is None:
        pytest.skip("no chromium or chrome in PATH; Debian has it as the package chromium")
    return found


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(KEEP) if KEEP else tmp_path


def page_of(report: Report, path: Path, *, theme: str = "light") -> Path:
    text = render_html(report).replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("num_ranks", "failed", "theme"),
    [
        pytest.param(2, False, "light", marks=pytest.mark.slow),
        (1024, False, "light"),
        pytest.param(1024, True, "dark", marks=pytest.mark.slow),
    ],
    ids=["2-warm", "1024-warm", "1024-failed-dark"],
)
def test_page_of_a_launch_is_drawn(
    browser: str, tmp_path: Path, pictures: Path, num_ranks: int, failed: bool, theme: str
) -> None:
    name = f"report-{num_ranks}-{'failed' if failed else 'warm'}"
    page = page_of(made_report(num_ranks, failed=failed), tmp_path / f"{name}.html", theme=theme)
    seen = picture_of(browser, page, pictures / f"{name}.png", size=(1200, 1250), scale=SCALE)
    assert (seen.width, seen.height) == (1200 * SCALE, 1250 * SCALE)
    assert seen.pixel(3, 3) == (PAGE_LIGHT if theme == "light" else PAGE_DARK)
    assert seen.num_colours() > 100
    if theme == "light":
        assert seen.share_of(COMPILE_ORANGE) > 0.005, "no bar of the timeline says compile"


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [pytest.param(8, marks=pytest.mark.slow), 1024])
def test_live_view_is_drawn(browser: str, tmp_path: Path, pictures: Path, num_ranks: int) -> None:
    console = Console(record=True, width=110, height=30, file=io.StringIO(), force_terminal=True)
    now_s = [0.0]
    view, state = (
        LiveView(num_ranks, name="llama-70b", clock=lambda: now_s[0]),
        LaunchState(num_ranks=num_ranks),
    )
    for event in until_compile(num_ranks):
        now_s[0] = event.at_s
        state.apply(event)
        view(state, event)
    now_s[0] += 2.5
    console.print(view)
    page = tmp_path / "live.html"
    text = console.export_html(theme=MONOKAI, inline_styles=True)
    # rich's page has a web font's name only; the terminal's width is what matters.
    page.write_text(text, encoding="utf-8")
    seen = picture_of(browser, page, pictures / f"live-{num_ranks}.png", size=(1010, 420), scale=SCALE)
    assert seen.pixel(2, 2) == MONOKAI.background_color
    assert seen.num_colours() > 50


HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\"' onload='x\u202e"
)


def hostile_report() -> Report:
    report = made_report(8, failed=True)
    cause = Cause(
        ranks=(0,), kind=HOSTILE, function=HOSTILE, message=HOSTILE, remedy=HOSTILE, hosts=(HOSTILE,)
    )
    return replace(
        report,
        name=HOSTILE,
        failure=Failure(kind="LaunchFailed", message=HOSTILE, stage=HOSTILE, causes=(cause,)),
        ranks=tuple(replace(rank, host=HOSTILE, log=HOSTILE) for rank in report.ranks),
        problems=(HOSTILE,),
        environment={HOSTILE: HOSTILE},
    )


@pytest.mark.slow
def test_texts_of_others_do_not_run_and_the_pages_own_script_does(browser: str, tmp_path: Path) -> None:
    page = page_of(hostile_report(), tmp_path / "hostile.html")
    seen = run_browser(browser, page, tmp_path / "profile", "--dump-dom")
    assert "<title>&lt;script&gt;" in seen, "a text of the report changed the page's title"
    assert "<img" not in seen
    assert seen.count("<script") == 1
    assert '<button id="theme" type="button">' in seen, "the page's own script did not run"
