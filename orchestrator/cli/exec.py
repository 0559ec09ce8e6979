"""The user's own command on warm nodes, ``exec``, and a script of TorchAir's users as it is, ``run``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic_core import to_jsonable_python
from typer import Argument, Option
from typer.core import TyperCommand

from warmrank.orchestrator import signals
from warmrank.orchestrator.cli.console import command, others_on_stderr, say
from warmrank.orchestrator.cli.options import (
    ConfigFile,
    NodeNames,
    Overrides,
    check_line,
    load_config,
    refuse_what_fails,
)
from warmrank.orchestrator.errors import BadArgument

if TYPE_CHECKING:
    from warmrank.orchestrator.config.reading import Config

_NO_CONFIG = "-"


class ExecCommand(TyperCommand):
    """`exec`, whose CONFIG may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """See `click.Command.parse_args`."""
        if "--" in args:
            at = args.index("--")
            given, _, _ = self.make_parser(ctx).parse_args(args[:at])
            if not given.get("config"):
                args = [*args[:at], _NO_CONFIG, *args[at:]]
        return super().parse_args(ctx, args)


@command
def exec_(  # noqa: PLR0913 - a command has one parameter for each option
    config: ConfigFile,
    words: Annotated[
        list[str],
        Argument(
            metavar="-- COMMAND...",
            help="After --. {node_rank}, {nnodes}, {nproc}, {ranks}, {master_addr}, {master_port} and "
            "{cache_dir} are replaced on each node.",
            show_default=False,
        ),
    ],
    *,
    here: Annotated[bool, Option("--here", help="This node only, without Ray.")] = False,
    nodes: NodeNames = None,
    nnodes: Annotated[
        int, Option(min=1, help="With --here: hosts that each run this, for one world of ranks.")
    ] = 1,
    node_rank: Annotated[int | None, Option(min=0, help="With --nnodes: which host this is, from 0.")] = None,
    run_id: Annotated[
        str,
        Option(metavar="ID", help="With --nnodes: the same on all hosts of a run, other each time."),
    ] = "",
    master_addr: Annotated[
        str, Option(metavar="ADDRESS", help="With --nnodes: the first host's, for {master_addr}.")
    ] = "",
    master_port: Annotated[
        int, Option(min=0, max=65535, help="With --nnodes: a port there, for {master_port}.")
    ] = 0,
    publish_when: Annotated[
        str,
        Option(
            metavar="FILE|PORT|exit|none",
            help="When to publish what the command added: a file appears, a port accepts connections (PORT "
            "or HOST:PORT), or the command ends with status 0.",
        ),
    ] = "exit",
    grace: Annotated[
        float, Option(metavar="SECONDS", min=0.0, help="From SIGTERM or Ctrl-C to SIGKILL.")
    ] = 30.0,
    json_file: Annotated[
        Path | None, Option("--json", metavar="FILE", help="Write what became of it there.")
    ] = None,
    store: Annotated[
        str | None,
        Option(
            "--store",
            metavar="LOCATION",
            envvar="WARMRANK_STORE",
            help="Without CONFIG: the store of the command's compile caches, on this node only.",
        ),
    ] = None,
    signing_key: Annotated[
        Path | None,
        Option(
            "--signing-key",
            metavar="KEY",
            envvar="WARMRANK_SIGNING_KEY",
            help="Without CONFIG: sign with this key of the keyring, or PEM file.",
        ),
    ] = None,
    keys: Annotated[
        list[str] | None,
        Option("--key", metavar="NAME[=VALUE]", help="Without CONFIG: must be equal too. Repeatable."),
    ] = None,
    caches: Annotated[
        list[str] | None,
        Option(
            "--cache",
            metavar="TOOL:VARIABLE",
            help="Without CONFIG: another cache, whose directory that variable names. Repeatable.",
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Run your own command (vLLM, torchrun) on warm nodes, and publish what it added.

    Without CONFIG, with --store or WARMRANK_STORE, the caches of Inductor, AOTAutograd, Triton and vLLM.
    """
    has_config = str(config) != _NO_CONFIG
    if here and nodes:
        raise typer.BadParameter("--here and --node exclude each other")
    if nnodes > 1 and not here:
        raise typer.BadParameter("--nnodes goes with --here; with Ray, --node names nodes")
    if nnodes > 1 and (node_rank is None or node_rank >= nnodes):
        raise typer.BadParameter(f"expected a number from 0 to {nnodes - 1}", param_hint="--node-rank")
    if nnodes > 1 and not run_id:
        raise typer.BadParameter("expected what all hosts of this run have in common", param_hint="--run-id")
    check_line(run_id, "--run-id")

    from warmrank.orchestrator.exec.driver import Options, execute
    from warmrank.orchestrator.exec.node import HostGroup, parse_when

    hosts = HostGroup(
        nnodes=nnodes,
        node_rank=node_rank or 0,
        run_id=run_id,
        master_addr=master_addr,
        master_port=master_port,
    )
    options = Options(
        here=here or not has_config,
        nodes=tuple(nodes or ()),
        when=parse_when(publish_when),
        grace_s=grace,
        hosts=hosts if nnodes > 1 else None,
    )
    if has_config:
        loaded = load_config(config, overrides)
    else:
        loaded = _without_config(store, signing_key, keys or (), caches or ())
    refuse_what_fails(loaded, str(config), overrides, reads_only=publish_when == "none", starts_ray=False)
    if loaded.ranks % nnodes:
        raise typer.BadParameter(f"ranks ({loaded.ranks}) are not as many on each of {nnodes} hosts")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)  # before, lest the run's end be an error
    out, err, tell = sys.stdout.buffer, sys.stderr.buffer, partial(say, stderr=True)
    with others_on_stderr():
        outcome = execute(
            loaded, words, options, say=lambda line: tell(f"warmrank: {line}"), out=out, err=err
        )
    if json_file is not None:
        json_file.write_text(json.dumps(to_jsonable_python(outcome), indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(outcome.exit_code)


def _without_config(
    store: str | None, signing_key: Path | None, keys: Sequence[str], caches: Sequence[str]
) -> Config:
    """A config of a store alone, which keeps the compile caches of any program of torch.

    Inductor, AOTAutograd and Triton name their entries after their contents, so programs may share a
    directory; what their names lack (releases, devices, instruction sets) is the key under which it comes
    back. Where a tool's variable is set already, its directory is that one.
    """
    from warmrank.cache_store.canonical import key_of
    from warmrank.orchestrator.config.models import KNOWN_VARIABLES, Config, ExecConfig, SyncedCache
    from warmrank.orchestrator.stores import found_out, named_store
    from warmrank.worker.keys.request import environment

    if store is None:
        raise BadArgument("expected a CONFIG before --, or a store: --store LOCATION or WARMRANK_STORE")
    if unnamed := [cache for cache in caches if ":" not in cache.strip(":")]:
        raise BadArgument(f"--cache {unnamed[0]}: expected TOOL:VARIABLE, such as deepgemm:DG_JIT_CACHE_DIR")
    found = {**environment(), "triton": found_out("triton") or "none"}
    given = {name: value for name, _, value in (key.partition("=") for key in keys)}
    known = {name: value for name, value in sorted(found.items()) if name not in given}
    tools = dict(KNOWN_VARIABLES)
    if "WARMRANK_STORE" in os.environ:  # to all processes: vLLM's plugin serves it
        del tools["vllm"]
    tools |= {tool: variable for tool, _, variable in (cache.partition(":") for cache in caches)}
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return Config(
        name="exec",
        store=named_store(store, signing_key=signing_key),
        cache_dir=home / "warmrank" / "exec" / key_of(known | given)[:12],
        exec=ExecConfig(
            sync=tuple(
                SyncedCache(tool=tool, variable=variable, path=os.environ.get(variable, ""))
                for tool, variable in tools.items()
            ),
            keys=(*(f"{name}={value}" for name, value in known.items()), *keys),
        ),
    )


def run(
    script: Annotated[str, Argument(help="A Python script; with -m the name of a module.")],
    arguments: Annotated[list[str] | None, Argument(help="Its arguments.")] = None,
    *,
    module: Annotated[bool, Option("-m", help="Run a module by its name, as python -m does.")] = False,
) -> None:
    """Run a script written for TorchAir, unchanged: its `import torchair` gives warmrank.

    So it does in the Python processes that the script starts.
    """
    from warmrank.worker.torchair_script import run_script

    if not module and not Path(script).is_file():
        msg = f"{script} is no file; expected a Python script, or -m and the name of a module"
        raise typer.BadParameter(msg, param_hint="'script'")
    try:
        run_script(script, arguments or [], as_module=module)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - as Python ends; the command line would say less
        traceback, file = error.__traceback__, getattr(sys.modules["__main__"], "__file__", "")
        while traceback is not None and traceback.tb_frame.f_code.co_filename != file:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        raise SystemExit(signals.EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from None
