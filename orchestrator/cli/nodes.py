"""The commands that warm nodes in other ways: `preseed`, `exec`, `run`, and offline `build` and `audit`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer import Argument, Option

from warmrank.orchestrator import signals
from warmrank.orchestrator.cli.console import (
    ExitCode,
    answer,
    defused_json,
    fetch_progress,
    others_on_stderr,
    output,
    say,
)
from warmrank.orchestrator.cli.options import (
    AsJson,
    Command,
    ConfigOptions,
    NodeNames,
    OptionalConfig,
    Overrides,
    ReportFile,
    check_line,
    load_config,
    refuse_what_fails,
)
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.nodes import FanOut
from warmrank.orchestrator.ui.table import render_seeds

if TYPE_CHECKING:
    from warmrank.orchestrator.build.driver import BuildOptions
    from warmrank.orchestrator.config.reading import Config
    from warmrank.orchestrator.seed.seeding import NodeSeed


def preseed(  # noqa: PLR0913 - options of a command
    config: ConfigOptions,
    *,
    here: bool = False,
    nodes: NodeNames = None,
    watch: bool = False,
    for_s: Annotated[float | None, Option("--for", metavar="SECONDS", min=0.0)] = None,
    until: Annotated[int | None, Option(metavar="N", min=1)] = None,
    fan_out: FanOut = "auto",
    verify: bool = False,
    as_json: AsJson = False,
) -> None:
    """Bring a launch's partitions from the store onto nodes' local disks, verified.

    Options:
        here: This node only; imports neither torch nor Ray.
        watch: Keep running: seed nodes as they join, try failed ones again.
        for_s: End the watch after so long.
        until: End the watch once N nodes are seeded.
        fan_out: One node reads the store for the others; auto: from 8 nodes.
        verify: Read and verify again what is there already.
    """
    if here and (nodes or watch):
        raise typer.BadParameter(f"--here and {'--node' if nodes else '--watch'} exclude each other")
    if (for_s is not None or until is not None) and not watch:
        raise typer.BadParameter("--for and --until say when a --watch ends")
    from warmrank.cache_store.fetch.blobs import FetchOptions
    from warmrank.orchestrator.gang.ray_session import is_this_machine
    from warmrank.orchestrator.nodes import choose, this_node
    from warmrank.orchestrator.seed.on_ray import seed_cluster, watch_cluster
    from warmrank.orchestrator.seed.seeding import Outcomes, SeedPlan, check_store, seed_here

    loaded = config.load()
    check_store(loaded)
    plan = SeedPlan(wanted=tuple(nodes or ()), fan_out=fan_out, verify=verify, watch=watch)
    if not here and is_this_machine(loaded):
        if watch:
            raise BadArgument(
                "--watch: expected a cluster, because nodes join one; set ray.address, or RAY_ADDRESS"
            )
        choose((this_node(),), plan.wanted)
        here = True
    if here:
        with fetch_progress() as on_progress:
            seeds = (seed_here(loaded, options=FetchOptions(reread=verify, on_progress=on_progress)),)
        answer(seeds, render_seeds, as_json=as_json)
        raise typer.Exit(_code_of_seeds(seeds, wanted=1))
    console = output(stderr=True)
    outcomes = Outcomes(
        lambda line, style: console.print(Text(line, style=style), soft_wrap=True),
        lambda seed: typer.echo(defused_json(seed, indent=None)) if watch and as_json else None,
    )
    if not watch:
        with others_on_stderr():
            seed_cluster(loaded, plan, outcomes.take)
        answer(outcomes.all(), render_seeds, as_json=as_json)
    else:
        try:
            watch_cluster(loaded, plan, outcomes, seconds=for_s, num_nodes=until)
        finally:
            if outcomes.all() and not as_json:  # also when it is stopped
                output().print(render_seeds(outcomes.all()))
    raise typer.Exit(_code_of_seeds(outcomes.all(), wanted=until or 1))


def _code_of_seeds(seeds: Sequence[NodeSeed], *, wanted: int) -> ExitCode:
    """The worst of all nodes; a watch that ended with fewer than were wanted failed."""
    statuses = {seed.status for seed in seeds}
    if "faults" in statuses:
        return ExitCode.FAULT
    if "miss" in statuses:
        return ExitCode.MISSED
    return ExitCode.OK if len(seeds) >= wanted else ExitCode.FAILED


_NO_CONFIG = "-"


class ExecCommand(Command):
    """`exec`, whose CONFIG may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """See `click.Command.parse_args`."""
        if "--" in args:
            at = args.index("--")
            given, rest, _ = self.make_parser(ctx).parse_args(self.words_of(args[:at]))
            if given.get("words") or rest:
                ctx.fail("expected at most one CONFIG before --")
            if not given.get("config"):
                args = [*args[:at], _NO_CONFIG, *args[at:]]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """Hosts that each run one command, for one world of ranks.

    Options:
        nnodes: With --here: hosts that each run this, for one world of ranks.
        node_rank: With --nnodes: which host this is, from 0.
        run_id: With --nnodes: the same on all hosts of a run, other each time.
        master_addr: With --nnodes: the first host's, for {master_addr}.
        master_port: With --nnodes: a port there, for {master_port}.
    """

    nnodes: Annotated[int, Option(min=1)] = 1
    node_rank: Annotated[int | None, Option(min=0)] = None
    run_id: Annotated[str, Option(metavar="ID")] = ""
    master_addr: Annotated[str, Option(metavar="ADDRESS")] = ""
    master_port: Annotated[int, Option(min=0, max=65535)] = 0

    def check(self) -> None:
        """Refuse what does not go together."""
        if self.nnodes > 1 and (self.node_rank is None or self.node_rank >= self.nnodes):
            expected = f"expected a number from 0 to {self.nnodes - 1}"
            raise typer.BadParameter(expected, param_hint="--node-rank")
        if self.nnodes > 1 and not self.run_id:
            expected = "expected what all hosts of this run have in common"
            raise typer.BadParameter(expected, param_hint="--run-id")
        check_line(self.run_id, "--run-id")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """In place of a config a store, which keeps the compile caches of any program of torch.

    Options:
        store: Without CONFIG: the store of the command's compile caches, on this node only.
        signing_key: Without CONFIG: sign with this key of the keyring, or PEM file.
        keys: Without CONFIG: must be equal too. Repeatable.
        caches: Without CONFIG: another cache, whose directory that variable names. Repeatable.
    """

    store: Annotated[str | None, Option(metavar="LOCATION", envvar="WARMRANK_STORE")] = None
    signing_key: Annotated[Path | None, Option(metavar="KEY", envvar="WARMRANK_SIGNING_KEY")] = None
    keys: Annotated[list[str] | None, Option("--key", metavar="NAME[=VALUE]")] = None
    caches: Annotated[list[str] | None, Option("--cache", metavar="TOOL:VARIABLE")] = None

    def refuse_beside(self, config: Path) -> None:
        """Refuse what a config says itself; variables of the environment are for commands without one."""
        found = {"WARMRANK_STORE": self.store, "WARMRANK_SIGNING_KEY": self.signing_key}
        given = [name for name, value in found.items() if str(value) not in ("None", os.environ.get(name))]
        if given or self.keys or self.caches:
            raise BadArgument(
                f"--store, --signing-key, --key and --cache go without a config; {config} names its own: "
                "change it there, or with --set"
            )

    def as_config(self) -> Config:
        """A config of the store alone.

        Inductor, AOTAutograd and Triton name their entries after their contents, so programs may share a
        directory; what their names lack (releases, devices, instruction sets) is the key under which it comes
        back. Where a tool's variable is set already, its directory is that one.
        """
        from warmrank.cache_store.canonical import key_of
        from warmrank.orchestrator.config.models import KNOWN_VARIABLES, Config, ExecConfig, SyncedCache
        from warmrank.orchestrator.stores import found_out, named_store
        from warmrank.worker.keys.request import environment

        keys, caches = self.keys or (), self.caches or ()
        if self.store is None:
            raise BadArgument("expected a CONFIG before --, or a store: --store LOCATION or WARMRANK_STORE")
        if unnamed := [cache for cache in caches if ":" not in cache.strip(":")]:
            example = "such as deepgemm:DG_JIT_CACHE_DIR"
            raise BadArgument(f"--cache {unnamed[0]}: expected TOOL:VARIABLE, {example}")
        found = {**environment(), "triton": found_out("triton") or "none"}
        given = {name: value for name, _, value in (key.partition("=") for key in keys)}
        known = {name: value for name, value in sorted(found.items()) if name not in given}
        tools = dict(KNOWN_VARIABLES)
        if "WARMRANK_STORE" in os.environ:  # to all processes: vLLM's plugin serves it
            del tools["vllm"]
        tools |= {tool: variable for tool, _, variable in (cache.partition(":") for cache in caches)}
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        store = named_store(self.store, signing_key=self.signing_key)
        # What came out of one store, perhaps unsigned, must not go into another one.
        own = key_of(known | given | {"store": store.location})[:12]
        return Config(
            name="exec",
            store=store,
            cache_dir=home / "warmrank" / "exec" / own,
            exec=ExecConfig(
                sync=tuple(
                    SyncedCache(tool=tool, variable=variable, path=os.environ.get(variable, ""))
                    for tool, variable in tools.items()
                ),
                keys=(*(f"{name}={value}" for name, value in known.items()), *keys),
            ),
        )


