"""Engine ``torchair``: the vendor's compiler for Ascend NPUs, under this package's conditions and store.

Sections::

    torchair.json   {"parameters": [[name, is a parameter], ...], "vendor": "torchair" or "npugraph_ex",
                     "version": of TorchAir's cache file,
                     "constants": [[name, device type], ...] where there are some}
    torchair.py     the code that TorchAir generated, as `worker.engines.torchair_code` keeps it
    torchair.txt    what TorchAir says of graph, inputs and options, for people
    constants       tensor constants of the graph, as engine ``graph`` keeps them; only where there are some

TorchAir compiles the very graph that Dynamo made for this artifact, and runs nothing: the conditions of the
artifact are those of its graph. Nothing is pickled: TorchAir's own file, which is a pickle, exists only in a
private directory (0700, `torchair_vendor`), which ends with the loaded graph or its process. At a load it is
written from a verified artifact, so whatever TorchAir does to a cache that it does not like, it does to a
copy. A load imports what TorchAir imports: Dynamo, Inductor and sympy among it.
"""

from __future__ import annotations

import itertools
import json
import marshal
import os
import re
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from warmrank.cache_store.cache_dir.private_files import discard_tree
from warmrank.worker.devices import backend_for
from warmrank.worker.engines import Built, Site
from warmrank.worker.engines import torchair_vendor as vendors
from warmrank.worker.engines.graph import unpack_constants
from warmrank.worker.engines.graph_source import pack_constants
from warmrank.worker.engines.torchair_code import Own, bound, portable, portable_signature, roles_in, taken
from warmrank.worker.errors import ArtifactCorrupt, BadConfig, CompileFailed, NotPortable
from warmrank.worker.groups import role_of
from warmrank.worker.node_caches import KernelFiles
from warmrank.worker.runtime.artifact import GRAPH_NAME
from warmrank.worker.torch_private import facts as torch_facts
from warmrank.worker.torch_private.lowering import group_names, source_name
from warmrank.worker.torch_private.operators import unlike_memory
from warmrank.worker.torch_private.torchair import left_to_wrappers

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.engines import Files, Graph, Groups, Sections
    from warmrank.worker.runtime.artifact import GraphFacts
    from warmrank.worker.torch_private.lowering import CapturedCall, LoweredGraph

_OF_LAYOUT = re.compile(r"\.(stride|storage_offset)\(\)")


class TorchairEngine:
    """Hands compiling and loading to TorchAir."""

    name = "torchair"
    version = "1"
    captured = False
    captures_itself = True

    def check(self, device_kind: str) -> None:
        """See `worker.engines.Engine.check`.

        Raises:
            BadConfig: the module lies on another kind of device.
            DeviceUnavailable: torch_npu or TorchAir does not import.
        """
        if device_kind != "npu":
            msg = f"engine torchair compiles for device kind npu; this module lies on {device_kind}"
            raise BadConfig(msg, parameter="engine", device_kind=device_kind)
        backend_for(device_kind)
        torch_facts.require("torchair")

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None, kernels: bool = True
    ) -> Built:
        """See `worker.engines.Engine.compile`; GE makes kernels of TorchAir's code later.

        Raises:
            NotPortable: TorchAir does not cache the function, or its cache would give other results.
            BadConfig: the configuration has options that the installed TorchAir has not.
            CompileFailed: TorchAir raises an error.
        """
        del kernels
        call = lowered.captured
        assert site is not None and call is not None  # noqa: S101, PT018 - TorchAir takes methods
        if unlike := unlike_memory(lowered.graph.graph.nodes):
            msg = f"{unlike}, which TorchAir does not capture; use engine graph"
            raise NotPortable(msg, what=unlike, instead="graph")
        _refuse(site, call, facts)
        groups = {role_of(name): name for name in group_names(lowered.graph)}
        sections = _compiled(site, call, groups)
        if left := left_to_wrappers(call.context):
            msg = f"{site.method.__qualname__}: {left}, which TorchAir's cache leaves out; use engine graph"
            raise NotPortable(msg, what=left)
        if unbound := set(groups) - roles_in(sections["torchair.py"].decode()):
            by_ge = site.config.mode == "max-autotune"
            remedy = "mode reduce-overhead" if by_ge else "engine graph"
            msg = (
                f"TorchAir writes process groups ({', '.join(sorted(unbound))}) into its code in a way that "
                f"cannot be bound to another rank's; use {remedy}"
            )
            raise NotPortable(msg, what="process groups", instead="" if by_ge else "graph")
        return Built(sections=sections)

    def load(self, sections: Sections, files: Files, groups: Groups, *, site: Site | None = None) -> Graph:
        """See `worker.engines.Engine.load`.

        Raises:
            ArtifactCorrupt: TorchAir does not take it; says why, in its words.
            BadConfig: the configuration has options that the installed TorchAir has not.
        """
        del files
        assert site is not None  # noqa: S101 - TorchAir takes methods
        with ExitStack() as stack:
            directory = vendors.private_directory()
            stack.callback(discard_tree, directory)
            graph = _loaded(sections, site, groups, directory)
            stack.pop_all()  # the graph removes it
        return graph


