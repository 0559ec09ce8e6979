"""Runs one stage of a launch on its ranks: asks, times, tells the listener, makes one error of failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from orchestrator.config.models import Config, ScriptWorkload
from orchestrator.errors import CompileForbidden, ForbiddenCompile, LaunchFailed, WorkerFailure
from orchestrator.gang.launcher import Gang, Launcher
from orchestrator.show.listener import Listener
from orchestrator.show.report import StageReport
from worker.results import FunctionResult

Arguments = Mapping[int, tuple[Any, ...]]
"""Arguments of a call by rank; ranks that are not named are not called."""


_CLOSE_TIMEOUT_S = 10.0


class Stages:
    """The stages of one launch.

    Args:
        config: the launch; gives each stage its time-out.
        launcher: runs the ranks.
        listener: is told what happens.
        clock: seconds that only rise.
        ranks: those that take part; all of the launch unless some are named.
    """

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
        self._launcher = launcher
        self._listener = listener
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._began_s = clock()
        self.gang = Gang(seats=(), master_addr="", master_port=0)
        self._silent: frozenset[str] = frozenset()
        self.problems: list[str] = []

    def start(self) -> Gang:
        """Start the processes of all ranks.

        Raises:
            CannotStart: as `Launcher.start`.
        """
        self.gang = self._launcher.start(len(self.ranks), timeout_s=self._timeout_s("start"))
        return self.gang

    @contextmanager
    def stage(self, name: str, ranks: tuple[int, ...] | None = None) -> Iterator[None]:
        """Time whatever is done inside as one stage, on all ranks unless some are named."""
        self._listener.stage_started(name, self.ranks if ranks is None else ranks)
        began_s = self._clock()
        yield
        seconds = self._clock() - began_s
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._listener.stage_finished(name, seconds)

    def ask(self, stage: str, method: str, arguments: Arguments) -> dict[int, Any]:
        """Call a method on some ranks, all of which must succeed.

        Returns:
            The answer of each rank, in order of ranks.

        Raises:
            CompileForbidden: a rank would have had to compile, which is forbidden.
            LaunchFailed: at least one rank failed or did not answer in time.
        """
        answers = self.try_ask(stage, method, arguments)
        failures = [answer for answer in answers.values() if isinstance(answer, WorkerFailure)]
        if failures:
            self.fail(stage, failures, silent=tuple(set(arguments) - set(answers)))
        return answers

    def ask_all(self, stage: str, method: str, *arguments: Any) -> dict[int, Any]:
        """Call a method with the same arguments on every rank; see `ask`."""
        return self.ask(stage, method, dict.fromkeys(self.ranks, arguments))

    def ask_store(self, stage: str, method: str, arguments: Arguments) -> dict[int, Any]:
        """As `ask`, but a rank that the store fails is a problem, and left out of the answers."""
        answers = self.try_ask(stage, method, arguments)
        failures = [answer for answer in answers.values() if isinstance(answer, WorkerFailure)]
        if not all(failure.store_fault for failure in failures):
            self.fail(stage, failures, silent=tuple(set(arguments) - set(answers)))
        for failure in failures:
            self.problem(f"stage {stage}: {failure.message}")
        return {rank: answer for rank, answer in answers.items() if not isinstance(answer, WorkerFailure)}

    def try_ask(self, stage: str, method: str, arguments: Arguments) -> dict[int, Any]:
        """As `ask`, but failures come back as values, those of time as well."""
        timeout_s = self._timeout_s(stage)
        began_s = self._clock()
        answers: dict[int, Any] = {}
        for rank, answer in self._launcher.call(stage, method, arguments, timeout_s=timeout_s):
            answers[rank] = answer
            self._listener.rank_finished(stage, rank, self._clock() - began_s)
        if not any(isinstance(answer, WorkerFailure) for answer in answers.values()):
            late = [rank for rank in arguments if rank not in answers]
            answers.update({rank: self._late(stage, rank) for rank in late})
        return dict(sorted(answers.items()))

    def fail(self, stage: str, failures: list[WorkerFailure], *, silent: tuple[int, ...] = ()) -> NoReturn:
        """End the launch.

        Raises:
            CompileForbidden: a rank would have had to compile, which is forbidden.
            LaunchFailed: otherwise.
        """
        error = LaunchFailed(stage, failures, num_ranks=self.config.ranks, silent=silent, logs=self.gang.logs)
        misses = _forbidden(error.failures)
        if misses:
            raise CompileForbidden(misses) from error
        raise error

    def agree_on_silence(self, stage: str, ranks: Iterable[int]) -> None:
        """Spare everybody the wait for places of the store that gave none of ``ranks`` an answer.

        A place that only some of them found silent is left to each: it may be their node that is cut off.

        Raises:
            LaunchFailed: as `ask`.
        """
        config, asked = self.config.store, dict.fromkeys(ranks, ())
        if config is None or not asked:
            return
        answers = self.ask(stage, "silent_places", asked)
        silent = frozenset.intersection(*(frozenset(places) for places in answers.values()))
        if silent - self._silent:
            from orchestrator.store.stores import leave_alone

            self._silent |= silent
            leave_alone(config, silent)
            self.ask_all(stage, "leave_alone", tuple(sorted(silent)))

    def tell(self, stage: str, results: Mapping[int, tuple[FunctionResult, ...]]) -> None:
        """Tell the listener what became of functions."""
        for rank, functions in results.items():
            for function in functions:
                self._listener.function_finished(stage, rank, function)

    def problem(self, text: str) -> None:
        """Note, once, what does not stop the launch."""
        if text not in self.problems:
            self.problems.append(text)
            self._listener.problem(text)

    def report(self) -> tuple[StageReport, ...]:
        """Wall seconds of every stage so far."""
        return tuple(StageReport(stage=stage, seconds=seconds) for stage, seconds in self._seconds.items())

    def close(self) -> None:
        """Take the ranks down in good order; what does not go down is ended with the launcher."""
        everyone = dict.fromkeys(self.ranks, ())
        for _ in self._launcher.call("stop", "close", everyone, timeout_s=_CLOSE_TIMEOUT_S):
            pass

    @property
    def is_script(self) -> bool:
        """Whether the workload is a plain script."""
        return isinstance(self.config.workload, ScriptWorkload)

    def wall_s(self) -> float:
        """Seconds since the launch began."""
        return self._clock() - self._began_s

    def _timeout_s(self, stage: str) -> float:
        seconds: float = getattr(self.config.timeouts, f"{stage}_s")
        return seconds

    def _late(self, stage: str, rank: int) -> WorkerFailure:
        return WorkerFailure(
            rank=rank,
            stage=stage,
            kind="timeout",
            message=f"no answer within {self._timeout_s(stage):g} s",
            remedy=f"raise timeouts.{stage}_s, or look into the rank's log for what it waits on",
            store_fault=stage == "commit",  # the rank is warm by then: what hangs is the store
        )


def _forbidden(failures: Iterable[WorkerFailure]) -> list[ForbiddenCompile]:
    """What ranks would have had to compile, equal causes grouped."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for failure in failures:
        if failure.kind == "CompileForbidden":
            ranks.setdefault((failure.function, failure.message), []).append(failure.rank)
    return [
        ForbiddenCompile(function=function, reason=reason, ranks=tuple(found))
        for (function, reason), found in ranks.items()
    ]
