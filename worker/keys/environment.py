"""The environment fingerprint as named components, computed without importing torch.

Process state that can change at run time (deterministic mode, precision, autocast) is not here: it is part
of the guards (`worker.runtime.ambient`). Host names, paths, addresses, device indices and the number of
devices never are. Two machines with the same `instruction_set` text run each other's kernels.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from warmrank.worker.ascend import places
from warmrank.worker.ascend.places import Places
from warmrank.worker.values import Value


class Target(Value):
    """The machines that artifacts are built for.

    Attributes:
        device_kind: ``cpu``, ``cuda`` or ``npu``.
        environment: named components of their environment fingerprint.
    """

    device_kind: str
    environment: Mapping[str, str]


_target: ContextVar[Target | None] = ContextVar("target", default=None)


def target() -> Target | None:
    """The machines that this process builds for; None where it is for itself."""
    return _target.get()


@contextmanager
def building_for(machines: Target) -> Iterator[None]:
    """Build for other machines within."""
    token = _target.set(machines)
    try:
        yield
    finally:
        _target.reset(token)


_CPU_INFO = Path("/proc/cpuinfo")
_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))
# What Inductor switches on beside the level where it finds it: torch 2.13, torch/_inductor/cpu_vec_isa.py.
_EXTRAS = ("avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16")


class InstructionSet(NamedTuple):
    """What kernels may use. No dataclass, which takes longer to make than all that a warm process does here.

    Attributes:
        march: for the compiler's ``-march``; None where Inductor chooses.
        text: for the key.
    """

    march: str | None
    text: str


@functools.cache
def instruction_set() -> InstructionSet:
    """Of this machine."""
    return of_features(platform.machine(), frozenset(features()))


def features() -> list[str]:
    """Of the first processor; the system writes the text as it is read, which takes long for hundreds."""
    try:
        with _CPU_INFO.open(errors="replace") as lines:
            for line in lines:
                name, _, found = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return found.split()
    except OSError:
        pass
    return []


def of_features(machine: str, features: frozenset[str]) -> InstructionSet:
    """Of a machine with these features, as ``/proc/cpuinfo`` names them."""
    if machine not in ("x86_64", "AMD64"):
        digest = hashlib.sha256(" ".join(sorted(features)).encode()).hexdigest()[:16]
        return InstructionSet(march=None, text=f"{machine} {len(features)} features {digest}")
    level = next((name for name, needed in _LEVELS if needed <= features), "x86-64")
    extras = [name for name in _EXTRAS if name in features]
    return InstructionSet(march=level, text=" ".join([level, *extras]))


_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE


def architectures(load: Callable[[str], Any] = ctypes.CDLL) -> tuple[str, ...]:
    """Each model on this machine once, with its architecture: ``NVIDIA H100 80GB HBM3 sm_90``.

    Empty where there is no driver, or it does not answer.
    """
    try:
        library = load(_LIBRARY)
    except OSError:
        return ()
    if library.nvmlInit_v2() != 0:
        return ()
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return ()
        found = {_architecture(library, index) for index in range(count.value)}
    finally:
        library.nvmlShutdown()
    return tuple(sorted(found - {""}))


def _architecture(library: Any, index: int) -> str:
    handle = ctypes.c_void_p()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        or library.nvmlDeviceGetName(handle, name, ctypes.c_uint(_NAME_BYTES))
        or library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    return "" if failed else f"{name.value.decode(errors='replace')} sm_{major.value}{minor.value}"


_INSTRUCTION_SETS = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "asimdhp", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
_NVIDIA = Path("/proc/driver/nvidia")
_NVIDIA_DEVICE = Path("/dev/nvidiactl")  # in containers that hide the driver's part of /proc
_NONE = "none"


def environment() -> dict[str, str]:
    """Named components that decide whether another machine's artifacts can be used here.

    In an offline build they are those of the machines that it builds for.
    """
    machines = target()
    if machines is not None:
        return dict(machines.environment)
    return _components()


@functools.cache
def _components() -> dict[str, str]:
    """The components, read once in a process; ``npu-smi`` alone takes a second."""
    ascend = places.here()
    cann, driver, soc = ("", "", "") if ascend.hold_nothing() else _ascend(ascend)
    return {
        "python": f"{platform.python_implementation().lower()} {platform.python_version()}",
        "torch": _built("torch"),
        "cuda": _cuda(),
        "torch_npu": _built("torch_npu"),
        "cann": cann or _NONE,
        "driver": _driver(driver),
        "accelerator": _accelerator(soc),
        "cpu": _cpu(),
    }


def _ascend(ascend: Places) -> tuple[str, str, str]:
    """CANN, driver and model of the NPUs, as texts."""
    from warmrank.worker.ascend.chips import soc_of
    from warmrank.worker.ascend.versions import cann_of, driver_of

    return cann_of(ascend).text(), driver_of(ascend), soc_of(ascend)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return _NONE


def _built(package: str) -> str:
    """Version and git revision, read from the installed package's ``version.py``."""
    text = _version_file(package)
    if not text:
        return _version(package)
    version = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    git = re.search(r"^git_version = ['\"]([^'\"]+)", text, re.MULTILINE)
    return (
        f"{version.group(1) if version else _version(package)} git {git.group(1)[:12] if git else 'unknown'}"
    )


def _version_file(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    try:
        return (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return ""


def _cuda() -> str:
    """The CUDA that torch was built with, and the version of cuDNN in its own package."""
    found = re.search(r"^cuda\b[^=\n]*= ['\"]([^'\"]+)", _version_file("torch"), re.MULTILINE)
    if found is None:
        return _NONE
    version = found.group(1)
    package = f"nvidia-cudnn-cu{version.partition('.')[0]}"
    return f"{version} cudnn {_version(package)}"


def _driver(ascend: str) -> str:
    if ascend:
        return f"ascend {ascend}"
    nvidia = _field(_NVIDIA / "version", r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]*)")
    return f"nvidia {nvidia}" if nvidia else _NONE


def _accelerator(soc: str) -> str:
    """Models of all NPUs and GPUs, which decide what compiled kernels can run on."""
    return ", ".join(model for model in (soc, _gpus()) if model) or _NONE


def _gpus() -> str:
    """Models of the GPUs, with their architecture."""
    if not (_NVIDIA.exists() or _NVIDIA_DEVICE.exists()):
        return ""
    models = {_field(path / "information", r"Model:\s*(.+)") for path in sorted(_NVIDIA.glob("gpus/*"))}
    return ", ".join(architectures() or sorted(model.strip() for model in models if model))


def _cpu() -> str:
    present = set(features())
    return " ".join([platform.machine(), *(name for name in _INSTRUCTION_SETS if name in present)])


def _field(path: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, path.read_text(errors="replace"))
    except OSError:
        return ""
    return match.group(1) if match else ""
