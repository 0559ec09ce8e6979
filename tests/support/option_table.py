"""The table of `docs/compiler-config.md`, made from the declarations of the options.

Run as a script, it writes the table anew: ``python -m tests.support.options``.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.options import SET, WARNS, outcome, samples

from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import Choice
from warmrank.worker.configs.section import MODES, Effect, Option, Part, Scope, Section

PAGE = Path(__file__).parents[2] / "docs" / "compiler-config.md"
BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"


def table() -> str:
    """One table per section: name, default, allowed values, modes, effects, meaning."""
    return "\n".join(_sections(CompilerConfig))


def written() -> str:
    """The table as it stands in the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def write() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


def _sections(kind: type[Section]) -> Iterator[str]:
    meanings = _meanings(kind)
    rows = [
        _row(kind, value, meanings[name]) for name, value in vars(kind).items() if isinstance(value, Option)
    ]
    if rows:
        yield f"### `config{'.' if kind._at else ''}{kind._at}`\n"
        yield "| option | default | allowed | modes | engines graph, aoti | engine torchair | meaning |"
        yield "|---|---|---|---|---|---|---|"
        yield from rows
        yield ""
    for value in vars(kind).values():
        if isinstance(value, Part):
            yield from _sections(value.kind)


def _row(kind: type[Section], option: Option[Any], meaning: str) -> str:
    effect = option.effect
    modes = "all" if effect.modes == MODES else ", ".join(effect.modes)
    words = option.of_ascend if isinstance(option, Choice) else ()
    exception = f" ({', '.join(map(repr, words))}: engine torchair only)" if words else ""
    cells = (
        f"`{option.name}`",
        f"`{option.default!r}`",
        option.words,
        modes,
        f"{_here(effect)}{exception}",
        _torchair(f"{kind._at}.{option.name}" if kind._at else option.name, option),
        meaning,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _here(effect: Effect) -> str:
    return "yes" if effect.scope is Scope.HERE else f"no effect: {effect.why}"


def _torchair(name: str, option: Option[Any]) -> str:
    """What becomes of the values, mode by mode where that differs; a mode that is not named warns."""
    if name == "mode":
        return SET
    with TemporaryDirectory() as directory:
        values = samples(option, Path(directory)) or [option.default]
    words = {mode: _in_mode([(value, outcome(name, value, mode)) for value in values]) for mode in MODES}
    named = {mode: word for mode, word in words.items() if word != WARNS}
    if not named:
        return WARNS
    if len(set(named.values())) == 1 and set(named) == set(option.effect.modes):
        return next(iter(named.values()))
    return "; ".join(
        f"{word}: {', '.join(mode for mode in named if named[mode] == word)}"
        for word in dict.fromkeys(named.values())
    )


def _in_mode(outcomes: list[tuple[Any, str]]) -> str:
    """The outcome of all values, or of each kind of values."""
    found = dict.fromkeys(word for _, word in outcomes)
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(
        f"{word} {' '.join(repr(value) for value, other in outcomes if other == word)}" for word in found
    )


def _meanings(kind: type[Section]) -> dict[str, str]:
    """The text under each option in its class."""
    module = ast.parse(inspect.getsource(inspect.getmodule(kind) or sys))
    body = next(
        node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    found = {}
    for node, following in itertools.pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(following, ast.Expr):
            assert isinstance(node.targets[0], ast.Name)
            assert isinstance(following.value, ast.Constant)
            found[node.targets[0].id] = " ".join(str(following.value.value).split())
    return found


if __name__ == "__main__":
    write()
