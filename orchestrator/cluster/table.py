"""What `up` and `down` show at their end; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmrank.orchestrator.cluster.bring import ClusterReport, HostReport
from warmrank.orchestrator.ui.table import plain_table

_STYLES = {"started": "green", "up": "green", "unknown": "red"}


def render_cluster(report: ClusterReport) -> RenderableType:
    """The hosts as a table, and below it where launches find the cluster."""
    return Group(_table(report.hosts), *(Text(line) for line in _lines(report)))


def _table(hosts: Sequence[HostReport]) -> Table:
    table = plain_table()
    are_in, noted = any(host.address for host in hosts), any(host.note for host in hosts)
    for name in ("host", "state", *(("address", "offers") if are_in else ())):
        table.add_column(name, no_wrap=True)
    if noted:
        table.add_column("note", overflow="fold")
    for host in hosts:
        state = Text(host.state, style=_STYLES.get(host.state, ""))
        name = f"{host.host} (head)" if host.head else host.host
        offer = (host.address or "-", resources_text(host.resources or {})) if are_in else ()
        table.add_row(name, state, *offer, *([host.note] if noted else []))
    return table


def resources_text(resources: Mapping[str, float]) -> str:
    """What a host offers: ``192 CPU, 8 NPU``."""
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items())) or "-"


def _lines(report: ClusterReport) -> Iterable[str]:
    if not report.address:
        return
    if report.auth_token_file:
        token = f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={report.auth_token_file}"
        yield f"before that:  export {token}"
    yield f"in a config:  ray: {{address: {report.address}}}"
    if report.dashboard:
        yield f"as a job:     warmrank submit CONFIG --address {report.dashboard}"
        if report.dashboard.startswith(("http://127.", "http://localhost", "http://[::1]")):
            yield "              (from the head; from elsewhere forward that port, or set dashboard_host)"
