"""`warmrank config`: check a config, show it in full, and print the JSON Schema of its keys."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer
import yaml
from pydantic_core import to_jsonable_python
from typer import Option

from warmrank.orchestrator.cli.console import ExitCode, command, output, print_json, say
from warmrank.orchestrator.cli.options import (
    AsJson,
    ConfigFile,
    Overrides,
    group_of_commands,
    lint_here,
    load_config,
)
from warmrank.orchestrator.errors import ConfigError
from warmrank.orchestrator.text import count_text

app = group_of_commands("Check a config, show what it comes to, and print the schema of its keys.")

SchemaOf = Literal["config", "report"]


@app.command()
@command
def check(
    config: ConfigFile,
    overrides: Overrides = None,
    strict: Annotated[bool, Option("--strict", help="End with 2 for warnings too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find everything that is wrong with a config, also between keys, without launching."""
    from warmrank.orchestrator.ui.table import render_lint

    try:
        loaded = load_config(config, overrides)
    except ConfigError as error:
        if any(problem.key for problem in error.problems):
            error.add_note("what does not go together is looked for once these keys are right")
        if as_json:
            print_json([{"level": "error", **to_jsonable_python(problem)} for problem in error.problems])
        raise
    found = lint_here(loaded)
    if as_json:
        print_json(found)
    elif found:
        output().print(render_lint(found))
    else:
        say(f"{config}: nothing is wrong with it; {count_text(loaded.ranks, 'rank')} on {loaded.device}")
    if any(strict or finding.level == "error" for finding in found):
        raise typer.Exit(ExitCode.BAD_INPUT)


@app.command()
@command
def show(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show a config as a launch would use it, with all defaults and absolute paths."""
    values = load_config(config, overrides).model_dump(mode="json")
    if as_json:
        print_json(values)
    else:
        typer.echo(yaml.safe_dump(values, sort_keys=False, width=100), nl=False)


@app.command()
def schema(
    of: Annotated[
        SchemaOf, Option("--of", metavar="KIND", help="Of which kind of document: config or report.")
    ] = "config",
) -> None:
    """Print the JSON Schema of a config, with every key's type, default and meaning; or that of a report."""
    typer.echo(json.dumps(document_schema(of), indent=2, ensure_ascii=True))


def document_schema(of: SchemaOf) -> dict[str, Any]:
    """The JSON Schema of a kind of document; `docs/schemas` has them."""
    from warmrank.orchestrator.config.models import config_schema
    from warmrank.orchestrator.launch.report import report_schema

    return report_schema() if of == "report" else config_schema()
