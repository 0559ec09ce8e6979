"""The commands that look into a store or an artifact; each also with ``--json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic_core import to_jsonable_python
from typer import Argument, Option

from warmrank.orchestrator.cli.console import (
    ExitCode,
    answer,
    command,
    others_on_stderr,
    output,
    print_json,
    say,
)
from warmrank.orchestrator.cli.options import (
    AsJson,
    OptionalConfig,
    Overrides,
    StorePath,
    is_config_name,
    load_config,
    load_optional,
)
from warmrank.orchestrator.errors import BadArgument
from warmrank.worker.settings import DeviceKind


@command
def list_(
    config: OptionalConfig = None,
    store: StorePath = None,
    overrides: Overrides = None,
    long: Annotated[bool, Option("--long", "-l", help="Also what is launched, and partitions.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the launches in a store, and directories of other tools, such as vLLM's."""
    from warmrank.orchestrator.inspect.store_contents import list_directories, list_store, open_to_look
    from warmrank.orchestrator.ui.table import render_directories, render_listing

    loaded = load_optional(config, overrides)
    opened = open_to_look(loaded, store)
    directories = list_directories(opened)
    listing = list_store(opened, loaded)
    if as_json:
        print_json({**to_jsonable_python(listing), "directories": directories})
    else:
        console = output()
        console.print(render_listing(listing, long=long, width=console.width))
        if directories:
            console.print(render_directories(directories))


@command
def show(
    wanted: Annotated[
        str, Argument(metavar="PARTITION|FILE", help="A partition's name or manifest key; a compiled_module.")
    ],
    config: OptionalConfig = None,
    store: StorePath = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        Option("--out", "-o", metavar="FILE", help="Of a compiled_module: write Python source there."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a partition of a store, or an artifact's file: request, guards, and the graph as Python."""
    from warmrank.orchestrator.inspect import store_contents as look
    from warmrank.orchestrator.ui.table import render_partition

    names_store, is_config = config is not None or store is not None, is_config_name(wanted)
    if not names_store and is_config:
        raise BadArgument(f"{wanted} is a config; name a partition too: warmrank ls {wanted} lists them")
    if not names_store and (out or Path(wanted).is_file()):
        _show_artifact(Path(wanted), out, as_json=as_json)
        return
    if out is not None:
        raise typer.BadParameter("it goes with the file of an artifact", param_hint="--out")
    if not names_store:
        raise typer.BadParameter(
            f"no file {wanted!r}; for a partition, say which store: CONFIG or --store PATH", param_hint="FILE"
        )
    loaded = load_optional(config, overrides)
    view = look.show_partition(look.open_to_look(loaded, store), wanted, loaded)
    answer(view, render_partition, as_json=as_json)


def _show_artifact(file: Path, out: Path | None, *, as_json: bool) -> None:
    from warmrank.inference import readable_cache

    text = readable_cache(file, print_output=False, file=out)
    if as_json:
        print_json({"file": file, "out": out, "text": text})
    else:
        say(*([f"written to {out}"] if out else text.splitlines()))


@command
def explain(
    config: OptionalConfig = None,
    vllm: Annotated[
        Path | None,
        Option(
            "--vllm",
            metavar="DIR",
            help="In place of CONFIG: what vLLM's ranks loaded and compiled on this node, and why; DIR is "
            "VLLM_CACHE_ROOT, such as ~/.cache/vllm.",
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Say what a launch here would find, and name what differs from what is stored."""
    from warmrank.orchestrator.inspect.explain import explain_here
    from warmrank.orchestrator.ui.table import render_explanation, render_outcomes
    from warmrank.orchestrator.vllm_plugin.entries import read_outcomes

    if vllm is not None:
        answer(read_outcomes(vllm.expanduser()), render_outcomes, as_json=as_json)
        return
    if config is None:
        raise typer.BadParameter("expected CONFIG, or --vllm DIR")
    answer(explain_here(load_config(config, overrides)), render_explanation, as_json=as_json)


@command
def doctor(
    config: OptionalConfig = None,
    device: Annotated[
        DeviceKind | None,
        Option("--device", metavar="KIND", help="cpu, cuda or npu; else the config's, else what is there."),
    ] = None,
    all_nodes: Annotated[
        bool, Option("--all-nodes", help="Every node of the config's Ray cluster, not this one alone.")
    ] = False,
    environment: Annotated[
        bool,
        Option(
            "--environment",
            help="Only print this machine's environment as JSON, for warmrank build --environment elsewhere.",
        ),
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check what stops launches on a node: versions, devices, limits, network, store and disk.

    Ends with 1 if there is an error, with 0 also where there are warnings.
    """
    if all_nodes and config is None:
        raise typer.BadParameter("it needs a CONFIG, which names the cluster", param_hint="--all-nodes")
    from warmrank.orchestrator.inspect.doctor import diagnose
    from warmrank.orchestrator.ui.table import render_diagnosis
    from warmrank.worker.keys.request import environment as here

    if environment:
        print_json(here())
        return
    loaded = load_optional(config, overrides)
    with others_on_stderr():
        found = diagnose(loaded, device, all_nodes=all_nodes)
    answer(found, render_diagnosis, as_json=as_json)
    if found.worst == "error":
        raise typer.Exit(ExitCode.FAILED)
