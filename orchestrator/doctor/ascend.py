"""Checks on Ascend's software: CANN, driver, firmware, and whether they belong together. Pure functions.

What belongs together is known to `worker.ascend`, whose texts name their remedies themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warmrank.orchestrator.doctor.findings import Finding, ok, unknown
from warmrank.worker.devices.streams import Captures, limit_of, needed, problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Ascend:
    """What is installed of it.

    Attributes:
        cann: release and build of CANN; empty for none.
        home: its directory; empty for none.
        is_set_up: its ``set_env.sh`` was sourced, for this process or those that started it.
        driver: version; empty for none.
        firmware: version; empty where it cannot be seen.
        soc: model of the NPUs; empty without NPUs.
        num_chips: chips that ``npu-smi`` lists.
        problems: what is wrong with what is installed, each with its remedy.
        misfits: versions that do not belong together, each with its remedy.
    """

    cann: str
    home: str
    is_set_up: bool
    driver: str
    firmware: str
    soc: str
    num_chips: int
    problems: tuple[str, ...]
    misfits: tuple[str, ...]


def check(facts: Ascend) -> Iterator[Finding]:
    """All findings on Ascend's software."""
    yield _cann(facts)
    if facts.cann:
        yield _set_up(facts)
    yield _driver(facts)
    if facts.firmware:
        yield ok("ascend.firmware", f"firmware {facts.firmware}")
    else:
        yield unknown(
            "ascend.firmware", "the firmware's version is not to be seen here, as in most containers"
        )
    if facts.soc:
        yield ok("ascend.chips", f"{facts.num_chips} chips in npu-smi, {facts.soc}")
    yield from _said(
        "ascend.problems", "as the tools and files of Ascend's software should say", facts.problems
    )
    yield from _said("ascend.fit", "releases that Ascend documents as belonging together", facts.misfits)
    if facts.cann and not facts.misfits:
        yield ok("ascend.fit", "torch, torch_npu, CANN and driver are not known not to fit each other")


def _cann(facts: Ascend) -> Finding:
    if facts.cann:
        return ok("ascend.cann", f"CANN {facts.cann} in {facts.home}")
    return Finding(
        check="ascend.cann",
        level="error",
        what="CANN is not there, without which torch_npu does not import",
        expected="the toolkit and the kernels of one release, in /usr/local/Ascend or where ASCEND_HOME_PATH "
        "says",
        actual="none",
        remedy="install CANN's toolkit and kernels for this NPU",
    )


def _set_up(facts: Ascend) -> Finding:
    if facts.is_set_up:
        return ok("ascend.environment", "set_env.sh of CANN was sourced")
    return Finding(
        check="ascend.environment",
        level="warning",
        what="CANN is installed, but its set_env.sh was not sourced here, so libraries and kernels are not "
        "found",
        expected="ASCEND_HOME_PATH and what else set_env.sh sets",
        actual="ASCEND_HOME_PATH and ASCEND_TOOLKIT_HOME are not set",
        remedy=f"source {facts.home}/set_env.sh (or the one beside it) before `ray start` on every node",
    )


def _driver(facts: Ascend) -> Finding:
    if facts.driver:
        return ok("ascend.driver", f"driver {facts.driver}")
    return Finding(
        check="ascend.driver",
        level="error",
        what="the Ascend driver's version is not there",
        expected="version.info in /usr/local/Ascend/driver",
        actual="no such file",
        remedy="install the driver; in a container mount /usr/local/Ascend/driver read-only",
    )


def check_streams(soc: str, captures: tuple[Captures, ...], expansion: str) -> Finding:
    """Whether the graphs that the config's newest launch captured fit in the streams of this NPU.

    Args:
        soc: its model; empty where it is not known.
        captures: what one rank captured; each graph is taken to use every group of the config.
        expansion: ``HCCL_OP_EXPANSION_MODE``.
    """
    limit = limit_of(soc)
    if not captures:
        why = f"the store holds no capture plan of this launch; an NPU has {limit} streams, see docs/npu.md"
        return unknown("ascend.streams", why)
    wanted = f"about {needed(captures, expansion=expansion)}"
    trouble = problem(captures, soc=soc, expansion=expansion)
    if not trouble:
        return ok("ascend.streams", f"{wanted} of {limit} streams are wanted by what this launch captures")
    return Finding(
        check="ascend.streams",
        level="warning",
        what=trouble,
        expected="fewer streams than the NPU has, with some in reserve",
        actual=f"{wanted} of {limit}",
    )


def _said(check_name: str, expected: str, problems: tuple[str, ...]) -> Iterator[Finding]:
    for text in problems:
        yield Finding(
            check=check_name,
            level="warning",
            what=text,
            expected=expected,
        )
