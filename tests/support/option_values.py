"""Values for every option of `CompilerConfig`, and what engine torchair is to make of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from warmrank.worker.configs.compiler_config import CompilerConfig, NpuGraphEx
from warmrank.worker.configs.options import (
    Choice,
    Directory,
    ExistingDirectory,
    ExistingFile,
    Flag,
    Function,
    IntList,
    IntRange,
    Number,
    PlainMapping,
    PoolHandle,
    Text,
)
from warmrank.worker.configs.section import TORCHAIR, Option, Verdict, names, options, verdict
from warmrank.worker.engines.torchair_options import FLAT, OURS_ALONE, REFUSED

SET, WARNS, ERROR, HERE = "set", "warns", "error", "here"
_FLAT_NAMES = {"mode", "post_grad_custom_pre_pass", "post_grad_custom_post_pass", *names(NpuGraphEx)}


def a_pass(graph_module: Any, example_inputs: Any, config: Any) -> None:
    """A pass that changes nothing."""


def samples(option: Option[Any], directory: Path) -> list[Any]:
    """Values other than the default: every one of an option with few, one of another."""
    if isinstance(option, Flag):
        return [value for value in (True, False) if value is not option.default]
    if isinstance(option, Choice):
        return [value for value in option.choices if value != option.default]
    file = directory / f"file{getattr(option, 'suffix', '')}"
    file.touch()
    others: dict[type[Option[Any]], Callable[[], list[Any]]] = {
        IntRange: lambda: [7],
        IntList: lambda: [[1, 2], (3,)],
        Text: lambda: [getattr(option, "example", "") or "word"],
        Number: lambda: [4, "8"],
        PlainMapping: lambda: [{"a": 1}],
        PoolHandle: lambda: [(0, 7)],
        Function: lambda: [a_pass],
        Directory: lambda: [str(directory / "new")],
        ExistingDirectory: lambda: [str(directory)],
        ExistingFile: lambda: [str(file)],
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


def declared(name: str) -> Option[Any]:
    """The declaration of an option."""
    return {found: option for found, option, _ in options(CompilerConfig())}[name]


def outcome(name: str, value: Any, mode: str) -> str:
    """What engine torchair makes of a value, by the declarations; tests/npu compares it with the real one."""
    answer, _ = verdict(declared(name).effect_of(value), mode=mode, engine=TORCHAIR)
    if answer is Verdict.NO_EFFECT:
        return WARNS
    if mode in OURS_ALONE.get(name, ()):
        return HERE
    flat = FLAT.get(name, name.removeprefix("npugraphex_config."))
    theirs = flat if mode == "npugraph_ex" else name
    if theirs == "npugraphex_config.force_eager":
        theirs = "debug.run_eagerly"
    if theirs.startswith("npugraphex_config.") or (mode == "npugraph_ex" and theirs not in _FLAT_NAMES):
        return ERROR
    held = {found: option.default for found, option, _ in options(CompilerConfig())} | {theirs: value}
    refused = any(
        refusal.mode == mode
        and theirs in refusal.values
        and all(name in held and held[name] == wanted for name, wanted in refusal.values.items())
        for refusal in REFUSED
    )
    return ERROR if refused else SET
