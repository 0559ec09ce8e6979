"""One rank's process: the worker, or the script, and the store, and the Ray actor around them.

A `RankHost` is a plain object without Ray; `answer` is the edge of the rank: past it, failures are values.
The actor is a thin shell that sends the process's output to a log file. The first rank of a node works with
the store for all of its node; the others open it only where they compile, or adopt what no disk of theirs
has. So a warm rank imports neither pydantic nor the models of config and store, which would take it longer
than all that it loads.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.cache_store.cache_dir.marks import admit
from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir, make_private_directories
from warmrank.cache_store.errors import StoreError, StoreUnavailable, UnusableCache, UnwritableDisk
from warmrank.orchestrator.errors import FailureKind, FunctionFailed, VerificationFailed, WorkerFailure
from warmrank.orchestrator.gang import rank_files
from warmrank.orchestrator.gang.launcher import Process, Shared, free_port
from warmrank.orchestrator.nodes import RankPlacement
from warmrank.worker import collection
from warmrank.worker.errors import CompileForbidden
from warmrank.worker.keys.code import package_of
from warmrank.worker.keys.request import environment
from warmrank.worker.rank.rank_worker import RankSpec, RankWorker
from warmrank.worker.results import (
    CaptureProposal,
    FunctionProbe,
    FunctionResult,
    Partition,
    Published,
    TraceResult,
    Verification,
)
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.cache_store.seed import SeedReport
    from warmrank.cache_store.store import Store
    from warmrank.orchestrator.config.models import Config
    from warmrank.orchestrator.gang.node_artifacts import NodeKeeper
    from warmrank.orchestrator.nodes import NodeArtifacts
    from warmrank.worker.rank.units import OpenStore

logger = logging.getLogger(__name__)

MakeWorker = Callable[[RankSpec, "OpenStore"], Any]  # makes a `RankWorker`

_AWAY = "the store could not be used when the launch began"
_OWN = frozenset({"warmrank.worker", "warmrank.cache_store", "warmrank.orchestrator"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInit:
    """Arguments that make a process a rank; each rank is sent its own."""

    spec: RankSpec
    script: tuple[str, ...] = ()  # path and arguments; empty for an entrypoint
    trust: tuple[str, tuple[str, ...]]  # policy, and revoked keys
    has_store: bool
    store_away: str = ""  # why the driver found the store away, so that no rank asks it
    config: bytes  # pickled: only who opens the store reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A rank that is up; ``problem`` is what did not stop it, empty for nothing.

    Nothing in it is of one rank alone, so the answers of a node's ranks are one.
    """

    environment: dict[str, str]
    problem: str


def init_of(
    config: Config,
    placement: RankPlacement,
    *,
    master_addr: str = "",
    master_port: int = 0,
    no_compile: bool = False,
    store_away: str = "",
) -> RankInit:
    """A rank's view of the config and of its placement; no port for ranks that make no process groups."""
    from warmrank.orchestrator.config.models import EntrypointWorkload, ScriptWorkload, groups
    from warmrank.orchestrator.gang.node_artifacts import trust_of

    entry = config.workload if isinstance(config.workload, EntrypointWorkload) else None
    script = config.workload if isinstance(config.workload, ScriptWorkload) else None
    spec = RankSpec(
        rank=placement.rank,
        world_size=config.ranks,
        local_rank=placement.local_rank,
        local_world_size=placement.local_world_size,
        node_rank=placement.node_rank,
        master_addr=master_addr,
        master_port=master_port,
        device_kind=config.device,
        groups=groups(config, placement.rank),
        entrypoint=entry.entrypoint if entry else "",
        arguments=dict(entry.arguments) if entry else {},
        cache_dir=str(config.cache_dir),
        guards=config.guards,
        engine=config.engine,
        timeout_s=config.timeouts.collective_s,
        no_compile=no_compile,
        audited=config.audit != "off" and config.ranks > 1,
    )
    return RankInit(
        spec=spec,
        script=(script.script, *script.arguments) if script is not None else (),
        trust=trust_of(config),
        has_store=config.store is not None,
        store_away=store_away,
        config=pickle.dumps(config),
    )


