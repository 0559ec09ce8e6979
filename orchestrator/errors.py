"""Errors of the orchestrator: each keeps its fields, survives pickling, and says what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from warmrank.orchestrator.causes import Budget, FailureKind, WorkerFailure, causes_of, policy_of
from warmrank.orchestrator.text import brief_names, brief_ranks, count_text, grouped


class OrchestratorError(Exception):
    """Base of every error that `orchestrator` raises; attributes set by a subclass survive pickling.

    Attributes:
        budget: what another attempt takes; None for an error that ends the launch.
        is_lost: the cluster is to blame, not the workload: another launch may end well.
    """

    budget: Budget | None = None
    is_lost: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[OrchestratorError], args: tuple[Any, ...], fields: Mapping[str, Any]
) -> OrchestratorError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class BadInput(OrchestratorError):
    """Input of a command that cannot be used; the command ends with 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One thing that is wrong in a config: in a file or an override ``place``, at a dotted ``key``."""

    place: str
    key: str  # empty for the file as a whole
    found: str
    expected: str = ""
    nearest: str = ""  # empty when no known key is near
    remedy: str = ""

    def __str__(self) -> str:
        said = [f"found {self.found}", self.expected and f"expected {self.expected}", self.remedy]
        hint = f" (did you mean {self.nearest}?)" if self.nearest else ""
        key = f"{self.key}: " if self.key else ""
        return f"{self.place}: {key}{'; '.join(filter(None, said))}{hint}"


class ConfigError(BadInput):
    """A config, or another ``document`` of a person, that cannot be used; lists every problem found."""

    def __init__(self, problems: Iterable[ConfigProblem], *, document: str = "config") -> None:
        self.problems = tuple(problems)
        self.document = document
        super().__init__("\n".join(str(problem) for problem in self.problems))


class BadArgument(BadInput):
    """An argument of a command that cannot be used; says which, what was expected and what was found."""


class LaunchFailed(OrchestratorError):
    """A stage failed on at least one rank, so it was stopped on all.

    Attributes:
        causes: the failures, equal ones grouped, those that others follow from first.
        silent: ranks that had not answered when the launch was stopped.
        logs: where each rank's log lies on its node; empty when ranks ran in the driver's process.
        compiling: `launch.rounds.Compiling` of leaders that were lost.
        policy: of the failures.
    """

    def __init__(
        self,
        stage: str,
        failures: Iterable[WorkerFailure],
        *,
        num_ranks: int,
        silent: Iterable[int] = (),
        logs: str = "",
        hosts: Mapping[int, str] | None = None,
    ) -> None:
        self.stage = stage
        self.failures = tuple(sorted(failures, key=lambda failure: failure.rank))
        self.num_ranks = num_ranks
        self.silent = tuple(sorted(silent))
        self.logs = logs
        self.compiling: tuple[Any, ...] = ()
        self.causes = causes_of(self.failures, hosts or {})
        self.policy = policy_of(*(failure.kind for failure in self.failures))
        self.budget, self.is_lost = self.policy.budget, self.policy.exit == "LOST"
        super().__init__(self._describe())

    def _describe(self) -> str:
        if self.num_ranks == 1:
            lines = [f"stage {self.stage} failed on the one rank of the launch"]
        else:
            num_failed = len({failure.rank for failure in self.failures})
            ranks = f"{num_failed} of {self.num_ranks} ranks"
            lines = [f"stage {self.stage} failed on {ranks}; all ranks were stopped"]
        for cause in self.causes:
            on = f" on {brief_names(cause.hosts)}" if cause.hosts else ""
            what = f"{cause.kind} in {cause.function}" if cause.function else cause.kind
            lines.append(f"  {ranks_text(cause.ranks)}{on}: {what}: {cause.message}")
            if cause.remedy:
                lines.append(f"    remedy: {cause.remedy}")
        if self.silent:
            lines.append(f"  {ranks_text(self.silent)}: had not answered when the launch was stopped")
        if self.logs:
            lines.append(f"  logs: {self.logs} on each rank's node")
        return "\n".join(lines)


class FunctionFailed(OrchestratorError):
    """A cached function failed in a stage in which every rank must succeed."""

    def __init__(self, function: str, reason: str) -> None:
        self.function = function
        super().__init__(reason)


class VerificationFailed(OrchestratorError):
    """The warm model's output differs from its reference by more than is allowed."""


class CannotStart(OrchestratorError):
    """The ranks could not be started; the message names what is missing and the remedy.

    Another attempt may pass only with a ``budget``: nothing is known to lack. Without one, ``is_lost`` says
    that nothing answers where the head should, or nodes that are missing were there at first.
    """

    def __init__(self, message: str, *, budget: Budget | None = None, is_lost: bool = False) -> None:
        self.budget, self.is_lost = budget, is_lost or budget is not None
        super().__init__(message)


class LacksDevice(CannotStart, BadInput):
    """A machine on which the ranks were to run has too few accelerators, and gets no more."""


class BuildFailed(OrchestratorError):
    """Ranks that should be alike are not."""


class UnknownNode(BadInput):
    """A node that was asked for is not in the cluster, or its name fits several."""


class DemoFailed(OrchestratorError):
    """A launch of the demo did not end as it must; the demo ends with ``exit_code``."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ForbiddenCompile(NamedTuple):
    """One function that would have to be compiled, for one reason, on some ranks."""

    function: str
    reason: str
    ranks: tuple[int, ...]


class CompileForbidden(OrchestratorError):
    """The launch may not compile (``--no-compile``), and missed functions, each with reason and rank."""

    def __init__(self, missed: Iterable[tuple[str, str, int]]) -> None:
        ranks = grouped(((function, reason), rank) for function, reason, rank in missed)
        self.misses = tuple(ForbiddenCompile(*key, tuple(own)) for key, own in ranks.items())
        lines = [f"  {miss.function} on {ranks_text(miss.ranks)}: {miss.reason}" for miss in self.misses]
        head = f"compiling is forbidden (no_compile), and {count_text(len(lines), 'function')} missed:"
        remedy = policy_of(FailureKind.COMPILE_FORBIDDEN).remedy
        super().__init__("\n".join([head, *lines, f"  remedy: {remedy}"]))


def in_words(error: BaseException) -> str:
    """The text of an error; what stops a launch from outside has none itself."""
    if isinstance(error, KeyboardInterrupt):
        return f"stopped ({'SIGTERM' if type(error) is not KeyboardInterrupt else 'Ctrl-C'})"
    return str(error).strip() or type(error).__name__


def first_line(error: BaseException) -> str:
    """The line that says what happened, without a full stop; the others of such an error say where."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def ranks_text(ranks: Iterable[int]) -> str:
    """All ranks for people, however many: ``rank 3``, ``ranks 0-2, 5``."""
    return brief_ranks(ranks, max_runs=sys.maxsize)
