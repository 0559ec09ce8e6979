"""`warmrank store`: make, fill, check and clean a store; sync other tools' directories."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from warmrank.cache_store.errors import Conflict, NoStoreYet, NotInStore
from warmrank.orchestrator.cli.console import ExitCode, answer, command, output, print_json, say
from warmrank.orchestrator.cli.options import (
    AsJson,
    ConfigFile,
    OptionalConfig,
    Overrides,
    StorePath,
    check_line,
    group_of_commands,
    is_config_name,
    load_config,
    load_optional,
)
from warmrank.orchestrator.errors import BadArgument

if TYPE_CHECKING:
    from warmrank.orchestrator.config.store import StoreConfig

app = group_of_commands("Make, fill, check and clean a store.")
sync_app = group_of_commands(
    "Store and restore cache directories of other tools: Inductor, Triton, vLLM, .torchair_cache.",
    rich_markup_mode="rich",
    epilog="A directory comes back only where every key is the same. Example: warmrank store sync pull vllm "
    "~/.cache/vllm --store /mnt/warmrank --key torch --key vllm --key model=llama-8b",
)
app.add_typer(sync_app, name="sync")

Scope = Literal["node", "rank"]  # as of `stores`, which --help need not import

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|min|h|d|w)", re.ASCII)
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_duration_s(text: str) -> float:
    """Seconds of a duration such as ``30d``, ``12h``, ``90min``; raises ``typer.BadParameter``."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"expected a number with s, min, h, d or w, such as 30d; found {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size_bytes(text: str) -> int:
    """Bytes of a size such as ``500GiB`` or ``2TB``; raises ``typer.BadParameter``."""
    with suppress(ValidationError):
        if not text.isdecimal():  # bytes have a unit, too
            return TypeAdapter(ByteSize).validate_python(text)
    expected = "a number with GiB, GB, MiB and so on, such as 500GiB"
    raise typer.BadParameter(f"expected {expected}; found {text!r}")


@app.command()
@command
def init(config: ConfigFile, overrides: Overrides = None) -> None:
    """Make the store of a config where there is none yet; a launch makes none that is required."""
    from warmrank.orchestrator.stores import make

    loaded = load_config(config, overrides)
    if loaded.store is None:
        raise BadArgument(f"{config} names no store; expected store.path in it")
    for place, is_new in make(loaded.store).items():
        say(f"{'made' if is_new else 'there already'}: {place}")


@app.command()
@command
def publish(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Publish what launches left on this node while the store was away; imports neither torch nor Ray."""
    from warmrank.orchestrator.stores import publish_late
    from warmrank.orchestrator.ui.table import render_queue

    loaded = load_config(config, overrides)
    found = publish_late(loaded)
    if as_json:
        print_json(found)
    else:
        output().print(render_queue(found, loaded.cache_dir), soft_wrap=True)
    if found.kept or found.dropped or found.problems:
        raise typer.Exit(ExitCode.FAULT)


@app.command()
@command
def verify(
    config: OptionalConfig = None,
    store: StorePath = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="A cache directory; else the config's.")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Move what is damaged in the store away; bring back what is whole in its trash, in another "
            "place of it or in the cache.",
        ),
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Read store and cache again, byte for byte, and say what is wrong."""
    from warmrank.orchestrator.inspect import store_contents as look
    from warmrank.orchestrator.inspect.store_contents import verify as run
    from warmrank.orchestrator.ui.progress import fetch_progress
    from warmrank.orchestrator.ui.table import render_verified

    loaded = load_optional(config, overrides)
    only_cache = cache is not None and loaded is None and store is None
    opened = None if only_cache else look.open_to_look(loaded, store)
    if cache is None and loaded is not None and loaded.cache_dir.is_dir():
        cache = loaded.cache_dir
    with fetch_progress(output(stderr=True), "verify") as on_progress:
        found = run(
            opened,
            cache,
            signatures_checked=loaded is not None,
            repair=repair,
            on_progress=on_progress,
        )
    answer(found, render_verified, as_json=as_json)
    if found.faults:
        raise typer.Exit(ExitCode.FAULT)


@app.command()
@command(bad_input=(NotInStore,))
def evict(  # noqa: PLR0913, PLR0917 - a parameter is an option of the command
    config: OptionalConfig = None,
    store: StorePath = None,
    older_than_s: Annotated[
        float | None,
        typer.Option(
            "--older-than", metavar="TIME", parser=parse_duration_s, help="Unused for so long: 30d, 12h."
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            parser=parse_size_bytes,
            help="Least recently used go until it fits.",
        ),
    ] = None,
    keep: Annotated[
        int, typer.Option(min=0, help="So many of the newest records of each launch and environment stay.")
    ] = 1,
    grace_s: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="TIME",
            parser=parse_duration_s,
            help="Nothing younger goes, and the trash is emptied after it: longer than the longest publish.",
        ),
    ] = "24h",  # type: ignore[assignment]  # typer parses a default too
    tier: Annotated[
        str | None, typer.Option(metavar="LOCATION", help="One place of the store; else every writable one.")
    ] = None,
    no_records: Annotated[
        bool, typer.Option("--no-records", help="A store without one launch is no mistake; empty it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go, and why.")] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Take away what no launch needs any more; the trash keeps it for the grace."""
    from warmrank.cache_store.gc.evict import EvictPolicy
    from warmrank.orchestrator.inspect import store_contents as look
    from warmrank.orchestrator.ui.table import render_evicted

    opened = look.open_to_look(load_optional(config, overrides), store, with_keyring=True)
    policy = EvictPolicy(
        older_than_s=older_than_s,
        max_bytes=max_bytes,
        keep=keep,
        grace_s=grace_s,
        expects_records=not no_records,
    )
    done = opened.evict(policy, place=tier, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "places": done.reports, "faults": done.faults})
    else:
        output().print(render_evicted(done, dry_run=dry_run))
    if done.faults:
        raise typer.Exit(ExitCode.FAULT)


@app.command()
@command(bad_input=(Conflict,))
def pin(  # noqa: PLR0913, PLR0917 - as evict
    launch: Annotated[
        str | None,
        typer.Argument(metavar="LAUNCH", help="First characters of a launch key or record digest."),
    ] = None,
    config: OptionalConfig = None,
    store: StorePath = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever asks later.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the pin.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Only list what is pinned.")] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Keep a launch from being evicted, until the pin is removed."""
    check_line(reason, "--reason")
    if config is None and launch is not None and (list_ or is_config_name(launch)):
        config, launch = Path(launch), None
    if list_ == (launch is not None) or (list_ and remove):
        raise typer.BadParameter("expected either LAUNCH, or --list")
    from warmrank.orchestrator.inspect import store_contents as look
    from warmrank.orchestrator.ui.table import render_pins

    opened = look.open_to_look(load_optional(config, overrides), store)
    if launch is not None and remove:
        removed = opened.unpin(launch)
    elif launch is not None:
        pinned = opened.pin(launch, reason=reason)
        if reason and any(each.reason != reason for each in pinned):
            note = "note: pinned before, and the first reason stays; to change it, --remove the pin first"
            output(stderr=True).print(note)
    pins = opened.pins()
    if as_json:
        print_json({"removed": removed if launch and remove else (), "pins": pins})
    else:
        output().print(render_pins(pins))


_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Whose directory: inductor, triton, vllm and torchair may be restored at another path; any "
        "other name too, as long as no file of it names its own path.",
        show_default=False,
    ),
]
_Directories = Annotated[
    list[str],
    typer.Argument(metavar="DIR...", help="Directories, in the same order every time.", show_default=False),
]
_Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Config that names the store and whom to trust."),
]
_Store = Annotated[
    str | None,
    typer.Option("--store", metavar="LOCATION", help="The store, if no config: a directory or a URL."),
]
_Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="NAME[=VALUE]",
        help="What must be equal to restore it: python, torch, cuda, torch_npu, cann, driver, accelerator, "
        "cpu or an installed package, found out here; or any NAME=VALUE. Repeatable. None: all that is "
        "known of the environment.",
    ),
]
_SigningKey = Annotated[
    Path | None,
    typer.Option(
        "--signing-key",
        metavar="KEY",
        help="With --store: sign with this key of the keyring, or PEM file (warmrank keys generate).",
    ),
]
_Per = Annotated[
    Scope,
    typer.Option("--per", help="One directory for a node, or one for each rank ({rank} in DIR)."),
]
_Rank = Annotated[int | None, typer.Option("--rank", envvar="RANK", help="Global rank, with --per rank.")]
_WorldSize = Annotated[
    int | None, typer.Option("--world-size", envvar="WORLD_SIZE", help="Number of ranks, with --per rank.")
]


