"""One compile: trace, run the user's passes, make the guards portable, let the engine compile.

A pass is called as TorchAir calls it, ``function(graph_module, example_inputs, config)``, and changes the FX
graph in place. It runs on fake tensors, before the guards are written, so conditions that it puts on symbolic
sizes become guards. Files about the graph have TorchAir's names.

The frame, Dynamo's code object that unpacks the arguments, calls the graph and packs the outputs, is kept as
marshal (version 2, equal bytes for equal code) with everything that differs between processes taken out: file
name, lines, and the counters and ids in Dynamo's global names.
"""

from __future__ import annotations

import builtins
import csv
import dis
import inspect
import json
import logging
import marshal
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from types import CodeType, EllipsisType, FunctionType, MethodType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from warmrank.cache_store.digests import digest_bytes
from warmrank.worker import data_dump, errors
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.compile.readable import about
from warmrank.worker.devices import backend_for
from warmrank.worker.engines import Built, Site
from warmrank.worker.gears.compiling import GearsApart, compiling
from warmrank.worker.gears.rules import geared_arguments
from warmrank.worker.groups import role_of
from warmrank.worker.guards.paths import ADDRESSED
from warmrank.worker.guards.translate import translate
from warmrank.worker.keys.code import function_digest
from warmrank.worker.runtime import constants
from warmrank.worker.runtime.artifact import (
    ABOUT,
    GRAPH_NAME,
    MARSHAL_VERSION,
    Artifact,
    ArtifactFile,
    Frame,
    GraphFacts,
)
from warmrank.worker.runtime.check import argument_names
from warmrank.worker.runtime.find import arguments_of, function_of
from warmrank.worker.runtime.runtime_state import declared_for
from warmrank.worker.runtime.variant import PLACEHOLDER
from warmrank.worker.torch_private.lowering import LoweredGraph, group_names, retrace
from warmrank.worker.torch_private.operators import readable
from warmrank.worker.torch_private.tracing import Trace, trace
from warmrank.worker.torch_private.warm import portable_ambient, rank_and_world
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

    from warmrank.worker.configs.compiler_config import CacheOptions, CompilerConfig
    from warmrank.worker.keys.request import Request

_log = logging.getLogger("torchair")
_Made = TypeVar("_Made")
_LITERALS = (NoneType, EllipsisType, bool, int, float, complex, str, bytes)
_BUILTINS = r"^__builtins_dict__\w*$"
_SUMMARY_COLUMNS = ("operator", "kind", "calls", "inputs", "outputs")


class Compiled(Value):
    """An artifact, the bytes of the files beside it, and the seconds it took to trace and to compile it."""

    artifact: Artifact
    files: Mapping[str, bytes]
    trace_s: float
    compile_s: float


