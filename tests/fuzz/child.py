"""A server that runs jobs, each in a process forked from this one, which has imported torch but no program.

``python -m tests.fuzz.child cold`` has also imported the tracer and traced something; ``warm`` has imported
neither Dynamo nor the compile path, and checks that a load does not either; ``npu`` has an emulated NPU and
has traced with both packages of TorchAir. ``device`` runs a job itself, on a real NPU, which survives no
fork. A job is a line of JSON on standard input, its result a line on standard output.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import logging
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

FORBIDDEN = ("torch._dynamo", "torch._inductor", "sympy", "torchair")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process.

    Attributes:
        package: directory that holds the program's package.
        cache: the cache directory.
        mode: of `cache_compile`.
        dynamic: of `cache_compile`.
        guards: of `cache_compile`; empty for its default.
        mutate: statements on the built model before its first call.
        later: statements on the model after its first calls, which are then repeated.
        context: context managers of the calls.
        later_context: those of the repeated calls, if others.
        environment: environment variables; None removes one.
        may_compile: a miss compiles; else it is the outcome ``miss``.
        rank: rank and world size of a process group: a fake one, unless ``gloo``.
        gloo: so many ranks, each a process with a real group, run the job; 0: one process does.
        alone: of these ranks only the first finds files of its own partition.
        engine, tolerance, fresh: see `tests.fuzz.program.Program`.
        vendor: TorchAir's own `cache_compile` is tried, instead of warmrank's.
        whole: all of the arguments and of the module is compared, not only tensors and plain attributes.
        captured: each call is captured ahead, so that it replays; else a shape's first call runs its graph.
        time_s: the process is killed after that long.
    """

    package: str
    cache: str
    mode: str = "reduce-overhead"
    dynamic: bool = True
    guards: str = ""
    mutate: str = ""
    later: str = ""
    context: str = "torch.no_grad()"
    later_context: str = ""
    environment: dict[str, str | None] = field(default_factory=dict)
    may_compile: bool = True
    rank: tuple[int, int] | None = None
    gloo: int = 0
    alone: bool = False
    engine: str = ""
    tolerance: float = 0.0
    vendor: bool = False
    fresh: bool = False
    whole: bool = False
    captured: bool = False
    time_s: float = 300.0


@dataclass(slots=True)
class Calls:
    """Some calls, eager and cached.

    Attributes:
        outcome: ``loaded``, ``compiled``, ``adopted``, ``ran`` (no new look-up), ``miss``, ``refused``,
            ``raised`` (as eager does), ``eager raised`` (and the cached function refused or missed),
            ``torch wrong`` (as `torch.compile` is), or what must not be: `BAD`.
        detail: reason or message.
        eager: what eager returned, in brief, on each rank; tells whether a change matters.
        outcomes: of each call: ``compiled``, ``loaded``, or ``ran`` where something loaded already fits.
        captures: graphs that are captured at the end.
    """

    outcome: str
    detail: str = ""
    eager: str = ""
    outcomes: list[str] = field(default_factory=list)
    captures: int = 0


@dataclass(slots=True)
class Result:
    """What became of a job: its first calls, and those after a change; or an error of the program's own."""

    first: Calls | None = None
    later: Calls | None = None
    broken: str = ""


BAD = frozenset({"wrong", "raw error", "answered", "imported", "died", "hung"})
"""Failures; ``answered``: where eager raises; ``imported``: a load imported what only a compile may."""
_ENDED = frozenset({"refused", "miss", "eager raised", "raised", "torch wrong"})


