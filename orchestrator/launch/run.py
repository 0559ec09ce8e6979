"""The ranks of a launch, or of a build, asked together: with time-outs, the launch's state, and its listener.

One object serves all attempts of a launch: the state is the launch's, the gang is the attempt's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import (
    TIMEOUT,
    CompileForbidden,
    FailureKind,
    LaunchFailed,
    WorkerFailure,
    in_words,
)
from warmrank.orchestrator.gang.launcher import Launcher, ProcessStatus
from warmrank.orchestrator.gang.rank_host import RankHost
from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.events import Event, LaunchState, Listener
from warmrank.orchestrator.launch.report import StageReport
from warmrank.orchestrator.nodes import Gang, distinct_hosts
from warmrank.worker.results import FunctionResult

T = TypeVar("T")
Arguments = Mapping[int, tuple[Any, ...]]
"""Arguments of a call by rank; ranks that are not named are not called."""

_CLOSE_TIMEOUT_S = 10.0
_NO_GANG = Gang(placements=(), master_addr="", master_port=0)


class Run:
    """The stages of one launch on its ranks; ``ranks`` are those that take part, all by default."""

    def __init__(
        self,
        config: Config,
        launcher: Launcher,
        listener: Listener,
        *,
        clock: Callable[[], float] = time.perf_counter,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.config = config
        self.ranks = tuple(range(config.ranks) if ranks is None else ranks)
        self._launcher, self._listener, self._clock = launcher, listener, clock
        self._began_s = clock()
        self.gang = _NO_GANG
        self.state = LaunchState(num_ranks=config.ranks)
        self.running = ""  # the stage that goes on; of a launch that failed, the one that it failed in
        self.shares_store = False  # whether ranks reach a store, and by it each other's artifacts
        launcher.on_wait = self._wait

    def begin_attempt(self, reason: str) -> None:
        """Forget the gang of the attempt before; ``reason`` is why there is another, empty for the first."""
        self.gang = _NO_GANG
        self.tell(events.AttemptStarted(attempt=self.state.attempt + 1, reason=reason))

    def attempt_failed(self, error: BaseException, *, is_last: bool) -> None:
        """Tell that the attempt is over."""
        attempt, text = self.state.attempt, in_words(error)
        self.tell(events.AttemptFailed(attempt=attempt, stage=self.running, text=text, is_last=is_last))

    def start(self) -> Gang:
        """Start the processes of all ranks; errors as of `Launcher.start`."""
        self.gang = self._launcher.start(len(self.ranks), timeout_s=self._timeout_s("start"))
        self.tell(events.Placed(placements=self.gang.placements))
        return self.gang

    @contextmanager
    def stage(self, name: str, ranks: tuple[int, ...] | None = None) -> Iterator[None]:
        """Time whatever is done inside as one stage, on all ranks unless some are named."""
        self.running = name
        self.tell(events.StageStarted(stage=name, ranks=self.ranks if ranks is None else ranks))
        began_s = self._clock()
        yield
        self.tell(events.StageFinished(stage=name, seconds=self._clock() - began_s))

    def ask(
        self,
        stage: str,
        method: Callable[..., T],
        arguments: Arguments,
        *,
        is_work: bool = True,
        may_lack_store: bool = False,
    ) -> dict[int, T]:
        """Call a method of some ranks' `RankHost`; all must succeed. Returns their answers in order of ranks.

        ``stage`` gives the time-out. Unless ``is_work``, the listener hears nothing of answers. A rank that
        the store fails, if that may be, is a problem, and left out of the answers.

        Raises:
            CompileForbidden: a rank would have had to compile, which is forbidden.
            LaunchFailed: at least one rank failed or did not answer in time.
        """
        answers = self.try_ask(stage, method, arguments, is_work=is_work)
        failures = [answer for answer in answers.values() if isinstance(answer, WorkerFailure)]
        if not all(may_lack_store and failure.store_fault for failure in failures):
            self.fail(stage, failures, silent=tuple(set(arguments) - set(answers)))
        for failure in failures:
            self.problem(f"stage {stage}: {failure.message}")
        return {rank: answer for rank, answer in answers.items() if not isinstance(answer, WorkerFailure)}

    def ask_all(self, stage: str, method: Callable[..., T], *arguments: Any) -> dict[int, T]:
        """Call a method with the same arguments on every rank; see `ask`."""
        return self.ask(stage, method, dict.fromkeys(self.ranks, arguments))

    def try_ask(
        self, stage: str, method: Callable[..., T], arguments: Arguments, *, is_work: bool = True
    ) -> dict[int, T | WorkerFailure]:
        """As `ask`, but failures come back as values, those of time as well."""
        timeout_s, began_s = self._timeout_s(stage), self._clock()
        answers: dict[int, T | WorkerFailure] = {}
        for rank, answer in self._launcher.call(stage, method.__name__, arguments, timeout_s=timeout_s):
            if isinstance(answer, ProcessStatus):
                if answer.doing:
                    self.tell(events.RankBusy(rank=rank, status=answer))
                continue
            is_ok = not isinstance(answer, WorkerFailure)
            if is_ok and isinstance(answers.get(rank), WorkerFailure):
                continue  # it came after all, but the call was cut short for it: others have not answered
            answers[rank] = answer
            if is_work or not is_ok:
                self.tell(events.RankFinished(stage=stage, rank=rank, ok=is_ok))
        has_failed = any(isinstance(answer, WorkerFailure) for answer in answers.values())
        if not has_failed or self._clock() - began_s >= timeout_s:
            late = [rank for rank in arguments if rank not in answers]
            stacks = self._launcher.stacks(late) if late else {}
            answers |= {rank: self._late(stage, rank, stacks.get(rank, "")) for rank in late}
        return dict(sorted(answers.items()))

    def fail(self, stage: str, failures: list[WorkerFailure], *, silent: tuple[int, ...] = ()) -> NoReturn:
        """End the attempt: make one error of all failures, at least one.

        ``silent`` ranks were asked too, and have not answered.

        Raises:
            CompileForbidden: a rank would have had to compile, which is forbidden.
            LaunchFailed: otherwise.
        """
        self.running = stage
        # On a disk that takes nothing there are no logs, or they lack their end.
        has_logs = all(one.kind != FailureKind.UNWRITABLE_DISK for one in failures)
        error = LaunchFailed(
            stage,
            failures,
            num_ranks=self.config.ranks,
            silent=silent,
            logs=self.gang.logs if has_logs else "",
            hosts=distinct_hosts(self.gang.placements) if len(self.gang.by_node()) > 1 else {},
        )
        misses = [one for one in error.failures if one.kind == FailureKind.COMPILE_FORBIDDEN]
        if misses:
            raise CompileForbidden((one.function, one.message, one.rank) for one in misses) from error
        raise error

    def tell(self, event: Event) -> None:
        """Take an event of this moment into the state, and tell the listener."""
        event = replace(event, at_s=self.wall_s())
        self.state.apply(event)
        self._listener(self.state, event)

    def tell_results(self, stage: str, results: Iterable[tuple[int, FunctionResult]]) -> None:
        """Tell the outcome of functions, by rank."""
        for rank, result in results:
            self.tell(events.FunctionFinished(stage=stage, rank=rank, result=result))

    def problem(self, text: str) -> None:
        """Note, once, what does not stop the launch."""
        if text not in self.state.problems:
            self.tell(events.Problem(text=text))

    def report(self) -> tuple[StageReport, ...]:
        """Wall seconds of every stage so far."""
        seconds = self.state.stage_seconds
        return tuple(StageReport(stage=stage, seconds=spent) for stage, spent in seconds.items())

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems noted so far, each once, in order."""
        return tuple(self.state.problems)

    def close(self) -> None:
        """Take the ranks down in good order; what does not go down is ended with the launcher."""
        self.tell(events.Ending())
        everyone = dict.fromkeys(self.ranks, ())
        for _ in self._launcher.call("stop", RankHost.close.__name__, everyone, timeout_s=_CLOSE_TIMEOUT_S):
            pass

    def wall_s(self) -> float:
        """Seconds since the launch began."""
        return self._clock() - self._began_s

    def _timeout_s(self, stage: str) -> float:
        seconds: float = getattr(self.config.timeouts, f"{stage}_s")
        return seconds

    def _wait(self, lacking: str) -> None:
        self.tell(events.StillWaiting())
        if lacking:
            self.problem(lacking)

    def _late(self, stage: str, rank: int, stacks: str) -> WorkerFailure:
        status, store = self.state.busy.get(rank), self.config.store
        needs_store = store is not None and any(tier.mode == "required" for tier in store.tiers)
        doing = f", last seen in {status.doing!r}" if status is not None else ""
        return WorkerFailure(
            rank=rank,
            stage=stage,
            kind=TIMEOUT,
            message=f"no answer within {self._timeout_s(stage):g} s{doing}",
            # The rank is warm by then: what hangs is the store.
            store_fault=stage == "commit" and not needs_store,
            traceback=stacks,
        )
