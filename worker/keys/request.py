"""The request: named components of what a cached function asks for; their hash says where to look.

Among them is the environment fingerprint, computed without importing torch. Process state that can change at
run time (deterministic mode, precision, autocast) is not in it: it is part of the guards
(`worker.torch_private.warm`). Host names, paths, addresses, device indices and the number of devices never
are.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.cache_store.canonical import key_of
from warmrank.worker import settings
from warmrank.worker.configs.options import changed
from warmrank.worker.errors import BadFunction
from warmrank.worker.runtime import artifact
from warmrank.worker.values import Value

if TYPE_CHECKING:
    import torch

    from warmrank.worker.configs.compiler_config import CacheOptions, CompilerConfig
    from warmrank.worker.engines import Engine

_KEY_CHARS = 32
_CPU_INFO = Path("/proc/cpuinfo")
_INSTRUCTION_SETS = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "asimdhp", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
_NVIDIA = Path("/proc/driver/nvidia")
_NVIDIA_DEVICE = Path("/dev/nvidiactl")  # in containers that hide the driver's part of /proc
_NONE = "none"
_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))
# What Inductor switches on beside the level where it finds it: torch 2.13, torch/_inductor/cpu_vec_isa.py.
_EXTRAS = ("avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16")


class Request(Value):
    """Request of one module's cached functions.

    Attributes:
        components: named components, each a short string.
        key: their hash; the last part of TorchAir's ``${model_info}`` directory.
        engine: the engine that compiles it.
    """

    components: dict[str, str]
    key: str
    engine: Engine


def request(module: torch.nn.Module, options: CacheOptions, engine: Engine) -> Request:
    """The request of a module's cached functions under a configuration."""
    from torch.nn.parameter import is_lazy

    name, tree, tensors = type(module).__qualname__, [], []
    for path, part in module.named_modules():
        tree.append(f"{path}:{type(part).__module__}.{type(part).__qualname__}")
    for path, value in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(value):
            raise BadFunction(
                f"{name}.{path} has no shape yet; call the module once, or load its weights, before the "
                "cached function is called"
            )
        tensors.append(f"{path}:{tuple(value.shape)}:{value.dtype}:{value.device.type}")
    components = {
        "artifact format": str(artifact.FORMAT),
        "engine": f"{engine.name} {engine.version}",
        "dynamic": str(options.dynamic),
        "rng": options.rng,
        "config": _config(options.config),
        "decompositions": _decompositions(options.custom_decompositions),
        "module": f"{name}, {len(tree)} modules, {_digest('|'.join(tree))}",
        "parameters": f"{len(tensors)} tensors, {_digest('|'.join(tensors))}",
        **environment(),
        **({} if engine.name == "graph" else _of_kernels(engine, options)),
    }
    return Request(components=components, key=key_of(components)[:_KEY_CHARS], engine=engine)


def functions_in_options(options: CacheOptions) -> list[Any]:
    """Functions in the options that run in a compile.

    No call of compiled code runs them, so no condition of an artifact is about what they read.
    """
    of_config = [value for _, _, value in changed(options.config) if callable(value)]
    return [*of_config, *options.custom_decompositions.values()]


def code_in_options(options: CacheOptions) -> tuple[str, ...]:
    """Digests of these functions, with the state they read."""
    return _config(options.config), _decompositions(options.custom_decompositions)