def compile_call(  # noqa: PLR0913 - a call, and how it is compiled
    method: MethodType,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    request: Request,
    options: CacheOptions,
    device_kind: str,
    for_audit: bool = False,
    alone: bool = False,
) -> Compiled:
    """Compile a method for a call, without running it; for an audit without kernels.

    Gears that cannot be compiled together with the others are compiled ``alone``.

    Raises:
        GraphBreak: the method forms no whole graph.
        FunctionRaised: the method raises an exception itself.
        RandomOp: an operator draws random numbers.
        BackwardNotSupported: an argument asks for gradients.
        NotPortable: something in the trace cannot be kept across processes.
        GearError: the gears do not fit the call, each other, or the function.
        DeviceUnavailable: nothing can be run where the module's tensors lie.
        NotYet: the configuration asks for what is not built yet.
    """
    engine = request.engine
    backend_for(device_kind)
    options.config.check(device_kind, engine=engine.name)
    if not for_audit:
        engine.check(device_kind)
    if engine.captures_itself:
        from warmrank.worker.engines.torchair_vendor import vendor_for  # it gives the logger TorchAir's form

        vendor_for(options.config.mode)  # before the trace: on import TorchAir replaces collectives in traces
    state = portable_ambient(device_kind)
    declared = declared_for(method.__self__)  # type: ignore[arg-type] # before the trace, which it may steer
    function = function_of(method)
    records_gradients = torch.is_grad_enabled()
    started = perf_counter()

    def build(traced_graph: LoweredGraph, *, dynamic: bool) -> tuple[LoweredGraph, GraphFacts, Built]:
        if records_gradients:
            _refuse_backward(traced_graph, method)
        # TorchAir runs the passes and writes the dumps that belong to its own graph.
        lowered = traced_graph if engine.captures_itself else prepared(traced_graph, options.config)
        random_on = device_kind if options.rng == "allow" else ""
        lowered = replace(lowered, stored=traced_graph.stored, replaced=traced_graph.replaced)
        facts = analyse(lowered, function.__code__.co_varnames[0], random_on=random_on)
        gears.refuse_constants()
        site = Site(
            method=method,
            config=options.config,
            dynamic=dynamic,
            decompositions=options.custom_decompositions,
            ge_cache=options.ge_cache,
        )
        return lowered, facts, engine.compile(lowered, facts, site=site, kernels=not for_audit)

    def attempt(*, dynamic: bool) -> tuple[Trace, tuple[LoweredGraph, GraphFacts, Built]]:
        return trace(
            method,
            args,
            kwargs,
            dynamic=dynamic,
            decompositions=options.custom_decompositions,
            build=partial(build, dynamic=dynamic),
        )

    policy = options.config.inference_config.dynamic_gears_merge_policy
    try:
        with (
            torch.no_grad(),
            compiling(
                method, args, kwargs, policy=policy, on_miss=options.on_gear_miss, alone=alone
            ) as gears,
        ):
            try:
                traced, (lowered, facts, built) = attempt(dynamic=options.dynamic and not alone)
            except (errors.FunctionRaised, errors.GraphBreak) as error:
                if not options.dynamic or geared_arguments(function, args, kwargs):
                    raise
                traced, (lowered, facts, built) = _of_these_sizes(attempt, error, method.__qualname__)
        roles = tuple(sorted(map(role_of, group_names(lowered.graph))))
        frame = portable_frame(traced, function)
        classes = constants.classes_in([*_encoded_in(frame)])
        portable = translate(traced, state, roles, function, arguments_of(method, args, kwargs), classes)
        guards = replace(portable, runtime_state=declared)
        facts, guards = gears.recorded(traced.lowered, facts, guards)
    except GearsApart as error:
        if alone:
            raise
        _log.info("%s is compiled for these gears alone: %s", method.__qualname__, error)
        return compile_call(
            method, args, kwargs,
            request=request, options=options, device_kind=device_kind, for_audit=for_audit, alone=True,
        )  # fmt: skip
    digests = {name: digest_bytes(data) for name, data in sorted(built.files.items())}
    artifact = Artifact(
        name=_name(method),
        function=function_digest(function),
        engine=engine.name,
        engine_version=engine.version,
        components=request.components,
        guards=guards,
        frame=frame,
        facts=facts,
        roles=roles,
        sections={**built.sections, ABOUT: about(lowered, traced.codes)},
        files=tuple(
            ArtifactFile(name=name, sha256=digest.sha256, size_bytes=digest.size_bytes)
            for name, digest in digests.items()
        ),
    )
    compile_s = perf_counter() - started - traced.trace_s
    return Compiled(artifact=artifact, files=built.files, trace_s=traced.trace_s, compile_s=compile_s)


def _of_these_sizes(attempt: Callable[..., _Made], error: errors.WorkerError, name: str) -> _Made:
    """Trace for the exact sizes of a call after a trace with symbolic sizes failed.

    Not all that Python makes of numbers (``str``, ``divmod``, ``math.gcd``) can be made of symbols.
    """
    try:
        made = attempt(dynamic=False)
    except errors.WorkerError as exact:
        if isinstance(exact, errors.FunctionRaised) or isinstance(error, errors.FunctionRaised):
            raise  # which no symbol did
        raise error from error.__cause__
    told = (
        "%s is compiled for the very sizes of this call, and once more for others: of a size it makes "
        "what no symbol stands for: %s"
    )
    _log.warning(told, name, error.fields.get("reason", "").partition("\n")[0])
    return made


def _name(method: MethodType) -> str:
    """As TorchAir prints it: without default values, whose text may hold an address."""
    parameters = inspect.signature(method).parameters.values()
    empty = inspect.Parameter.empty
    names = (str(parameter.replace(annotation=empty, default=empty)) for parameter in parameters)
    return f"{method.__qualname__}({', '.join(names)})"


