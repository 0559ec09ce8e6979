"""Driving TorchAir's own ``cache_compile``: what it compiles and writes.

TorchAir works in a private directory (0700, its file 0600, this user's), from which its file is taken over
when it is finished.

It compiles the very graph that Dynamo made for this package's artifact, and runs nothing: the conditions of
the artifact are those of its graph.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.worker.engines import Site
from warmrank.worker.engines.torchair_code import Own, portable, portable_signature
from warmrank.worker.engines.torchair_constants import Constants, taken
from warmrank.worker.engines.torchair_options import Translation, translated
from warmrank.worker.engines.torchair_private import private_directory, written_privately
from warmrank.worker.engines.torchair_vendor import (
    Vendor,
    complaints,
    instead_of_torch_compile,
    numbered_anew,
    vendor_for,
)
from warmrank.worker.errors import CompileFailed, NotPortable
from warmrank.worker.values import Value

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.torch_private.lowering import CapturedCall


class Written(Value):
    """What TorchAir keeps of a compile, apart from the frame, which is the artifact's.

    Attributes:
        vendor: the package that wrote it.
        version: of its cache file.
        signature: its text about graph, inputs and options, for people.
        code: its generated code, without what belongs to the process that compiled it.
        constants: tensor constants of the graph; None where it has none.
        parameters: module's tensors that its graph takes before those of the call: name, whether a parameter.
    """

    vendor: str
    version: str
    signature: str
    code: str
    parameters: tuple[tuple[str, bool], ...]
    constants: Constants | None = None


def compiled(site: Site, call: CapturedCall, groups: Mapping[str, str]) -> Written:
    """Let TorchAir compile what Dynamo captured, without running it; within the context of the trace.

    Args:
        site: the function.
        call: what Dynamo captured.
        groups: role -> this process's name, of the process groups that the graph uses.

    Raises:
        NotPortable: TorchAir does not cache this function; says why, in its words.
        BadConfig: the configuration has options that the installed TorchAir has not.
    """
    vendor = vendor_for(site.config.mode)
    with private_directory() as directory:
        saver, backend, translation = _saver(vendor, site, directory)
        # In the other modes the number is text, which `portable` finds, and events are named after it.
        with numbered_anew(vendor) if site.config.mode == "max-autotune" else nullcontext():
            _compile(backend, call, site.method.__qualname__)
        with written_privately(directory), complaints(vendor.name) as said:
            saver.save_compiled_fn(id(call.frame))
        model = _model_of(saver, vendor, site, said)
    fx = model.compiled_fx
    own = own_of(site, translation, groups, os.path.realpath(directory))
    code, constants = taken(str(fx.py_code), vendor.serializer)
    return Written(
        vendor=vendor.name,
        version=str(model.meta.version),
        signature=portable_signature(str(fx.signature), own),
        code=portable(code, own),
        constants=constants,
        parameters=tuple((str(name), bool(flag)) for name, flag in fx.input_parameters),
    )


def _model_of(saver: Any, vendor: Vendor, site: Site, said: list[str]) -> Any:
    """What TorchAir wrote; or would have, were it not for a frame that it cannot write: ours is used.

    Raises:
        NotPortable: TorchAir does not cache the function.
    """
    path, kept = Path(saver.cache_bin), saver.compiled_model
    if path.is_file():
        return vendor.cache.CompiledModel.load(str(path))
    if kept.compiled_fx is not None and not saver.errors:
        return kept
    reasons = [str(reason).strip().partition("\n")[0] for reason in (*saver.errors, *said)]
    why = "; ".join(reasons) or "it makes no code for it"
    msg = f"TorchAir does not cache {site.method.__qualname__}: {why}. Use engine graph for it."
    raise NotPortable(msg, what=site.method.__qualname__)


def compiled_by_backend(
    graph_module: GraphModule,
    example_inputs: list[Any],
    *,
    config: CompilerConfig,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """What TorchAir's own backend for ``torch.compile`` makes of a graph, in memory only."""
    vendor = vendor_for(config.mode)
    theirs = vendor.package.CompilerConfig()
    translated(config, theirs, kept=False)
    backend = vendor.package.get_npu_backend(
        compiler_config=theirs, custom_decompositions=dict(decompositions)
    )
    run: Callable[..., Any] = backend(graph_module, example_inputs)
    return run


def own_of(site: Site, translation: Translation, groups: Mapping[str, str], directory: str) -> Own:
    """What belongs to this process; ``groups`` by role, ``directory`` where TorchAir works."""
    module: torch.nn.Module = site.method.__self__  # type: ignore[assignment]
    tensors = itertools.chain(module.parameters(), module.buffers())
    device = next((tensor.device for tensor in tensors), None)
    has_index = device is not None and device.index is not None and device.type != "cpu"
    return Own(
        groups=groups,
        pool=translation.pool,
        paths=translation.paths,
        directory=directory,
        device=(device.type, device.index) if device is not None and has_index else None,
    )


def handed(vendor: Vendor, site: Site, directory: Path) -> tuple[Any, dict[str, Any], Translation]:
    """TorchAir's cached function, and the options that its cache's path depends on."""
    theirs = vendor.package.CompilerConfig()
    translation = translated(site.config, theirs)
    options = {"config": theirs, "dynamic": site.dynamic}
    if vendor.name == "torchair":
        options["ge_cache"] = site.ge_cache
    more = {"custom_decompositions": dict(site.decompositions)} if site.decompositions else {}
    function = vendor.package.inference.cache_compile(
        site.method, cache_dir=str(directory), **options, **more
    )
    return function, options, translation


def _saver(vendor: Vendor, site: Site, directory: Path) -> tuple[Any, Callable[..., Any], Translation]:
    """TorchAir's saver for an empty cache, and the backend that it would give to ``torch.compile``."""
    lazy, _, translation = handed(vendor, site, directory)
    taken: dict[str, Any] = {}

    def take(function: Any, **options: Any) -> Any:
        taken.update(options, function=function)
        return None

    with instead_of_torch_compile(take):
        saver = lazy.compile(site.method.__func__.__globals__)
    if "backend" not in taken:
        msg = (
            f"{vendor.name} of this torch_npu compiles in another way than the releases that are known "
            "(it calls torch.compile without a backend); use engine graph"
        )
        raise NotPortable(msg, what=vendor.name)
    return saver, taken["backend"], translation


def _compile(backend: Callable[..., Any], call: CapturedCall, name: str) -> None:
    """Let TorchAir compile.

    Raises:
        CompileFailed: it raised whatever it raised; its own message is kept.
    """
    try:
        backend(call.graph_module, list(call.example_inputs))
    except Exception as error:
        lines = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
        msg = f"TorchAir fails to compile {name}: {why}. See the error above, or use engine graph for it."
        raise CompileFailed(msg, function=name, why=why) from error