def exec_(  # noqa: PLR0913 - a command has one parameter for each option
    *,
    config: OptionalConfig = None,
    words: Annotated[list[str], Argument(metavar="-- COMMAND...")],
    here: bool = False,
    nodes: NodeNames = None,
    hosts: HostOptions,
    publish_when: Annotated[str, Option(metavar="FILE|PORT|exit|none")] = "exit",
    grace: Annotated[float, Option(metavar="SECONDS", min=0.0)] = 30.0,
    json_file: Annotated[Path | None, Option("--json", metavar="FILE")] = None,
    caches: CacheOptions,
    overrides: Overrides = None,
) -> None:
    """Run your own command (vLLM, torchrun) on warm nodes, and publish what it added.

    Without CONFIG, with --store or WARMRANK_STORE, the caches of Inductor, AOTAutograd, Triton and vLLM.

    Options:
        words: After --. {node_rank}, {nnodes}, {nproc}, {ranks}, {master_addr}, {master_port} and {cache_dir}
            are replaced on each node.
        here: This node only, without Ray.
        publish_when: When to publish what the command added: a file appears, a port accepts connections (PORT
            or HOST:PORT), or the command ends with status 0.
        grace: From SIGTERM or Ctrl-C to SIGKILL.
        json_file: Write what became of it there.
    """
    if here and nodes:
        raise typer.BadParameter("--here and --node exclude each other")
    if hosts.nnodes > 1 and not here:
        raise typer.BadParameter("--nnodes goes with --here; with Ray, --node names nodes")
    hosts.check()

    with signals.leaving_at_once():
        from warmrank.orchestrator.exec.driver import Options, execute
        from warmrank.orchestrator.exec.node import HostGroup, parse_when
    from warmrank.orchestrator.launch.report import make_way, to_json, write_whole

    named = None if config is None or str(config) == _NO_CONFIG else config
    group = HostGroup(**{**asdict(hosts), "node_rank": hosts.node_rank or 0})
    options = Options(
        here=here or named is None,
        nodes=tuple(nodes or ()),
        when=parse_when(publish_when),
        grace_s=grace,
        hosts=group if hosts.nnodes > 1 else None,
    )
    if named is not None:
        caches.refuse_beside(named)
    elif overrides:
        raise BadArgument("--set changes a config, and none is given before --")
    loaded = caches.as_config() if named is None else load_config(named, overrides)
    place = named or Path(_NO_CONFIG)
    refuse_what_fails(loaded, place, overrides, reads_only=publish_when == "none", starts_ray=False)
    if loaded.ranks % hosts.nnodes:
        raise typer.BadParameter(f"ranks ({loaded.ranks}) are not as many on each of {hosts.nnodes} hosts")
    if json_file is not None:
        make_way({"--json": json_file})
    out, err, tell = sys.stdout.buffer, sys.stderr.buffer, partial(say, stderr=True)
    with others_on_stderr():
        outcome = execute(
            loaded, words, options, say=lambda line: tell(f"warmrank: {line}"), out=out, err=err
        )
    if json_file is not None:
        write_whole(json_file, to_json(outcome))
    raise typer.Exit(outcome.exit_code)


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
        with signals.ctrl_c_raises():
            run_script(script, arguments or [], as_module=module)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - as Python ends; the command line would say less
        traceback, file = error.__traceback__, getattr(sys.modules["__main__"], "__file__", "")
        while traceback is not None and traceback.tb_frame.f_code.co_filename != file:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        raise SystemExit(signals.EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineOptions(ConfigOptions):
    """A config whose ranks are traced on this machine, without devices and without a cluster.

    Options:
        world_size: Number of ranks; else the config's.
        device: cpu, cuda or npu; else the config's.
        environment: What warmrank doctor --environment printed on a target.
        real_tensors: Build the model with memory and values (device cpu).
        every_rank: Build every rank's model, not one for each position.
        jobs: Ranks that work at a time.
    """

    world_size: Annotated[int | None, Option(metavar="N", min=1)] = None
    device: Annotated[str | None, Option(metavar="KIND")] = None
    environment: Annotated[Path | None, Option(metavar="FILE")] = None
    real_tensors: bool = False
    every_rank: bool = False
    jobs: Annotated[int | None, Option(metavar="J", min=1)] = None

    def read(self) -> tuple[Config, BuildOptions]:
        """Load the config, and read what it is built for; raises `ConfigError`."""
        from warmrank.orchestrator.build.driver import BuildOptions
        from warmrank.orchestrator.build.plan import read_target, target_here
        from warmrank.orchestrator.config.reading import load

        chosen = (*(self.overrides or ()), *([f"device={self.device}"] if self.device else ()))
        return load(self.config, chosen, world_size=self.world_size), BuildOptions(
            target=read_target(self.environment) if self.environment else target_here(),
            real_tensors=self.real_tensors,
            every_rank=self.every_rank,
            num_jobs=self.jobs or len(os.sched_getaffinity(0)),
        )


def build(offline: OfflineOptions, json_file: ReportFile = None) -> None:
    """Make the partitions of all ranks on this machine, without devices and without a cluster."""
    with signals.leaving_at_once():
        from warmrank.orchestrator.build.driver import build as run
    from warmrank.orchestrator.launch.report import make_way, to_json, write_whole
    from warmrank.orchestrator.ui.progress import progress
    from warmrank.orchestrator.ui.report_table import render_build

    loaded, options = offline.read()
    to_stdout = json_file == Path("-")
    if json_file and not to_stdout:
        make_way({"--json": json_file})
    console = output(stderr=to_stdout, lossy=True)
    with progress(console, loaded.ranks) as listener:
        report = run(loaded, options, listener=listener)
    console.print()
    console.print(render_build(report))
    if to_stdout:
        typer.echo(to_json(report), nl=False)
    elif json_file:
        write_whole(json_file, to_json(report))
        console.print(f"report: {json_file}", soft_wrap=True, markup=False)


def audit(offline: OfflineOptions, as_json: AsJson = False) -> None:
    """Trace again what a store holds, and compare: is it what would be compiled now?"""
    with signals.leaving_at_once():
        from warmrank.orchestrator.build.driver import audit_cache
    from warmrank.orchestrator.inspect.store_contents import open_if_there
    from warmrank.orchestrator.ui.progress import progress
    from warmrank.orchestrator.ui.report_table import render_audit

    loaded, options = offline.read()
    with progress(output(stderr=True), loaded.ranks) as listener:
        found = audit_cache(loaded, options, open_if_there(loaded), listener=listener)
    answer(found, render_audit, as_json=as_json)
    if found.outcome != "fresh":
        raise typer.Exit(ExitCode.FAULT if found.outcome == "stale" else ExitCode.MISSED)
