"""The commands on a user's keys: make, list, trust and revoke them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from warmrank.cache_store.errors import Conflict
from warmrank.orchestrator.cli.console import answer, command, print_json, say
from warmrank.orchestrator.cli.options import AsJson, check_line, group_of_commands
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.cache_store.signing.keyring import KeyList

_Keyring = Annotated[
    Path | None,
    Option("--keyring", metavar="DIR", help="Directory of the keys; without it ~/.config/warmrank/keys."),
]

app = group_of_commands("Make, list, trust and revoke the keys that say whose artifacts may run.")


@app.command()
@command(bad_input=(Conflict,))
def generate(
    name: Annotated[str, Argument(metavar="NAME", help="What people will call it, e.g. ci.")],
    keyring: _Keyring = None,
    as_json: AsJson = False,
) -> None:
    """Make a key pair and trust its public half."""
    from warmrank.cache_store.signing.keyring import generate as run
    from warmrank.cache_store.signing.keyring import key_id, private_path, public_path, read_keyring

    place = _place(keyring)
    read_keyring(place)  # a key must not be added where nobody can tell what is revoked
    wanted = key_id(run(place, _checked(name)).public_key)
    private, public = private_path(place, name), public_path(place, name)
    if as_json:
        print_json({"name": name, "key_id": wanted, "private": private, "public": public})
        return
    elsewhere = "" if keyring is None else f" and store.trust.keyring: {place}"
    say(
        f"key {name} {wanted}",
        f"  private  {private}",
        f"  public   {public}",
        f"To sign with it, set store.trust.signing_key: {name}{elsewhere}",
        "The private file stays here and goes to nobody. Others who should use what you publish need a",
        f"copy of the public file: warmrank keys trust {public.name}",
    )


@app.command("list")
@command
def list_(keyring: _Keyring = None, as_json: AsJson = False) -> None:
    """List the keys: which sign, which are trusted, which are revoked."""
    from warmrank.cache_store.signing.keyring import list_keys
    from warmrank.orchestrator.ui.table import render_keys

    answer(list_keys(_place(keyring)), render_keys, as_json=as_json)


@app.command()
@command
def trust(
    file: Annotated[
        Path, Argument(metavar="FILE", help="PEM file of a public key.", exists=True, dir_okay=False)
    ],
    name: Annotated[str, Option("--name", metavar="NAME", help="What to call it; else as the file.")] = "",
    keyring: _Keyring = None,
) -> None:
    """Trust a public key: what it signed may run here."""
    from warmrank.cache_store.signing.keyring import key_id, load_public_key, trust_key

    place, called = _place(keyring), _checked(name or _stem(file))
    public_key = load_public_key(file)
    done = "is trusted now" if trust_key(place, called, public_key) else "was trusted already"
    say(
        f"key {called} {key_id(public_key)} {done}, in {place}",
        "Compare the id with what its owner reads out to you: what this key signs runs as you.",
    )


@app.command()
@command
def revoke(
    key: Annotated[str, Argument(metavar="NAME|ID|FILE", help="Name, id or PEM file of the key.")],
    reason: Annotated[
        str, Option("--reason", metavar="TEXT", help="Why; shown whenever the key is refused.")
    ] = "",
    keyring: _Keyring = None,
) -> None:
    """Believe a key no more, whoever trusts it; one's own key then signs nothing."""
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
        wanted = key_id(read_any_key(path))
        return names.get(wanted, _stem(path)), wanted
    ids = sorted({line.key_id for line in found.keys if line.name == text})
    if len(ids) == 1:
        return text, ids[0]
    known = ", ".join(line.name for line in found.keys if line.name) or "none"
    fault = f"no key {text!r} in {found.keyring}; known: {known}; an unknown key is revoked by id or file"
    several = f"{text!r} names several; use an id: {', '.join(ids)}"
    raise typer.BadParameter(several if ids else fault, param_hint="NAME|ID|FILE")
