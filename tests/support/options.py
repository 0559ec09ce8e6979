"""Every option of a compiler config, its values, and the vendor package they are for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from warmrank.worker.configs import options as declarations
from warmrank.worker.configs import sections
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.torchair import FLAT
from warmrank.worker.engines.torchair_vendor import OURS_ALONE, REFUSED

SET, WARNS, ERROR, HERE = "set", "warns", "error", "here"
_FLAT_NAMES = {
    "mode",
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
    *declarations.names(sections.NpuGraphEx),
}


def a_pass(graph_module: Any, example_inputs: Any, config: Any) -> None:
    """A pass that changes nothing."""


def samples(option: declarations.Option[Any], directory: Path) -> list[Any]:
    """Values other than the default: every one of an option with few, one of another."""
    if isinstance(option, sections.Flag):
        return [value for value in (True, False) if value is not option.default]
    if isinstance(option, declarations.Choice):
        return [value for value in option.choices if value != option.default]
    file = directory / f"file{getattr(option, 'suffix', '')}"
    file.touch()
    others: dict[type[declarations.Option[Any]], Callable[[], list[Any]]] = {
        sections.IntRange: lambda: [7],
        sections.IntList: lambda: [[1, 2], (3,)],
        sections.Text: lambda: [option.words.partition("such as ")[2].strip("'") or "word"],
        sections.Number: lambda: [4, "8"],
        sections.PlainMapping: lambda: [{"a": 1}],
        sections.PoolHandle: lambda: [(0, 7)],
        declarations.Function: lambda: [a_pass],
        sections.Directory: lambda: [str(directory / "new")],
        sections.ExistingDirectory: lambda: [str(directory)],
        sections.ExistingFile: lambda: [str(file)],
    }
    return others[type(option)]()


def with_value(dotted: str, value: Any, mode: str) -> CompilerConfig:
    """A configuration in a mode, with one option set."""
    config = CompilerConfig()
    config.mode = mode
    assign(config, dotted, value)
    return config


def assign(config: CompilerConfig, dotted: str, value: Any) -> None:
    """Set one option by its dotted name."""
    *parts, last = dotted.split(".")
    section: Any = config
    for part in parts:
        section = getattr(section, part)
    setattr(section, last, value)


def declared(name: str) -> declarations.Option[Any]:
    """The declaration of an option."""
    return {found: option for found, option, _ in declarations.options(CompilerConfig())}[name]


def outcome(name: str, value: Any, mode: str) -> str:
    """What engine torchair makes of a value, by the declarations; tests/npu compares it with the real one."""
    if sections.no_effect(declared(name), value, mode=mode, engine=declarations.TORCHAIR):
        return WARNS
    if mode in OURS_ALONE.get(name, ()):
        return HERE
    flat = FLAT.get(name, name.removeprefix("npugraphex_config."))
    theirs = flat if mode == "npugraph_ex" else name
    if theirs == "npugraphex_config.force_eager":
        theirs = "debug.run_eagerly"
    if theirs.startswith("npugraphex_config.") or (mode == "npugraph_ex" and theirs not in _FLAT_NAMES):
        return ERROR
    held = {found: option.default for found, option, _ in declarations.options(CompilerConfig())} | {
        theirs: value
    }
    refused = any(
        mode in refusal.modes
        and theirs in refusal.values
        and all(name in held and held[name] == wanted for name, wanted in refusal.values.items())
        for refusal in REFUSED
    )
    return ERROR if refused else SET


PAGE = Path(__file__).parents[2] / "docs" / "compiler-config.md"
BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"


def table() -> str:
    """All options: dotted name, default, allowed values, modes, effects, meaning."""
    head = "| option | default | allowed | modes | engines graph, aoti | engine torchair | meaning |"
    return "\n".join((head, "|---|---|---|---|---|---|---|", *_rows(CompilerConfig)))


def written() -> str:
    """The table as it stands in the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def write() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


def _rows(kind: type[declarations.Section]) -> Iterator[str]:
    meanings = _meanings(kind)
    for name, value in vars(kind).items():
        if isinstance(value, declarations.Option):
            yield _row(kind, value, meanings[name])
    for value in vars(kind).values():
        if isinstance(value, declarations.Part):
            yield from _rows(value.kind)


def _row(kind: type[declarations.Section], option: declarations.Option[Any], meaning: str) -> str:
    effect = sections.effect_of(option, None)
    modes = "all" if effect.modes == declarations.MODES else ", ".join(effect.modes)
    words = option.of_ascend if isinstance(option, declarations.Choice) else ()
    exception = f" ({', '.join(map(repr, words))}: engine torchair only)" if words else ""
    dotted = f"{kind._at}.{option.name}" if kind._at else option.name
    cells = (
        f"`{dotted}`",
        f"`{option.default!r}`",
        option.words,
        modes,
        f"{_here(effect)}{exception}",
        _torchair(dotted, option),
        meaning,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _here(effect: sections.Effect) -> str:
    return f"no effect: {effect.why}" if effect.why else "yes"


def _torchair(name: str, option: declarations.Option[Any]) -> str:
    """What becomes of the values, mode by mode where that differs; a mode that is not named warns."""
    if name == "mode":
        return SET
    with TemporaryDirectory() as directory:
        values = samples(option, Path(directory)) or [option.default]
    words = {
        mode: _in_mode([(value, outcome(name, value, mode)) for value in values])
        for mode in declarations.MODES
    }
    named = {mode: word for mode, word in words.items() if word != WARNS}
    if not named:
        return WARNS
    if len(set(named.values())) == 1 and set(named) == set(sections.effect_of(option, None).modes):
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


def _meanings(kind: type[declarations.Section]) -> dict[str, str]:
    """The comment beside or above each option in its class."""
    found = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        comment = line.rpartition("# ")[2]
        if line.strip().startswith("# "):
            above.append(comment)
        elif declared := re.match(r"    (\w+) = ", line):
            found[declared[1]] = " ".join(above) + "." if above else f"{comment}."
            above = []
    return found


if __name__ == "__main__":
    write()
