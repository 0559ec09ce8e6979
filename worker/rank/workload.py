"""A user's workload: an entrypoint, with its `RankContext`, `Workload` and `Call`s, or a plain script.

An entrypoint is named in a config as ``module:function`` and has the signature
``def f(context: RankContext, **arguments) -> Workload``. A script runs under torchrun's variables: it knows
nothing of the launch, and caches all the same.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.cache_store.cache_dir.private_files import make_private_directories, os_errors_are_unusable
from warmrank.cache_store.text import ended_text
from warmrank.worker import journal
from warmrank.worker.errors import BadRuntimeState, CompileForbidden, GroupError, ScriptFailed, WorkloadError
from warmrank.worker.results import FunctionResult, Verification
from warmrank.worker.values import Value, replace

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from warmrank.worker.rank.rank_worker import RankSpec
    from warmrank.worker.runtime.function import CachedFunction
    from warmrank.worker.runtime.runtime_state import Scalar

_log = logging.getLogger(__name__)
_TAIL_LINES = 20


class RankContext(Value):
    """One rank's place in the launch.

    Attributes:
        device_kind: ``cpu``, ``cuda`` or ``npu``.
        device: the device that this rank computes on.
        groups: process groups by role; ``world`` is always there when ``torch.distributed`` is up.
    """

    rank: int
    world_size: int
    local_rank: int
    device_kind: str
    device: torch.device
    groups: Mapping[str, ProcessGroup] = field(default_factory=dict)

    def group(self, role: str) -> ProcessGroup:
        """The process group of this rank with the given role; `GroupError` if there is none."""
        try:
            return self.groups[role]
        except KeyError:
            known = ", ".join(sorted(self.groups)) or "none (torch.distributed is not initialised)"
            msg = f"rank {self.rank} has no process group with role {role!r}; known roles: {known}"
            raise GroupError(msg, role=role, rank=self.rank) from None

    def group_size(self, role: str) -> int:
        """Number of ranks in the group of this role; 1 where there is no such group."""
        return self.groups[role].size() if role in self.groups else 1

    def group_rank(self, role: str) -> int:
        """This rank's position in the group of this role; 0 where there is no such group."""
        return self.groups[role].rank() if role in self.groups else 0


class Call(Value):
    """One call to warm up with: a cached function and its arguments.

    The arguments are examples: they are traced, captured and, in the first-call stage, really run.
    """

    function: CachedFunction
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Workload(Value):
    """Result of an entrypoint.

    Attributes:
        model: the module whose methods are cached.
        calls: the calls to warm up with, in the order in which they run.
        check: compares the warm model with a reference; runs on every rank at the same time, so it may
            use collectives.
        runtime_state: what the graphs depend on beside their arguments, such as the number of blocks of the
            KV cache; declared for the model and the modules of all calls (`warmrank.declare_runtime_state`).
    """

    model: torch.nn.Module
    calls: tuple[Call, ...]
    check: Callable[[], Verification] | None = None
    runtime_state: Mapping[str, Scalar] = field(default_factory=dict)


def build_workload(entrypoint: str, context: RankContext, arguments: Mapping[str, Any]) -> Workload:
    """Import ``module:function``, call it, check what it returns, and declare its runtime state."""
    function = _import_entrypoint(entrypoint)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        pass  # a callable that does not say what it takes
    else:
        check_arguments(entrypoint, signature, context, arguments)
    workload = _checked(entrypoint, function(context, **arguments))
    if workload.runtime_state != {}:
        from warmrank.worker.runtime.runtime_state import declare_runtime_state

        try:
            for module in (workload.model, *(call.function.module for call in workload.calls)):
                declare_runtime_state(module, workload.runtime_state)
        except BadRuntimeState as error:
            msg = f"entrypoint {entrypoint} returned a Workload whose {error.message}"
            raise WorkloadError(msg, entrypoint=entrypoint) from error
    return workload