@sync_app.command()
@command
def push(  # noqa: PLR0913 - a command has one parameter for each option
    name: _Name,
    directories: _Directories,
    *,
    config: _Config = None,
    store: _Store = None,
    keys: _Keys = None,
    per: _Per = "node",
    rank: _Rank = None,
    world_size: _WorldSize = None,
    signing_key: _SigningKey = None,
    as_json: AsJson = False,
) -> None:
    """Store directories; locks and temporary files are left out."""
    from warmrank.orchestrator.stores import open_store, targets
    from warmrank.orchestrator.ui.table import render_pushes

    wanted = targets(directories, keys or (), per=per, rank=rank, world_size=world_size)
    if absent := [str(directory) for directory, _ in wanted if not directory.is_dir()]:
        found = "something else" if Path(absent[0]).exists() else "nothing"
        raise BadArgument(f"{absent[0]}: expected a directory to push, found {found}")
    opened = open_store(_named(config, store, signing_key))
    reports = [opened.push_directory(name, directory, components) for directory, components in wanted]
    answer(reports, render_pushes, as_json=as_json)


@sync_app.command()
@command
def pull(  # noqa: PLR0913 - a command has one parameter for each option
    name: _Name,
    directories: _Directories,
    *,
    config: _Config = None,
    store: _Store = None,
    keys: _Keys = None,
    per: _Per = "node",
    rank: _Rank = None,
    world_size: _WorldSize = None,
    replace_: Annotated[
        bool,
        typer.Option("--replace", help="Replace files with other bytes."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Restore directories, verified; nothing comes into one whose files differ from those that were pushed.

    Exit status 3 when nothing was pushed under these keys (all the others are restored all the same).
    """
    from warmrank.cache_store.cache_dir.marks import check_marks
    from warmrank.orchestrator.stores import load, open_to_fetch, targets
    from warmrank.orchestrator.ui.table import render_pulls

    wanted = targets(directories, keys or (), per=per, rank=rank, world_size=world_size)
    named = _named(config, store, None)
    reports, misses = [], []
    try:
        opened = open_to_fetch(named)
    except NoStoreYet as absent:
        trust = load(named, to_sign=False)
        for directory, _ in wanted:  # after a miss the tool uses what is there
            check_marks(directory, trust.policy, trust.revoked)
        wanted = ()
        misses.append(NotInStore(what="a store", where=absent.where, remedy="push first, which makes it"))
    for directory, components in wanted:
        try:
            reports.append(opened.pull_directory(name, directory, components, replaces=replace_))
        except NotInStore as miss:
            misses.append(miss)
    if as_json:
        print_json({"pulled": reports, "missed": [str(miss) for miss in misses]})
    else:
        output().print(render_pulls(reports, misses))
    if misses:
        raise typer.Exit(ExitCode.MISSED)


def _named(config: Path | None, location: str | None, key: Path | None) -> StoreConfig:
    from warmrank.orchestrator.stores import named_store

    if (config is None) == (location is None):
        raise BadArgument("expected either --config FILE or --store LOCATION, to say which store")
    if location is not None:
        return named_store(location, signing_key=key)
    if key is not None:
        raise BadArgument(
            "--signing-key goes with --store; a config names its own in store.trust.signing_key"
        )
    loaded = load_optional(config, None)
    if loaded is None or loaded.store is None:
        raise BadArgument(f"{config} names no store; expected store.path in it, or --store LOCATION")
    return loaded.store
