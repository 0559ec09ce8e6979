"""The commands that look into a store or an artifact; each also with ``--json``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from warmrank.orchestrator.cli.console import ExitCode, answer, defused, output, plain, print_json, session
from warmrank.orchestrator.cli.options import (
    AsJson,
    Debug,
    OptionalConfig,
    Overrides,
    StorePath,
    load_config,
    load_optional,
    refuse_shadows,
)
from warmrank.orchestrator.others_output import others_on_stderr

if TYPE_CHECKING:
    from rich.console import RenderableType

    from warmrank.orchestrator.doctor import Diagnosis, Finding


def list_(
    config: OptionalConfig = None,
    store: StorePath = None,
    overrides: Overrides = None,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also what is launched, and partitions.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the launches in a store, and directories of other tools, such as vLLM's."""
    with session(debug=debug):
        from warmrank.orchestrator.look import store_contents as look
        from warmrank.orchestrator.look.directories import list_directories
        from warmrank.orchestrator.look.store_contents import list_store
        from warmrank.orchestrator.ui.directories import render_directories
        from warmrank.orchestrator.ui.table import render_listing

        loaded = load_optional(config, overrides)
        opened = look.open_to_look(loaded, store)
        directories = list_directories(opened)
        listing = list_store(opened, loaded)
        if as_json:
            print_json({**plain(listing), "directories": directories})
        else:
            console = output()
            console.print(render_listing(listing, long=long, width=console.width))
            if directories:
                console.print(render_directories(directories))


def show(  # noqa: PLR0913, PLR0917 - a parameter is an option of the command
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="PARTITION|FILE",
            help="A partition's name, or the first characters of its manifest's key; or a compiled_module.",
        ),
    ],
    config: OptionalConfig = None,
    store: StorePath = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Of a compiled_module: write Python source there."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a partition of a store, or an artifact's file: request, guards, and the graph as Python."""
    with session(debug=debug):
        from warmrank.orchestrator.look import store_contents as look
        from warmrank.orchestrator.ui.table import render_partition

        is_config = look.is_config_name(wanted)
        if config is None and store is None and not is_config and (out or Path(wanted).is_file()):
            _show_artifact(Path(wanted), out, as_json=as_json)
            return
        if out is not None:
            raise typer.BadParameter("it goes with the file of an artifact", param_hint="--out")
        if config is None and store is None and is_config:
            look.refuse_lone_config(wanted, load_config(Path(wanted), overrides))
        loaded = load_optional(config, overrides)
        view = look.show_partition(look.open_to_look(loaded, store), wanted, loaded)
        answer(view, render_partition, as_json=as_json)


def _show_artifact(file: Path, out: Path | None, *, as_json: bool) -> None:
    from warmrank.worker.inference import readable_cache

    text = readable_cache(file, print_output=False, file=out)
    if as_json:
        print_json({"file": file, "out": out, "text": text})
    elif out is None:
        typer.echo(defused(text))
    else:
        output().print(f"written to {out}", soft_wrap=True, markup=False)


