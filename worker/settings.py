"""Settings of this process: environment variables, kinds of devices, machines to build for.

This is the only place where warmrank's ranks read their settings from environment variables. Elsewhere
variables are only handed on: `worker.rank.workload` gives a script those of its launch,
`worker.rank.rank_worker` gives HCCL its time-outs and TorchAir this rank's place on its node, and
`worker.torch_private.inductor` sets one of Inductor's while it compiles.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

from warmrank.worker.errors import BadConfig
from warmrank.worker.values import Value

DEFAULT_CACHE_DIR = ".torchair_cache"
_ASCEND = ("ASCEND_", "ATB_", "HCCL_")
ASCEND_DEVICE = "davinci"  # device files: this, and a number

_ASCEND_ROOT = Path("/usr/local/Ascend")
# Of installations with default paths, newest first: CANN 8.5 and later install into `cann-<version>` beside a
# link `cann`, earlier ones into `ascend-toolkit/<version>` beside a link `latest`.
# https://www.hiascend.com/document/detail/en/CANNCommunityEdition/850/softwareinst/instg/instg_0000.html
_CANN_HOMES = ("cann", "ascend-toolkit/latest", "latest", "nnae/latest", "nnrt/latest")
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
DeviceKind = Literal["cpu", "cuda", "npu"]
# Every type of a torch device is its own kind. Tests, whose emulated NPU keeps its tensors on the CPU, say
# otherwise, once.
_KINDS: dict[str, str] = {}


class Settings:
    """Settings in this process's environment variables; each is read when it is asked for."""

    @property
    def cache_home(self) -> Path:
        """``TORCHAIR_CACHE_HOME``, or ``.torchair_cache`` in the working directory."""
        return Path(os.environ.get("TORCHAIR_CACHE_HOME") or DEFAULT_CACHE_DIR)

    @property
    def no_compile(self) -> bool:
        """``WARMRANK_NO_COMPILE``: a miss is an error; raises `BadConfig` for neither yes nor no."""
        text = os.environ.get("WARMRANK_NO_COMPILE", "").strip().lower()
        if text not in (*_YES, *_NO):
            msg = f"WARMRANK_NO_COMPILE={text}: expected 1 or 0, true or false, yes or no, on or off"
            raise BadConfig(msg)
        return text in _YES

    @property
    def journal(self) -> Path | None:
        """``WARMRANK_JOURNAL``: file to which each look-up's outcome is appended, or None."""
        return _path("WARMRANK_JOURNAL")

    @property
    def journal_dir(self) -> Path | None:
        """``WARMRANK_JOURNAL_DIR``: as `journal`, which comes first; a directory with a file per process."""
        return _path("WARMRANK_JOURNAL_DIR")

    @property
    def journals(self) -> bool:
        """True if outcomes of look-ups are appended to a file."""
        return self.journal is not None or self.journal_dir is not None

    @property
    def keyring(self) -> Path | None:
        """``warmrank/keys`` below ``XDG_CONFIG_HOME`` or ``~/.config``; None for a user without a home."""
        return _home("XDG_CONFIG_HOME", "~/.config", "warmrank/keys")

    @property
    def last_report(self) -> Path | None:
        """Report of the last launch, below ``XDG_STATE_HOME`` or ``~/.local/state``; None likewise."""
        return _home("XDG_STATE_HOME", "~/.local/state", "warmrank/last-launch.json")

    @property
    def compiler(self) -> str:
        """``CXX``: the C++ compiler, a name or a path; ``g++`` where it is not set."""
        return os.environ.get("CXX") or "g++"

    @property
    def cuda_home(self) -> str:
        """``CUDA_HOME``; empty where it is not set."""
        return os.environ.get("CUDA_HOME", "")

    @property
    def ascend(self) -> dict[str, str]:
        """Variables of Ascend's software: those that begin with ``ASCEND_``, ``ATB_`` and ``HCCL_``."""
        return {name: value for name, value in os.environ.items() if name.startswith(_ASCEND)}

    @property
    def op_compiler_cache(self) -> str:
        """``ACL_OP_COMPILER_CACHE_DIR``, where CANN keeps compiled operators."""
        return os.environ.get("ACL_OP_COMPILER_CACHE_DIR", "")

    @property
    def local_rank(self) -> int:
        """``LOCAL_RANK`` as torchrun sets it."""
        return _number("LOCAL_RANK")

    @property
    def rank(self) -> int:
        """``RANK`` as torchrun sets it."""
        return _number("RANK")

    @property
    def world_size(self) -> int:
        """``WORLD_SIZE`` as torchrun sets it."""
        return max(1, _number("WORLD_SIZE"))


