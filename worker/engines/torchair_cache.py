"""Driving TorchAir's own ``cache_compile``: what it compiles and writes, and loading what it wrote.

TorchAir works in a private directory (0700, its file 0600, this user's): at a compile an empty one, from
which its file is taken over when it is finished; at a load one that holds a file written from a verified
artifact. So whatever it does to a cache that it does not like, it does to a copy.

It compiles the very graph that Dynamo made for this package's artifact, and runs nothing: the conditions of
the artifact are those of its graph.
"""

from __future__ import annotations

import itertools
import marshal
import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from cache_store.node.private_files import discard_tree
from worker.engines import Site
from worker.engines.torchair_code import Own, bound, portable, portable_signature
from worker.engines.torchair_constants import Constants, put_back, taken
from worker.engines.torchair_made import Made, made_of
from worker.engines.torchair_options import Translation, translated
from worker.engines.torchair_private import private_directory, written_privately
from worker.engines.torchair_vendor import (
    Vendor,
    complaints,
    instead_of_torch_compile,
    numbered_anew,
    vendor_for,
)
from worker.errors import ArtifactCorrupt, CompileFailed, NotPortable
from worker.values import Value

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

    from worker.configs.compiler_config import CompilerConfig
    from worker.torch_private.lowering import CapturedCall

_GRAPH_NAME = "__compiled_fn"


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


class LoadedGraph:
    """TorchAir's callable over a graph's inputs; it captures and replays by itself."""

    __slots__ = ("__weakref__", "_call", "_is_called", "_kernel", "_made")

    def __init__(self, call: Callable[..., Any], made: Made, private: Path) -> None:
        weakref.finalize(self, _ended, made, private, os.getpid())
        self._call = call
        self._kernel: Any = _kernel_of(call)
        self._made = made
        self._is_called = False

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs for the graph's inputs."""
        if not self._is_called:
            self._made.before_first_call()
            self._is_called = True
        return tuple(self._call(*inputs))

    @property
    def is_eager(self) -> bool:
        """Whether it runs operator by operator: asked for, or the limit of captures is reached."""
        graph = self._kernel
        if graph is None:
            return True
        asked = graph.config.get("force_eager") or graph.config.get("run_eagerly") == "1"
        return bool(asked or graph.fallback_to_eager)

    @property
    def num_captures(self) -> int:
        """Captured graphs that it holds."""
        return 0 if self._kernel is None else len(self._kernel.graphs_meta)

    def hand_over(self) -> None:
        """See `worker.engines.SelfCapturing.hand_over`."""
        self._made.hand_over()

    @property
    def directory(self) -> Path:
        """Where TorchAir keeps what it makes at run time."""
        return self._made.private


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
    own = _own(site, translation, groups, os.path.realpath(directory))
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


def loaded(written: Written, site: Site, groups: Mapping[str, str]) -> LoadedGraph:
    """Let TorchAir load what it wrote once, from a private copy.

    Args:
        written: of `compiled`.
        site: the function.
        groups: role -> this process's name, of the process groups that the graph uses.

    Raises:
        ArtifactCorrupt: TorchAir does not take it; says why, in its words.
        BadConfig: the configuration has options that the installed TorchAir has not.
    """
    vendor = vendor_for(site.config.mode)
    with private_directory(kept=True) as directory:
        lazy, options, translation = _handed(vendor, site, directory)
        models = vendor.cache.CompiledModel
        path = Path(models.get_cache_bin(site.method, cache_dir=str(directory), **options))
        made = made_of(site, path.parent)
        model = models(site.method)
        model.meta.version = written.version
        model.compiled_fn = _frame(site.frame)
        parameters = [(name, flag) for name, flag in written.parameters]
        code = _bound(written, _own(site, translation, groups, ""))
        model.compiled_fx = vendor.cache.CompiledFX(written.signature, code, parameters)
        with written_privately(directory):
            path.parent.mkdir(mode=0o700, parents=True)
            model.save(str(path))
        found = _taken_by(vendor, lazy, site, path)
        made.bring_in()
    return LoadedGraph(_graph_of(found), made, directory)


