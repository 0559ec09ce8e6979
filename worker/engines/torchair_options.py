"""Our `CompilerConfig`, option by option, on an object of the installed TorchAir's own configuration.

Nothing here imports TorchAir: the caller hands the object in, and what it is says how it is filled. Every
value that is set is read back, so an option that the installed version lacks, refuses or ignores is an error,
which names all of them at once. What belongs to another mode stays behind; `CompilerConfig.check` says so.

A request key holds our configuration, the engine's version and torch_npu's, and these decide what is set: a
change of the translation is a change of the engine.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from warmrank.worker.configs.effects import TORCHAIR, Verdict, verdict
from warmrank.worker.configs.section import options, same
from warmrank.worker.engines.torchair_names import FLAT, INVERTED, OURS_ALONE, REFUSED, Refusal
from warmrank.worker.engines.torchair_objects import has, holds, is_flat, put, their_options
from warmrank.worker.errors import NoCounterpart
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig

_log = logging.getLogger("torchair")
_PATHS = (
    "ge.exec.dumpPath",
    "aclgraph.dumpPath",
    "data_dump_path",
    "ge.fusionSwitchFile",
    "ge_dump_with_acl_config",
)


class Translation(Value):
    """What became of a configuration.

    Attributes:
        names: TorchAir's dotted names of the options that were set, sorted.
        warnings: our dotted name -> why nothing came of a value that somebody set.
        pool: handle of the memory pool that the configuration names, under either of its names.
        paths: TorchAir's option -> path. It writes them into the code that it generates, and those of dumps
            hold the rank; an artifact must hold none.
    """

    names: tuple[str, ...]
    warnings: Mapping[str, str]
    pool: object | None
    paths: Mapping[str, str]


class _Claim(Value):
    """A value for one of TorchAir's options, and where it comes from.

    Attributes:
        ours: our dotted name.
        value: in TorchAir's sense.
        given: what stands in our configuration.
        changed: whether somebody set it.
    """

    ours: str
    value: Any
    given: Any
    changed: bool


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
    flat = is_flat(theirs, config.mode)
    warnings: dict[str, str] = {}
    claims = _claims(config, flat=flat, warnings=warnings)
    problems: list[str] = []
    meant = {name: _agreed(name, several, problems) for name, several in claims.items()}
    if flat and meant["use_graph_pool"].changed:
        # As TorchAir does by itself, with a warning that nobody can act upon.
        meant["reuse_graph_pool_in_same_fx"] = replace(meant["reuse_graph_pool_in_same_fx"], value=False)
    names = [name for name, claim in meant.items() if _put(theirs, name, claim, warnings, problems)]
    problems += _refused(config.mode, meant, kept=kept)
    if problems:
        msg = "TorchAir cannot take all of the configuration:" + "".join(f"\n- {one}" for one in problems)
        raise NoCounterpart(msg, mode=config.mode, problems=tuple(problems))
    pool = meant.get("use_graph_pool", meant.get("aclgraph_config.use_custom_pool"))
    return Translation(
        names=tuple(sorted(names)),
        warnings=warnings,
        pool=None if pool is None else pool.value,
        paths=_paths(theirs),
    )


def _claims(config: CompilerConfig, *, flat: bool, warnings: dict[str, str]) -> dict[str, list[_Claim]]:
    """What our options say about each of TorchAir's, but for those that do nothing in this mode."""
    found: dict[str, list[_Claim]] = {}
    for name, option, value in options(config):
        changed = not same(value, option.default)
        answer, why = verdict(option.effect_of(value), mode=config.mode, engine=TORCHAIR)
        if answer is Verdict.NO_EFFECT:
            if changed:
                warnings[name] = why
            continue
        if config.mode in OURS_ALONE.get(name, ()):
            continue
        theirs = _name(name, flat=flat)
        inverted = flat and theirs in INVERTED and not name.startswith("npugraphex_config.")
        claim = _Claim(ours=name, value=not value if inverted else value, given=value, changed=changed)
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


def _put(theirs: Any, name: str, claim: _Claim, warnings: dict[str, str], problems: list[str]) -> bool:
    """Set an option of TorchAir's where it differs, and look whether it took it; whether it was set."""
    if not has(theirs, name):
        if claim.changed:
            problems.append(
                f"{_said(claim)} has no counterpart in the installed TorchAir{_near(theirs, name)}"
            )
        return False
    if holds(theirs, name, claim.value):
        return claim.changed
    refusal = put(theirs, name, claim.value)
    if not refusal:
        return True
    if claim.changed:
        problems.append(f"{_said(claim)} is refused by the installed TorchAir's {name} ({refusal})")
    else:
        warnings[claim.ours] = f"the installed TorchAir refuses our default {claim.given!r}: {refusal}"
        _log.warning("config.%s: %s", claim.ours, warnings[claim.ours])
    return False


def _refused(mode: str, meant: Mapping[str, _Claim], *, kept: bool) -> Iterator[str]:
    """What TorchAir takes, but does not do, or keeps nothing of."""
    for refusal in REFUSED:
        if refusal.mode == mode and (kept or refusal.always) and _applies(refusal, meant):
            said = " with ".join(_said(meant[name]) for name in refusal.values)
            yield f"{said}: {refusal.why}; {refusal.remedy}"


def _applies(refusal: Refusal, meant: Mapping[str, _Claim]) -> bool:
    return all(name in meant and same(meant[name].value, value) for name, value in refusal.values.items())


def _said(claim: _Claim) -> str:
    return f"config.{claim.ours} = {claim.given!r}"


def _near(theirs: Any, name: str) -> str:
    """The nearest option that there is, in words."""
    known = list(their_options(theirs))
    last = name.rpartition(".")[2]
    near = difflib.get_close_matches(name, known, n=1) or [
        one for one in known if difflib.get_close_matches(last, [one.rpartition(".")[2]], n=1)
    ]
    hint = f", the nearest is {near[0]}" if near else ""
    return f"{hint}; leave it at its default, or use another mode or engine"


def _paths(theirs: Any) -> dict[str, str]:
    """The paths that TorchAir writes into its code."""
    local_options, global_options = theirs.as_dict()
    every = {**local_options, **global_options}
    return {name: str(every[name]) for name in _PATHS if every.get(name)}