class _Run:
    """The calls of one process."""

    def __init__(self, job: Job) -> None:
        import torch

        self.torch = torch
        self.job = job
        sys.path.insert(0, job.package)
        _start_rank(job)
        modules = {name: importlib.import_module(f"fuzzed.{name}") for name in ("main", "helper", "conf")}
        self.scope = {**vars(modules["main"]), **modules, "scope": sys.modules[__name__]}
        self.main: Any = modules["main"]
        self.models = [self.main.build(), self.main.build()]
        self._apply(job.mutate, self.models)
        self.judge = self.models[0].forward
        if job.fresh:
            (empty := Path(job.package, "empty")).mkdir()
            self.judge, _ = _vendors(job, _apart(self.judge), str(empty), self.main.options)
        make = _vendors if job.vendor else _cached
        self.cached, self._told = make(job, self.models[1].forward, job.cache, self.main.options)

    def _apply(self, statements: str, models: list[Any]) -> None:
        """Run statements on each model, or once if they concern none."""
        concerned = models if re.search(r"\bm\b", statements) else models[:1]
        for model in concerned if statements else ():
            self.torch.manual_seed(1)
            scope = {**self.scope, "m": model, "DIRECTORY": self.job.package}
            exec(statements, scope)  # noqa: S102 - text of the generator

    def calls(self, context: str) -> Calls:
        before = self._told()
        eager, outcomes, last = "", [], before
        for call in range(self.main.NUM_CALLS):
            with contextlib.ExitStack() as stack:
                for entered in eval(f"({context},)", dict(self.scope)):  # noqa: S307 - likewise
                    stack.enter_context(entered)
                found, text = self._call(call)
            eager += text
            if found is not None:
                found.eager = eager
                return found
            result = self._told()
            outcomes.append("ran" if result == last else result.outcome)
            last = result
        if last is None or last == before:
            return Calls("ran", eager=eager, outcomes=outcomes)
        captures = 0 if self.job.vendor else self.cached.statistics.captures
        return Calls(last.outcome, last.reason, eager, outcomes, captures)

    def _call(self, call: int) -> tuple[Calls | None, str]:
        """One call of both; how it ended if that was not equal, and eager's result in brief."""
        from tests.support.compare import cloned, difference, storages

        (eager, model), called = self.models, self.main.called
        wanted_args, wanted_kwargs = self.main.arguments(call)
        args, kwargs = self.main.arguments(call)
        try:
            returned = called(self.judge, wanted_args, wanted_kwargs)
        except Exception as error:  # noqa: BLE001 - whatever the program raises
            return self._after_error(error, args, kwargs), f"{type(error).__name__} "
        wanted, given = cloned(returned), [wanted_args, wanted_kwargs]
        shared = [[address == other for other in storages(given)] for address in storages(returned)]
        tolerance = 1e-6 if self.job.mode == "max-autotune" else self.job.tolerance
        if self.job.engine:
            exact = (None, self.torch.float32, self.torch.float64)
            tolerance = 1e-5 if getattr(wanted, "dtype", None) in exact else 0.05
        text, known = _brief(wanted), set(sys.modules)
        try:
            if self.job.captured:
                self.cached.warm_up(*args, **kwargs)
            returned = called(self.cached, args, kwargs)
        except Exception as error:  # noqa: BLE001 - judged
            return _judged(error), text
        got, whole = cloned(returned), self.job.whole
        told = [v for v in wanted_args if whole or isinstance(v, self.torch.Tensor)]
        found = [v for v in args if whole or isinstance(v, self.torch.Tensor)]
        wrong = (
            difference(wanted, got, "result", tolerance * _magnitude(wanted))
            or difference(cloned(told), cloned(found), "arguments", tolerance)
            or difference(_state(eager, whole=whole), _state(model, whole=whole), "state", tolerance)
        )
        inputs = storages([args, kwargs])
        if not wrong and shared != [[address == other for other in inputs] for address in storages(returned)]:
            wrong = "outputs share memory with other inputs than eager's"
        if wrong:
            name = "torch wrong" if self._torch_gives(got, call) else "wrong"
            return Calls(name, f"call {call}: {wrong}"), text
        imported = [name for name in FORBIDDEN if name in sys.modules and name not in known]
        if imported and not self.job.may_compile and not self.job.vendor:
            return Calls("imported", ", ".join(imported)), text
        return None, text

    def _after_error(self, wanted: Exception, args: Any, kwargs: Any) -> Calls:
        """Eager raised; so must the cached function, in some way."""
        from warmrank.worker.errors import WorkerError

        try:
            got = self.cached(*args, **kwargs)
        except WorkerError as error:
            return Calls("eager raised", f"{type(wanted).__name__}: {wanted}; {type(error).__name__}")
        except Exception as error:  # noqa: BLE001 - judged
            if type(error) is type(wanted):
                return Calls("raised", repr(error))
            return Calls("raw error", f"eager raised {wanted!r}, cached {error!r}\n{traceback.format_exc()}")
        name = "torch wrong" if self._torch_gives(got, 0) else "answered"
        return Calls(name, f"eager raised {wanted!r}; cached: {_brief(got)}")

    def _torch_gives(self, got: Any, call: int) -> bool:
        """Whether `torch.compile` gives the same for what was just compiled, so that Dynamo is wrong."""
        from tests.support.compare import difference

        result = self._told()
        is_compiled = self.job.may_compile and result is not None and result.outcome == "compiled"
        if call or self.job.engine or not is_compiled:
            return False
        model = self.main.build()
        if "m" in self.job.mutate:
            self._apply(self.job.mutate, [model])
        args, kwargs = self.main.arguments(call)
        dynamo = self.torch.compile(model.forward, backend="eager", fullgraph=True, dynamic=self.job.dynamic)
        try:
            compiled = dynamo(*args, **kwargs)
        except Exception:  # noqa: BLE001 - then it is not the same
            return False
        return not difference(got, compiled, "result", 1e-6 * _magnitude(got))

    def run(self) -> Result:
        result = Result(first=self.calls(self.job.context))
        assert result.first is not None
        if self.job.later and result.first.outcome not in BAD | _ENDED:
            os.environ["WARMRANK_NO_COMPILE"] = "1"
            try:
                self._apply(self.job.later, self.models)
            except Exception:  # noqa: BLE001 - a change that does not fit this program
                result.broken = traceback.format_exc(limit=-2)
                return result
            result.later = self.calls(self.job.later_context or self.job.context)
        return result


