"""Checks on versions: Python, torch, Ray, torch_npu and the NVIDIA driver. Pure functions.

Ascend's own software has a module of its own, `orchestrator.doctor.ascend`.

The ranges are those of ``pyproject.toml``; a test compares the two. The oldest NVIDIA driver for a release of
CUDA is NVIDIA's table of minor version compatibility: https://docs.nvidia.com/deploy/cuda-compatibility/.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from warmrank.orchestrator.doctor.findings import Finding, ok, unknown

PYTHON = (3, 11)
RANGES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "torch": ((2, 11), (3,)),
    "ray": ((2, 50), (3,)),
    "torch_npu": ((2, 11), (3,)),
}
"""Distribution -> the oldest release that is supported, and the first that is not any more."""

_OLDEST_NVIDIA_DRIVER = {"11": (450, 80, 2), "12": (525, 60, 13), "13": (580, 65, 6)}
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a fresh interpreter said that imported torch as a rank does.

    Attributes:
        error: why it did not import, or did not answer; empty if it did.
        torch: version.
        cuda: release of CUDA that it was built with; empty for none.
        architectures: what its CUDA kernels were compiled for, such as ``sm_90``.
        num_devices: devices of the kind asked for that torch can use.
        device_error: why it can use none, in torch's words.
        facts: what the compile path relies on: the module that does, the fact, and what is there instead.
        untested: the releases that warmrank is tested with, where torch is newer than those; else empty.
    """

    error: str = ""
    torch: str = ""
    cuda: str = ""
    architectures: tuple[str, ...] = ()
    num_devices: int = 0
    device_error: str = ""
    facts: tuple[tuple[str, str, str], ...] = ()
    untested: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What is installed on a node.

    Attributes:
        device: device kind that the node is checked for.
        python: version of the interpreter, such as ``3.11.9``.
        installed: distribution -> version; what is not installed is left out.
        autoload: value of ``TORCH_DEVICE_BACKEND_AUTOLOAD``; None where it is not set.
        has_cann: CANN was found.
        nvidia_driver: its version; empty for none.
        accelerators: models with architecture, as in the environment fingerprint.
        probe: what a fresh interpreter said.
        compiler_problem: why mode max-autotune could compile nothing here; empty if it could.
    """

    device: str
    python: str
    installed: Mapping[str, str]
    autoload: str | None
    has_cann: bool
    nvidia_driver: str
    accelerators: str
    probe: Probe
    compiler_problem: str = ""


def check(facts: Versions) -> Iterator[Finding]:
    """All findings on versions."""
    yield _python(facts)
    for name in RANGES:
        if name != "torch_npu" or facts.device == "npu":
            yield _distribution(facts, name)
    yield from _autoload(facts)
    yield _import(facts)
    yield from _compile_path(facts)
    if facts.device == "cuda":
        yield from _cuda(facts)
    if facts.device != "npu":
        yield _compiler(facts)


def _python(facts: Versions) -> Finding:
    if release(facts.python) >= PYTHON:
        return ok("versions.python", f"Python {facts.python}")
    return Finding(
        check="versions.python",
        level="error",
        what=f"Python {facts.python} is too old",
        expected=f"Python {_dotted(PYTHON)} or later",
        actual=facts.python,
        remedy=f"make the environment with Python {_dotted(PYTHON)} or later",
    )


def _distribution(facts: Versions, name: str) -> Finding:
    oldest, beyond = RANGES[name]
    expected = f"{name} >= {_dotted(oldest)}, < {_dotted(beyond)}"
    version = facts.installed.get(name, "")
    extra = "[npu]" if name == "torch_npu" else ""
    remedy = f"pip install -e 'PATH_TO_CLONE{extra}' installs one that fits"
    if version and oldest <= release(version) < beyond:
        return ok(f"versions.{name}", f"{name} {version}")
    what = f"{name} {version} is outside the supported range" if version else f"{name} is not installed"
    return Finding(
        check=f"versions.{name}",
        level="error",
        what=what,
        expected=expected,
        actual=version or "not installed",
        remedy=remedy,
    )


def _autoload(facts: Versions) -> Iterator[Finding]:
    """With torch_npu and no CANN, torch itself does not import, for whoever uses this environment."""
    if "torch_npu" not in facts.installed or facts.has_cann or facts.autoload == "0":
        return
    yield Finding(
        check="versions.autoload",
        level="error" if facts.device == "npu" else "warning",
        what="torch_npu is installed without CANN, so a plain `import torch` fails in this environment",
        expected=f"CANN, or {AUTOLOAD}=0, or no torch_npu",
        actual=f"torch_npu {facts.installed['torch_npu']}, no CANN, {AUTOLOAD} {facts.autoload or 'not set'}",
        remedy=f"install CANN and source its set_env.sh; on a node without NPUs export {AUTOLOAD}=0 "
        "(warmrank sets it for ranks on cpu and cuda) or uninstall torch_npu",
    )


def _import(facts: Versions) -> Finding:
    if not facts.probe.error:
        return ok("versions.import", f"torch {facts.probe.torch} imports in a fresh interpreter")
    missing = "torch_npu" if facts.probe.torch else "torch"
    return Finding(
        check="versions.import",
        level="error",
        what=f"{missing} does not import in a fresh interpreter",
        expected="an import without an error, with a rank's environment variables",
        actual=facts.probe.error,
        remedy="see the other findings on versions; a missing libhccl.so or libascendcl.so is CANN's, whose "
        "set_env.sh makes it known; else install it anew",
    )


def _compile_path(facts: Versions) -> Iterator[Finding]:
    """The checks that stand before a first compile: one line for each module of `worker.torch_private`."""
    probe = facts.probe
    if probe.untested:
        yield Finding(
            check="versions.untested",
            level="warning",
            what=f"torch {probe.torch} is newer than what warmrank is tested with",
            expected=f"torch {probe.untested}",
            actual=probe.torch,
            remedy="use it as long as the checks of compile.* are ok, or install a torch that is tested",
        )
    for module, found in itertools.groupby(probe.facts, key=itemgetter(0)):
        facts_of_module = list(found)
        broken = [f"{text}: {instead}" for _, text, instead in facts_of_module if instead]
        if broken:
            yield Finding(
                check=f"compile.{module}",
                level="error",
                what=f"torch {probe.torch} is not what {module} relies on, so nothing can be compiled",
                expected="the facts that worker/torch_private declares",
                actual="; ".join(broken),
                remedy="install a torch that is tested (docs/status.md); artifacts load without these facts",
            )
        else:
            yield ok(f"compile.{module}", "; ".join(text for _, text, _ in facts_of_module))


def _cuda(facts: Versions) -> Iterator[Finding]:
    probe = facts.probe
    if probe.error:
        yield unknown("versions.cuda", "torch does not import")
        return
    if not probe.cuda:
        yield Finding(
            check="versions.cuda",
            level="error",
            what=f"torch {probe.torch} is built without CUDA",
            expected="a CUDA build of the same version",
            actual="a build for CPUs",
            remedy="install torch from the index of CUDA builds (https://pytorch.org/get-started/locally)",
        )
        return
    yield _driver(facts)
    yield from _architectures(facts)


def _driver(facts: Versions) -> Finding:
    cuda, driver = facts.probe.cuda, facts.nvidia_driver
    if not driver:
        return unknown("versions.driver", "the NVIDIA driver's version cannot be read from /proc")
    oldest = _OLDEST_NVIDIA_DRIVER.get(cuda.partition(".")[0])
    if oldest is None:
        return unknown("versions.driver", f"no oldest driver is known here for CUDA {cuda}")
    if release(driver) >= oldest:
        return ok("versions.driver", f"driver {driver} runs CUDA {cuda}")
    return Finding(
        check="versions.driver",
        level="error",
        what=f"driver {driver} is too old for torch's CUDA {cuda}",
        expected=f"driver {_dotted(oldest)} or later",
        actual=driver,
        remedy="update the NVIDIA driver, or install a torch for an older CUDA",
    )


def _architectures(facts: Versions) -> Iterator[Finding]:
    """Kernels of one major architecture run on its later minors; what has none needs another build."""
    built = {_major(name) for name in facts.probe.architectures}
    there = sorted(set(re.findall(r"sm_\d+", facts.accelerators)))
    if not built or not there:
        return
    missing = [name for name in there if _major(name) not in built]
    if not missing:
        yield ok("versions.architecture", f"torch has kernels for {', '.join(there)}")
        return
    yield Finding(
        check="versions.architecture",
        level="error",
        what=f"torch {facts.probe.torch} has no kernels for {', '.join(missing)}",
        expected=f"one of {', '.join(facts.probe.architectures)}",
        actual=facts.accelerators,
        remedy="install a build of torch for this GPU",
    )


def _major(name: str) -> int:
    digits = re.sub(r"\D", "", name)
    return int(digits) // 10 if digits else 0


def _compiler(facts: Versions) -> Finding:
    if not facts.compiler_problem:
        return ok("versions.compiler", "there is what mode max-autotune compiles with")
    return Finding(
        check="versions.compiler",
        level="note",
        what="mode max-autotune cannot compile here; it can load what another node compiled",
        expected="a C++ compiler; on cuda Triton and the CUDA toolkit too",
        actual=facts.compiler_problem,
        remedy="install them on nodes that compile; mode reduce-overhead needs none of it",
    )


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: ``2.13.0+cpu`` -> (2, 13, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)