def _of_kernels(engine: Engine, options: CacheOptions) -> dict[str, str]:
    """Components of compiled kernels: the instructions and threads that they use.

    The compiler is not here: what it makes runs on all machines of this key, with a compiler or without.
    """
    mode = options.config.mode
    if engine.name == "aoti":
        import torch

        return {"instruction set": instruction_set()[1], "threads": str(torch.get_num_threads())}
    if engine.name != "torchair":
        return {}
    # Registrations that belong to the process: fusion patterns, converters for GE.
    from warmrank.worker.keys.reachable import reachable_digest
    from warmrank.worker.torch_private.torchair import registered_converters, registered_patterns

    package = "npugraph_ex" if mode == "npugraph_ex" else "torchair"
    has_ge = mode == "max-autotune"  # then TorchAir's code has GE's part
    registered = {
        "patterns": registered_patterns(package, reachable_digest),
        "converters": registered_converters(reachable_digest) if has_ge else [],
    }
    counted = {
        name: f"{len(texts)}, {_digest(' '.join(texts))}" for name, texts in registered.items() if texts
    }
    return {**({"ge_cache": str(options.ge_cache)} if has_ge else {}), **counted}


def _config(config: CompilerConfig) -> str:
    """Every option that differs from its default, by name."""
    found = []
    for name, option, value in changed(config):
        if (text := option.canonical(value)) != option.canonical(option.default):
            found.append(f"{name}={text}")
    return ", ".join(sorted(found)) or "defaults"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _decompositions(decompositions: Mapping[Any, Callable[..., Any]]) -> str:
    if not decompositions:
        return _NONE
    from warmrank.worker.keys.reachable import reachable_digest

    named = sorted(
        f"{operator}={reachable_digest(function)}" for operator, function in decompositions.items()
    )
    return f"{len(named)}, {_digest('|'.join(named))}"


def environment() -> dict[str, str]:
    """Named components that decide whether another machine's artifacts can be used here.

    In an offline build they are those of the machines that it builds for.
    """
    machines = settings.target()
    return _components() if machines is None else dict(machines.environment)


@functools.cache
def _components() -> dict[str, str]:
    """The components, read once in a process; ``npu-smi`` alone takes a second."""
    ascend = settings.ascend_places()
    cann = driver = soc = ""
    if not ascend.hold_nothing():
        from warmrank.worker.ascend import cann_of, driver_of, soc_of

        cann, driver, soc = cann_of(ascend).text(), driver_of(ascend), soc_of(ascend)
    torch, cuda = _built("torch")
    if cuda != _NONE:  # with the version of cuDNN, which has a package of its own
        cudnn = f"nvidia-cudnn-cu{cuda.partition('.')[0]}"
        cuda = f"{cuda} cudnn {_version(cudnn)}"
    nvidia = gpus = ""
    if _NVIDIA.exists() or _NVIDIA_DEVICE.exists():
        from warmrank.worker.nvidia import driver_in, gpus_in

        nvidia, gpus = driver_in(_NVIDIA), gpus_in(_NVIDIA)
    models = ", ".join(filter(None, (soc, gpus)))  # which decide what compiled kernels can run on
    instructions = filter({*_features()}.__contains__, _INSTRUCTION_SETS)
    return {
        "python": f"{platform.python_implementation().lower()} {platform.python_version()}",
        "torch": torch,
        "cuda": cuda,
        "torch_npu": _built("torch_npu")[0],
        "cann": cann or _NONE,
        "driver": f"ascend {driver}" if driver else f"nvidia {nvidia}" if nvidia else _NONE,
        "accelerator": models or _NONE,
        "cpu": " ".join([platform.machine(), *instructions]),
    }


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
    try:
        text = (Path(spec.origin).parent / "version.py").read_text() if spec.origin else ""
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


@functools.cache
def instruction_set() -> tuple[str | None, str]:
    """Instructions that kernels of this machine may use: for ``-march``, and for the key.

    Two machines with the same text run each other's kernels. The first is None where Inductor chooses.
    """
    machine, known = platform.machine(), frozenset(_features())
    if machine not in ("x86_64", "AMD64"):
        digest = hashlib.sha256(" ".join(sorted(known)).encode()).hexdigest()[:16]
        return None, f"{machine} {len(known)} features {digest}"
    level = next((name for name, needed in _LEVELS if needed <= known), "x86-64")
    return level, " ".join([level, *filter(known.__contains__, _EXTRAS)])


def _features() -> list[str]:
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
