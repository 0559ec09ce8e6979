"""What `up` and `down` end with where hosts do not do as told: one error that groups equal causes."""

from __future__ import annotations

from collections.abc import Iterable

from warmrank.orchestrator.cluster.connections import Answer
from warmrank.orchestrator.errors import OrchestratorError
from warmrank.orchestrator.text import count_text

_SHOWN = 8


class HostsFailed(OrchestratorError):
    """Some hosts of a cluster did not do what they were to.

    Attributes:
        what: what they did not do, e.g. ``come up``.
        answers: what came back from them.
        num_hosts: number of hosts that were asked.
        running: hosts on which the cluster runs nevertheless.
        remedy: what to do.
    """

    def __init__(
        self,
        what: str,
        answers: Iterable[Answer],
        *,
        num_hosts: int,
        running: Iterable[str] = (),
        remedy: str,
    ) -> None:
        self.what = what
        self.answers = tuple(answers)
        self.num_hosts = num_hosts
        self.running = tuple(running)
        self.remedy = remedy
        super().__init__("\n".join(_lines(self)))


def _lines(error: HostsFailed) -> Iterable[str]:
    yield f"{len(error.answers)} of {count_text(error.num_hosts, 'host')} did not {error.what}"
    groups: dict[tuple[str, ...], list[Answer]] = {}
    for answer in error.answers:
        # Of a hundred hosts that refuse a connection each names itself.
        cause = tuple(line.replace(answer.host, "") for line in (answer.trouble, *answer.lines))
        groups.setdefault(cause, []).append(answer)
    for answers in groups.values():
        yield f"  {hosts_text(answer.host for answer in answers)}: {answers[0].trouble}"
        yield from (f"    | {line}" for line in answers[0].lines)
    if unknown := [answer.host for answer in error.answers if answer.silent]:
        yield f"  not known what runs there: {hosts_text(unknown)}"
    yield f"  running: {hosts_text(error.running) if error.running else 'no other host'}"
    yield f"  remedy: {error.remedy}"


def hosts_text(hosts: Iterable[str]) -> str:
    """Names of hosts for people, the first few of many."""
    names = list(hosts)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
