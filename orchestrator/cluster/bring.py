"""`warmrank up` and `warmrank down`: what is asked of which host, in which order, and what comes of it.

Up: the head first, then all others side by side, then the head says who has joined. What runs already in the
head's session is left alone. Down: the others first, then the head.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from warmrank.orchestrator.cluster.connections import Answer, Errand, Listener, run_all
from warmrank.orchestrator.cluster.errors import HostsFailed
from warmrank.orchestrator.cluster.hosts import Host, Hosts
from warmrank.orchestrator.cluster.script import (
    nodes_request,
    shell_script,
    start_request,
    status_request,
    stop_request,
)
from warmrank.orchestrator.text import count_text

logger = logging.getLogger(__name__)

_KEYS = {
    "start": ("up", "was_up", "node", "address", "session"),
    "status": ("up", "processes"),
    "stop": ("stopped",),
    "nodes": ("nodes",),
}
HostState = Literal["started", "up", "down", "stopped", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What is known of one host.

    Attributes:
        host: its name.
        head: whether Ray's head is to run there.
        state: what it is in, or was brought into: ``up`` where it was up before.
        address: by which Ray knows it; empty where it is not up.
        resources: what it offers to Ray; empty where the head was not asked.
        note: what is odd about it.
    """

    host: str
    head: bool
    state: HostState
    address: str = ""
    resources: Mapping[str, float] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """What is known of a cluster.

    Attributes:
        name: of the cluster.
        address: for ``ray.address`` of a config; empty while no head is up.
        dashboard: URL for `warmrank submit`; empty where there is none.
        auth_token_file: file with Ray's token, which launches need too; empty for no authentication.
        hosts: the hosts, the head first.
    """

    name: str
    address: str
    dashboard: str
    auth_token_file: str
    hosts: tuple[HostReport, ...]

    @property
    def all_up(self) -> bool:
        """Whether every host is up and has joined."""
        return all(host.state in {"up", "started"} for host in self.hosts)


def up(hosts: Hosts, *, on_answer: Listener = lambda _: None) -> ClusterReport:
    """Start what does not run yet, and wait until all hosts have joined.

    Raises:
        HostsFailed: a host did not start or did not join; those that did stay up.
    """
    (head,) = _ask(hosts, {hosts.head: start_request(hosts, hosts.head)}, on_answer)
    if head.trouble:
        remedy = "mend it, and run warmrank up again; the other hosts were not asked"
        raise HostsFailed("come up", [head], num_hosts=len(hosts.all), remedy=remedy)
    address, session = str(head.values["address"]), str(head.values["session"])
    requests = {
        host: start_request(hosts, host, head_address=address, session=session) for host in hosts.others
    }
    started = {answer.host: answer for answer in (head, *_ask(hosts, requests, on_answer))}
    right = {name: answer for name, answer in started.items() if not answer.trouble}
    joined = _joined(hosts, address, [str(answer.values["node"]) for answer in right.values()])
    missing = [
        replace(answer, trouble=f"it started, and did not join the head within {hosts.start_s:g} s")
        for answer in right.values()
        if answer.values["node"] not in joined
    ]
    failed = [*(answer for answer in started.values() if answer.trouble), *missing]
    if failed:
        lost = {answer.host for answer in failed}
        raise HostsFailed(
            "come up",
            failed,
            num_hosts=len(hosts.all),
            running=[name for name in right if name not in lost],
            remedy="mend them, and run warmrank up again: what is up is left alone; or warmrank down",
        )
    return _report(hosts, address, tuple(started.values()), joined)


def status(hosts: Hosts, *, on_answer: Listener = lambda _: None) -> ClusterReport:
    """Look at every host, and change nothing."""
    answers = _ask(hosts, {host: status_request(host) for host in hosts.all}, on_answer)
    head = answers[0]
    address = str(head.values.get("address", "")) if head.values.get("up") else ""
    joined = _joined(hosts, address, []) if address else {}
    return _report(hosts, address, answers, joined)