def _refuse(site: Site, call: CapturedCall, facts: GraphFacts) -> None:
    """Raise `NotPortable` for what TorchAir caches wrongly or not at all: says what, and what to do.

    Among it are arguments marked static where parameters are frozen: later processes may mark others.
    """
    name, config = site.method.__qualname__, site.config
    if facts.random:
        msg = f"{facts.random} draws random numbers, which TorchAir does not cache; use engine graph"
        raise NotPortable(msg, what=facts.random)
    if facts.uncapturable and config.mode != "max-autotune":
        msg = (
            f"{facts.uncapturable}, so TorchAir cannot capture it; use engine graph, or move it out of the "
            "cached function"
        )
        raise NotPortable(msg, what=facts.data_dependent or facts.moving)
    frozen = config.experimental_config.frozen_parameter or config.npugraphex_config.frozen_parameter
    for index, value in enumerate(call.example_inputs) if frozen else ():
        if index not in facts.module_inputs and getattr(value, "_dynamo_static_input_type", None):
            argument = facts.input_names[index]
            msg = (
                f"argument {argument} of {name} is marked by mark_static_address, which "
                "TorchAir freezes with frozen_parameter for every later process too; use one of the two"
            )
            raise NotPortable(msg, what=argument, instead="graph")
    placeholders = call.graph_module.graph.find_nodes(op="placeholder")
    sources = [source_name(node._dynamo_source) for node in placeholders if node.users]  # noqa: SLF001
    if strided := [source for source in sources if _OF_LAYOUT.search(source)]:
        value = re.sub(r"^L\['(\w+)'\]", r"\1", strided[0])
        msg = (
            f"{name} computes with {value}, for which TorchAir takes that of a dense tensor; use engine "
            "graph, or dynamic=False"
        )
        raise NotPortable(msg, what=value, instead="graph")
    for index in facts.anchored_inputs:
        argument = facts.input_names[index]
        msg = (
            f"as_strided looks at the storage of {argument}, of which TorchAir's graphs take a copy; use "
            "views that stay inside of the tensor (view, narrow, unfold), or engine graph"
        )
        raise NotPortable(msg, what=argument, instead="graph")
    if facts.aliased_outputs:
        msg = (
            f"output {facts.aliased_outputs[0]} of {name} is a view of an input, and TorchAir's cache "
            "returns a view of its own buffer instead; return a copy (.clone()), or use engine graph"
        )
        raise NotPortable(msg, what=f"output {facts.aliased_outputs[0]}", instead="graph")


def _compiled(site: Site, call: CapturedCall, groups: Mapping[str, str]) -> dict[str, bytes]:
    """Let TorchAir compile what Dynamo captured, without running it; within the context of the trace."""
    vendor, name = vendors.vendor_for(site.config.mode), site.method.__qualname__
    with ExitStack() as stack:
        directory = vendors.private_directory()
        stack.callback(discard_tree, directory)
        lazy, _, own = _handed(vendor, site, groups, directory)
        given: dict[str, Any] = {}
        with vendors.instead_of_torch_compile(vendor, lambda *_, **options: given.update(options)):
            saver = lazy.compile(site.method.__func__.__globals__)
        if "backend" not in given:
            msg = (
                f"{vendor.name} of this torch_npu compiles in another way than the releases that are known "
                "(it calls torch.compile without a backend); use engine graph"
            )
            raise NotPortable(msg, what=vendor.name)
        # In the other modes the number is text, which `portable` finds, and events are named after it.
        numbered = vendors.numbered_anew(vendor) if site.config.mode == "max-autotune" else nullcontext()
        with numbered, vendors.as_we_compile(vendor):
            try:
                given["backend"](call.graph_module, list(call.example_inputs))
            except Exception as error:
                lines = str(error).strip().splitlines()
                why = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
                msg = f"TorchAir fails to compile {name}: {why}. See the error above, or use engine graph."
                raise CompileFailed(msg, function=name, why=why) from error
        with vendors.written_privately(directory), vendors.complaints(vendor.name) as said:
            saver.save_compiled_fn(id(call.frame))
        model = _model_of(saver, vendor, name, said)
    fx = model.compiled_fx
    code, constants = taken(str(fx.py_code), vendor.serializer)
    about: dict[str, Any] = {
        "parameters": [[str(name), bool(flag)] for name, flag in fx.input_parameters],
        "vendor": vendor.name,
        "version": str(model.meta.version),
    }
    sections = {
        "torchair.py": portable(code, own).encode(),
        "torchair.txt": portable_signature(str(fx.signature), own).encode(),
    }
    if constants:
        about["constants"] = [[name, tensor.device.type] for name, tensor in constants.items()]
        sections["constants"] = pack_constants(list(constants.values()))
    return {**sections, "torchair.json": json.dumps(about, sort_keys=True, separators=(",", ":")).encode()}


