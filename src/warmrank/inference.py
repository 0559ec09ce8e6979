"""TorchAir's ``torchair.inference``: `cache_compile`, `readable_cache`, `set_dim_gears`."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, get_args

from warmrank.worker import collection
from warmrank.worker.configs.compiler_config import (
    CacheOptions,
    CompilerConfig,
    EngineChoice,
    GuardMode,
    OnGearMiss,
    OnRecompile,
    Rng,
)
from warmrank.worker.errors import BadConfig, BadFunction

if TYPE_CHECKING:
    import torch

    from warmrank.worker.runtime.function import CachedFunction

__all__ = ["cache_compile", "get_backend", "readable_cache", "set_dim_gears"]

_log = logging.getLogger("torchair")
_RUN_IN_STEPS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CHOICES: dict[str, tuple[str, ...]] = {
    "guards": get_args(GuardMode),
    "on_recompile": get_args(OnRecompile),
    "on_gear_miss": get_args(OnGearMiss),
    "rng": get_args(Rng),
    "engine": get_args(EngineChoice),
}
_RESERVED = ("fullgraph", "options")


def cache_compile(  # noqa: PLR0913 - the signature is TorchAir's
    func: Callable[..., Any],
    *,
    config: CompilerConfig | None = None,
    backend: Any = None,
    dynamic: bool | None = True,
    cache_dir: str | os.PathLike[str] | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    custom_decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    ge_cache: bool = False,
    **kwargs: Any,
) -> CachedFunction:
    """A callable that does what ``func`` does, compiled once and kept across processes.

    Source of names and defaults: TorchAir's ``torchair.inference.cache_compile``.

    Args:
        func: a method of an ``nn.Module`` instance; it must form one whole graph, its decorators included.
        config: how to compile; defaults to ``CompilerConfig()``. TorchAir's own configurations are
        translated.
        backend: what `get_npu_backend` returned; its config is used, and must equal ``config`` if both
            are given.
        dynamic: trace with symbolic sizes; None means True, where ``torch.compile`` ends after two sizes.
        cache_dir: root of the cache; relative to the working directory at the first call. Defaults to
            ``TORCHAIR_CACHE_HOME``, or ``.torchair_cache``.
        global_rank: rank in the partition's name; defaults to ``torch.distributed.get_rank()``. As in
            TorchAir it counts only where ``torch.distributed`` has more than one rank.
        tp_rank: tensor-parallel rank, appended to the partition's name.
        pp_rank: pipeline-parallel rank, likewise.
        custom_decompositions: operator overload -> function that replaces it.
        ge_cache: keep what GE compiles, so that a later process need not compile it at load; has an effect in
            mode max-autotune on an NPU only. Other kernels are always kept.
        **kwargs: ``guards`` ("always", "once", "skip"), ``on_recompile`` ("add", "abandon"),
            ``on_gear_miss`` ("error", "pad"), ``rng`` ("refuse", "allow": random operators) and ``engine``
            ("auto", "graph", "aoti", "torchair"). TorchAir's reserved ``fullgraph`` and ``options`` are
            taken: the graph is always a full one, and options are those of ``npugraph_ex``. Others are
            ignored with a warning.

    Raises:
        BadFunction: ``func`` is no method of a module.
        BadConfig: a misspelt parameter, or a value that is not allowed; ``config`` and ``backend`` disagree.
        NotYet: the configuration asks for what is not built yet.
    """
    with collection.paused(), _torch_errors_named():  # a full collection takes longer than all these imports
        from warmrank.worker.runtime.function import CachedFunction

    chosen = _config(config, backend)
    extensions = _extensions(kwargs)
    if kwargs.get("options"):
        from warmrank.worker.configs.torchair import with_options

        chosen = with_options(chosen, kwargs["options"])
    if _checked(ge_cache, "ge_cache", bool) and chosen.mode != "max-autotune":
        _log.warning("ge_cache=True has no effect in mode %s; it belongs to mode max-autotune", chosen.mode)
    if cache_dir is not None:
        cache_dir = str(os.fspath(_checked(cache_dir, "cache_dir", str | os.PathLike)))
    carried = getattr(backend, "keywords", {}).get("custom_decompositions") or {}
    given = _checked(custom_decompositions or {}, "custom_decompositions", Mapping)
    options = CacheOptions(
        config=chosen,
        dynamic=True if dynamic is None else _checked(dynamic, "dynamic", bool),
        cache_dir=cache_dir,
        global_rank=_rank(global_rank, "global_rank"),
        tp_rank=_rank(tp_rank, "tp_rank"),
        pp_rank=_rank(pp_rank, "pp_rank"),
        custom_decompositions={**carried, **given},
        ge_cache=ge_cache,
        **extensions,
    )
    if options.rng == "allow" and chosen.engine_mode() != "reduce-overhead":
        raise BadConfig(
            f'rng is "allow", but mode {chosen.mode} compiles random operators to others, which draw other '
            'numbers than torch does; use mode "reduce-overhead", or rng="refuse"',
            parameter="rng",
        )
    method = _method(func)
    with collection.paused():
        return CachedFunction(method, options)


@contextlib.contextmanager
def _torch_errors_named() -> Iterator[None]:
    """Imports that a torch, which nobody has read yet, may let fail: then the error names the fact."""
    try:
        yield
    except (ImportError, AttributeError):
        from warmrank.worker.torch_private import facts

        facts.require("compile")
        raise


def _method(func: Any) -> MethodType:
    """The method that is cached; of a decorator that takes only ``(*args, **kwargs)``, one with a module."""
    import torch

    is_partial = type(func) is functools.partial
    if is_partial and len(func.args) == 1 and not func.keywords:  # as accelerate's hooks and others patch one
        func = MethodType(func.func, *func.args)
    name = getattr(func, "__qualname__", "")
    if not isinstance(func, MethodType) or not isinstance(func.__self__, torch.nn.Module):
        is_method = isinstance(func, MethodType)
        what = f"method of {type(func.__self__).__name__}" if is_method else type(func).__name__
        got = f"{name} ({what})" if name else f"a {what}"
        remedy = "pass self.method" + (", or a method that calls the partial" if is_partial else "")
        raise BadFunction(f"cache_compile takes a bound method of an nn.Module, got {got}; {remedy}")
    function = func.__func__
    if not isinstance(function, FunctionType):
        raise BadFunction(
            f"{name} is a {type(function).__qualname__}, and a cached function must be one of Python's own. "
            "Cache a method that calls this one."
        )
    if function.__code__.co_flags & _RUN_IN_STEPS:
        raise BadFunction(
            f"{name} is a generator or a coroutine, which runs step by step, and what is compiled runs as a "
            "whole. Cache the method that makes one step, and call it in the generator."
        )
    if function.__code__.co_argcount:
        return func

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    for attribute in functools.WRAPPER_ASSIGNMENTS:
        setattr(method, attribute, getattr(function, attribute))
    return MethodType(method, func.__self__)


def _translated(config: Any, parameter: str) -> CompilerConfig:
    if isinstance(config, CompilerConfig):
        return config
    from warmrank.worker.configs.torchair import of_torchair

    return of_torchair(config, parameter)


def _config(config: Any, backend: Any) -> CompilerConfig:
    if config is not None:
        config = _translated(config, "config")
    if backend is None:
        return CompilerConfig() if config is None else config
    carried = getattr(backend, "keywords", {}).get("compiler_config")
    if carried is None:
        msg = f"backend is {backend!r}; expected what warmrank.get_npu_backend(compiler_config=...) returns"
        raise BadConfig(msg, parameter="backend")
    carried = _translated(carried, "backend")
    if config is not None and config != carried:
        ours, theirs = config.canonical(), carried.canonical()
        differing = [f"{name}: {ours[name]} / {theirs[name]}" for name in ours if ours[name] != theirs[name]]
        raise BadConfig(
            f"config and backend's config disagree ({'; '.join(differing)}); pass one of them, or equal ones"
        )
    return carried


def _checked(value: Any, name: str, kind: Any) -> Any:
    """The value, if it is of a kind: a bool is no int."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        expected = getattr(kind, "__name__", kind)
        raise BadConfig(f"{name} is {value!r} ({type(value).__name__}); expected {expected}", parameter=name)
    return value


