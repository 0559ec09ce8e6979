"""Our `CompilerConfig`, option by option, on an object of the installed TorchAir's own configuration.

The caller hands the object in, and what it is says how it is filled; nothing here imports TorchAir. Every
value that is set is read back, so an option that the installed version lacks, refuses or ignores is an error,
which names all of them at once. What belongs to another mode stays behind; `CompilerConfig.check` says so. A
change of the translation is a change of the engine, whose version is part of the key.

Relied on (torch_npu 2.13): options that are not named here have the same dotted name in
``torchair.CompilerConfig``; an option is an attribute of the object or of a section of it, and holds either
its value, or an object whose class has a property ``value``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from warmrank.worker.configs.options import TORCHAIR, no_effect, options, same
from warmrank.worker.configs.torchair_sections import FLAT, INVERTED, is_option
from warmrank.worker.errors import NoCounterpart

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig

_log = logging.getLogger("torchair")
OURS_ALONE: Mapping[str, tuple[str, ...]] = {
    "inference_config.dynamic_gears_merge_policy": ("reduce-overhead", "npugraph_ex"),
}
"""Our name -> modes in which this package does it, and TorchAir has nothing to do with it."""


class Refusal(NamedTuple):
    """Options that TorchAir has, and of which nothing good comes."""

    modes: tuple[str, ...]  # in which it is so
    values: Mapping[str, Any]  # TorchAir's name -> value; all have to be set so
    remedy: str  # what to do instead
    why: str = "TorchAir keeps nothing that it compiles so"  # what TorchAir does then
    always: bool = False  # whether it is so even where nothing is to be kept


_AUTOTUNE, _REDUCE, _FLAT = ("max-autotune",), ("reduce-overhead",), ("npugraph_ex",)
_STAGE = "data_dump_stage"
_DEFAULT, _GRAPH = "leave it at its default", 'engine="graph" does it'
_DUMPED = f"{_GRAPH}, and config.dump_config.enable_dump dumps from the graph that runs"
_PY = "set config.debug.graph_dump.type = 'py'"
_ONLY_PY = "TorchAir writes only 'py' in this mode"
_ONLY_FOR_OTHERS = "TorchAir runs these passes only over graphs that it does not keep"
_CSV = {"debug.fx_summary.type": "csv"}
REFUSED = (
    Refusal(_AUTOTUNE, {"debug.run_eagerly": True}, f"{_GRAPH}, as does config.mode = 'reduce-overhead'"),
    Refusal(_AUTOTUNE + _REDUCE, {"debug.data_dump.type": "npy"}, _DUMPED),
    Refusal(
        _AUTOTUNE,
        {**_CSV, "debug.fx_summary.skip_compile": True},
        "set config.debug.fx_summary.skip_compile = False",
    ),
    Refusal(_AUTOTUNE, {"export.export_mode": True}, "call torchair.dynamo_export"),
    Refusal(_AUTOTUNE, {"experimental_config.enable_ref_data": True}, _DEFAULT),
    Refusal(_AUTOTUNE, {"aoe_config.aoe_mode": "2"}, "tune without a cache, by warmrank.get_npu_backend"),
    Refusal(_AUTOTUNE + _REDUCE, {"experimental_config.npu_fx_pass": True}, _DEFAULT, why=_ONLY_FOR_OTHERS),
    Refusal(_REDUCE, _CSV, _GRAPH, why="TorchAir writes none in this mode", always=True),
    Refusal(_REDUCE, {"debug.graph_dump.type": "txt"}, _PY, why=_ONLY_PY, always=True),
    Refusal(_REDUCE, {"debug.graph_dump.type": "pbtxt"}, _PY, why=_ONLY_PY, always=True),
    Refusal(
        _REDUCE,
        {"dump_config.enable_dump": True, f"dump_config.{_STAGE}": "original"},
        f"set config.dump_config.{_STAGE} = 'optimized'",
    ),
    Refusal(
        _FLAT,
        {"dump_tensor_data": True, _STAGE: "original"},
        f"set config.npugraphex_config.{_STAGE} = 'optimized'",
    ),
    Refusal(_FLAT, {"dump_tensor_data": True, "force_eager": True}, "set one of the two"),
)
_MISSING = (
    "has no counterpart in the installed TorchAir; leave it at its default, or use another mode or engine"
)
_PATHS = (
    "ge.exec.dumpPath", "aclgraph.dumpPath", "data_dump_path",
    "ge.fusionSwitchFile", "ge_dump_with_acl_config",
)  # fmt: skip
_FLAT_SECTION = "npugraphex_config."


class Translation(NamedTuple):
    """Values of a configuration that TorchAir writes into the code that it generates."""

    pool: object | None  # handle of the memory pool that the configuration names, under either of its names
    paths: Mapping[str, str]  # TorchAir's option -> path; those of dumps hold the rank


class _Meant(NamedTuple):
    """A value for one of TorchAir's options."""

    value: Any  # in TorchAir's sense
    said: str  # what stands in our configuration
    changed: bool  # whether somebody set it


