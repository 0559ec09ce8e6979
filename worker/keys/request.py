"""The request: named components of what a cached function asks for; their hash says where to look."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.nn.parameter import is_lazy

from warmrank.cache_store.digests import key_of
from warmrank.worker.configs.options import changed
from warmrank.worker.errors import BadFunction
from warmrank.worker.keys.environment import environment
from warmrank.worker.runtime import artifact
from warmrank.worker.values import Value

if TYPE_CHECKING:
    import torch

    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.engines.port import Engine
    from warmrank.worker.runtime.options import CacheOptions

_KEY_CHARS = 32


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
    components = {
        "artifact format": str(artifact.FORMAT),
        "engine": f"{engine.name} {engine.version}",
        "dynamic": str(options.dynamic),
        "rng": options.rng,
        "config": _config(options.config),
        "decompositions": _decompositions(options.custom_decompositions),
        "module": _modules(module),
        "parameters": _parameters(module),
        **environment(),
        **({} if engine.name == "graph" else _of_kernels(engine, options)),
    }
    return Request(components=components, key=key_of(components)[:_KEY_CHARS], engine=engine)


def code_in_options(options: CacheOptions) -> tuple[str, ...]:
    """Digests of the functions in the options that run in a compile, with the state they read; () for none.

    No call of compiled code runs them, so no condition of an artifact is about what they read.
    """
    found = []
    for _, _, value in changed(options.config):
        if callable(value):
            found = [_config(options.config)]
    if options.custom_decompositions:
        found.append(_decompositions(options.custom_decompositions))
    return tuple(found)


def _of_kernels(engine: Engine, options: CacheOptions) -> dict[str, str]:
    """Components of compiled kernels: the instructions and threads that they use, and if they are kept.

    The compiler is not here: what it makes runs on all machines of this key, with a compiler or without.
    """
    mode, ge_cache = options.config.mode, {"ge_cache": str(options.ge_cache)}
    if engine.name == "torchair":  # whose code has GE's part in mode max-autotune
        return {**(ge_cache if mode == "max-autotune" else {}), **_registered(mode)}
    if engine.name != "aoti":
        return {}
    import torch

    from warmrank.worker.keys.machine import instruction_set

    return {"instruction set": instruction_set().text, "threads": str(torch.get_num_threads()), **ge_cache}


def _registered(mode: str) -> dict[str, str]:
    """Registrations with TorchAir that belong to the process: fusion patterns, converters for GE."""
    from warmrank.worker.keys.reachable import reachable_digest
    from warmrank.worker.torch_private.torchair import registered_converters, registered_patterns

    package = "npugraph_ex" if mode == "npugraph_ex" else "torchair"
    registered = {
        "patterns": [repr(pattern) for pattern in registered_patterns(package, reachable_digest)],
        "converters": registered_converters(reachable_digest) if mode == "max-autotune" else [],
    }
    return {name: f"{len(texts)}, {_digest(' '.join(texts))}" for name, texts in registered.items() if texts}


def _config(config: CompilerConfig) -> str:
    """Every option that differs from its default, by name."""
    found = []
    for name, option, value in changed(config):
        if (text := option.canonical(value)) != option.canonical(option.default):
            found.append((name, text))
    return ", ".join(map("=".join, sorted(found))) or "defaults"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _modules(module: torch.nn.Module) -> str:
    """Number of submodules, and a digest of their names and types."""
    tree = []
    for name, part in module.named_modules():
        kind = type(part)
        tree.append(f"{name}:{kind.__module__}.{kind.__qualname__}")
    return f"{type(module).__qualname__}, {len(tree)} modules, {_digest('|'.join(tree))}"


def _parameters(module: torch.nn.Module) -> str:
    """Number of parameters and buffers, and a digest of their names, shapes, types and device kinds."""
    tensors = []
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(value):
            msg = (
                f"{type(module).__qualname__}.{name} has no shape yet; call the module once, or load its "
                "weights, before the cached function is called"
            )
            raise BadFunction(msg, function=type(module).__qualname__)
        tensors.append(f"{name}:{tuple(value.shape)}:{value.dtype}:{value.device.type}")
    return f"{len(tensors)} tensors, {_digest('|'.join(tensors))}"


def _decompositions(decompositions: Mapping[Any, Callable[..., Any]]) -> str:
    if not decompositions:
        return "none"
    from warmrank.worker.keys.reachable import reachable_digest

    named = sorted(
        f"{operator}={reachable_digest(function)}" for operator, function in decompositions.items()
    )
    return f"{len(named)}, {_digest('|'.join(named))}"