def _refuse_backward(lowered: LoweredGraph, method: MethodType) -> None:
    name = method.__qualname__
    arguments = tuple(f"L[{name!r}]" for name in argument_names(function_of(method).__code__))
    for item in lowered.inputs:
        is_weight = item.is_parameter and item.source not in arguments
        if item.requires_grad and item.source.startswith(arguments) and not is_weight:
            msg = (
                f"argument {readable(item.source)} of {name} requires gradients; a cached function has no "
                "backward. Call it under torch.no_grad() or torch.inference_mode(), or pass a detached "
                "tensor."
            )
            raise errors.BackwardNotSupported(msg, function=name, argument=item.source)


def prepared(lowered: LoweredGraph, config: CompilerConfig) -> LoweredGraph:
    """The graph that is compiled: after the user's passes, and written to files that debug options name.

    Needs the tracing context that the graph was made in.

    Raises:
        BadPass: a pass raises an error, or leaves a graph that does not run on its own inputs, or has other
            inputs than before.
    """
    _dump_graph("dynamo_original_graph", lowered.graph, config)
    if config.debug.fx_summary.type is not None:
        path = _dump_path(None, "summary", "csv")
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([_SUMMARY_COLUMNS, *_summary_rows(lowered.graph.graph.nodes)])
        _log.info("summary of the graph written to %s", path)
    passed = lowered
    for option in ("post_grad_custom_pre_pass", "post_grad_custom_post_pass"):
        if getattr(config, option) is not None:
            passed = _with_pass(passed, config, option)
    if passed is not lowered:
        _dump_graph("dynamo_optimized_graph", passed.graph, config)
    data_dump.mark(passed.graph, config)
    return passed


def _with_pass(lowered: LoweredGraph, config: CompilerConfig, option: str) -> LoweredGraph:
    function, graph = getattr(config, option), lowered.graph
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    named = f"config.{option} ({getattr(function, '__qualname__', function)})"
    try:
        function(graph, inputs, config)
    except Exception as error:  # whatever it is, it is the pass's own
        msg = f"{named} raised {type(error).__name__}: {error}"
        raise errors.BadPass(msg, option=option) from error
    try:
        graph.graph.lint()
        graph.recompile()
        # Traced anew, so that operators of the pass's have shapes and memory like all others.
        return retrace(lowered, inputs)
    except Exception as error:  # whatever the user's graph does wrong, the pass is to blame
        msg = (
            f"{named} leaves a graph that does not run: {type(error).__name__}: {error}. Change nodes "
            "through graph_module.graph, keep its inputs, and erase what nothing uses."
        )
        raise errors.BadPass(msg, option=option) from error


def _dump_graph(name: str, graph: GraphModule, config: CompilerConfig) -> None:
    """Write the graph in the form that ``debug.graph_dump.type`` asks for, if any."""
    asked = config.debug.graph_dump
    if asked.type in ("py", "txt"):
        # FX prints the class of a traced function under a name that Python does not accept.
        text = graph.print_readable(print_output=False).replace("class <lambda>(", "class graph(")
        path = _dump_path(asked.path, name, asked.type)
        path.write_text(text if asked.type == "py" else f"{graph.graph}\n", encoding="utf-8")
        _log.info("graph written to %s", path)


def _dump_path(directory: str | None, name: str, kind: str) -> Path:
    """Path of this process's dump; makes its directory."""
    target = Path(directory or ".").resolve()
    target.mkdir(parents=True, exist_ok=True)
    moment = f"{datetime.now(tz=UTC):%Y%m%d%H%M%S%f}"
    return target / f"{name}_rank_{rank_and_world()[0]}_pid_{os.getpid()}_ts_{moment}.{kind}"


def _summary_rows(nodes: Iterable[Node]) -> Iterable[tuple[str, str, int, str, str]]:
    """One row per operator, in the order of their first calls; see `_SUMMARY_COLUMNS`."""
    calls: dict[str, list[Node]] = {}
    for node in nodes:
        if node.op == "call_function":
            calls.setdefault(str(node.target), []).append(node)
    for operator, found in calls.items():
        kind = getattr(found[0].target, "namespace", "builtin")
        named = ([f"{key}={_described(item)}" for key, item in node.kwargs.items()] for node in found)
        given = (
            ", ".join([*map(_described, node.args), *more]) for node, more in zip(found, named, strict=True)
        )
        yield operator, kind, len(found), _counted(given), _counted(map(_described, found))


