"""The edge to the terminal: exit codes, consoles, and the one block in which an error is shown.

Results go to stdout, everything else to stderr, so that ``--json`` leaves nothing but JSON on stdout.

No text of another's document moves the terminal's cursor or changes its title: names in a store may be
anybody's where nothing is signed. Characters that are not printable come out as question marks, but for line
feeds and tabs; styles and progress bars, which are ours, stay; libraries' codes for colours are dropped. What
libraries print on stdout goes to stderr.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from warmrank.cache_store.errors import NoStoreYet, StoreError, StoreUnavailable, UnusableCache
from warmrank.cache_store.parallel import OnProgress, Progress
from warmrank.cache_store.text import count_text, defused, size_text
from warmrank.orchestrator import signals
from warmrank.orchestrator.errors import (
    BadInput,
    CannotStart,
    CompileForbidden,
    ConfigError,
    DemoFailed,
    LaunchFailed,
    OrchestratorError,
    policy_of,
)
from warmrank.orchestrator.ui.table import pairs
from warmrank.worker.errors import BadConfig, NotYet, WorkerError

T = TypeVar("T")

PLAIN_WIDTH = 10_000
"""Columns where output goes to no terminal: none of its lines is folded, so that they can be searched."""


class ExitCode(IntEnum):
    """Exit status of a command."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    MISSED = 3
    FAULT = 4
    LOST = 5
    HUNG_UP = signals.EXIT_HUNG_UP
    INTERRUPTED = signals.EXIT_INTERRUPTED
    TERMINATED = signals.EXIT_TERMINATED


