"""The environment fingerprint as named components, computed without importing torch.

Process state that can change at run time (deterministic mode, precision, autocast) is not here: it is part
of the guards (see ``guards/ambient.py``). Host names, paths, addresses, device indices and the number of
devices never are.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import platform
import re
from pathlib import Path

from warmrank.worker.keys.environment import features, target

from warmrank.worker.ascend import places
from warmrank.worker.ascend.places import Places

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
        "torch": _torch(),
        "cuda": _cuda(),
        "torch_npu": _version("torch_npu"),
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


def _torch() -> str:
    """Version and git revision, read from the installed package's ``version.py``."""
    text = _torch_version_file()
    if not text:
        return _NONE
    version = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    git = re.search(r"^git_version = ['\"]([^'\"]+)", text, re.MULTILINE)
    return (
        f"{version.group(1) if version else _version('torch')} git {git.group(1)[:12] if git else 'unknown'}"
    )


def _torch_version_file() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    return (Path(spec.origin).parent / "version.py").read_text()


def _cuda() -> str:
    """The CUDA that torch was built with, and the version of cuDNN in its own package."""
    found = re.search(r"^cuda\b[^=\n]*= ['\"]([^'\"]+)", _torch_version_file(), re.MULTILINE)
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
    from warmrank.worker.keys.environment import architectures

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