def check_arguments(
    entrypoint: str, signature: inspect.Signature, context: RankContext | None, arguments: Mapping[str, Any]
) -> None:
    """Tell arguments that do not fit from a `TypeError` of the entrypoint itself."""
    try:
        signature.bind(context, **arguments)
    except TypeError as error:
        parameters = list(signature.parameters)[1:]
        free = [name for name in parameters if name not in arguments]
        unknown = [name for name in arguments if name not in signature.parameters]
        near = [found for name in unknown for found in difflib.get_close_matches(name, free, n=1)]
        taken = ", ".join(str(signature.parameters[name]) for name in parameters) or "nothing else"
        msg = (
            f"entrypoint {entrypoint} cannot be called with the config's workload.arguments: {error}. "
            f"Given: {', '.join(arguments) or 'none'}; it takes the rank's context and {taken}."
            + "".join(f" Did you mean {name!r}?" for name in near)
        )
        raise WorkloadError(msg, entrypoint=entrypoint) from None


def _checked(entrypoint: str, workload: Any) -> Workload:
    """Refuse another result, and fields of another kind, such as a lone call where a comma was forgotten."""
    import torch

    from warmrank.worker.runtime.function import CachedFunction

    def expect(where: str, given: object, kinds: Any, expected: str) -> None:
        if not isinstance(given, kinds):
            msg = f"entrypoint {entrypoint}: {where} is {type(given).__qualname__}; expected {expected}."
            raise WorkloadError(msg, entrypoint=entrypoint, field=where)

    made = "a warmrank.Workload(model=..., calls=(warmrank.Call(function=...), ...))"
    expect("what it returns", workload, Workload, made)
    expect("model", workload.model, torch.nn.Module, "a torch.nn.Module")
    expect("calls", workload.calls, (tuple, list), "a tuple: (warmrank.Call(...),)")
    expect("check", workload.check, (Callable, type(None)), "a function without arguments")
    if not workload.calls:
        msg = (
            f"entrypoint {entrypoint} returned no calls to warm up with; each rank needs a warmrank.Call, "
            "also those of a pipeline stage that caches nothing else."
        )
        raise WorkloadError(msg, entrypoint=entrypoint)
    for position, call in enumerate(workload.calls):
        where = f"calls[{position}]"
        expected = "warmrank.Call(function=<what cache_compile returned>, args=(...), kwargs={...})"
        expect(where, call, Call, expected)
        expect(where, call.function, CachedFunction, expected)
        expect(f"{where}.args", call.args, (tuple, list), "a tuple: (x,)")
        expect(f"{where}.kwargs", call.kwargs, Mapping, "a dict of keyword arguments")
    assert isinstance(workload, Workload)  # noqa: S101 - for type checkers
    # Traces add to the arguments, as to a tuple.
    return replace(workload, calls=tuple(replace(call, args=tuple(call.args)) for call in workload.calls))


def not_imported(entrypoint: str, reason: str, nearest: str = "") -> WorkloadError:
    """Error of an entrypoint whose module does not import, with the nearest module that is there."""
    module, _, function = entrypoint.partition(":")
    hint = f"; did you mean {nearest}:{function}?" if nearest else "."
    if module.endswith(".py"):
        hint = "; leave out .py."
    msg = (
        f"entrypoint {entrypoint}: module {module!r} does not import: {reason}{hint} "
        "It is looked for on sys.path, which includes the directory the launch was started in."
    )
    return WorkloadError(msg, entrypoint=entrypoint)


def no_function(entrypoint: str, known: Iterable[str]) -> WorkloadError:
    """Error of an entrypoint whose module has no such function, with the nearest of those that it has."""
    module, _, function = entrypoint.partition(":")
    nearest = difflib.get_close_matches(function, list(known), n=1)
    hint = f"; did you mean {module}:{nearest[0]}?" if nearest else ""
    msg = f"entrypoint {entrypoint}: {module!r} has no function {function!r}{hint}"
    return WorkloadError(msg, entrypoint=entrypoint)


