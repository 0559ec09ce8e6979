"""What a shell offers when TAB is pressed: files of configs, keys and their values, kinds of documents.

Invariants: it imports neither torch nor Ray, and looks at files of this machine only; whatever goes wrong in
it offers nothing, for nobody wants a traceback in a half-written command line. Where one value would be left
that is not whole yet, such as ``timeouts.compile_s=``, a second one goes with it, because shells put a space
after the only one.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TypeVar

import typer

T = TypeVar("T")

_SUFFIXES = (".yaml", ".yml")
_WORDS, _WORD, _INSTRUCTION = "COMP_WORDS", "COMP_CWORD", "_WARMRANK_COMPLETE"
_BREAKS = ("=", ":")


def yaml_files(incomplete: str) -> list[str]:
    """Directories and YAML files that a path may go on with; an only directory is looked into at once."""
    found = _entries(incomplete)
    while len(found) == 1 and found[0].endswith("/"):
        below = _entries(found[0])
        if not below:
            return []  # the shell's own completion of files knows better
        found = below
    return found


def config_arguments(incomplete: str) -> list[str]:
    """Values for CONFIG and HOSTS."""
    return _quietly(lambda: yaml_files(incomplete))


def overrides(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Values for ``--set``: dotted keys, then after ``=`` what a key may be."""
    # While an option has no value yet, arguments before it are not told apart.
    words = [context.params.get("config"), *context.args]
    files = [Path(word) for word in words if word and str(word).endswith(_SUFFIXES)]
    return _quietly(lambda: settings_for(incomplete, files[0] if files else None))


def settings_for(incomplete: str, config: Path | None) -> list[tuple[str, str]]:
    """Overrides that begin so, each with what it means; a config's own arguments are offered too."""
    known = _of_model()
    if config is not None and config.is_file():
        known |= _of_file(config)
    key, equals, _ = incomplete.partition("=")
    if equals:
        values, description = known.get(key, ((), ""))
        return [(f"{key}={value}", description) for value in values]
    found = {name: item for name, item in known.items() if name.startswith(incomplete)}
    if len(found) != 1:
        return [(f"{name}=", description) for name, (_, description) in found.items()]
    ((name, (values, description)),) = found.items()
    offered = values if len(values) > 1 else ("", *values)
    return [(f"{name}={value}", description) for value in offered]


def _of_model() -> dict[str, tuple[tuple[str, ...], str]]:
    """Keys of a config, with their values (or the default alone) and what they mean."""
    from warmrank.orchestrator.config.keys import sections
    from warmrank.orchestrator.config.models import Config

    found = {}
    for section in sections(Config):
        for key in section.keys:
            if not key.is_section and "NAME" not in key.path:
                default = () if key.default in {"", "none", "see below"} else (key.default,)
                found[key.dotted] = (key.choices or default, key.description)
                if key.path[:3] == ("store", "tiers", "0"):
                    found[f"store.{key.path[3]}"] = found[key.dotted]
    return found


def _of_file(path: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    """What a config file sets below ``workload.arguments``, whose keys no model knows, with what is there."""
    from warmrank.orchestrator.config.origins import leaves
    from warmrank.orchestrator.config.reading import read_data

    arguments = read_data(path).get("workload", {}).get("arguments", {})
    if not isinstance(arguments, dict):
        return {}
    return {
        f"workload.arguments.{name}": ((str(value),), "an argument of the workload")
        for name, value in leaves(arguments)
    }


def _entries(begun: str) -> list[str]:
    """Paths that begin so, as they are written: directories with a slash at their end."""
    written, _, name = begun.rpartition("/")
    written = f"{written}/" if "/" in begun else ""
    directory = Path(written).expanduser() if written else Path()
    found = []
    for entry in sorted(directory.iterdir(), key=lambda path: path.name):
        is_wanted = entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith("."))
        if is_wanted and entry.is_dir():
            found.append(f"{written}{entry.name}/")
        elif is_wanted and entry.suffix in _SUFFIXES:
            found.append(f"{written}{entry.name}")
    return found


def _quietly(offer: Callable[[], list[T]]) -> list[T]:
    try:
        return offer()
    except Exception:  # noqa: BLE001 - whatever it is, there is nobody to tell
        return []


def rejoined(words: list[str], index: int) -> tuple[list[str], int, str]:
    """Bash's words with those put together that it takes apart at ``=`` and ``:``.

    Returns:
        The words, the index of the one that is being written, and what of that one bash will keep as it is.
    """
    joined, kept, glue = words[:1], "", False
    for word in words[1 : index + 1]:
        is_break = bool(word) and set(word) <= set(_BREAKS)
        if len(joined) > 1 and (is_break or glue):
            kept = joined[-1] + word if is_break else joined[-1]
            joined[-1] += word
        else:
            kept = ""
            joined.append(word)
        glue = is_break
    return joined, len(joined) - 1, kept


@contextmanager
def for_bash(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Let bash complete words with ``=`` in them, which it takes for several; else change nothing."""
    if environ.get(_INSTRUCTION) != "complete_bash" or _WORDS not in environ:
        yield
        return
    words, index, kept = rejoined(environ[_WORDS].split("\n"), int(environ[_WORD]))
    environ[_WORDS], environ[_WORD] = "\n".join(words), str(index)
    offered = io.StringIO()
    try:
        with redirect_stdout(offered):
            yield
    finally:
        sys.stdout.write("".join(_without(kept, offered.getvalue().splitlines())))


def _without(kept: str, lines: Iterable[str]) -> Iterator[str]:
    return (f"{line.removeprefix(kept)}\n" for line in lines)
