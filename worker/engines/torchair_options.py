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
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from warmrank.worker.configs.options import TORCHAIR, options, same
from warmrank.worker.configs.sections import no_effect
from warmrank.worker.configs.torchair import FLAT, INVERTED, is_option
from warmrank.worker.errors import NoCounterpart
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig

OURS_ALONE: Mapping[str, tuple[str, ...]] = {
    "inference_config.dynamic_gears_merge_policy": ("reduce-overhead", "npugraph_ex"),
}
"""Our name -> modes in which this package does it, and TorchAir has nothing to do with it."""

_GRAPH = 'engine="graph" does it'


class Refusal(NamedTuple):
    """Options that TorchAir has, and of which nothing good comes."""

    mode: str  # in which it is so
    values: Mapping[str, Any]  # TorchAir's name -> value; all have to be set so
    remedy: str  # what to do instead
    why: str = "TorchAir keeps nothing that it compiles so"  # what TorchAir does then
    always: bool = False  # whether it is so even where nothing is to be kept


_ONLY_FOR_OTHERS = "TorchAir runs these passes only over graphs that it does not keep"
_ONLY_PY = "TorchAir writes only 'py' in this mode"
_AUTOTUNE, _REDUCE, _FLAT = "max-autotune", "reduce-overhead", "npugraph_ex"
_DEFAULT, _PY = "leave it at its default", "set config.debug.graph_dump.type = 'py'"
_STAGE = "data_dump_stage"
REFUSED = (
    Refusal(_AUTOTUNE, {"debug.run_eagerly": True}, f"{_GRAPH}, as does config.mode = 'reduce-overhead'"),
    Refusal(
        _AUTOTUNE,
        {"debug.data_dump.type": "npy"},
        f"{_GRAPH}, and config.dump_config.enable_dump dumps from the compiled graph",
    ),
    Refusal(
        _AUTOTUNE,
        {"debug.fx_summary.type": "csv", "debug.fx_summary.skip_compile": True},
        "set config.debug.fx_summary.skip_compile = False",
    ),
    Refusal(_AUTOTUNE, {"export.export_mode": True}, "call torchair.dynamo_export"),
    Refusal(_AUTOTUNE, {"experimental_config.enable_ref_data": True}, _DEFAULT),
    Refusal(
        _AUTOTUNE, {"aoe_config.aoe_mode": "2"}, "tune without a cache, through warmrank.get_npu_backend"
    ),
    Refusal(_AUTOTUNE, {"experimental_config.npu_fx_pass": True}, _DEFAULT, _ONLY_FOR_OTHERS),
    Refusal(_REDUCE, {"experimental_config.npu_fx_pass": True}, _DEFAULT, _ONLY_FOR_OTHERS),
    Refusal(
        _REDUCE,
        {"debug.data_dump.type": "npy"},
        f"{_GRAPH}, and config.dump_config.enable_dump dumps from the captured graph",
    ),
    Refusal(_REDUCE, {"debug.fx_summary.type": "csv"}, _GRAPH, "TorchAir writes none in this mode", True),
    Refusal(_REDUCE, {"debug.graph_dump.type": "txt"}, _PY, _ONLY_PY, True),
    Refusal(_REDUCE, {"debug.graph_dump.type": "pbtxt"}, _PY, _ONLY_PY, True),
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


_log = logging.getLogger("torchair")
_PATHS = (
    "ge.exec.dumpPath",
    "aclgraph.dumpPath",
    "data_dump_path",
    "ge.fusionSwitchFile",
    "ge_dump_with_acl_config",
)


class Translation(Value):
    """Values of a configuration that TorchAir writes into the code that it generates."""

    pool: object | None  # handle of the memory pool that the configuration names, under either of its names
    paths: Mapping[str, str]  # TorchAir's option -> path; those of dumps hold the rank


class _Claim(Value):
    """A value for one of TorchAir's options, and where it comes from."""

    ours: str  # our dotted name
    value: Any  # in TorchAir's sense
    given: Any  # what stands in our configuration
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
    flat = config.mode == "npugraph_ex"
    problems: list[str] = []
    meant = {name: _agreed(name, several, problems) for name, several in _claims(config, flat=flat).items()}
    if flat and meant["use_graph_pool"].changed:
        # As TorchAir does by itself, with a warning that nobody can act upon.
        meant["reuse_graph_pool_in_same_fx"] = replace(meant["reuse_graph_pool_in_same_fx"], value=False)
    for name, claim in meant.items():
        _put(theirs, name, claim, problems)
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


def _claims(config: CompilerConfig, *, flat: bool) -> dict[str, list[_Claim]]:
    """Values that our options ask of TorchAir's, but for those that do nothing in this mode."""
    found: dict[str, list[_Claim]] = {}
    for name, option, value in options(config):
        if no_effect(option, value, mode=config.mode, engine=TORCHAIR):
            continue
        if config.mode in OURS_ALONE.get(name, ()):
            continue
        theirs = _name(name, flat=flat)
        inverted = flat and theirs in INVERTED and not name.startswith("npugraphex_config.")
        claim = _Claim(
            ours=name,
            value=not value if inverted else value,
            given=value,
            changed=not same(value, option.default),
        )
        found.setdefault(theirs, []).append(claim)
    return found


def _name(ours: str, *, flat: bool) -> str:
    """TorchAir's name of an option of ours; ours where it has none, which its object then lacks."""
    if flat:
        return FLAT.get(ours, ours.removeprefix("npugraphex_config."))
    return "debug.run_eagerly" if ours == "npugraphex_config.force_eager" else ours


def _agreed(name: str, claims: list[_Claim], problems: list[str]) -> _Claim:
    """The claim that counts: one that somebody set, if any; two that disagree are a problem."""
    changed = [claim for claim in claims if claim.changed]
    first = (changed or claims)[0]
    if any(not same(claim.value, first.value) for claim in changed):
        said = " and ".join(f"config.{claim.ours} = {claim.given!r}" for claim in changed)
        problems.append(f"{said} contradict each other, for both are TorchAir's {name}; set one of them")
    return first


def _put(theirs: Any, name: str, claim: _Claim, problems: list[str]) -> None:
    """Set an option of TorchAir's where it differs, and look whether it took it."""
    *parts, last = name.split(".")
    section = theirs
    for part in parts:
        section = getattr(section, part, None)
    if section is None or not hasattr(section, last):  # some sections take any name without a word
        if claim.changed:
            problems.append(
                f"{_said(claim)} has no counterpart in the installed TorchAir; leave it at its default, or "
                "use another mode or engine"
            )
        return
    if _holds(getattr(section, last), claim.value):
        return
    try:
        setattr(section, last, claim.value)
    except Exception as error:  # noqa: BLE001 - whatever its check raises
        why = (str(error) or type(error).__name__).splitlines()[0]
    else:
        why = "" if _holds(getattr(section, last), claim.value) else "it keeps another value"
    if why and claim.changed:
        problems.append(f"{_said(claim)} is refused by the installed TorchAir's {name} ({why})")
    elif why:
        _log.warning(
            "config.%s: the installed TorchAir refuses our default %r: %s", claim.ours, claim.given, why
        )


def _refused(mode: str, meant: Mapping[str, _Claim], *, kept: bool) -> Iterator[str]:
    """Options that TorchAir takes, but does not obey, or keeps nothing of."""
    for refusal in REFUSED:
        if refusal.mode != mode or not (kept or refusal.always):
            continue
        if all(name in meant and same(meant[name].value, value) for name, value in refusal.values.items()):
            said = " with ".join(_said(meant[name]) for name in refusal.values)
            yield f"{said}: {refusal.why}; {refusal.remedy}"


def _said(claim: _Claim) -> str:
    return f"config.{claim.ours} = {claim.given!r}"