def _described(value: Any) -> str:
    """An argument or result as in ``f32[s0, 4]``."""
    value = value.meta.get("val") if hasattr(value, "meta") else value
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_described, value))}]"
    return str(value)


def _counted(found: Iterable[str]) -> str:
    return "\n".join(f"{count} x {text}" for text, count in Counter(found).most_common())


def portable_frame(trace: Trace, function: FunctionType) -> Frame:
    """The portable frame of a trace."""
    for instruction in dis.get_instructions(trace.frame):
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise errors.NotPortable.of_global(function.__qualname__, str(instruction.argval))
    user_names = {name for code in trace.codes for name in code.co_names}
    renames = {trace.graph_name: GRAPH_NAME}
    names: dict[str, Any] = {"graph": GRAPH_NAME, "imports": {}, "objects": {}, "builtins": []}
    names["writes"] = bool(trace.writes)
    external = trace.external_names - {trace.graph_name}
    # In the order of the code, because some names hold an address.
    for name in filter(external.__contains__, trace.frame.co_names):
        if name in trace.import_aliases and not re.search(ADDRESSED, name):
            names["imports"][name] = trace.import_aliases[name]
        elif re.match(_BUILTINS, name):
            renames[name] = "__builtins_dict__"
            names["builtins"] = ["__builtins_dict__"]
        elif name not in user_names and not hasattr(builtins, name):
            renames[name] = f"__object_{len(renames)}"
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                names["imports"][renames[name]] = value.__name__
            else:
                names["objects"][renames[name]] = _encode_object(name, function)
    return Frame(code=marshal.dumps(_canonical(trace.frame, renames), MARSHAL_VERSION), names=names)


def _encoded_in(frame: Frame) -> Iterator[Any]:
    """JSON forms of the constants that a frame holds."""
    yield from frame.names["objects"].values()
    codes = [marshal.loads(frame.code)]  # noqa: S302 - it was made here
    for code in codes:  # which grows
        codes += [value for value in code.co_consts if isinstance(value, CodeType)]
        held = (value for value in code.co_consts if isinstance(value, tuple))
        yield from (json.loads(value[1]) for value in held if value[:1] == (PLACEHOLDER,))


def _encode_object(name: str, function: FunctionType) -> Any:
    if name not in function.__globals__:
        msg = f"the frame of {function.__qualname__} refers to {name}, which is nowhere defined"
        raise errors.NotPortable(msg, what=name)
    try:
        return constants.encode(function.__globals__[name])
    except errors.NotPortable as error:
        msg = f"the frame of {function.__qualname__} holds what no later process can find: {error.message}"
        raise errors.NotPortable(msg, what=name) from error


def _canonical(code: CodeType, renames: Mapping[str, str]) -> CodeType:
    # A line table with every instruction on the first line; without one, no traceback can be printed. Source
    # of the form: CPython's ``Objects/locations.md`` (3.11 and later). An entry covers up to 8 code units; 13
    # is the kind without columns; the distance to the line before, 0, follows.
    num_units = len(code.co_code) // 2
    entries = (min(8, num_units - start) for start in range(0, num_units, 8))
    return code.replace(
        co_names=tuple(renames.get(name, name) for name in code.co_names),
        co_consts=tuple(_canonical_constant(item, renames) for item in code.co_consts),
        co_filename="<warmrank frame>",
        co_firstlineno=1,
        co_linetable=b"".join(bytes((0x80 | 13 << 3 | length - 1, 0)) for length in entries),
    )


def _canonical_constant(value: Any, renames: Mapping[str, str]) -> Any:
    if isinstance(value, CodeType):
        return _canonical(value, renames)
    if _is_literal(value):
        return value
    try:
        return (PLACEHOLDER, json.dumps(constants.encode(value), sort_keys=True))
    except errors.NotPortable as error:
        msg = (
            "the function returns, or keeps, what only this process has, such as a function that it makes "
            f"({error.message}); make that outside of the cached function"
        )
        raise errors.NotPortable(msg, what=type(value).__qualname__) from error


def _is_literal(value: Any) -> bool:
    """True of what `marshal` restores with its type: of a NumPy scalar or a bytearray it makes bytes."""
    return type(value) in _LITERALS or (type(value) in (tuple, frozenset) and all(map(_is_literal, value)))
