"""The environment fingerprint as named components, computed without importing torch.

Process state that can change at run time (deterministic mode, precision, autocast) is not here: it is part
of the guards (`worker.runtime.ambient`). Host names, paths, addresses, device indices and the number of
devices never are.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

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
    torch, cuda = _built("torch")
    nvidia = _field(_NVIDIA / "version", r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]*)")
    models = ", ".join(filter(None, (soc, _gpus())))  # which decide what compiled kernels can run on
    instructions = filter({*features()}.__contains__, _INSTRUCTION_SETS)
    return {
        "python": f"{platform.python_implementation().lower()} {platform.python_version()}",
        "torch": torch,
        "cuda": _cuda(cuda),
        "torch_npu": _built("torch_npu")[0],
        "cann": cann or _NONE,
        "driver": f"ascend {driver}" if driver else f"nvidia {nvidia}" if nvidia else _NONE,
        "accelerator": models or _NONE,
        "cpu": " ".join([platform.machine(), *instructions]),
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


def _built(package: str) -> tuple[str, str]:
    """Version with git revision, and CUDA, that an installed package names in its ``version.py``."""
    spec = importlib.util.find_spec(package)
    if spec is None:  # nor is there anything that a process could use of it, whatever pip says
        return _NONE, _NONE
    origin = spec.origin
    try:
        text = "" if origin is None else (Path(origin).parent / "version.py").read_text()
    except OSError:
        text = ""
    if not text:
        return _version(package), _NONE
    named: dict[str, str] = {}
    for line in text.splitlines():  # `name = 'text'`, or with a type behind the name
        name, _, value = line.partition(" = ")
        if value.startswith(("'", '"')):
            named.setdefault(name.partition(":")[0], value[1:].partition(value[0])[0])
    version, git = named.get("__version__") or _version(package), named.get("git_version", "unknown")
    return f"{version} git {git[:12]}", named.get("cuda", _NONE)


def _cuda(version: str) -> str:
    """The CUDA that torch was built with, and the version of cuDNN in its own package."""
    if version == _NONE:
        return _NONE
    package = f"nvidia-cudnn-cu{version.partition('.')[0]}"
    return f"{version} cudnn {_version(package)}"


def _gpus() -> str:
    """Models of the GPUs, with their architecture."""
    if not (_NVIDIA.exists() or _NVIDIA_DEVICE.exists()):
        return ""
    from warmrank.worker.keys.machine import architectures

    models = {_field(path / "information", r"Model:\s*(.+)") for path in sorted(_NVIDIA.glob("gpus/*"))}
    return ", ".join(architectures() or sorted(model.strip() for model in models if model))


def features() -> list[str]:
    """Features of the first processor; the text of hundreds would take the system long to write."""
    try:
        with _CPU_INFO.open(errors="replace") as lines:
            for line in lines:
                name, _, found = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return found.split()
    except OSError:
        pass
    return []


def _field(path: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, path.read_text(errors="replace"))
    except OSError:
        return ""
    return match.group(1) if match else ""
