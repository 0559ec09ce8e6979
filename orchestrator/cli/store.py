"""The commands on a store (make, fill, check, clean, sync other tools' directories), and on a user's keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from typer import Argument, Option

from warmrank.cache_store.errors import Conflict, Corrupt, NoStoreYet, NotInStore, Untrusted
from warmrank.orchestrator.cli.console import ExitCode, answer, fetch_progress, output, print_json, say
from warmrank.orchestrator.cli.options import (
    AsJson,
    Commands,
    ConfigOptions,
    StoreOptions,
    check_line,
    is_config_name,
    load_optional,
)
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.ui import table
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from warmrank.cache_store.signing.keyring import KeyList
    from warmrank.cache_store.store import Store
    from warmrank.orchestrator.config.store import StoreConfig
    from warmrank.orchestrator.stores import Target

app = Commands("Make, fill, check and clean a store.")
sync_app = Commands(
    "Store and restore cache directories of other tools: Inductor, Triton, vLLM, .torchair_cache.",
    rich_markup_mode="rich",
    epilog="A directory comes back only where every key is the same. Example: warmrank store sync pull vllm "
    "~/.cache/vllm --store /mnt/warmrank --key torch --key vllm --key model=llama-8b",
)
app.add_typer(sync_app, name="sync")
keys_app = Commands("Make, list, trust and revoke the keys that say whose artifacts may run.")

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


@app.register()
def init(config: ConfigOptions) -> None:
    """Make the store of a config where there is none yet; a launch makes none that is required."""
    from warmrank.orchestrator.stores import make

    loaded = config.load()
    if loaded.store is None:
        raise BadArgument(f"{config.config} names no store; expected store.path in it")
    for place, is_new in make(loaded.store).items():
        say(f"{'made' if is_new else 'there already'}: {place}")


@app.register()
def publish(config: ConfigOptions, as_json: AsJson = False) -> None:
    """Publish what launches left on this node while the store was away; imports neither torch nor Ray."""
    from warmrank.orchestrator.stores import publish_late

    loaded = config.load()
    found = publish_late(loaded)
    answer(found, lambda report: table.render_queue(report, loaded.cache_dir), as_json=as_json)
    if found.kept or found.dropped or found.problems:
        raise typer.Exit(ExitCode.FAULT)


@app.register()
def verify(
    place: StoreOptions,
    *,
    cache: Annotated[Path | None, Option(metavar="DIR")] = None,
    repair: bool = False,
    as_json: AsJson = False,
) -> None:
    """Read store and cache again, byte for byte, and say what is wrong.

    Options:
        cache: A cache directory; else the config's.
        repair: Move what is damaged in the store away; bring back what is whole in its trash, in another
            place of it, in the cache or in quarantine.
    """
    from warmrank.orchestrator.inspect.store_contents import verify as run

    only_cache = cache is not None and place.config is None and place.store is None
    opened, loaded = (None, None) if only_cache else place.open()
    if cache is None and loaded is not None and loaded.cache_dir.is_dir():
        cache = loaded.cache_dir
    with fetch_progress("verify") as on_progress:
        found = run(
            opened, cache, signatures_checked=loaded is not None, repair=repair, on_progress=on_progress
        )
    answer(found, table.render_verified, as_json=as_json)
    if found.faults:
        raise typer.Exit(ExitCode.FAULT)


@app.register(bad_input=(NotInStore,))
def evict(  # noqa: PLR0913 - a parameter is an option of the command
    place: StoreOptions,
    *,
    older_than_s: Annotated[
        float | None, Option("--older-than", metavar="TIME", parser=parse_duration_s)
    ] = None,
    max_bytes: Annotated[int | None, Option("--max-size", metavar="SIZE", parser=parse_size_bytes)] = None,
    keep: Annotated[int, Option(min=0)] = 1,
    grace_s: Annotated[float, Option("--grace", metavar="TIME", parser=parse_duration_s)] = "24h",  # type: ignore[assignment]  # typer parses a default too
    tier: Annotated[str | None, Option(metavar="LOCATION")] = None,
    no_records: bool = False,
    dry_run: bool = False,
    as_json: AsJson = False,
) -> None:
    """Take away what no launch needs any more; the trash keeps it for the grace.

    Options:
        older_than_s: Unused for so long: 30d, 12h.
        max_bytes: Least recently used go until it fits.
        keep: So many of the newest records of each launch, number of ranks and environment stay.
        grace_s: Nothing younger goes, and the trash is emptied after it: longer than the longest publish.
        tier: One place of the store; else every writable one.
        no_records: A store without one launch is no mistake; empty it.
        dry_run: Only say what would go, and why.
    """
    from warmrank.cache_store.gc.evict import EvictPolicy

    policy = EvictPolicy(
        older_than_s=older_than_s,
        max_bytes=max_bytes,
        keep=keep,
        grace_s=grace_s,
        expects_records=not no_records,
    )
    opened, _ = place.open(with_keyring=True)
    done = opened.evict(policy, place=tier, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "places": done.reports, "faults": done.faults})
    else:
        output().print(table.render_evicted(done, dry_run=dry_run))
    if done.faults:
        raise typer.Exit(ExitCode.FAULT)


@app.register(bad_input=(Conflict, NotInStore))
def pin(
    launch: Annotated[str | None, Argument(metavar="LAUNCH")] = None,
    *,
    place: StoreOptions,
    reason: str = "",
    remove: bool = False,
    list_: bool = False,
    as_json: AsJson = False,
) -> None:
    """Keep a launch from being evicted, until the pin is removed.

    Options:
        launch: First characters of a launch key or record digest.
        reason: Why, for whoever asks later.
        remove: Remove the pin.
        list_: Only list what is pinned.
    """
    check_line(reason, "--reason")
    if place.config is None and launch is not None and (list_ or is_config_name(launch)):
        place, launch = replace(place, config=Path(launch)), None
    if list_ == (launch is not None) or (list_ and remove):
        raise typer.BadParameter("expected either LAUNCH, or --list")
    opened, _ = place.open()
    removed: tuple[str, ...] = ()
    if launch is not None and remove:
        removed = opened.unpin(launch)
    elif launch is not None:
        pinned = opened.pin(launch, reason=reason)
        if reason and any(each.reason != reason for each in pinned):
            note = "note: pinned before, and the first reason stays; to change it, --remove the pin first"
            say(note, stderr=True)
    if as_json:
        print_json({"removed": removed, "pins": opened.pins()})
    else:
        output().print(table.render_pins(opened.pins()))
    _say_problems(opened)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """Directories of a tool, the keys under which they are kept, and the store that keeps them.

    Options:
        name: Whose directory: inductor, triton, vllm and torchair may be restored at another path; any other
            name too, as long as no file of it names its own path.
        directories: Directories, in the same order every time.
        config: Config that names the store and whom to trust.
        store: The store, if no config: a directory or a URL.
        keys: What must be equal to restore it: python, torch, cuda, torch_npu, cann, driver, accelerator, cpu
            or an installed package, found out here; or any NAME=VALUE. Repeatable. None: all that is known of
            the environment.
        per: One directory for a node, or one for each rank ({rank} in DIR).
        rank: Global rank, with --per rank.
        world_size: Number of ranks, with --per rank.
    """

    name: Annotated[str, Argument(metavar="NAME")]
    directories: Annotated[list[str], Argument(metavar="DIR...")]
    config: Annotated[Path | None, Option(metavar="FILE")] = None
    store: Annotated[str | None, Option(metavar="LOCATION")] = None
    keys: Annotated[list[str] | None, Option("--key", metavar="NAME[=VALUE]")] = None
    per: Literal["node", "rank"] = "node"
    rank: Annotated[int | None, Option(envvar="RANK")] = None
    world_size: Annotated[int | None, Option(envvar="WORLD_SIZE")] = None

    def targets(self) -> Sequence[Target]:
        """Each directory, with the components that it goes by."""
        from warmrank.orchestrator.stores import targets

        return targets(
            self.directories, self.keys or (), per=self.per, rank=self.rank, world_size=self.world_size
        )

    def named(self, signing_key: Path | None = None) -> StoreConfig:
        """The store, and whom to trust."""
        from warmrank.orchestrator.stores import named_store

        if (self.config is None) == (self.store is None):
            raise BadArgument("expected either --config FILE or --store LOCATION, to say which store")
        if self.store is not None:
            return named_store(self.store, signing_key=signing_key)
        if signing_key is not None:
            own = "a config names its own in store.trust.signing_key"
            raise BadArgument(f"--signing-key goes with --store; {own}")
        loaded = load_optional(self.config, None)
        if loaded is None or loaded.store is None:
            raise BadArgument(f"{self.config} names no store; expected store.path in it, or --store LOCATION")
        return loaded.store


@sync_app.register(bad_input=(Untrusted,))
def push(
    what: SyncOptions,
    *,
    signing_key: Annotated[Path | None, Option(metavar="KEY")] = None,
    as_json: AsJson = False,
) -> None:
    """Store directories; locks and temporary files are left out.

    Options:
        signing_key: With --store: sign with this key of the keyring, or PEM file (warmrank keys generate).
    """
    from warmrank.orchestrator.stores import open_store

    wanted = what.targets()
    if absent := [str(directory) for directory, _ in wanted if not directory.is_dir()]:
        found = "something else" if Path(absent[0]).exists() else "nothing"
        raise BadArgument(f"{absent[0]}: expected a directory to push, found {found}")
    opened = open_store(what.named(signing_key))
    reports = [opened.push_directory(what.name, directory, components) for directory, components in wanted]
    answer(reports, table.render_pushes, as_json=as_json)
    _say_problems(opened)


@sync_app.register()
def pull(
    what: SyncOptions,
    *,
    replace_: bool = False,
    as_json: AsJson = False,
) -> None:
    """Restore directories, verified; nothing comes into one whose files differ from those that were pushed.

    Exit status 3 when nothing was pushed under these keys (all the others are restored all the same).

    Options:
        replace_: Replace files with other bytes.
    """
    from warmrank.cache_store.cache_dir.marks import check_marks
    from warmrank.orchestrator.stores import load, open_to_fetch

    wanted, named = what.targets(), what.named()
    reports, misses = [], []
    opened: Store | None = None
    try:
        opened = open_to_fetch(named)
    except NoStoreYet as absent:
        trust = load(named, to_sign=False)
        for directory, _ in wanted:  # after a miss the tool uses what is there
            check_marks(directory, trust.policy, trust.revoked)
        misses.append(NotInStore(what="a store", where=absent.where, remedy="push first, which makes it"))
    else:
        for directory, components in wanted:
            try:
                reports.append(opened.pull_directory(what.name, directory, components, replaces=replace_))
            except NotInStore as miss:
                misses.append(miss)
    if as_json:
        print_json({"pulled": reports, "missed": [str(miss) for miss in misses]})
    else:
        output().print(table.render_pulls(reports, misses))
    if opened is not None:
        _say_problems(opened)
        if opened.farthest.state == "away" or (misses and opened.problems):
            raise typer.Exit(ExitCode.FAULT)
    if misses:
        raise typer.Exit(ExitCode.MISSED)


def _say_problems(opened: Store) -> None:
    """Say on stderr what the store went on without."""
    if opened.problems:
        say(*(f"store: {problem}" for problem in opened.problems), stderr=True)


Keyring = Annotated[
    Path | None,
    Option("--keyring", metavar="DIR", help="Directory of the keys; without it ~/.config/warmrank/keys."),
]


@keys_app.register(bad_input=(Conflict,))
def generate(
    name: Annotated[str, Argument(metavar="NAME")],
    keyring: Keyring = None,
    as_json: AsJson = False,
) -> None:
    """Make a key pair and trust its public half.

    Options:
        name: What people will call it, e.g. ci.
    """
    from warmrank.cache_store.signing import keyring as keys

    place = _place(keyring)
    keys.read_keyring(place)  # a key must not be added where nobody can tell what is revoked
    private, public = keys.private_path(place, _checked(name)), keys.public_path(place, name)
    was_there = " (was there; it lacked its public half)" if private.exists() else ""
    wanted = keys.key_id(keys.generate(place, name).public_key)
    if as_json:
        print_json({"name": name, "key_id": wanted, "private": private, "public": public})
        return
    elsewhere = "" if keyring is None else f" and store.trust.keyring: {place}"
    say(
        f"key {name} {wanted}",
        f"  private  {private}{was_there}",
        f"  public   {public}",
        f"To sign with it, set store.trust.signing_key: {name}{elsewhere}",
        "The private file stays here and goes to nobody. Others who should use what you publish need a",
        f"copy of the public file: warmrank keys trust {public.name}",
    )


@keys_app.register("list")
def list_keys(keyring: Keyring = None, as_json: AsJson = False) -> None:
    """List the keys: which sign, which are trusted, which are revoked."""
    from warmrank.cache_store.signing.keyring import list_keys

    answer(list_keys(_place(keyring)), table.render_keys, as_json=as_json)


@keys_app.register(bad_input=(Conflict,))
def trust(
    file: Annotated[Path, Argument(metavar="FILE", exists=True, dir_okay=False)],
    name: Annotated[str, Option(metavar="NAME")] = "",
    keyring: Keyring = None,
) -> None:
    """Trust a public key: what it signed may run here.

    Options:
        file: PEM file of a public key.
        name: What to call it; else as the file.
    """
    from warmrank.cache_store.signing.keyring import key_id, load_public_key, trust_key

    place, called = _place(keyring), _checked(name or _stem(file))
    public_key = _read_key(load_public_key, file)
    done = "is trusted now" if trust_key(place, called, public_key) else "was trusted already"
    say(
        f"key {called} {key_id(public_key)} {done}, in {place}",
        "Compare the id with what its owner reads out to you: what this key signs runs as you.",
    )


@keys_app.register()
def revoke(
    key: Annotated[str, Argument(metavar="NAME|ID|FILE")],
    reason: Annotated[str, Option(metavar="TEXT")] = "",
    keyring: Keyring = None,
) -> None:
    """Believe a key no more, whoever trusts it; one's own key then signs nothing.

    Options:
        key: Name, id or PEM file of the key.
        reason: Why; shown whenever the key is refused.
    """
    from warmrank.cache_store.signing.keyring import Revocation, list_keys
    from warmrank.cache_store.signing.keyring import revoke as run

    check_line(reason, "--reason")
    place = _place(keyring)
    name, wanted = _meant(list_keys(place), key)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    standing, is_new = run(place, Revocation(key_id=wanted, name=name, reason=reason, when=when))
    shown = f"key {name} {wanted}" if name else f"key {wanted}"
    if not is_new:
        say(f"{shown} was {standing} already, in {place}")
        return
    say(
        f"{shown} is revoked now, in {place}",
        "A launch refuses what it signed, on every node, and the next publish replaces that. Others",
        f"revoke it themselves: warmrank keys revoke {wanted}, or store.trust.revoked in a config.",
    )


def _place(keyring: Path | None) -> Path:
    found = keyring.expanduser() if keyring is not None else settings().keyring
    if found is None:
        raise typer.BadParameter("this user has no home directory; name a keyring", param_hint="--keyring")
    return found.absolute()


def _read_key(read: Callable[[Path], Ed25519PublicKey], file: Path) -> Ed25519PublicKey:
    try:
        return read(file)
    except Corrupt as error:
        raise BadArgument(f"{file}: expected {error.expected}, found {error.actual}") from None


def _stem(file: Path) -> str:
    return file.name.removesuffix(".pem").removesuffix(".pub")


def _checked(name: str) -> str:
    from warmrank.cache_store.signing.keyring import name_fault

    if fault := name_fault(name):
        raise typer.BadParameter(f"{name!r} {fault}", param_hint="NAME")
    return name


def _meant(found: KeyList, text: str) -> tuple[str, str]:
    """Name and id of the key that a name, an id or a file of a key means."""
    from warmrank.cache_store.signing.keyring import is_key_id, key_id, read_any_key

    names = {line.key_id: line.name for line in reversed(found.keys)}
    if is_key_id(text):
        return names.get(text, ""), text
    if "/" in text or text.endswith(".pem"):
        path = Path(text).expanduser()
        wanted = key_id(_read_key(read_any_key, path))
        return names.get(wanted, _stem(path)), wanted
    ids = sorted({line.key_id for line in found.keys if line.name == text})
    if len(ids) == 1:
        return text, ids[0]
    known = ", ".join(line.name for line in found.keys if line.name) or "none"
    fault = f"no key {text!r} in {found.keyring}; known: {known}; an unknown key is revoked by id or file"
    several = f"{text!r} names several; use an id: {', '.join(ids)}"
    raise typer.BadParameter(several if ids else fault, param_hint="NAME|ID|FILE")
