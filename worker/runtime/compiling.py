"""A miss of a cached function: traces and compiles it, once per node, and saves the artifact."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir
from warmrank.cache_store.cache_dir.single_flight import one_compile
from warmrank.worker import journal
from warmrank.worker.engines import engine_named
from warmrank.worker.errors import CompileForbidden, NotPortable
from warmrank.worker.runtime import files
from warmrank.worker.settings import settings
from warmrank.worker.values import replace

if TYPE_CHECKING:
    from types import MethodType

    from warmrank.worker.compile.compiler import Compiled
    from warmrank.worker.configs.compiler_config import CacheOptions
    from warmrank.worker.runtime.artifact import Artifact
    from warmrank.worker.runtime.function import Args, CachedFunction, Kwargs
    from warmrank.worker.runtime.variant import Variant

_log = logging.getLogger("torchair")

# Another thread may change something between a check and the look at what it noted: TorchAir's compile puts a
# function of its own into torch for a while.
_OWN_CHECKS = 5
# As many as a cache directory keeps of one function, and as many graphs as are captured by default.
MAX_TRACES = 64
# Of a function that writes to what its own conditions hang on. torch.compile gives up after 8 recompilations.
MAX_TRACES_OF_CHANGING = 16


class TraceLimit:
    """Counts the traces of one function.

    Attributes:
        reached: it was traced too often; nothing is compiled any more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._traces = 0
        self._reason = ""
        self._warned = False
        self.reached = False

    def count(self, reason: str, *, changes_itself: bool) -> None:
        """Note one trace; a function that ``changes_itself`` writes to what its own conditions hang on."""
        self._traces += 1
        self._reason = reason
        self.reached = self._traces >= (MAX_TRACES_OF_CHANGING if changes_itself else MAX_TRACES)

    def run_eagerly(self, method: MethodType, args: Args, kwargs: Kwargs) -> Any:
        """The method's own result, without gradients, as a cached function's; warns once."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s was traced %d times in this process, so it runs eagerly from now on where nothing that "
                "is loaded fits; the last trace was needed because: %s. Use dynamic=True for changing "
                "shapes, and keep what changes from call to call in a tensor, or pass it.",
                self._name,
                self._traces,
                self._reason,
            )
        with torch.no_grad():
            return method(*args, **kwargs)


def compile_or_await(
    function: CachedFunction, args: Args, kwargs: Kwargs, reason: str, started: float
) -> Variant:
    """Compile, unless another process of this node is at it: then look again when it is through.

    Raises:
        CompileForbidden: a compile was forbidden.
    """
    forbidden = function.defaults.no_compile  # of a launch the driver says what to do
    if forbidden or settings().no_compile:
        journal.append_forbidden(function.name, reason)
        remedy = (
            f". Looked for in {function.root()}; run once without WARMRANK_NO_COMPILE, or bring there what "
            "was compiled elsewhere (warmrank preseed)"
        )
        msg = f"{function.name} would have to be compiled, which is forbidden here: {reason}"
        raise CompileForbidden(msg + ("" if forbidden else remedy), function=function.name, reason=reason)
    place = function.place()
    what = f"{place.model_dir.name}/{place.function_dir.name}"
    alone = contextlib.nullcontext(False) if function.abandoned else one_compile(function.root(), what)
    with alone as has_waited:
        if has_waited and (found := function.find_and_use(args, kwargs, started)[0]) is not None:
            return found
        if not function.variants:
            _log.info("Miss: %s is compiled: %s", function.name, reason)
        else:
            number = len(function.variants) + 1
            _log.warning("%s is traced again (variant %d): %s", function.name, number, reason)
        return function.compile(args, kwargs, reason=reason)


def compiled_and_saved(
    function: CachedFunction, args: Args, kwargs: Kwargs, *, reason: str, withheld: bool
) -> Variant:
    """See `CachedFunction.compile`."""
    from warmrank.worker.torch_private import facts

    facts.require("compile", "trial")
    function_dir = function.place().function_dir  # where it was looked for: a trace may fill the module
    if function.variants and function.options.on_recompile == "abandon":
        if not function.abandoned:
            warnings.warn(
                f"Skip cache as {function.name} recompiled, set torch._logging.set_logs(recompiles=True) for "
                f"details; its cache is removed: {reason}",
                UserWarning,
                stacklevel=3,
            )
        function.abandoned = True
        files.remove(function_dir)
    if not function.abandoned:
        ensure_cache_dir(function.root())
    compiled = _compiled(function, args, kwargs, function.options)
    started = perf_counter()
    stored = files.save(
        function_dir,
        compiled.artifact,
        compiled.files,
        withheld=withheld,
        kept=not function.abandoned,
    )
    variant = function.bind(stored)
    # Conditions that do not hold where they were made would mean a compile on every call.
    for _ in range(_OWN_CHECKS):
        wrong = variant.guards.check(args, kwargs)
        if wrong or variant.guards.fit(args, kwargs):
            break
    else:
        wrong = ("a condition on its arguments",)
    if wrong:
        function.forget(variant)
        raise NotPortable(
            f"{function.name} was compiled, but its conditions do not hold for the very call it was made "
            f"for: {'; '.join(wrong)}. The function changes what it depends on while it is traced, or this "
            "is a bug of warmrank."
        )
    function.traces = function.traces or TraceLimit(function.name)
    function.traces.count(reason, changes_itself=bool(stored.artifact.guards.volatile))
    load_s = perf_counter() - started
    function.record(
        "compiled", reason, stored, trace_s=compiled.trace_s, compile_s=compiled.compile_s, load_s=load_s
    )
    return variant


def outlined(function: CachedFunction, args: Args, kwargs: Kwargs) -> Artifact:
    """See `CachedFunction.outline`."""
    config = copy.deepcopy(function.options.config)
    config.debug.graph_dump.type = config.debug.fx_summary.type = None  # the compile writes such files
    options = replace(function.options, config=config)
    return _compiled(function, args, kwargs, options, for_audit=True).artifact


def _compiled(
    function: CachedFunction, args: Args, kwargs: Kwargs, options: CacheOptions, *, for_audit: bool = False
) -> Compiled:
    """Compile; with ``engine="auto"`` by engine graph what TorchAir cannot keep."""
    from warmrank.worker.compile.compiler import compile_call

    asked = function.request()
    while True:
        try:
            return compile_call(
                function.method,
                args,
                kwargs,
                request=asked,
                options=options,
                device_kind=function.device_kind,
                for_audit=for_audit,
            )
        except NotPortable as error:
            if function.wanted != "auto" or error.fields.get("instead") != "graph":
                raise
            _log.warning("%s is compiled by engine graph: %s", function.name, error)
            asked = replace(asked, engine=engine_named("graph"))