def down(hosts: Hosts, *, on_answer: Listener = lambda _: None) -> ClusterReport:
    """End every process of the cluster on every host, and remove what `up` made there.

    Raises:
        HostsFailed: a host did not answer, or a process there does not end.
    """
    requests = {host: stop_request(hosts, host) for host in hosts.others}
    answers = _ask(hosts, requests, on_answer)
    answers = (*_ask(hosts, {hosts.head: stop_request(hosts, hosts.head)}, on_answer), *answers)
    if failed := [answer for answer in answers if answer.trouble]:
        raise HostsFailed(
            "stop",
            failed,
            num_hosts=len(hosts.all),
            running=[answer.host for answer in failed if not answer.silent],
            remedy="mend them, and run warmrank down again",
        )
    reports = [
        HostReport(
            host=answer.host,
            head=answer.host == hosts.head.name,
            state="stopped" if num_ended else "down",
            note=f"{count_text(num_ended, 'process')} ended" if num_ended else "",
        )
        for answer in answers
        for num_ended in [answer.values["stopped"]]
    ]
    return ClusterReport(name=hosts.name, address="", dashboard="", auth_token_file="", hosts=tuple(reports))


def _ask(hosts: Hosts, requests: Mapping[Host, Mapping[str, Any]], on_answer: Listener) -> tuple[Answer, ...]:
    """Send each host its request; a request without a time of its own gets the time to start."""
    errands = tuple(
        Errand(
            host=host.name,
            connect=host.connect,
            script=shell_script(host, dict(request)),
            timeout_s=hosts.stop_s if request["action"] == "stop" else hosts.start_s,
            keys=_KEYS[request["action"]],
        )
        for host, request in requests.items()
    )
    return run_all(errands, on_answer=on_answer)


def _joined(hosts: Hosts, address: str, expected: list[str]) -> Mapping[str, Any]:
    """The alive nodes by their ids, as the head sees them; none where it does not answer."""
    request = nodes_request(address, expected, hosts.start_s / 2)
    (answer,) = _ask(hosts, {hosts.head: request}, lambda _: None)
    if answer.trouble:
        logger.warning("The head does not say which nodes joined: %s", answer.trouble)
    found: Mapping[str, Any] = answer.values.get("nodes", {})
    return found


def _report(
    hosts: Hosts, address: str, answers: tuple[Answer, ...], joined: Mapping[str, Any]
) -> ClusterReport:
    by_name = {answer.host: answer for answer in answers}
    reports = tuple(_host_report(host, by_name[host.name], joined) for host in hosts.all)
    return ClusterReport(
        name=hosts.name,
        address=address,
        dashboard=_dashboard(hosts, address),
        auth_token_file=hosts.auth_token_file,
        hosts=reports,
    )


def _host_report(host: Host, answer: Answer, joined: Mapping[str, Any]) -> HostReport:
    if answer.trouble:
        return HostReport(host=host.name, head=host.is_head, state="unknown", note=answer.trouble)
    values = answer.values
    if not values["up"]:
        left = f"{count_text(values['processes'], 'process')} left" if values["processes"] else ""
        return HostReport(host=host.name, head=host.is_head, state="down", note=left)
    node = joined.get(values["node"])
    if node is None:
        return HostReport(host=host.name, head=host.is_head, state="down", note="runs, but has not joined")
    return HostReport(
        host=host.name,
        head=host.is_head,
        state="up" if values.get("was_up", True) else "started",
        address=node["address"],
        resources=node["resources"],
    )


def _dashboard(hosts: Hosts, address: str) -> str:
    """Where the job server listens, as the rest of the network sees it if it listens to that at all."""
    if not address or not hosts.dashboard_port:
        return ""
    reachable = hosts.dashboard_host in {"0.0.0.0", "::"}  # noqa: S104 - a comparison
    name = address.rpartition(":")[0] if reachable else hosts.dashboard_host
    return f"http://{name}:{hosts.dashboard_port}"
