"""The table of `docs/compiler-config.md`, made from the declarations of the options.

Run as a script, it writes the table anew: ``python -m tests.support.option_table``.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker.configs.compiler_config import CompilerConfig
from worker.configs.effects import MODES, Effect, Scope
from worker.configs.options import Choice
from worker.configs.section import Option, Part, Section

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
        _row(name, value, meanings[name]) for name, value in vars(kind).items() if isinstance(value, Option)
    ]
    if rows:
        yield f"### `config{'.' if kind._at else ''}{kind._at}`\n"
        yield "| option | default | allowed | modes | cpu, cuda | npu | meaning |"
        yield "|---|---|---|---|---|---|---|"
        yield from rows
        yield ""
    for value in vars(kind).values():
        if isinstance(value, Part):
            yield from _sections(value.kind)


def _row(name: str, option: Option[Any], meaning: str) -> str:
    effect = option.effect
    modes = "all" if effect.modes == MODES else ", ".join(effect.modes)
    words = option.of_ascend if isinstance(option, Choice) else ()
    exception = f" ({', '.join(map(repr, words))}: npu only)" if words else ""
    cells = (
        f"`{name}`",
        f"`{option.default!r}`",
        option.allowed(),
        modes,
        f"{_here(effect)}{exception}",
        _npu(effect),
        meaning,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _here(effect: Effect) -> str:
    return "yes" if effect.scope is Scope.HERE else f"no effect: {effect.why}"


def _npu(effect: Effect) -> str:
    return {Scope.HERE: "yes", Scope.ASCEND: "not yet", Scope.NOWHERE: "no effect"}[effect.scope]


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