_CONTROL = re.compile(r"[\x7f-\x9f]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PADDING = re.compile(r" +$", re.MULTILINE)


def defused_json(value: object, *, indent: int | None = 2) -> str:
    """A plain value, or a dataclass or model of such, as JSON that is safe for a terminal."""
    text = json.dumps(to_jsonable_python(value), indent=indent, ensure_ascii=False)
    # Control characters that JSON's grammar allows as they are.
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class SafeConsole(Console):
    """A `Console` whose texts are defused; but in a terminal no line ends in blanks."""

    def print(self, *objects: Any, **options: Any) -> None:
        """See `Console.print`; writes nothing for codes alone, such as colorama's reset at the end."""
        plain = tuple(_COLOURS.sub("", each) if isinstance(each, str) else each for each in objects)
        if plain != objects and not any(plain):
            return
        if self.is_terminal:
            super().print(*plain, **options)
            return
        with self.capture() as captured:
            super().print(*plain, **options)
        try:
            self.file.write(_PADDING.sub("", captured.get()))
            self.file.flush()
        except BrokenPipeError:  # of `head`, say: no error, as `Console.print` sees it
            self.on_broken_pipe()

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(defused(segment.text), segment.style)


class SafeFormatter(logging.Formatter):
    """A `Formatter` whose lines are defused."""

    def format(self, record: logging.LogRecord) -> str:
        """See `Formatter.format`."""
        return defused(super().format(record))


class _Lossy:
    """A stream for people that never fails: what nobody reads any more, or has no room, is dropped."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text at once; from the first failure on, all goes to the null device."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each write was flushed."""


class _PlainStderr:
    """Stderr without the codes of colours that libraries write; long lines are cut, but with ``--debug``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def write(self, text: str) -> int:
        """Write a text without its codes."""
        lines = _COLOURS.sub("", text).split("\n")
        if not logging.getLogger().isEnabledFor(logging.DEBUG):
            more = " ... (all of it with --debug)"
            lines = [line if len(line) <= 200 else f"{line[:170]}{more}" for line in lines]
        _Lossy(sys.stderr).write("\n".join(lines))
        return len(text)


@contextmanager
def others_on_stderr() -> Iterator[None]:
    """Send to stderr what libraries print on stdout."""
    stream: Any = _PlainStderr()
    with redirect_stdout(stream):
        yield


def output(*, stderr: bool = False, lossy: bool = False) -> Console:
    """A console for stdout or stderr as they are now; plain and of fixed width where there is no terminal.

    It drops what cannot be written to stderr, and to stdout where that is no result (``lossy``).
    """
    stream: Any = _Lossy(sys.stderr) if stderr else _Lossy(sys.stdout) if lossy else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return SafeConsole(file=stream, width=width, highlight=False, emoji=False)


def say(*lines: str, stderr: bool = False) -> None:
    """Print lines as they are, neither folded nor read as markup."""
    console = output(stderr=stderr)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def print_json(value: object) -> None:
    """Write a plain value, or a dataclass or model of such, to stdout as JSON."""
    typer.echo(defused_json(value))


def answer(found: T, render: Callable[[T], RenderableType], *, as_json: bool) -> None:
    """Print what a command found: as JSON for programs, else rendered for people."""
    if as_json:
        print_json(found)
    else:
        output().print(render(found))


FETCH_LINE_EVERY_S = 10.0


@contextmanager
def fetch_progress(what: str = "fetch") -> Iterator[OnProgress]:
    """A listener to the progress of a fetch, or of ``what`` else, for as long as the context lasts."""
    from rich import progress

    console = output(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        told_s = time.monotonic()

        def tell(state: Progress) -> None:
            nonlocal told_s
            if time.monotonic() - told_s >= FETCH_LINE_EVERY_S:
                told_s = time.monotonic()
                done = f"{size_text(state.done_bytes)} of {size_text(state.total_bytes)}"
                files = f"{state.done_files} of {count_text(state.total_files, 'file')}"
                say(f"{what}: {done}, {files}", stderr=True)

        yield tell
        return
    text, speed = progress.TextColumn(what), progress.TransferSpeedColumn()
    columns = (text, progress.BarColumn(), progress.DownloadColumn(), speed, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=console, transient=True) as bar:
        console.show_cursor()  # which this process may not live to do
        task = bar.add_task(what, total=None)
        yield lambda state: bar.update(task, completed=state.done_bytes, total=state.total_bytes)


@contextmanager
def session(*, debug: bool = False, bad_input: tuple[type[StoreError], ...] = ()) -> Iterator[None]:
    """Configure logging, and turn an error into its block on stderr and its exit code.

    Errors of the store that are ``bad_input`` come of what this command was given, and end so.
    What is no expected kind of error is a defect of warmrank and keeps its traceback.
    """
    handler = logging.StreamHandler(_Lossy(sys.stderr))
    handler.setFormatter(SafeFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler])
    try:
        with signals.ctrl_c_raises(), signals.sigterm_raises():
            yield
    except KeyboardInterrupt as stop:
        say("stopped", stderr=True)
        raise typer.Exit(exit_code_of(stop)) from None
    except (OrchestratorError, StoreError, WorkerError, OSError) as error:
        if debug:
            traceback.print_exc()
            for cause in getattr(error, "causes", ()):
                say(f"rank {cause.ranks[0]}: {cause.traceback}".rstrip(), stderr=True)
        show_error(error)
        code = ExitCode.BAD_INPUT if isinstance(error, bad_input) else exit_code_of(error)
        raise typer.Exit(code) from None


def exit_code_of(error: BaseException) -> int:
    """The exit code that stands for an error."""
    match error:
        case KeyboardInterrupt():
            return signals.exit_code_of(error)
        case DemoFailed():
            return error.exit_code
        case CannotStart(is_lost=True):
            return ExitCode.LOST
        case LaunchFailed():
            kinds = {failure.kind for failure in error.failures}
            code = ExitCode[policy_of(*kinds).exit]
            return code if len(kinds) == 1 or code is ExitCode.LOST else ExitCode.FAILED
        case BadInput() | NotYet() | BadConfig():  # of a rank it would be a LaunchFailed
            return ExitCode.BAD_INPUT
        case CompileForbidden():
            return ExitCode.MISSED
        case StoreError():
            return ExitCode.FAULT
    return ExitCode.FAILED


def show_error(error: Exception) -> None:
    """Print an error as one block on stderr: a head line, blocks of named rows, and further lines."""
    head, *rest = (str(error).strip() or type(error).__name__).splitlines()
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd
        head = "the current directory was removed; change into one that is there"
    blocks: list[list[tuple[str, str]]] = []
    if isinstance(error, ConfigError):
        num = len(error.problems)
        head = f"the {error.document} cannot be used" + (f": {num} problems" if num > 1 else "")
        rest = [f"  note: {note}" for note in getattr(error, "__notes__", ())]
        blocks = [
            [
                ("where", f"{problem.place}: {problem.key}" if problem.key else problem.place),
                ("found", problem.found),
                ("expected", problem.expected),
                ("remedy", f"did you mean {problem.nearest}?" if problem.nearest else problem.remedy),
            ]
            for problem in error.problems
        ]
    elif isinstance(error, StoreError):
        name = re.sub(r"(?<!^)([A-Z])", r" \1", type(error).__name__).lower()
        if type(error) is UnusableCache:  # a key or a keyring, too
            name = "unusable"
        head, rest, blocks = f"{name}: {error.what}", [], [_rows_of(error)]
    console = output(stderr=True)
    console.print(Text.assemble(("error: ", "bold red"), head))
    for index, block in enumerate(blocks):
        if index:
            console.print()
        console.print(pairs([(name, text) for name, text in block if text], style="bold"))
    for line in rest:
        console.print(Text(line))


_FIELDS = {
    "where": "where",
    "reason": "reason",
    "detail": "why",
    "supported": "reads up to",
    "expected": "expected",
    "actual": "found",
    "found": "found",
    "remedy": "remedy",
}
"""Fields of the store's errors, with the names under which they are shown."""


def _rows_of(error: StoreError) -> list[tuple[str, str]]:
    rows = [(shown, str(getattr(error, name))) for name, shown in _FIELDS.items() if hasattr(error, name)]
    if isinstance(error, NoStoreYet) and "://" not in error.where:
        rows.append(("note", f"relative paths are read from {Path.cwd()}"))
    if isinstance(error, StoreUnavailable) and error.required:
        rows.append(("required", "mode: required stands in the config, so nothing goes on without it"))
    return rows