def _cached(job: Job, function: Any, cache: str, options: Any) -> tuple[Any, Callable[[], Any]]:
    """The function, cached by warmrank, and what tells of its latest look-up."""
    from warmrank import CompilerConfig
    from warmrank.inference import cache_compile

    config = CompilerConfig()
    config.mode = job.mode
    more: dict[str, Any] = {"guards": job.guards} if job.guards else {}
    if job.mode == "max-autotune":
        more["ge_cache"] = True
    if job.engine:
        more["engine"] = job.engine
    more = {"dynamic": job.dynamic, "cache_dir": cache, **more, **options(config, _package(job))}
    made = cache_compile(function, config=config, **more)
    return made, lambda: made.last_result


def _vendors(job: Job, function: Any, cache: str, options: Any) -> tuple[Any, Callable[[], Any]]:
    """As `_cached`, by TorchAir; only its log says whether it loads."""
    package = _package(job)
    config = package.CompilerConfig()
    if job.mode != "npugraph_ex":
        config.mode = job.mode
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(_name(job))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    more = {"dynamic": job.dynamic, "cache_dir": cache, **options(config, package)}
    made = package.inference.cache_compile(function, config=config, **more)
    return made, lambda: _looked_up([line for line in lines if cache in line])


def _apart(method: MethodType) -> MethodType:
    """The method with code of its own; TorchAir takes two compiles of equal code for a recompile."""
    function: Any = method.__func__
    code = function.__code__.replace(co_firstlineno=function.__code__.co_firstlineno + 1)
    own = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    own.__kwdefaults__ = function.__kwdefaults__
    return MethodType(own, method.__self__)


def _looked_up(lines: list[str]) -> Any:
    """What TorchAir's log says of a look-up; None before the first."""
    broken = [line for line in lines if line.startswith("Clear broken cache")]
    if any(line.startswith("Compiling cache for") for line in lines):
        return SimpleNamespace(outcome="compiled", reason=next(iter(broken), "it finds no cache"))
    is_loaded = any(line.startswith("Loading cache from") for line in lines)
    return SimpleNamespace(outcome="loaded", reason="") if is_loaded else None


def _package(job: Job) -> Any:
    """TorchAir's package of a mode; None without an NPU."""
    return importlib.import_module(_name(job)) if job.engine else None