def _rank(value: int | None, name: str) -> int | None:
    if value is not None and _checked(value, name, int) < 0:
        raise BadConfig(f"{name} is {value}; ranks count from 0", parameter=name)
    return value


def _extensions(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are ours; a name that nobody knows is ignored with a warning.

    Raises:
        BadConfig: a name that looks like a misspelt one, or a value that is not allowed.
    """
    extensions = {}
    for name, value in given.items():
        if name in _RESERVED:
            _checked(value, name, bool if name == "fullgraph" else object)
        elif name not in _CHOICES:
            known = [*_CHOICES, *_RESERVED, *(cache_compile.__kwdefaults__ or ())]
            _refuse_misspelt("cache_compile", name, known)
        elif value not in _CHOICES[name]:
            allowed = ", ".join(map(repr, _CHOICES[name]))
            raise BadConfig(f"{name} is {value!r}; allowed: {allowed}", parameter=name)
        else:
            extensions[name] = value
    return extensions


def _refuse_misspelt(function: str, name: str, known: Iterable[str]) -> None:
    """Warn of an unknown parameter, which TorchAir ignores.

    Raises:
        BadConfig: it is nearly one that there is.
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    if near:
        raise BadConfig(f"{function} has no parameter {name!r}; did you mean {near[0]!r}?", parameter=name)
    _log.warning("%s ignores the unknown parameter %r", function, name)


def set_dim_gears(t: torch.Tensor, dim_gears: Mapping[int, Sequence[int]]) -> None:
    """Give dimensions of an input their gears, as in ``set_dim_gears(x, {0: [2, 4]})``.

    Source of name, checks and attribute: TorchAir's ``torchair.inference.set_dim_gears``.

    Raises:
        GearError: `t` is no tensor, the gears are not allowed, or `t` has other gears already.
    """
    from warmrank.worker.gears.model import carry

    carry(t, dim_gears)


def readable_cache(
    cache_bin: str | os.PathLike[str], print_output: bool = True, file: str | os.PathLike[str] | None = None
) -> str:
    """An artifact's contents as Python source: request, signature, guards, frame, and the graph as code.

    Args:
        cache_bin: path of a ``compiled_module``.
        print_output: print the text.
        file: write the text there too, mode 0600.

    Raises:
        ArtifactCorrupt: the file is no artifact.
        UnusableCache: it, or ``file``, is a link or no file, or the artifact is not private to this user.
        NoSuchCache: there is no such file (a FileNotFoundError, and a ValueError).
    """
    from warmrank.worker.compile.readable import render, write

    text = render(cache_bin)
    if print_output:
        print(text)  # noqa: T201 - that is what the parameter asks for
    if file is not None:
        write(text, file)
    return text


def get_backend(
    *,
    compiler_config: CompilerConfig | None = None,
    custom_decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    **unknown: Any,
) -> functools.partial[Any]:
    """A backend for ``torch.compile``, which also carries its configuration to `cache_compile`.

    Raises:
        BadConfig: a misspelt parameter, or a value of the wrong type.
    """
    with _torch_errors_named():
        from warmrank.worker.compile.backend import compile_graph

    for name in unknown:
        _refuse_misspelt("get_npu_backend", name, get_backend.__kwdefaults__ or ())

    config = CompilerConfig() if compiler_config is None else _translated(compiler_config, "compiler_config")
    return functools.partial(
        compile_graph,
        compiler_config=config,
        custom_decompositions=dict(_checked(custom_decompositions or {}, "custom_decompositions", Mapping)),
    )
