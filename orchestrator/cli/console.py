"""The edge to the terminal: exit codes, consoles, and the one block in which an error is shown.

Results go to stdout, everything else to stderr, so that ``--json`` leaves nothing but JSON on stdout.

No text of another's document moves the terminal's cursor or changes its title: names in a store may be
anybody's where nothing is signed. Characters that are not printable come out as question marks, but for line
feeds and tabs; styles and progress bars, which are ours, stay; libraries' codes for colours are dropped. What
libraries print on stdout goes to stderr.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from enum import IntEnum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from typer.models import ArgumentInfo

from warmrank.cache_store.errors import NoStoreYet, StoreError, StoreUnavailable
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
from warmrank.worker.errors import NotYet, WorkerError

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
    INTERRUPTED = signals.EXIT_INTERRUPTED
    TERMINATED = signals.EXIT_TERMINATED


_CODES: dict[type[Exception], ExitCode] = {
    BadInput: ExitCode.BAD_INPUT,
    NotYet: ExitCode.BAD_INPUT,
    CompileForbidden: ExitCode.MISSED,
    StoreError: ExitCode.FAULT,
}
_EXPECTED = (OrchestratorError, StoreError, WorkerError, OSError)


_CONTROL = re.compile(r"[\x7f-\x9f]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def defused(text: str) -> str:
    """``text`` with a question mark for each character that is not printable; line feeds and tabs stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def defused_json(value: object, *, indent: int | None = 2) -> str:
    """A plain value, or a dataclass or model of such, as JSON that is safe for a terminal."""
    text = json.dumps(to_jsonable_python(value), indent=indent, ensure_ascii=False)
    # Control characters that JSON's grammar allows as they are.
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class SafeConsole(Console):
    """A `Console` whose texts are defused."""

    def print(self, *objects: Any, **options: Any) -> None:
        """See `Console.print`; writes nothing for codes alone, such as colorama's reset at the end."""
        plain = tuple(_COLOURS.sub("", each) if isinstance(each, str) else each for each in objects)
        if plain == objects or any(plain):
            super().print(*plain, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`."""
        for segment in super().render(renderable, options):
            is_ours = segment.control or segment.text.isprintable()
            yield segment if is_ours else Segment(defused(segment.text), segment.style)


class SafeFormatter(logging.Formatter):
    """A `Formatter` whose lines are defused."""

    def format(self, record: logging.LogRecord) -> str:
        """See `Formatter.format`."""
        return defused(super().format(record))


def output(*, stderr: bool = False) -> Console:
    """A console for stdout or stderr as they are now; plain and of fixed width where there is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return SafeConsole(file=stream, width=width, highlight=False, emoji=False)


def say(*lines: str, stderr: bool = False) -> None:
    """Print lines as they are, neither folded nor read as markup."""
    console = output(stderr=stderr)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def answer(found: T, render: Callable[[T], RenderableType], *, as_json: bool) -> None:
    """Print what a command found: as JSON for programs, else rendered for people."""
    if as_json:
        print_json(found)
    else:
        output().print(render(found))


def print_json(value: object) -> None:
    """Write a plain value, or a dataclass or model of such, to stdout as JSON."""
    typer.echo(defused_json(value))


@contextmanager
def session(*, debug: bool = False, bad_input: tuple[type[StoreError], ...] = ()) -> Iterator[None]:
    """Configure logging, and turn an error into its block on stderr and its exit code.

    Errors of the store that are ``bad_input`` come of what this command was given, and end so.
    What is no expected kind of error is a defect of warmrank and keeps its traceback.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler])
    try:
        with signals.sigterm_raises():
            yield
    except KeyboardInterrupt as stop:
        output(stderr=True).print("stopped")
        raise typer.Exit(signals.exit_code_of(stop)) from None
    except _EXPECTED as error:
        if debug:
            traceback.print_exc()
            for cause in getattr(error, "causes", ()):
                output(stderr=True).print(Text(f"rank {cause.ranks[0]}: {cause.traceback}".rstrip()))
        show_error(error)
        raise typer.Exit(
            ExitCode.BAD_INPUT if isinstance(error, bad_input) else exit_code_of(error)
        ) from None


_DEBUG = Annotated[bool, typer.Option("--debug", help="Log everything, and show the traceback of an error.")]
_CONFIG = Annotated[Path | None, typer.Option("--config", metavar="FILE", hidden=True)]


def command(
    function: Callable[..., None] | None = None, *, bad_input: tuple[type[StoreError], ...] = ()
) -> Callable[..., Any]:
    """Decorate a command: it takes ``--debug``, and its argument CONFIG as an option too."""
    if function is None:
        return partial(command, bad_input=bad_input)
    signature = inspect.signature(function, eval_str=True)
    parameters = dict(signature.parameters)
    config = parameters.get("config")
    kinds = getattr(config.annotation, "__metadata__", ()) if config is not None else ()
    is_argument = any(isinstance(each, ArgumentInfo) for each in kinds)

    @wraps(function)
    def run(*, debug: bool = False, config_file: Path | None = None, **options: Any) -> None:
        if is_argument:
            if config_file is not None and str(options["config"] or "-") != "-":
                raise typer.BadParameter("expected one config, found two", param_hint="CONFIG")
            options["config"] = config_file or options["config"]
            if options["config"] is None and config is not None and config.default is config.empty:
                raise typer.BadParameter("expected a config", param_hint="CONFIG")
        with session(debug=debug, bad_input=bad_input):
            function(**options)

    if is_argument and config is not None:
        parameters["config"] = config.replace(default=None)
        parameters["config_file"] = _option("config_file", None, _CONFIG)
    parameters["debug"] = _option("debug", False, _DEBUG)
    for each in parameters.values():
        flag, *infos = get_args(each.annotation) or (None,)
        for info in infos if flag is bool else ():
            info.metavar = ""  # else --help would name a value, which a flag does not take
    # Typer reads it; an argument that may be left out need not stand last there.
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[each.replace(kind=each.KEYWORD_ONLY) for each in parameters.values()]
    )
    return run


def _option(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def exit_code_of(error: BaseException) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, KeyboardInterrupt):
        return signals.exit_code_of(error)
    if isinstance(error, DemoFailed):
        return error.exit_code
    if isinstance(error, CannotStart) and error.is_lost:
        return ExitCode.LOST
    if isinstance(error, LaunchFailed):
        kinds = {failure.kind for failure in error.failures}
        code = ExitCode[policy_of(*kinds).exit]
        return code if len(kinds) == 1 or code is ExitCode.LOST else ExitCode.FAILED
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), ExitCode.FAILED)


def show_error(error: Exception) -> None:
    """Print an error as one block on stderr."""
    console = output(stderr=True)
    head, blocks, rest = _describe(error)
    console.print(Text.assemble(("error: ", "bold red"), head))
    for index, block in enumerate(blocks):
        if index:
            console.print()
        console.print(pairs([(name, text) for name, text in block if text], style="bold"))
    for line in rest:
        console.print(Text(line))


def _describe(error: Exception) -> tuple[str, list[list[tuple[str, str]]], list[str]]:
    """An error as a head line, blocks of named rows, and further lines."""
    if isinstance(error, ConfigError):
        num = len(error.problems)
        head = f"the {error.document} cannot be used" + (f": {num} problems" if num > 1 else "")
        blocks = [
            [
                ("where", f"{problem.place}: {problem.key}" if problem.key else problem.place),
                ("found", problem.found),
                ("expected", problem.expected),
                ("remedy", f"did you mean {problem.nearest}?" if problem.nearest else problem.remedy),
            ]
            for problem in error.problems
        ]
        return head, blocks, [f"  note: {note}" for note in getattr(error, "__notes__", ())]
    if isinstance(error, StoreError):
        rows = [(name, str(getattr(error, field))) for field, name in _STORE_ROWS if hasattr(error, field)]
        if isinstance(error, NoStoreYet) and "://" not in error.where:
            rows.append(("note", f"relative paths are read from {Path.cwd()}"))
        if isinstance(error, StoreUnavailable) and error.required:
            rows.append(("required", "mode: required stands in the config, so nothing goes on without it"))
        name = re.sub(r"(?<!^)([A-Z])", r" \1", type(error).__name__).lower()
        return f"{name}: {error.what}", [rows], []
    head, *rest = (str(error).strip() or type(error).__name__).splitlines()
    return head, [], rest


_STORE_ROWS = (
    ("where", "where"),
    ("reason", "reason"),
    ("detail", "why"),
    ("supported", "reads up to"),
    ("expected", "expected"),
    ("actual", "found"),
    ("found", "found"),
    ("remedy", "remedy"),
)
"""Fields of the store's errors, by the names under which they are shown."""


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
        sys.stderr.write("\n".join(lines))
        return len(text)


@contextmanager
def others_on_stderr() -> Iterator[None]:
    """Send to stderr what libraries print on stdout."""
    stream: Any = _PlainStderr()
    with redirect_stdout(stream):
        yield