def _name(job: Job) -> str:
    """Of TorchAir's package for a mode, and of its logger."""
    return "npugraph_ex" if job.mode == "npugraph_ex" else "torchair"


def _judged(error: Exception) -> Calls:
    from warmrank.worker.errors import CompileForbidden, WorkerError

    if isinstance(error, CompileForbidden):
        return Calls("miss", error.reason)
    if isinstance(error, WorkerError):
        return Calls("refused", f"{type(error).__name__}: {error}")
    return Calls("raw error", "".join(traceback.format_exception(error, limit=-6)))


def _start_rank(job: Job) -> None:
    if job.rank is None:
        return
    import torch.distributed as dist

    rank, world_size = job.rank
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    if job.gloo:
        init: dict[str, Any] = {"backend": "gloo", "init_method": f"file://{job.package}/group"}
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        init = {"backend": "fake", "store": FakeStore()}
    wait = timedelta(seconds=job.time_s / 4)
    dist.init_process_group(**init, rank=rank, world_size=world_size, timeout=wait)


def _brief(value: Any) -> str:
    """A number that tells two results apart, and their type."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"{value!r:.80} "
    flat = value.detach().to(torch.complex128).reshape(-1)
    weights = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
    return f"{value.dtype}{tuple(value.shape)}{complex((flat * weights).sum()):.12g} "


def _magnitude(value: Any) -> float:
    import torch

    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
        return max(1.0, float(value.abs().nan_to_num(0.0, 0.0, 0.0).max()))
    return 1.0


def _state(model: Any, *, whole: bool) -> dict[str, Any]:
    import torch

    from tests.support.compare import cloned

    plain = (bool, int, float, str, *((list, torch.Tensor) if whole else ()))
    return {
        **cloned({name: value for name, value in model.state_dict().items() if value is not None}),
        **{name: cloned(value) for name, value in vars(model).items() if isinstance(value, plain)},
    }


@contextlib.contextmanager
def default_type(dtype: Any) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


def __getattr__(name: str) -> Any:
    """Modes that programs enter; made when asked for, because they import torch's private modules."""
    if name == "Doubling":
        from torch.utils._python_dispatch import TorchDispatchMode

        class Doubling(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                return out * 2 if "sin" in str(func) else out

        return Doubling
    if name == "DoublingFunctions":
        from torch.overrides import TorchFunctionMode

        class DoublingFunctions(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                return out * 2 if getattr(func, "__name__", "") == "sin" else out

        return DoublingFunctions
    raise AttributeError(name)


def attempt(job: Job) -> Result:
    """Run a job in this process; errors of the program itself are told apart."""
    if job.gloo and job.rank is None:
        return _on_ranks(job)
    warnings.simplefilter("ignore")
    for name, value in job.environment.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    if not job.may_compile:
        os.environ["WARMRANK_NO_COMPILE"] = "1"
    try:
        run = _Run(job)
    except Exception:  # noqa: BLE001 - the generator made something that does not run
        return Result(broken=traceback.format_exc(limit=-2))
    return run.run()


def _on_ranks(job: Job) -> Result:
    """Run a job on ranks that are processes; the first that stops early ends the others, and decides."""
    if job.alone:
        for rank in range(1, job.gloo):
            for partition in Path(job.cache).glob(f"*/world{job.gloo}global_rank{rank}"):
                shutil.rmtree(partition)
    started = [_started(replace(job, rank=(rank, job.gloo))) for rank in range(job.gloo)]
    running = {child: (rank, reader) for rank, (child, reader) in enumerate(started)}
    results: dict[int, Result] = {}
    while running:
        child, status = os.wait()
        rank, reader = running.pop(child)
        with os.fdopen(reader, "rb") as stream:
            result = result_of(stream.read(), status)
        if _stopped(result):
            for other in running:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            for calls in (result.first, result.later):
                if calls:
                    calls.detail = f"rank {rank}: {calls.detail}"
            return result
        results[rank] = result
    found = [results[rank] for rank in range(job.gloo)]
    later = [result.later for result in found if result.later]
    return Result(first=_joined([result.first for result in found if result.first]), later=_joined(later))


def _stopped(result: Result) -> bool:
    """Whether a rank made fewer calls than a rank that does all."""
    calls = (result.first, result.later)
    return bool(result.broken) or any(each.outcome in BAD | _ENDED for each in calls if each)


def _joined(calls: list[Calls]) -> Calls | None:
    """The calls of all ranks as one: what was compiled by one was compiled."""
    if not calls:
        return None
    outcomes = [each.outcome for each in calls]
    outcome = next((name for name in ("compiled", "adopted", "loaded") if name in outcomes), "ran")
    detail = next(each.detail for each in calls if each.outcome == outcome)
    return Calls(outcome, detail, "|".join(each.eager for each in calls))


def _started(job: Job) -> tuple[int, int]:
    """Start `attempt` in a process of its own; its number, and where its result can be read."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    if job.rank is None or not job.gloo:
        os.setpgid(0, 0)
    os.close(reader)
    sys.stdout = sys.stderr
    try:
        result = attempt(job)
    except BaseException:  # noqa: BLE001 - shown by the parent
        result = Result(first=Calls("raw error", traceback.format_exc(limit=-6)))
    with contextlib.suppress(BaseException):
        with os.fdopen(writer, "w") as stream:
            stream.write(json.dumps(asdict(result)))
        if job.gloo and job.rank and not _stopped(result):
            import torch.distributed as dist

            dist.barrier()  # a peer that leaves early can end this process from one of gloo's threads
        if job.engine:
            atexit._run_exitfuncs()  # as a process does that ends by itself
    os._exit(0)


def forked(job: Job) -> Result:
    """`attempt` in a process of its own."""
    child, reader = _started(job)
    parts: list[bytes] = []
    with os.fdopen(reader, "rb") as stream:
        while select.select([stream], [], [], job.time_s)[0]:
            part = os.read(stream.fileno(), 1 << 20)
            if not part:
                _, status = os.waitpid(child, 0)
                return result_of(b"".join(parts), status)
            parts.append(part)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Result(first=Calls("hung", f"over {job.time_s:.0f} s"))


def result_of(text: str | bytes, status: int = 0) -> Result:
    """The result that a process wrote before it ended with a status."""
    if not text:
        return Result(first=Calls("died", f"status {status}"))
    found = json.loads(text)
    calls = {name: found[name] and Calls(**found[name]) for name in ("first", "later")}
    return Result(broken=found["broken"], **calls)


def prepare(kind: str) -> None:
    """Import what a process of this kind has imported before its program."""
    import numpy  # noqa: F401, ICN001 - programs use it
    import torch
    from torch import nn

    importlib.import_module("warmrank.worker.engines.graph")
    importlib.import_module("warmrank.worker.runtime.function")
    if kind == "warm":
        return
    if kind == "device":
        from tests.fuzz import kinds

        importlib.import_module("warmrank.worker.devices").backend_for("npu")  # imports torch_npu
        kinds.DEVICE = "npu:0"
        return
    importlib.import_module("warmrank.worker.compile.compiler")  # as a compile would

    model = nn.Linear(4, 4)

    class Unrelated(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(model(x)).sum(-1, keepdim=True) * 3 + 1

    modes = ("reduce-overhead", "npugraph_ex") if kind == "npu" else ("reduce-overhead",)
    for mode in modes:
        with tempfile.TemporaryDirectory() as cache, torch.no_grad():
            job = Job(package="", cache=cache, mode=mode, engine="torchair" if kind == "npu" else "")
            function, _ = _cached(job, Unrelated().forward, cache, lambda *_: {})
            function(torch.ones(3, 4))
            torch._dynamo.reset()  # as if nothing had been traced


def main() -> None:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # TorchAir's log goes to standard output
    if sys.argv[1] == "npu":
        from tests import npu_emulator

        npu_emulator.install()
    prepare(sys.argv[1])
    gc.collect()
    gc.disable()  # each fork's collector would touch all of torch's pages
    output.write("ready\n")
    output.flush()
    for line in sys.stdin:
        run = attempt if sys.argv[1] == "device" else forked
        result = run(Job(**json.loads(line)))
        output.write(json.dumps(asdict(result)) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
