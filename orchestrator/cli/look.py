"""The commands that look into a config, a store, an artifact or a machine; each also with ``--json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml
from pydantic_core import to_jsonable_python
from typer import Argument, Option

from warmrank.cache_store.text import count_text
from warmrank.orchestrator.cli.console import ExitCode, answer, others_on_stderr, output, print_json, say
from warmrank.orchestrator.cli.options import (
    AsJson,
    Commands,
    ConfigOptions,
    OptionalConfig,
    Overrides,
    StoreOptions,
    is_config_name,
    lint_here,
    load_config,
    load_optional,
)
from warmrank.orchestrator.errors import BadArgument, ConfigError
from warmrank.orchestrator.ui import table
from warmrank.worker.settings import DeviceKind


def list_(
    place: StoreOptions,
    *,
    long: Annotated[bool, Option("--long", "-l")] = False,
    as_json: AsJson = False,
) -> None:
    """List the launches in a store, and directories of other tools, such as vLLM's.

    Options:
        long: Also what is launched, and partitions.
    """
    from warmrank.orchestrator.inspect.store_contents import list_directories, list_store

    opened, loaded = place.open()
    directories, listing = list_directories(opened), list_store(opened, loaded)
    if as_json:
        print_json({**to_jsonable_python(listing), "directories": directories})
        return
    console = output()
    console.print(table.render_listing(listing, long=long, width=console.width))
    if directories:
        console.print(table.render_directories(directories))


def show(
    wanted: Annotated[str, Argument(metavar="PARTITION|FILE")],
    place: StoreOptions,
    *,
    out: Annotated[Path | None, Option("--out", "-o", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a partition of a store, or an artifact's file: request, guards, and the graph as Python.

    Options:
        wanted: A partition's name or manifest key; a compiled_module.
        out: Of a compiled_module: write Python source there.
    """
    from warmrank.orchestrator.inspect.store_contents import show_partition

    if place.config is not None or place.store is not None:
        if out is not None:
            raise typer.BadParameter("it goes with the file of an artifact", param_hint="--out")
        opened, loaded = place.open()
        view = show_partition(opened, wanted, loaded)
        answer(view, table.render_partition, as_json=as_json)
    elif is_config_name(wanted):
        raise BadArgument(f"{wanted} is a config; name a partition too: warmrank ls {wanted} lists them")
    elif out or Path(wanted).is_file():
        _show_artifact(Path(wanted), out, as_json=as_json)
    else:
        say_which = "for a partition, say which store: CONFIG or --store PATH"
        raise typer.BadParameter(f"no file {wanted!r}; {say_which}", param_hint="FILE")


def _show_artifact(file: Path, out: Path | None, *, as_json: bool) -> None:
    from warmrank.inference import readable_cache

    text = readable_cache(file, print_output=False, file=out)
    if as_json:
        print_json({"file": file, "out": out, "text": text})
    else:
        say(*([f"written to {out}"] if out else text.splitlines()))


def explain(
    config: OptionalConfig = None,
    vllm: Annotated[Path | None, Option(metavar="DIR")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Say what a launch here would find, and name what differs from what is stored.

    Options:
        vllm: In place of CONFIG: what vLLM's ranks loaded and compiled on this node, and why; DIR is
            VLLM_CACHE_ROOT, such as ~/.cache/vllm.
    """
    from warmrank.orchestrator.inspect.explain import explain_here
    from warmrank.orchestrator.vllm_plugin.entries import read_outcomes

    if vllm is not None:
        answer(read_outcomes(vllm.expanduser()), table.render_outcomes, as_json=as_json)
    elif config is None:
        raise typer.BadParameter("expected CONFIG, or --vllm DIR")
    else:
        answer(explain_here(load_config(config, overrides)), table.render_explanation, as_json=as_json)


def doctor(
    config: OptionalConfig = None,
    device: Annotated[DeviceKind | None, Option(metavar="KIND")] = None,
    all_nodes: bool = False,
    environment: bool = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check what stops launches: the config, and a node's versions, devices, limits, network, store and disk.

    Ends with 1 if there is an error, with 0 also where there are warnings.

    Options:
        device: cpu, cuda or npu; else the config's, else what is there.
        all_nodes: Every node of the config's Ray cluster, not this one alone.
        environment: Only print this machine's environment as JSON, for warmrank build --environment
            elsewhere.
    """
    if all_nodes and config is None:
        raise typer.BadParameter("it needs a CONFIG, which names the cluster", param_hint="--all-nodes")
    from warmrank.orchestrator.inspect.doctor import diagnose
    from warmrank.worker.keys.request import environment as here

    if environment:
        print_json(here())
        return
    loaded = load_optional(config, overrides)
    with others_on_stderr():
        about = lint_here(loaded) if loaded else ()
        found = diagnose(loaded, device, all_nodes=all_nodes, config_findings=about)
    answer(found, table.render_diagnosis, as_json=as_json)
    if found.worst == "error":
        raise typer.Exit(ExitCode.FAILED)


config_app = Commands("Check a config, show what it comes to, and print the schema of its keys.")

SchemaOf = Literal["config", "report"]


@config_app.register()
def check(
    config: ConfigOptions,
    *,
    strict: bool = False,
    as_json: AsJson = False,
) -> None:
    """Find everything that is wrong with a config, also between keys, without launching.

    Options:
        strict: End with 2 for warnings too.
    """
    try:
        loaded = config.load()
    except ConfigError as error:
        if any(problem.key for problem in error.problems):
            error.add_note("what does not go together is looked for once these keys are right")
        if as_json:
            print_json([{"level": "error", **to_jsonable_python(problem)} for problem in error.problems])
        raise
    found = lint_here(loaded)
    if found or as_json:
        answer(found, table.render_lint, as_json=as_json)
    else:
        ranks = count_text(loaded.ranks, "rank")
        say(f"{config.config}: nothing is wrong with it; {ranks} on {loaded.device}")
    if any(strict or finding.level == "error" for finding in found):
        raise typer.Exit(ExitCode.BAD_INPUT)


@config_app.register("show")
def show_config(config: ConfigOptions, as_json: AsJson = False) -> None:
    """Show a config as a launch would use it, with all defaults and absolute paths."""
    values = config.load().model_dump(mode="json")
    if as_json:
        print_json(values)
    else:
        typer.echo(yaml.safe_dump(values, sort_keys=False, width=100), nl=False)


@config_app.register()
def schema(
    of: Annotated[SchemaOf, Option(metavar="KIND")] = "config",
) -> None:
    """Print the JSON Schema of a config, with every key's type, default and meaning; or that of a report.

    Options:
        of: Of which kind of document: config or report.
    """
    typer.echo(json.dumps(document_schema(of), indent=2, ensure_ascii=True))


def document_schema(of: SchemaOf) -> dict[str, Any]:
    """The JSON Schema of a kind of document; `docs/schemas` has them."""
    from warmrank.orchestrator.config.models import config_schema
    from warmrank.orchestrator.launch.report import report_schema

    return report_schema() if of == "report" else config_schema()
