"""README's model and transformers' quickstart as they stand; what a browser shows of a launch."""

from __future__ import annotations

import io
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.terminal_theme import MONOKAI
from torch import nn

from tests.support.checkout import PYTHONPATH, ROOT
from tests.support.in_process import InProcessLauncher
from tests.support.made_reports import made_report, until_compile
from tests.support.stored import store_config
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.events import LaunchState
from warmrank.orchestrator.launch.report import Report
from warmrank.orchestrator.ui.page import render_html
from warmrank.orchestrator.ui.progress import LiveView

README, QUICKSTART = ROOT / "README.md", ROOT / "docs" / "quickstart-huggingface.md"
_FILE = re.compile(
    r"`(?P<name>[\w.]+)`[^`\n]*:\n\n```(?:python|yaml)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)
_COMMANDS = re.compile(r"^```sh\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory that modules are found in; transformers leaves a function in `nn.Module`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    if "smart_apply" in vars(nn.Module):
        delattr(nn.Module, "smart_apply")
    for name in ("my_model", "served_llama"):
        sys.modules.pop(name, None)


def write_files(document: Path) -> Path:
    """Write the files that a document shows; return its config's name."""
    found = {match["name"]: match["text"] for match in _FILE.finditer(document.read_text(encoding="utf-8"))}
    for name, text in found.items():
        Path(name).write_text(text, encoding="utf-8")
    (config,) = (name for name in found if name.endswith(".yaml"))
    return Path(config)


@pytest.mark.parametrize(
    ("document", "smaller"),
    [(README, ()), pytest.param(QUICKSTART, ("workload.arguments.layers=1",), marks=pytest.mark.slow)],
    ids=["readme", "hf"],
)
def test_model_of_a_document_is_warm_on_an_empty_node(tmp_path, document, smaller):
    overrides = (*smaller, f"store={store_config(tmp_path / 'store')}", "ranks=1", "parallel={}")
    config = load(write_files(document), overrides)
    cold = launch(config, launcher=InProcessLauncher())
    assert cold.totals.num_compiled == len(cold.ranks[0].functions)
    empty = config.model_copy(update={"cache_dir": tmp_path / "empty"})
    warm = launch(empty, no_compile=True, launcher=InProcessLauncher())
    assert warm.totals.num_loaded == cold.totals.num_compiled


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("document", [README, QUICKSTART], ids=["readme", "hf"])
def test_commands_of_a_document_end_well(tmp_path: Path, document: Path):
    write_files(document)
    script = tmp_path / "bin" / "warmrank"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m warmrank "$@"\n')
    script.chmod(0o755)
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "PATH": f"{script.parent}:{os.environ['PATH']}"}
    commands = "".join(match["text"] for match in _COMMANDS.finditer(document.read_text(encoding="utf-8")))
    assert "--no-compile" in commands
    words = ["/bin/sh", "-ec", commands]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_fits_a_screen_and_says_first_what_it_ran_on():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 85
    assert "CPUs and an emulated NPU only" in "\n".join(lines[:10])


KEEP = os.environ.get("WARMRANK_SCREENSHOTS", "")
"""A directory to keep the pictures in, for the documentation; they are larger then."""

SCALE = 0.8 if KEEP else 0.5
EMPTY_BYTES = 12_000
"""A picture of a page on which nothing is drawn is smaller."""


FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium or chrome in PATH; Debian has it as the package chromium")
    return found


def run_browser(browser: str, page: Path, *options: str) -> str:
    """Open a page in a profile of its own, and return what the browser printed."""
    profile = page.with_suffix(".profile")
    command = [browser, *FLAGS, f"--user-data-dir={profile}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_drawn(browser: str, page: Path, out: Path, width: int, height: int) -> None:
    """Draw the top of a page as a PNG, on which there is something."""
    scale = f"--force-device-scale-factor={SCALE}"
    run_browser(browser, page, f"--window-size={width},{height}", scale, f"--screenshot={out}")
    data = out.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (int(width * SCALE), int(height * SCALE))
    assert len(data) > EMPTY_BYTES


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(KEEP) if KEEP else tmp_path


def page_of(report: Report, path: Path, theme: str = "light") -> Path:
    text = render_html(report).replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("num_ranks", "failed", "theme"),
    [(1024, False, "light"), pytest.param(1024, True, "dark", marks=pytest.mark.slow)],
)
def test_page_of_a_launch_is_drawn(
    browser: str, tmp_path: Path, pictures: Path, num_ranks: int, failed: bool, theme: str
) -> None:
    name = f"report-{num_ranks}-{'failed' if failed else 'warm'}"
    page = page_of(made_report(num_ranks, failed=failed), tmp_path / f"{name}.html", theme)
    assert_drawn(browser, page, pictures / f"{name}.png", 1200, 1250)


def live_view(num_ranks: int) -> Console:
    """A console on which the live view was drawn while leaders compile."""
    console = Console(record=True, width=110, height=30, file=io.StringIO(), force_terminal=True)
    now_s, state = [0.0], LaunchState(num_ranks=num_ranks)
    view = LiveView(num_ranks, name="llama-70b", clock=lambda: now_s[0])
    for event in until_compile(num_ranks):
        now_s[0] = event.at_s
        state.apply(event)
        view(state, event)
    now_s[0] += 2.5
    console.print(view)
    return console


def test_live_view_tells_who_compiles_and_who_waits() -> None:
    shown = live_view(8).export_text()
    assert re.search(r"0  to compile +waits for 1 ", shown)
    assert re.search(r"1  waits for 0 +compiling +compile Llama.decode \(cpu 31 s, 3.0 GiB\)", shown)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [8, 1024])
def test_live_view_is_drawn(browser: str, tmp_path: Path, pictures: Path, num_ranks: int) -> None:
    page = tmp_path / "live.html"
    drawn = live_view(num_ranks).export_html(theme=MONOKAI, inline_styles=True)
    page.write_text(drawn, encoding="utf-8")
    assert_drawn(browser, page, pictures / f"live-{num_ranks}.png", 1010, 420)


HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\"' onload='x\u202e"
)


@pytest.mark.slow
def test_texts_of_others_do_not_run_and_the_pages_own_script_does(browser: str, tmp_path: Path) -> None:
    report = made_report(8, failed=True)
    hostile = replace(
        report,
        name=HOSTILE,
        ranks=tuple(replace(rank, host=HOSTILE, log=HOSTILE) for rank in report.ranks),
        problems=(HOSTILE,),
        environment={HOSTILE: HOSTILE},
    )
    seen = run_browser(browser, page_of(hostile, tmp_path / "hostile.html"), "--dump-dom")
    assert "<title>&lt;script&gt;" in seen, "a text of the report changed the page's title"
    assert "<img" not in seen
    assert seen.count("<script") == 1
    assert '<button id="theme" type="button">' in seen, "the page's own script did not run"