_SETTINGS = Settings()


def settings() -> Settings:
    """The settings of this process."""
    return _SETTINGS


def _path(name: str) -> Path | None:
    text = os.environ.get(name)
    return Path(text) if text else None


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def expanded(path: str) -> str:
    """A path with the user's home in place of ``~``, and variables of the environment; others stay."""
    try:
        return str(Path(os.path.expandvars(path)).expanduser())
    except RuntimeError:  # a user without a home
        return path


def _home(variable: str, usual: str, path: str) -> Path | None:
    """A path of this user's, below the directory that a variable names, or else below the usual one."""
    home = Path(os.environ.get(variable, ""))
    if not home.is_absolute():  # not set, or to be ignored: XDG Base Directory Specification
        try:
            home = Path(usual).expanduser()
        except RuntimeError:
            return None
    return home / path


class AscendPlaces(Value):
    """Paths of the software and the devices of Ascend."""

    cann: tuple[Path, ...]  # directories that may hold CANN; the first that does is it
    nnal: tuple[Path, ...]  # files that may name the version of NNAL (ATB); the first that does counts
    # names the directory of the driver, where it is not the default one
    install_info: Path = Path("/etc/ascend_install.info")
    ascend: Path = _ASCEND_ROOT  # above the driver's default directory
    devices: Path = Path("/dev")  # directory of the device files
    pci: Path = Path("/sys/bus/pci/devices")  # sysfs's directory of PCI devices
    npu_smi: str = "npu-smi"  # the management tool: a name, or a path

    def hold_nothing(self) -> bool:
        """True if no trace of CANN, a driver or a device is there, as on most machines."""
        if self.install_info.exists() or self.ascend.exists() or any(map(Path.is_dir, self.cann)):
            return False
        try:
            with os.scandir(self.devices) as files:
                return not any(file.name.startswith(ASCEND_DEVICE) for file in files)
        except OSError:
            return True


def ascend_places() -> AscendPlaces:
    """Paths at which this machine keeps the software and the devices of Ascend.

    A directory that CANN's ``set_env.sh`` names is the only one: torch_npu loads what lies there, and the
    version of another installation would be the wrong one.
    """
    roots = [_ASCEND_ROOT]
    with contextlib.suppress(RuntimeError):  # a user without a home has no installation without root
        own = Path.home() / "Ascend"
        roots += [own] if os.path.isdir(own) else []  # noqa: PTH112 - false also for what others' homes hide
    environ = settings().ascend
    named = environ.get("ASCEND_HOME_PATH") or environ.get("ASCEND_TOOLKIT_HOME")
    atb = environ.get("ATB_HOME_PATH")
    return AscendPlaces(
        cann=(Path(named),) if named else tuple(root / name for root in roots for name in _CANN_HOMES),
        # set_env.sh names `<version>/atb/cxx_abi_<n>`; the version stands two levels above.
        nnal=tuple(file / "version.info" for file in ((Path(atb), *Path(atb).parents[:2]) if atb else ()))
        or tuple(root / "nnal/atb/latest/version.info" for root in roots),
    )


def stand_for(memory: str, kind: str) -> None:
    """Let tensors on ``memory`` (``cpu``) count as being on a device of ``kind`` (``npu``)."""
    _KINDS[memory] = kind


def kind_of(memory: str) -> str:
    """The device kind of tensors whose device has this type."""
    return _KINDS.get(memory, memory)


def memory_kind(kind: str) -> str:
    """The type of the devices on which tensors of a device kind lie."""
    return next((memory for memory, standing in _KINDS.items() if standing == kind), kind)


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
