"""``warmrank sync``: cache directories of other tools, through the same store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from warmrank.orchestrator.cli.config_option import ConfigGroup
from warmrank.orchestrator.cli.console import ExitCode, answer, output, print_json, session
from warmrank.orchestrator.cli.options import AsJson, Debug, load_optional

if TYPE_CHECKING:
    from warmrank.orchestrator.config.store import StoreConfig
    from warmrank.orchestrator.store.sync import Target

app = typer.Typer(
    cls=ConfigGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Store and restore cache directories of other tools: Inductor, Triton, vLLM, .torchair_cache.",
    epilog="A directory comes back only where every key is the same. Example: warmrank sync pull vllm "
    "~/.cache/vllm --store /mnt/warmrank --key torch --key vllm --key model=llama-8b",
)

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
    Literal["node", "rank"],
    typer.Option("--per", help="One directory for a node, or one for each rank ({rank} in DIR)."),
]
_Rank = Annotated[int | None, typer.Option("--rank", envvar="RANK", help="Global rank, with --per rank.")]
_WorldSize = Annotated[
    int | None, typer.Option("--world-size", envvar="WORLD_SIZE", help="Number of ranks, with --per rank.")
]


@app.command()
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
    debug: Debug = False,
) -> None:
    """Store directories; locks and temporary files are left out."""
    with session(debug=debug):
        from warmrank.orchestrator.errors import BadArgument
        from warmrank.orchestrator.store.stores import open_store
        from warmrank.orchestrator.ui.table import render_pushes

        wanted = _targets(directories, keys, per, rank, world_size)
        if absent := [str(each.directory) for each in wanted if not each.directory.is_dir()]:
            msg = f"{absent[0]}: expected a directory to push, found {_kind(absent[0])}"
            raise BadArgument(msg)
        opened = open_store(_named(config, store, signing_key))
        reports = []
        for each in wanted:
            with _signing_key_named_so(store):
                reports.append(opened.push_directory(name, each.directory, each.components))
        answer(reports, render_pushes, as_json=as_json)


@app.command()
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
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Replace files with other bytes, and remove what only an earlier pull put there.",
        ),
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Restore directories, verified; nothing comes into one whose files differ from those that were pushed.

    Exit status 3 when nothing was pushed under these keys (all the others are restored all the same).
    """
    from warmrank.cache_store.errors import NoStoreYet, NotInStore

    with session(debug=debug):
        from warmrank.cache_store.cache_dir.marks import check_marks
        from warmrank.orchestrator.store.stores import load, open_to_fetch
        from warmrank.orchestrator.ui.table import render_pulls

        wanted = _targets(directories, keys, per, rank, world_size)
        named = _named(config, store, None)
        reports, misses = [], []
        try:
            opened = open_to_fetch(named)
        except NoStoreYet as absent:
            trust = load(named, to_sign=False)
            for each in wanted:  # after a miss the tool uses what is there
                check_marks(each.directory, trust.policy, trust.revoked)
            wanted = ()
            misses.append(NotInStore(what="a store", where=absent.where, remedy="push first, which makes it"))
        for each in wanted:
            try:
                reports.append(opened.pull_directory(name, each.directory, each.components, replace=replace))
            except NotInStore as miss:
                misses.append(miss)
        if as_json:
            print_json({"pulled": reports, "missed": [str(miss) for miss in misses]})
        else:
            output().print(render_pulls(reports, misses))
    if misses:
        raise typer.Exit(ExitCode.MISSED)


def _kind(path: str) -> str:
    return "something else" if Path(path).exists() else "nothing"


@contextmanager
def _signing_key_named_so(location: str | None) -> Iterator[None]:
    """Without a config there is no ``store.trust.signing_key`` to set."""
    from warmrank.cache_store.errors import Untrusted

    try:
        yield
    except Untrusted as error:
        if location is None or error.reason != "no_signing_key":
            raise
        remedy = "name a key with --signing-key (warmrank keys generate makes one)"
        raise replace(error, remedy=remedy) from None


def _targets(
    directories: list[str],
    keys: list[str] | None,
    per: Literal["node", "rank"],
    rank: int | None,
    world_size: int | None,
) -> tuple[Target, ...]:
    from warmrank.orchestrator.store.sync import Seat, targets

    return targets(directories, keys or (), Seat(scope=per, rank=rank, world_size=world_size))


def _named(config: Path | None, location: str | None, key: Path | None) -> StoreConfig:
    from warmrank.orchestrator.errors import BadArgument
    from warmrank.orchestrator.store.stores import named_store

    loaded = load_optional(config, None)
    if (loaded is None) == (location is None):
        msg = "expected either --config FILE or --store LOCATION, to say which store"
        raise BadArgument(msg)
    if loaded is not None and key is not None:
        msg = "--signing-key goes with --store; a config names its own in store.trust.signing_key"
        raise BadArgument(msg)
    store = (
        named_store(location, signing_key=key) if location is not None else loaded.store if loaded else None
    )
    if store is None:
        msg = f"{config} names no store; expected store.path in it, or --store LOCATION"
        raise BadArgument(msg)
    return store