def _bound(written: Written, own: Own) -> str:
    """The code for this process.

    Raises:
        ArtifactCorrupt: it names what this process has not.
    """
    try:
        code = bound(written.code, own)
    except (KeyError, SyntaxError) as error:
        why = f"its code cannot be bound to this process: {type(error).__name__}: {error}"
        msg = f"TorchAir's part of the artifact: {why}"
        raise ArtifactCorrupt(msg, where="torchair.py", why=why) from error
    if written.constants is None:
        return code
    return put_back(code, written.constants.names, written.constants.section)


def _taken_by(vendor: Vendor, lazy: Any, site: Site, path: Path) -> Any:
    """What TorchAir makes of its file.

    Raises:
        ArtifactCorrupt: it does not take it.
    """
    tried: list[Any] = []
    with complaints(vendor.name) as said, instead_of_torch_compile(lambda *args, **_: tried.append(args)):
        found = lazy.compile(site.method.__func__.__globals__)
    if tried or not path.is_file():
        # Without the path, which no other rank has: equal reasons are told once.
        why = "; ".join(said).replace(f" {path}", "") or "it compiles anew"
        msg = f"TorchAir does not load its part of the artifact: {why}"
        raise ArtifactCorrupt(msg, where=str(path), why=why)
    return found


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


def _own(site: Site, translation: Translation, groups: Mapping[str, str], directory: str) -> Own:
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


def _ended(made: Made, private: Path, process: int) -> None:
    """The end of a loaded graph, or of its process; not of one that was forked from it."""
    if os.getpid() == process:
        made.end()
        discard_tree(private)


def _handed(vendor: Vendor, site: Site, directory: Path) -> tuple[Any, dict[str, Any], Translation]:
    """TorchAir's cached function, and the options that its cache's path depends on."""
    theirs = vendor.package.CompilerConfig()
    translation = translated(site.config, theirs)
    options = {"config": theirs, "dynamic": site.dynamic}
    if vendor.name == "torchair":
        options["ge_cache"] = site.ge_cache
    more = {"custom_decompositions": dict(site.decompositions)} if site.decompositions else {}
    handed = vendor.package.inference.cache_compile(site.method, cache_dir=str(directory), **options, **more)
    return handed, options, translation


def _saver(vendor: Vendor, site: Site, directory: Path) -> tuple[Any, Callable[..., Any], Translation]:
    """TorchAir's saver for an empty cache, and the backend that it would give to ``torch.compile``."""
    lazy, _, translation = _handed(vendor, site, directory)
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


def _frame(code: bytes) -> CodeType:
    """The artifact's frame.

    Raises:
        ArtifactCorrupt: it is none.
    """
    try:
        frame = marshal.loads(code)  # noqa: S302 - of an artifact that was verified
    except (EOFError, TypeError, ValueError) as error:
        frame = error
    if not isinstance(frame, CodeType):
        msg = f"the artifact's frame is no code but {frame!r}; it is compiled again"
        raise ArtifactCorrupt(msg, where="frame.code", why="its frame is no code")
    return frame


def _graph_of(found: Any) -> Callable[..., Any]:
    """The graph's callable inside of what TorchAir made of its cache."""
    inner = _closed_over(found, "compiled_fn")
    graph = inner.__globals__.get(_GRAPH_NAME) if isinstance(inner, FunctionType) else None
    if graph is None:
        msg = "the installed TorchAir builds loaded functions in another way than the releases that are known"
        raise ArtifactCorrupt(msg, where="torchair", why=msg)
    return graph  # type: ignore[no-any-return]


def _kernel_of(graph: Callable[..., Any]) -> Any:
    """TorchAir's ``AclGraph`` under a graph's callable; None where nothing is captured (max-autotune)."""
    kernel = _closed_over(graph, "ge_kernel")
    return getattr(kernel, "__globals__", {}).get("acl_graph")


def _closed_over(function: Any, name: str) -> Any:
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or closure is None or name not in code.co_freevars:
        return None
    return closure[code.co_freevars.index(name)].cell_contents