def _import_entrypoint(entrypoint: str) -> Callable[..., object]:
    module_name, _, function_name = entrypoint.partition(":")
    if not (module_name and function_name):
        msg = f"entrypoint {entrypoint!r} is not 'module:function' (for example my_model:workload)"
        raise WorkloadError(msg, entrypoint=entrypoint)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise not_imported(entrypoint, str(error)) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise no_function(entrypoint, [name for name, value in vars(module).items() if callable(value)])
    return function  # type: ignore[no-any-return]


def journal_of(spec: RankSpec) -> Path:
    """Journal of the script that this process runs: launches side by side do not mix."""
    partition = f"world{spec.world_size}global_rank{spec.rank}"
    return Path(spec.cache_dir) / ".journal" / f"{partition}-{os.getpid()}.jsonl"


def run_script(spec: RankSpec, path: str, arguments: tuple[str, ...]) -> tuple[FunctionResult, ...]:
    """Run a script to its end on this rank.

    Returns:
        One result per artifact of each cached function that the script called, in the order of their first
        uses; a function's second one is named ``Model.f[1]``.

    Raises:
        CompileForbidden: it ended because something missed, and compiling is forbidden.
        ScriptFailed: the script ended with another error; ``results``: as far as it came.
        WorkloadError: it is not there.
    """
    if not Path(path).is_file():
        msg = f"rank {spec.rank}: script {path} is not there (looked for from {Path.cwd()})"
        raise WorkloadError(msg, rank=spec.rank, script=path)
    file = journal_of(spec)
    with os_errors_are_unusable("file", file):
        make_private_directories(file.parent)
        file.unlink(missing_ok=True)
    environ = {**os.environ, **_variables(spec), "WARMRANK_JOURNAL": str(file)}
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with subprocess.Popen(  # noqa: S603 - running the user's script is what this is for
        [sys.executable, path, *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            for line in process.stdout:
                tail.append(line.rstrip("\n"))
                _log.info("%s", tail[-1])
        except BaseException:
            process.kill()
            raise
    results = _distinct(result for result, _ in journal.read(file))
    if status := process.returncode:
        for function, reason in journal.forbidden(file):
            raise CompileForbidden(reason, function=function, reason=reason)
        last = "\n".join(tail)
        msg = f"rank {spec.rank}: script {path} {ended_text(status)}; its last lines:\n{last}"
        raise ScriptFailed(msg, rank=spec.rank, script=path, status=status, results=results)
    return results


def _distinct(results: Iterable[FunctionResult]) -> tuple[FunctionResult, ...]:
    """The first result of each artifact of each function, under names of their own."""
    first: dict[tuple[str, str], FunctionResult] = {}
    num_seen: Counter[str] = Counter()
    for result in results:
        name, slot = result.function, (result.function, result.digest)
        if slot not in first:
            first[slot] = replace(result, function=unit_name(name, num_seen[name]))
            num_seen[name] += 1
    return tuple(first.values())


def unit_name(function: str, number: int) -> str:
    """Name of a function's call in a launch, counted from 0: ``Llama.decode``, ``Llama.decode[1]``."""
    return f"{function}[{number}]" if number else function


def _variables(spec: RankSpec) -> dict[str, str]:
    """As torchrun sets them, and where the cache lies; the script's own directory stays importable."""
    return {
        # Where compiling is allowed, what the variable says is left as it is.
        **({"WARMRANK_NO_COMPILE": "1"} if spec.no_compile else {}),
        "RANK": str(spec.rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_RANK": str(spec.local_rank),
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "GROUP_RANK": str(spec.node_rank),
        "MASTER_ADDR": spec.master_addr,
        "MASTER_PORT": str(spec.master_port),
        "TORCHAIR_CACHE_HOME": spec.cache_dir,
        "PYTHONUNBUFFERED": "1",  # its output is followed line by line
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path[1:]]),
    }