def explain(
    config: OptionalConfig = None,
    vllm: Annotated[
        Path | None,
        typer.Option(
            "--vllm",
            metavar="DIR",
            help="In place of CONFIG: what vLLM's ranks loaded and compiled on this node, and why; DIR is "
            "VLLM_CACHE_ROOT, such as ~/.cache/vllm.",
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say what a launch here would find, and name what differs from what is stored."""
    with session(debug=debug):
        if vllm is not None:
            from warmrank.orchestrator.ui.directories import render_outcomes
            from warmrank.orchestrator.vllm_plugin.entries import aot_root, read_outcomes

            answer(read_outcomes(aot_root(vllm.expanduser())), render_outcomes, as_json=as_json)
            return
        if config is None:
            raise typer.BadParameter("expected CONFIG, or --vllm DIR")
        from warmrank.orchestrator.look.explain import explain_if_away
        from warmrank.orchestrator.ui.table import render_explanation

        found = explain_if_away(load_config(config, overrides))
        answer(found, render_explanation, as_json=as_json)


_STYLES = {"ok": "green", "note": "cyan", "warning": "bold yellow", "error": "bold red"}
_MAX_TOLD = 8


def doctor(  # noqa: PLR0913, PLR0917 - a parameter is an option of the command
    config: OptionalConfig = None,
    device: Annotated[
        Literal["cpu", "cuda", "npu"] | None,
        typer.Option(
            "--device", metavar="KIND", help="cpu, cuda or npu; else the config's, else what is there."
        ),
    ] = None,
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Every node of the config's Ray cluster, not this one alone.")
    ] = False,
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            help="Only print this machine's environment as JSON, for warmrank build --environment elsewhere.",
        ),
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check what stops launches on a node: versions, devices, limits, network, store and disk.

    Ends with 1 if there is an error, with 0 also where there are warnings.
    """
    if all_nodes and config is None:
        raise typer.BadParameter("it needs a CONFIG, which names the cluster", param_hint="--all-nodes")
    with session(debug=debug):
        if environment:
            from warmrank.worker.keys.environment import environment as here

            print_json(here())
            return
        from warmrank.orchestrator.doctor.nodes import diagnose_here, diagnose_nodes

        loaded = None if config is None else load_config(config, overrides)
        if all_nodes and loaded is not None:
            refuse_shadows()
            with others_on_stderr():
                found = diagnose_nodes(loaded, device)
        else:
            found = diagnose_here(loaded, device)
        answer(found, render, as_json=as_json)
    if found.worst == "error":
        raise typer.Exit(ExitCode.FAILED)


def render(found: Diagnosis) -> RenderableType:
    """One line for each check with what to do; findings of several nodes with one remedy once."""
    from rich.console import Group
    from rich.text import Text

    from warmrank.orchestrator.doctor import LEVELS
    from warmrank.orchestrator.doctor.nodes import hosts_text
    from warmrank.orchestrator.text import count_text
    from warmrank.orchestrator.ui.table import plain_table

    several = len(found.nodes) > 1
    by_host = [("cluster", found.cluster), *((node.node.host, node.findings) for node in found.nodes)]
    rows: dict[Finding, dict[str, list[str]]] = {}
    for host, findings in by_host:
        for finding in findings:
            hosts_of = rows.setdefault(replace(finding, what=""), {})
            hosts_of.setdefault(finding.what, []).append(host)
    table = plain_table()
    for column in ("level", "check", *(["nodes"] if several else []), "found"):
        table.add_column(column, no_wrap=column in {"level", "check"}, overflow="fold")
    for row, hosts_of in rows.items():
        hosts = list(dict.fromkeys(host for each in hosts_of.values() for host in each))
        where = f"all {len(hosts)}" if len(hosts) == len(found.nodes) else hosts_text(hosts)
        told = [f"{what} ({hosts_text(each)})" for what, each in hosts_of.items()]
        more = ["..."] if len(told) > _MAX_TOLD else []
        text = "\n".join([*told[:_MAX_TOLD], *more] if len(told) > 1 and several else hosts_of)
        text += f"\n  remedy: {row.remedy}" if row.remedy else ""
        level = Text(row.level, style=_STYLES[row.level])
        table.add_row(level, row.check, *([Text(where)] if several else []), Text(text))
    counts = Counter(row.level for row in rows)
    parts = [count_text(counts[level], level) for level in reversed(LEVELS[1:]) if counts[level]]
    fine = f"{count_text(counts['ok'], 'check')} fine"
    who = count_text(len(found.nodes), "node") if several else found.nodes[0].node.host
    launch = f" for config {found.config}" if found.config else ""
    return Group(
        Text(f"{who}, device kind {found.device}{launch}", style="bold"),
        table,
        Text(f"\n{', '.join([*parts, fine])}", style=_STYLES[found.worst]),
    )