def _handed(
    vendor: vendors.Vendor, site: Site, groups: Mapping[str, str], directory: Path
) -> tuple[Any, dict[str, Any], Own]:
    """TorchAir's cached function, options that its cache's path depends on, and values of this process."""
    theirs = vendor.package.CompilerConfig()
    translation = vendors.translated(site.config, theirs)
    options = {"config": theirs, "dynamic": site.dynamic}
    if vendor.name == "torchair":
        options["ge_cache"] = site.ge_cache
    more = {"custom_decompositions": dict(site.decompositions)} if site.decompositions else {}
    function = vendor.package.inference.cache_compile(
        site.method, cache_dir=str(directory), **options, **more
    )
    module: torch.nn.Module = site.method.__self__  # type: ignore[assignment]
    tensors = itertools.chain(module.parameters(), module.buffers())
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    own = Own(
        groups=groups,
        pool=translation.pool,
        paths=translation.paths,
        directory=os.path.realpath(directory),
        device=("", 0) if device.index is None or device.type == "cpu" else (device.type, device.index),
    )
    return function, options, own


def _model_of(saver: Any, vendor: vendors.Vendor, name: str, said: list[str]) -> Any:
    """Model that TorchAir wrote, or would have but for a frame that it cannot write: ours is used.

    Raises `NotPortable`: TorchAir does not cache the function.
    """
    path, kept = Path(saver.cache_bin), saver.compiled_model
    if path.is_file():
        return vendor.cache.CompiledModel.load(str(path))
    if kept.compiled_fx is not None and not saver.errors:
        return kept
    reasons = [str(reason).strip().partition("\n")[0] for reason in (*saver.errors, *said)]
    why = "; ".join(reasons) or "it makes no code for it"
    raise NotPortable(f"TorchAir does not cache {name}: {why}. Use engine graph for it.", what=name)


