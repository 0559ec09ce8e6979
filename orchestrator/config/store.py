"""The models of the store in a config: its places, and whose artifacts are believed.

Invariant: no secret stands in a config, because it goes to every node and into messages.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from warmrank.cache_store.backends.objects.connection import KNOWN_OPTIONS, SCHEMES, is_usable
from warmrank.cache_store.backends.places import ANSWER_S
from warmrank.orchestrator.config.strict import Seconds, Strict
from warmrank.orchestrator.errors import BadArgument

TierMode = Literal["off", "ro", "rw", "required"]
Flush = Literal["auto", "syncfs", "fsync"]

KEY_ID_PATTERN = r"^[0-9a-f]{32}$"
IN_ENVIRON = (
    "a config goes to every node: set credentials in the environment there, such as AWS_ACCESS_KEY_ID"
)

_SECRET = re.compile(
    r"secret|token|passw|credentials?$|(access|account|customer|private|shared)_?key|sas_", re.IGNORECASE
)

_SLASH_LOST = re.compile(r"([A-Za-z0-9]+):/")


def is_url(path: str) -> bool:
    """Whether a store's path is a URL, and no directory."""
    return "://" in path


def _normalised(path: str) -> str:
    """The same for each way to write one place; links are not followed, because a dead disk would hang."""
    return path.rstrip("/") if is_url(path) else os.path.normpath(Path(path).expanduser().absolute())


def is_secret(name: str) -> bool:
    """Whether an option of that name holds what nobody else should read."""
    return _SECRET.search(name) is not None


class TrustConfig(Strict):
    """Whose artifacts may run. An artifact is code."""

    policy: Literal["require", "warn", "off"] | None = Field(
        default=None,
        description="require, warn or off: what to do about a signature that is not trusted; "
        "without it off for a store of your own on a local disk, else require",
    )
    signing_key: Path | None = Field(
        default=None,
        description="PEM file of the private key that signs, or the name of a key of the keyring",
    )
    trusted_keys: dict[str, Path] = Field(
        default={}, description="names of signers: PEM files of public keys"
    )
    keyring: Path | None = Field(
        default=None, description="directory of keys as `warmrank keys` makes it; ~/.config/warmrank/keys"
    )
    revoked: tuple[Annotated[str, Field(pattern=KEY_ID_PATTERN)], ...] = Field(
        default=(), description="list of ids of keys that are refused whatever else is said of them"
    )

    @property
    def names_a_key(self) -> bool:
        """Whether `signing_key` is the name of a key of the keyring, and no path."""
        key = self.signing_key
        return key is not None and len(key.parts) == 1 and key.suffix != ".pem" and str(key) != "~"

    @field_validator("policy", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        return "off" if value is False else value  # YAML 1.1 reads a bare `off` as false


class TierConfig(Strict):
    """One place of the store, such as a node's own disk, or what all nodes share."""

    path: str = Field(
        min_length=1,
        description="directory of the store, the same on all nodes, or a URL such as s3://bucket/prefix",
    )
    mode: TierMode = Field(
        default="rw",
        description="off, ro, rw, or required: a launch without it fails, where it would go on otherwise",
    )
    flush: Flush = Field(
        default="auto", description="auto (by file system), syncfs or fsync: how a directory is made durable"
    )
    answer_s: Seconds = Field(
        default=ANSWER_S, description="seconds without an answer after which it is left alone for this launch"
    )
    options: dict[str, str] = Field(
        default={},
        description="mapping of strings for the object store, such as {region: eu-central-1}; never a secret",
    )

    @field_validator("mode", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        return "off" if value is False else value  # YAML 1.1 reads a bare `off` as false

    @field_validator("path")
    @classmethod
    def _place_without_password(cls, value: str) -> str:
        scheme, is_a_url, rest = value.partition("://")
        if is_a_url and "@" in rest.partition("/")[0]:
            text = "a URL without user and password; {remedy}"
            raise PydanticCustomError("secret", text, {"remedy": IN_ENVIRON})
        if not is_a_url and (meant := _SLASH_LOST.match(value)):
            text = "a directory, or a URL with two slashes; {url}?"
            url = f"{meant[1]}://{value[meant.end() :]}"
            raise PydanticCustomError("scheme", text, {"url": url})
        if is_a_url and scheme not in SCHEMES:
            known = ", ".join(sorted(SCHEMES))
            raise PydanticCustomError("scheme", "a URL of one of the kinds {known}", {"known": known})
        return value

    @field_validator("options")
    @classmethod
    def _known_and_no_secret(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if secret := [name for name in value if is_secret(name)]:
            text = "no {names} here; {remedy}"
            raise PydanticCustomError("secret", text, {"names": ", ".join(secret), "remedy": IN_ENVIRON})
        if value and not is_url(info.data.get("path", "")):
            raise PydanticCustomError("options", "none: they are for object stores, and path is a directory")
        for name, text in value.items():
            if name not in KNOWN_OPTIONS:
                known = ", ".join(sorted(KNOWN_OPTIONS))
                raise PydanticCustomError("unknown_option", "only {known}", {"known": known, "option": name})
            if not is_usable(name, text):
                raise PydanticCustomError("option", "true or false, in quotes", {"option": name})
        return value


def tier_at(location: str) -> TierConfig:
    """The place that an argument such as ``--store`` names, its path absolute.

    Raises:
        BadArgument: no store can be there.
    """
    try:
        tier = TierConfig(path=location)
    except ValidationError as error:
        (detail, *_) = error.errors(include_url=False)
        expected = detail["msg"] if location else "a directory or a URL"
        found = "" if detail["type"] == "secret" else f", found {location!r}"
        msg = f"--store: expected {expected}{found}"
        raise BadArgument(msg) from None
    if is_url(location):
        return tier
    return tier.model_copy(update={"path": str(Path(location).expanduser().absolute())})


class StoreConfig(Strict):
    """The store: one place, or a near one and a far one.

    A config may give one tier's keys beside ``trust``, without ``tiers``; see `config.reading.parse`.
    """

    tiers: tuple[TierConfig, ...] = Field(
        description="one or two mappings such as {path: /mnt/store, mode: ro}, the near place first"
    )
    trust: TrustConfig = Field(default=TrustConfig(), description="policy, signing_key, trusted_keys")

    @field_validator("tiers")
    @classmethod
    def _one_or_two(cls, value: tuple[TierConfig, ...]) -> tuple[TierConfig, ...]:
        # Not as min_length: a tier that is refused would be refused a second time, as missing.
        if not value:
            raise PydanticCustomError("empty", "at least one tier")
        if sum(tier.mode != "off" for tier in value) > 2:
            raise PydanticCustomError("many", "at most two tiers: a near place and a far one")
        return value

    @field_validator("tiers")
    @classmethod
    def _each_place_once(cls, value: tuple[TierConfig, ...]) -> tuple[TierConfig, ...]:
        # Two of one place would each wait for it, and count what it holds twice.
        seen: set[str] = set()
        for tier in value:
            place = _normalised(tier.path)
            if tier.mode != "off" and place in seen:
                text = "each place once, so not {path} again"
                raise PydanticCustomError("twice", text, {"path": tier.path})
            seen |= {place} if tier.mode != "off" else set()
        return value

    @property
    def location(self) -> str:
        """Where the store is, for people."""
        return ", ".join(tier.path for tier in self.tiers)