def translated(config: CompilerConfig, theirs: Any, *, kept: bool = True) -> Translation:
    """Fill a fresh object of TorchAir's with our options, so that it means what `config` does.

    Args:
        config: ours.
        theirs: a new ``torchair.CompilerConfig``, or ``npugraph_ex.CompilerConfig`` for mode ``npugraph_ex``.
            TorchAir changes it while it compiles, so each compile needs one of its own.
        kept: whether TorchAir is to keep what it compiles; it cannot under every option.

    Raises:
        NoCounterpart: options that the installed version lacks or refuses, that contradict each other, or
            whose outcome cannot be kept; all of them, each with a remedy.
    """
    problems: list[str] = []
    flat = config.mode == "npugraph_ex"
    meant = _meant(config, problems, flat=flat)
    if flat and meant["use_graph_pool"].changed:
        # As TorchAir does by itself, with a warning that nobody can act upon.
        meant["reuse_graph_pool_in_same_fx"] = meant["reuse_graph_pool_in_same_fx"]._replace(value=False)
    for name, one in meant.items():
        why = _put(theirs, name, one.value)
        if why and one.changed:
            problems.append(f"{one.said} {why}")
        elif why and why != _MISSING:
            _log.warning("our default %s %s", one.said, why)
    problems += _refused(config.mode, meant, kept=kept)
    if problems:
        msg = "TorchAir cannot take all of the configuration:" + "".join(f"\n- {one}" for one in problems)
        raise NoCounterpart(msg, mode=config.mode, problems=tuple(problems))
    of_one_graph, of_all = theirs.as_dict()
    every = {**of_one_graph, **of_all}
    pool = meant.get("use_graph_pool", meant.get("aclgraph_config.use_custom_pool"))
    return Translation(
        pool=None if pool is None else pool.value,
        paths={name: str(every[name]) for name in _PATHS if every.get(name)},
    )


def _meant(config: CompilerConfig, problems: list[str], *, flat: bool) -> dict[str, _Meant]:
    """Values that our options ask of TorchAir's, but for those that do nothing in this mode.

    Of several that mean one option of TorchAir's the one counts that somebody set.
    """
    found: dict[str, _Meant] = {}
    for name, option, value in options(config):
        if no_effect(option.effect_of(value), mode=config.mode, engine=TORCHAIR):
            continue
        if config.mode in OURS_ALONE.get(name, ()):
            continue
        theirs = _name(name, flat=flat)
        inverted = flat and theirs in INVERTED and not name.startswith(_FLAT_SECTION)
        one = _Meant(
            value=not value if inverted else value,
            said=f"config.{name} = {value!r}",
            changed=not same(value, option.default),
        )
        other = found.setdefault(theirs, one)
        if one.changed and other.changed and not same(one.value, other.value):
            both = f"{other.said} and {one.said} contradict each other"
            problems.append(f"{both}, for both are TorchAir's {theirs}; set one of them")
        elif one.changed:
            found[theirs] = one
    return found


def _name(ours: str, *, flat: bool) -> str:
    """TorchAir's name of an option of ours; ours where it has none, which its object then lacks."""
    if flat:
        return FLAT.get(ours, ours.removeprefix(_FLAT_SECTION))
    return "debug.run_eagerly" if ours == f"{_FLAT_SECTION}force_eager" else ours


def _put(theirs: Any, name: str, value: Any) -> str:
    """Set an option of TorchAir's where it differs; return what is wrong where it does not take it."""
    *parts, last = name.split(".")
    section = theirs
    for part in parts:
        section = getattr(section, part, None)
    if section is None or not hasattr(section, last):  # some sections take any name without a word
        return _MISSING
    if _holds(getattr(section, last), value):
        return ""
    why = "it keeps another value"
    try:
        setattr(section, last, value)
    except Exception as error:  # noqa: BLE001 - whatever its check raises
        why = (str(error) or type(error).__name__).splitlines()[0]
    return "" if _holds(getattr(section, last), value) else f"is refused by TorchAir's {name} ({why})"


def _holds(held: Any, value: Any) -> bool:
    """True if an option of TorchAir's holds our value; it reads flags as "0" and "1", ints as text."""
    held = held.value if is_option(held) else held
    if isinstance(value, bool):
        return held is value or held == str(int(value))
    if isinstance(value, int):
        return not isinstance(held, bool) and held in (value, str(value))
    if isinstance(value, str):
        return held in (value, os.path.realpath(value))  # a directory, as TorchAir keeps it
    return held is value or (type(held) is type(value) and bool(held == value))


def _refused(mode: str, meant: Mapping[str, _Meant], *, kept: bool) -> Iterator[str]:
    """Options that TorchAir takes, but does not obey, or keeps nothing of."""
    for refusal in REFUSED:
        if mode not in refusal.modes or not (kept or refusal.always):
            continue
        if all(name in meant and same(meant[name].value, value) for name, value in refusal.values.items()):
            said = " with ".join(meant[name].said for name in refusal.values)
            yield f"{said}: {refusal.why}; {refusal.remedy}"