def compiled_by_backend(
    graph_module: GraphModule,
    example_inputs: list[Any],
    *,
    config: CompilerConfig,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Graph compiled by TorchAir's own backend for ``torch.compile``, in memory only."""
    vendor = vendors.vendor_for(config.mode)
    theirs = vendor.package.CompilerConfig()
    vendors.translated(config, theirs, kept=False)
    backend = vendor.package.get_npu_backend(
        compiler_config=theirs, custom_decompositions=dict(decompositions)
    )
    with vendors.as_we_compile(vendor):
        run: Callable[..., Any] = backend(graph_module, example_inputs)
    return run


class LoadedGraph:
    """TorchAir's callable over a graph's inputs; it captures and replays by itself."""

    __slots__ = ("__weakref__", "_call", "_is_called", "_kernel", "_made")

    def __init__(self, call: Callable[..., Any], made: KernelFiles, private: Path) -> None:
        weakref.finalize(self, _ended, made, private, os.getpid())
        self._call = call
        # TorchAir's ``AclGraph``; None where nothing is captured (max-autotune).
        kernel = _closed_over(call, "ge_kernel")
        self._kernel: Any = getattr(kernel, "__globals__", {}).get("acl_graph")
        self._made = made
        self._is_called = False

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs for the graph's inputs."""
        if not self._is_called:
            self._made.bring_in()
            self._is_called = True
        try:
            return tuple(self._call(*inputs))
        except BaseException:
            self._drop_unfinished()
            raise

    @property
    def is_eager(self) -> bool:
        """True if it runs operator by operator: asked for, or the limit of captures is reached."""
        graph = self._kernel
        if graph is None:
            return True
        asked = graph.config.get("force_eager") or graph.config.get("run_eagerly") == "1"
        return bool(asked or graph.fallback_to_eager)

    @property
    def num_captures(self) -> int:
        """Captured graphs that it holds."""
        return 0 if self._kernel is None else len(self._kernel.graphs_meta)

    def _drop_unfinished(self) -> None:
        """Drop a capture that failed, which TorchAir would replay at the next call."""
        held: dict[str, Any] = {} if self._kernel is None else self._kernel.graphs_meta
        for key in [key for key, capture in held.items() if capture.replay_func is None]:
            del held[key]

    def hand_over(self) -> None:
        """Let the node keep what was made at run time, for processes that load the artifact later."""
        self._made.hand_over()


def _ended(made: KernelFiles, private: Path, process: int) -> None:
    """The end of a loaded graph, or of its process; not of one that was forked from it."""
    if os.getpid() == process:
        made.end()
        discard_tree(private)


def _loaded(sections: Sections, site: Site, groups: Groups, directory: Path) -> LoadedGraph:
    """Let TorchAir load what it wrote once, from a private copy; ``groups`` by role."""
    vendor = vendors.vendor_for(site.config.mode)
    lazy, options, own = _handed(vendor, site, groups, directory)
    models = vendor.cache.CompiledModel
    model = models(site.method)
    try:
        about: dict[str, Any] = json.loads(sections["torchair.json"])
        parameters = [(str(name), bool(flag)) for name, flag in about["parameters"]]
        constants = None
        if kinds := about.get("constants"):
            tensors = zip(kinds, unpack_constants(sections["constants"]), strict=True)
            constants = SimpleNamespace(**{name: tensor.to(kind) for (name, kind), tensor in tensors})
        code = bound(sections["torchair.py"].decode(), own, constants)
        signature = sections["torchair.txt"].decode()
        model.meta.version = str(about["version"])
        model.compiled_fn = marshal.loads(site.frame)  # noqa: S302 - of an artifact that was verified
        if not isinstance(model.compiled_fn, CodeType):
            raise TypeError("its frame is no code")  # noqa: TRY301 - told with the others
    except (AttributeError, EOFError, LookupError, SyntaxError, TypeError, ValueError) as error:
        why = f"what is kept of TorchAir's file cannot be read or bound to this process ({error!r})"
        raise ArtifactCorrupt(f"{why}; it is compiled again", where="torchair.json", why=why) from error
    model.compiled_fx = vendor.cache.CompiledFX(signature, code, parameters)
    path = Path(models.get_cache_bin(site.method, cache_dir=str(directory), **options))
    with vendors.written_privately(directory):
        path.parent.mkdir(mode=0o700, parents=True)
        model.save(str(path))
    return LoadedGraph(_graph_in(vendor, lazy, site, path), KernelFiles(path.parent, site), directory)


def _graph_in(vendor: vendors.Vendor, lazy: Any, site: Site, path: Path) -> Callable[..., Any]:
    """The graph's callable, of what TorchAir loads from its file; raises `ArtifactCorrupt` if it refuses."""
    tried: list[Any] = []
    with (
        vendors.complaints(vendor.name) as said,
        vendors.instead_of_torch_compile(vendor, lambda *args, **_: tried.append(args)),
    ):
        found = lazy.compile(site.method.__func__.__globals__)
    if tried or not path.is_file():
        # Without the path, which no other rank has: equal reasons are told once.
        why = "; ".join(said).replace(f" {path}", "") or "it compiles anew"
        msg = f"TorchAir does not load its part of the artifact: {why}"
        raise ArtifactCorrupt(msg, where=str(path), why=why)
    inner = _closed_over(found, "compiled_fn")
    graph = inner.__globals__.get(GRAPH_NAME) if isinstance(inner, FunctionType) else None
    if graph is None:
        msg = "the installed TorchAir builds loaded functions in another way than the releases that are known"
        raise ArtifactCorrupt(msg, where="torchair", why=msg)
    return graph  # type: ignore[no-any-return]


def _closed_over(function: Any, name: str) -> Any:
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or closure is None or name not in code.co_freevars:
        return None
    return closure[code.co_freevars.index(name)].cell_contents