class RankHost:
    """The calls that a launch makes on a rank: its own methods, and `RankWorker`'s that need no more.

    What `worker` raises passes unchanged.
    """

    def __init__(self, make_worker: MakeWorker | None = None) -> None:
        self._make_worker = make_worker
        self.worker: RankWorker  # these from `open` on
        self._init: RankInit
        self._spec: RankSpec
        self._is_open = False
        self.note: Callable[[str], object] = lambda _doing: None

    def open(self, init: RankInit) -> Opened:
        """Check the cache directory, open the store, and bring the rank up with all others.

        Raises:
            cache_store.errors.StoreError: the cache directory or the store cannot be used.
            worker.errors.WorkerError: the rank cannot be brought up.
        """
        self.note("start: opening the cache directory and the store")
        admit(Path(init.spec.cache_dir), *init.trust)
        self._take(init)
        problem = ""
        if init.spec.local_rank == 0:
            self._keeper.begin()
            problem = self._opened[1]
        self.note("start: importing torch")
        self.worker = (self._make_worker or RankWorker)(self._spec, lambda: self._opened[0])
        self._is_open = True
        if init.script:
            return Opened(environment=environment(), problem=problem)
        self.note(rank_files.RENDEZVOUS)
        return Opened(environment=self.worker.start(), problem=problem)

    def _take(self, init: RankInit) -> None:
        self._init = init
        self._spec = replace(init.spec, no_compile=init.spec.no_compile or settings().no_compile)

    @functools.cached_property
    def _config(self) -> Config:
        found: Config = pickle.loads(self._init.config)  # noqa: S301 - the driver's own bytes
        return found

    @functools.cached_property
    def _keeper(self) -> NodeKeeper:
        """Of a node's first rank."""
        from warmrank.orchestrator.gang.node_artifacts import NodeKeeper

        return NodeKeeper(self._config)

    @functools.cached_property
    def _opened(self) -> tuple[Store | None, str]:
        """The store, opened now; None, and why, if there is none or it is away."""
        if not self._init.has_store or self._init.store_away:
            return None, ""
        from warmrank.orchestrator.stores import open_store

        assert self._config.store is not None  # noqa: S101 - just looked at
        try:
            return open_store(self._config.store), ""
        except StoreUnavailable as error:
            if error.required:
                raise
            return None, str(error)

    def fetch(self, ranks: tuple[int, ...]) -> SeedReport | None:
        """Bring the partitions of this node's ranks from the store to its disk; None without a store."""
        store = self._opened[0]
        return self._keeper.fetch(store, ranks) if store is not None else None

    def node_report(self) -> NodeArtifacts | None:
        """The node's artifacts; None without node caches. For its first rank only."""
        return self._keeper.report()

    def publish(
        self, launch_key: str, partitions: Mapping[int, Partition], may_queue: bool, is_behind: bool
    ) -> dict[int, Published]:
        """Publish the partitions of this node's ranks; see `gang.node_artifacts.publish_manifests`.

        The node's artifacts go with its first rank; blobs that a rank shared once it had compiled them count
        as new.
        """
        from warmrank.orchestrator.gang.node_artifacts import publish_manifests
        from warmrank.worker.rank.manifests import unpacked

        manifests = {rank: unpacked(part.manifest) for rank, part in partitions.items()}
        manifests[self._spec.rank] = self._keeper.with_artifacts(manifests[self._spec.rank])
        store, problem = self._opened
        found = publish_manifests(
            Path(self._spec.cache_dir),
            (store, problem or f"{_AWAY}: {self._init.store_away}"),
            launch_key,
            manifests,
            may_queue=may_queue,
            is_behind=is_behind,
        )
        return {
            rank: replace(
                each,
                num_blobs_new=each.num_blobs_new + partitions[rank].num_shared,
                bytes_new=each.bytes_new + partitions[rank].bytes_shared,
            )
            for rank, each in found.items()
        }

    def compile(
        self, functions: tuple[str, ...], audits: tuple[str, ...] = ()
    ) -> tuple[FunctionResult | TraceResult, ...]:
        """Compile functions, then trace others for an audit; one that fails is a result."""
        compiled = tuple(self._compile(name) for name in functions)
        return (*_none_forbidden(compiled), *(self._audit(name) for name in audits))

    def _audit(self, name: str) -> TraceResult:
        try:
            return self.worker.audit((name,))[0]
        except Exception as error:  # noqa: BLE001 - the rank's edge, as in `answer`, for one function
            failure = failure_of(error, rank=self._spec.rank, stage="compile")
            return TraceResult(function=name, trace="", reason=f"{failure.kind}: {failure.message}")

    def _compile(self, name: str) -> FunctionResult:
        try:
            result = self.worker.compile((name,))[0]
        except UnwritableDisk:
            raise  # no function of this rank can be kept there
        except Exception as error:  # noqa: BLE001 - as above
            failure = failure_of(error, rank=self._spec.rank, stage="compile")
            kind, reason = failure.kind, f"{failure.kind}: {failure.message}"
            return FunctionResult(function=name, ok=False, outcome="compiled", reason=reason, error=kind)
        return result if result.ok else replace(result, outcome="compiled")

    def settle(
        self,
        load: tuple[str, ...],
        offers: dict[str, str],
        considered: dict[str, str] | None = None,
        fresh: tuple[str, ...] = (),
    ) -> tuple[FunctionResult, ...]:
        """Load functions, adopt others, and say of others whether they could be; a refusal is not ok.

        ``offers`` and ``considered`` are function -> digest; ``fresh``: offers that this launch compiled.
        """
        loaded = self.worker.load(load) if load else ()
        adopted = self.worker.adopt(offers, fresh) if offers else ()
        return (*loaded, *adopted, *(self.worker.consider(considered) if considered else ()))

    def take_in(self, function: str, handed: Shared) -> None:
        """Keep an artifact of another node, for all ranks of this one."""
        self.worker.take_in(function, handed.value)

    def capture(self, step: CaptureProposal) -> tuple[FunctionResult, ...]:
        """Capture one step; raises `FunctionFailed`, or worker's `CompileForbidden`."""
        return _all_ok(self.worker.capture(step))

    def first_call(self, place: int) -> tuple[FunctionResult | FunctionProbe, ...]:
        """Run a call of the workload; errors as of `capture`."""
        answers = self.worker.first_call(place)
        _all_ok(tuple(item for item in answers if isinstance(item, FunctionResult)))
        return answers

    def verify(self) -> tuple[Verification, tuple[FunctionResult, ...]]:
        """Compare with the reference, and say what that needed beyond the workload's calls.

        Raises `VerificationFailed` if the outputs differ by more than is allowed.
        """
        found = self.worker.verify()
        if found.ok:
            return found, self.worker.extra()
        raise VerificationFailed(
            f"{found.compared}: largest difference {found.max_error:g}, allowed {found.tolerance:g}"
        )

    def run_script(self) -> tuple[FunctionResult, ...]:
        """Run the script to its end; raises worker's `CompileForbidden` or `ScriptFailed`."""
        from warmrank.worker.rank.workload import run_script

        path, *arguments = self._init.script
        return run_script(self._spec, path, tuple(arguments))

    def close(self) -> None:
        """Take the rank down."""
        from warmrank.worker.rank.workload import journal_of

        if self._is_open:
            self._is_open = False
            self.worker.stop()
            if self._init.script:
                journal_of(self._spec).unlink(missing_ok=True)

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method by its name, as it crosses Ray: of this object, or else of its `RankWorker`."""
        owner = self if hasattr(self, method) else self.worker
        return getattr(owner, method)(*arguments)


def _none_forbidden(results: tuple[FunctionResult, ...]) -> tuple[FunctionResult, ...]:
    """The same results; raises `CompileForbidden` if a function failed because compiling is forbidden."""
    for result in results:
        if not result.ok and result.error == CompileForbidden.__name__:
            raise CompileForbidden(result.reason.removeprefix(f"{result.error}: "), function=result.function)
    return results


def _all_ok(results: tuple[FunctionResult, ...]) -> tuple[FunctionResult, ...]:
    """The same results; raises if a function failed."""
    for result in _none_forbidden(results):
        if not result.ok:
            raise FunctionFailed(result.function, result.reason)
    return results


def answer(host: RankHost, rank: int, stage: str, method: str, arguments: tuple[Any, ...]) -> Any:
    """Call a method of a rank; whatever it raises, but Ctrl-C, comes back as a `WorkerFailure`."""
    try:
        return host.call(method, arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the driver gets values, never exceptions
        return failure_of(error, rank=rank, stage=stage)


def failure_of(error: BaseException, *, rank: int, stage: str) -> WorkerFailure:
    """The value that stands for an exception; names the line where the message may not explain itself."""
    logger.error("Rank %d failed in stage %s", rank, stage, exc_info=error)
    # The rank stands beside the message; within it, it would keep equal causes from being grouped.
    try:
        message = str(error).removeprefix(f"rank {rank}: ") or "(no message)"
    except Exception as fault:  # noqa: BLE001 - code of the user's
        message = f"(its text raises {type(fault).__name__})"
    if isinstance(error, SystemExit):
        message = f"the workload's code ended the process with sys.exit({error.code!r})"
    is_own = package_of(type(error).__module__) in _OWN
    if not is_own:
        steps = [
            (frame.f_code, line, package_of(str(frame.f_globals.get("__name__", ""))))
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        if steps:  # the user's line says more than torch's that it led to
            code, line, _ = ([step for step in steps if step[2] not in {"torch", *_OWN}] or steps)[-1]
            message += f" ({Path(code.co_filename).name}:{line} in {code.co_name})"
    return WorkerFailure(
        rank=rank,
        stage=stage,
        kind=FailureKind.WORKLOAD if isinstance(error, SystemExit) else type(error).__qualname__,
        message=message,
        function=str(getattr(error, "function", "")) if is_own else "",
        # A launch may go on without the store.
        store_fault=isinstance(error, StoreError)
        and not isinstance(error, UnusableCache)
        and not (isinstance(error, StoreUnavailable) and error.required),
        traceback="".join(traceback.format_exception(error)),
        results=getattr(error, "results", ()) if is_own else (),
    )


# Appending: a launch of the same name beside this one does not write over its lines.
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW


class RankActor:
    """One process of the gang; becomes a rank when the driver has seen where all processes are.

    It sets ``environ``, in time: torch reads it when the worker imports it, later.
    """

    def __init__(self, environ: Mapping[str, str], make_worker: MakeWorker | None) -> None:
        os.environ.update(environ)
        # Ray's handler raises SystemExit in whatever runs: a rank that was ended is no workload that failed.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if make_worker is None:
            # Beside all that is to be done before the rank has a place; torch alone takes a second or two.
            threading.Thread(target=_import_ahead, name="import-ahead", daemon=True).start()
        self._host = RankHost(make_worker)
        self._step: rank_files.StepFile | None = None

    def process(self) -> Process:
        """This process, for the driver to assign a rank to."""
        import ray

        node_id, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return Process(node_id=node_id, host=os.uname().nodename, address=address, pid=os.getpid())

    def free_port(self, address: str) -> int:
        """A TCP port that is free on this node."""
        return free_port(address)

    def log_to(self, rank: int, cache_dir: Path, log: Path) -> None:
        """Send log records, prints and a crash's last words of this process to a file of its own."""
        try:
            ensure_cache_dir(cache_dir)
            make_private_directories(log.parent)
            descriptor = os.open(log, _LOG_FLAGS, 0o600)
        except (StoreError, OSError):
            return  # stage start meets the same fault, and reports it
        self._step = rank_files.StepFile(rank_files.step_file(log))
        self._host.note = self._step.note
        rank_files.record_stacks(rank_files.stacks_file(log))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
        line = f"%(asctime)s %(levelname)s rank {rank} %(name)s: %(message)s"
        logging.basicConfig(level=logging.INFO, format=line, stream=sys.stderr, force=True)
        logging.getLogger(__name__).info("Process %d on %s", os.getpid(), os.uname().nodename)

    def call(self, rank: int, stage: str, method: str, *arguments: Any) -> Any:
        """Call a method of the rank's host; a failure comes back as a value."""
        if self._step is not None:
            self._step.note(_in_words(stage, method, arguments))
        found = answer(self._host, rank, stage, method, arguments)
        if self._step is not None:
            self._step.note("")
            if method == RankHost.close.__name__:
                self._step.close()
        if method == RankWorker.build.__name__:
            # torch and the model live as long as this process: without this, each full collection walks
            # all of it (0.13 s), and one falls into the load by chance.
            collection.freeze()
        return found


def _import_ahead() -> None:
    """Import what `open` needs; should that fail, `open` meets the same fault, and reports it."""
    with suppress(Exception):
        importlib.import_module("torch.distributed")


def _in_words(stage: str, method: str, arguments: tuple[Any, ...]) -> str:
    """A call's work in words: ``compile Model.decode``."""
    if method == RankHost.compile.__name__:
        doing = zip(("compile", "audit"), arguments, strict=True)
        return "; ".join(f"{what} {', '.join(names)}" for what, names in doing if names)
    return stage if method == stage else f"{stage}: {method.replace('_', ' ')}"
