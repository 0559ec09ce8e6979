"""`warmrank config`: check a config, show what it comes to, and print the JSON Schema of its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import yaml

from warmrank.orchestrator.cli.console import ExitCode, output, plain, print_json, session
from warmrank.orchestrator.cli.options import (
    AsJson,
    ConfigFile,
    ConfigGroup,
    Debug,
    Overrides,
    doubts_here,
    load_config,
)
from warmrank.orchestrator.text import count_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from warmrank.orchestrator.config.doubts import Doubt
    from warmrank.orchestrator.config.reading import Config

app = typer.Typer(
    name="config",
    cls=ConfigGroup,
    no_args_is_help=True,
    help="Check a config, show what it comes to, and print the schema of its keys.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

SchemaOf = Literal["config", "report"]
DocumentKind = Annotated[
    SchemaOf, typer.Option("--of", metavar="KIND", help="Of which kind of document: config or report.")
]


@app.command()
def check(
    config: ConfigFile,
    overrides: Overrides = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with 2 for warnings too.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find everything that is wrong with a config, also between keys, without launching."""
    with session(debug=debug):
        with _told(config, overrides, as_json=as_json):
            loaded = load_config(config, overrides)
        found = doubts_here(loaded)
        if as_json:
            print_json(found)
        elif found:
            output().print(_rendered(found))
        else:
            ranks = f"{count_text(loaded.ranks, 'rank')} on {loaded.device}"
            output().print(f"{config}: nothing is wrong with it; {ranks}", soft_wrap=True, markup=False)
    if any(strict or doubt.level == "error" for doubt in found):
        raise typer.Exit(ExitCode.BAD_INPUT)


@app.command()
def show(
    config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Show a config as a launch would use it, with all defaults and absolute paths."""
    with session(debug=debug):
        values = load_config(config, overrides).model_dump(mode="json")
        if as_json:
            print_json(values)
        else:
            typer.echo(yaml.safe_dump(values, sort_keys=False, width=100), nl=False)


@app.command()
def schema(of: DocumentKind = "config") -> None:
    """Print the JSON Schema of a config, with every key's type, default and meaning; or that of a report."""
    typer.echo(schema_text(of), nl=False)


def schema_text(of: SchemaOf) -> str:
    """A schema as the text that is kept in docs/schemas/."""
    return json.dumps(schema_of(of), indent=2, ensure_ascii=True) + "\n"


def schema_of(of: SchemaOf) -> dict[str, Any]:
    """The JSON Schema of a kind of document."""
    if of == "report":
        from warmrank.orchestrator.launch.report import report_schema

        return report_schema()
    from warmrank.orchestrator.config.models import config_schema

    return config_schema()


@contextmanager
def _told(config: Path, overrides: list[str] | None, *, as_json: bool) -> Iterator[None]:
    """Let nobody take the mistakes in single keys for all there are, nor miss them in the JSON."""
    from warmrank.orchestrator.config.problems import AXES
    from warmrank.orchestrator.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        found: tuple[Doubt, ...] = ()
        if [problem.key for problem in error.problems] == [AXES]:
            found = doubts_here(_with_axes_that_fit(config, overrides))
        elif any(problem.key for problem in error.problems):
            later = "what does not go together is looked for once these keys are right"
            error.add_note(later)
        if as_json:
            problems = [{"level": "error", **plain(problem)} for problem in error.problems]
            print_json([*problems, *found])
        elif found:
            output().print(_rendered(found))
        raise


def _with_axes_that_fit(config: Path, overrides: list[str] | None) -> Config:
    """The config, of which only the axes do not fill the ranks, with others: nothing else is about them."""
    from warmrank.orchestrator.config.reading import read_data

    ranks = read_data(config, tuple(overrides or ()))["ranks"]
    return load_config(config, [*(overrides or ()), f"parallel={{dp: {ranks}}}"])


def _rendered(found: Sequence[Doubt]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from warmrank.orchestrator.ui.table import pairs

    blocks: list[RenderableType] = []
    for doubt in found:
        style = "bold red" if doubt.level == "error" else "bold yellow"
        blocks.append(Text.assemble((f"{doubt.level}: ", style), ", ".join(doubt.keys)))
        blocks.append(pairs([("found", doubt.found), ("remedy", doubt.remedy)], style="bold"))
    return Group(*blocks)
