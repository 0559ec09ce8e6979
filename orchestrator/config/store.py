"""The store in a config: its places, whose artifacts are believed, and what every node uses of that.

Invariants: no secret stands in a config, because it goes to every node and into messages; once loaded, paths
of keys are absolute, and what the driver's keyring revokes is revoked on every node. The policy that a config
leaves open is decided later, by `orchestrator.stores`, because that looks at the store.
"""

from __future__ import annotations

import logging
import os.path
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from warmrank.cache_store.backends.deadline import ANSWER_S, all_within
from warmrank.cache_store.backends.directory import FlushChoice
from warmrank.cache_store.backends.object_client import KNOWN_OPTIONS, SCHEMES, is_usable
from warmrank.cache_store.signing.trust import PolicyChoice, TrustPolicy, choose_policy
from warmrank.cache_store.store import SpecMode
from warmrank.orchestrator.errors import BadArgument
from warmrank.worker.settings import settings

logger = logging.getLogger(__name__)

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


PathT = TypeVar("PathT", Path, str)


def in_known_home(path: PathT) -> PathT:
    """Refuse a path below the home directory of a user who has none here."""
    try:
        Path(path).expanduser()
    except RuntimeError:
        raise PydanticCustomError("home", "a path whose home directory is known here") from None
    return path


def named(path: Any) -> Any:
    """Refuse an empty path, which would stand for the current directory."""
    if path == "":
        raise PydanticCustomError("empty", "a path; . is the current directory")
    return path


UserPath = Annotated[Path, BeforeValidator(named), AfterValidator(in_known_home)]


class Strict(BaseModel):
    """Base of every model here: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


Text = Annotated[
    str,
    BeforeValidator(lambda given: str(given) if type(given) is int else given),
    WithJsonSchema({"type": ["string", "integer"]}),
]
"""A text; a whole number needs no quotes."""

IN_ENVIRON = (
    "a config goes to every node: set credentials in the environment there, such as AWS_ACCESS_KEY_ID"
)
_SECRET = re.compile(
    r"secret|token|passw|credentials?$|(access|account|customer|private|shared)_?key|sas_", re.IGNORECASE
)
LOOK_S = 0.9  # longest look at a place: it counts to the 5 s that a dead store may cost a launch


def is_url(path: str) -> bool:
    """True if a store's path is a URL, and no directory."""
    return "://" in path


def is_secret(name: str) -> bool:
    """True if an option of that name holds a secret."""
    return _SECRET.search(name) is not None


class TrustConfig(Strict):
    """Whose artifacts may run. An artifact is code."""

    policy: TrustPolicy | None = Field(
        default=None,
        description="what to do about a signature that is not trusted; without it off for a store of your "
        "own on a local disk, else require",
    )
    signing_key: UserPath | None = Field(
        default=None,
        description="PEM file of the private key that signs, or the name of a key of the keyring",
    )
    trusted_keys: dict[str, UserPath] = Field(
        default={}, description="names of signers: PEM files of public keys"
    )
    keyring: UserPath | None = Field(
        default=None, description="directory of keys as `warmrank keys` makes it; ~/.config/warmrank/keys"
    )
    revoked: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")], ...] = Field(
        default=(), description="list of ids of keys (32 of 0-9, a-f) that are refused whatever else is said"
    )

    @property
    def names_a_key(self) -> bool:
        """True if `signing_key` is the name of a key of the keyring, and no path."""
        key = self.signing_key
        return key is not None and len(key.parts) == 1 and key.suffix != ".pem" and str(key) != "~"


class TierConfig(Strict):
    """One place of the store, such as a node's own disk, or what all nodes share."""

    path: str = Field(
        min_length=1,
        description="directory of the store, the same on all nodes, or a URL such as s3://bucket/prefix",
    )
    mode: SpecMode = Field(
        default="rw", description="how it is used; a launch goes on without it, but for required"
    )
    flush: FlushChoice = Field(
        default="auto", description="how a directory is made durable; auto: by file system"
    )
    answer_s: Seconds = Field(
        default=ANSWER_S, description="seconds without an answer after which it is left alone for this launch"
    )
    options: dict[str, Text] = Field(
        default={},
        description="mapping of strings for the object store, such as {region: eu-central-1}; never a secret",
    )

    @field_validator("path")
    @classmethod
    def _place_without_password(cls, value: str) -> str:
        scheme, is_a_url, rest = value.partition("://")
        if is_a_url and "@" in rest.partition("/")[0]:
            raise PydanticCustomError("secret", f"a URL without user and password; {IN_ENVIRON}")
        if not is_a_url and (meant := re.match(r"([A-Za-z0-9]+):/", value)):
            url = f"{meant[1]}://{value[meant.end() :]}"
            raise PydanticCustomError(
                "scheme", "a directory, or a URL with two slashes; {url}?", {"url": url}
            )
        if is_a_url and scheme not in SCHEMES:
            raise PydanticCustomError("scheme", f"a URL of one of the kinds {', '.join(sorted(SCHEMES))}")
        if is_a_url and not rest.partition("/")[0]:
            raise PydanticCustomError("bucket", f"a URL with a bucket, such as {scheme}://bucket/prefix")
        if is_a_url and ":" in rest.partition("/")[0]:
            raise PydanticCustomError("port", "a URL without a port; a server is named by option endpoint")
        return in_known_home(value)

    @field_validator("options")
    @classmethod
    def _known_and_no_secret(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if secret := [name for name in value if is_secret(name)]:
            names = {"names": ", ".join(secret)}
            raise PydanticCustomError("secret", f"no {{names}} here; {IN_ENVIRON}", names)
        if value and not is_url(info.data.get("path", "")):
            raise PydanticCustomError("options", "none: they are for object stores, and path is a directory")
        for name, text in value.items():
            if name not in KNOWN_OPTIONS:
                known = f"only {', '.join(sorted(KNOWN_OPTIONS))}"
                raise PydanticCustomError("unknown_option", known, {"option": name})
            if not is_usable(name, text):
                raise PydanticCustomError("option", "true or false", {"option": name})
        return value


def tier_at(location: str) -> TierConfig:
    """The place that an argument such as ``--store`` names, its path absolute; raises `BadArgument`."""
    try:
        tier = TierConfig(path=location)
    except ValidationError as error:
        (detail, *_) = error.errors(include_url=False)
        expected = detail["msg"] if location else "a directory or a URL"
        found = "" if detail["type"] == "secret" else f", found {location!r}"
        raise BadArgument(f"--store: expected {expected}{found}") from None
    if is_url(location):
        return tier
    return tier.model_copy(update={"path": str(Path(location).expanduser().absolute())})


def _normalised(path: str) -> str:
    """The same for each way to write one place; links are not followed, because a dead disk would hang."""
    scheme, is_a_url, rest = path.partition("://")
    if is_a_url:
        return f"{scheme.removesuffix('a')}://{os.path.normpath(unquote(rest))}"  # s3a is s3
    return os.path.normpath(Path(path).expanduser().absolute())


class StoreConfig(Strict):
    """The store: one place, or a near one and a far one."""

    tiers: tuple[TierConfig, ...] = Field(
        description="one or two mappings such as {path: /mnt/store, mode: ro}, the near place first"
    )
    trust: TrustConfig = Field(default=TrustConfig(), description="policy, signing_key, trusted_keys")

    @field_validator("tiers")
    @classmethod
    def _one_or_two_places(cls, value: tuple[TierConfig, ...]) -> tuple[TierConfig, ...]:
        # Not as min_length: a tier that is refused would be refused a second time, as missing.
        used = [tier for tier in value if tier.mode != "off"]
        if not value:
            raise PydanticCustomError("empty", "at least one tier")
        if len(used) > 2:
            raise PydanticCustomError("many", "at most two tiers: a near place and a far one")
        if len({_normalised(tier.path) for tier in used}) < len(used):
            # Each of the two would be waited for, and what it holds would count twice.
            path = {"path": used[-1].path}
            raise PydanticCustomError("twice", "each place once, so not {path} again", path)
        return value

    @property
    def location(self) -> str:
        """The paths of the store's places, for people."""
        return ", ".join(tier.path for tier in self.tiers)


class StoreInShort(TierConfig):
    """A store of one place."""

    trust: TrustConfig = Field(default=TrustConfig(), description="policy, signing_key, trusted_keys")

    def in_full(self) -> StoreConfig:
        """The same store, with a list of places."""
        return StoreConfig(tiers=(TierConfig(**self.model_dump(exclude={"trust"})),), trust=self.trust)


def _form_of_store(given: Any) -> str:
    has_tiers = isinstance(given, StoreConfig) or (isinstance(given, dict) and "tiers" in given)
    return "full" if has_tiers else "short"


if TYPE_CHECKING:
    Store = StoreConfig
else:
    Store = Annotated[
        Annotated[StoreInShort, AfterValidator(StoreInShort.in_full), Tag("short")]
        | Annotated[StoreConfig, Tag("full")],
        Discriminator(_form_of_store),
    ]
"""A store as a config may write it: with ``tiers``, or one tier's keys beside ``trust``."""


def locate_trust(trust: TrustConfig, *, base: Path) -> TrustConfig:
    """Make paths absolute, from ``base``, and take over what the keyring revokes.

    Raises:
        cache_store.errors.Corrupt: the keyring is damaged.
        BadArgument: the keyring that the config names is not there.
        cache_store.errors.UnusableCache: others can write it.
    """
    from warmrank.cache_store.signing.keyring import read_keyring

    usual, key, revoked = settings().keyring, trust.signing_key, trust.revoked
    keyring = absolute(trust.keyring, base) if trust.keyring else usual
    if trust.keyring is not None or trust.names_a_key:
        if keyring is None or not keyring.is_dir():
            where = "store.trust.keyring" if trust.keyring else f"signing key {key}"
            raise BadArgument(
                f"{where}: expected a directory of keys, as it is at ~/.config/warmrank/keys where none is "
                f"named; found no directory at {keyring}; make a key with warmrank keys generate, or correct "
                "store.trust"
            )
    elif keyring is not None and not keyring.is_dir():
        keyring = None
    if key is not None:
        key = keyring / f"{key}.pem" if keyring and trust.names_a_key else absolute(key, base)
    if trust.policy != "off":
        known = read_keyring(keyring).revoked if keyring else {}
        revoked = tuple(sorted({*revoked, *known}))
    return trust.model_copy(
        update={
            "signing_key": key,
            "trusted_keys": {name: absolute(path, base) for name, path in trust.trusted_keys.items()},
            "keyring": keyring,
            "revoked": revoked,
        }
    )


def warn_of_off(trust: TrustConfig, locations: Iterable[str]) -> None:
    """Log, for each place that others can write, that a config turns signatures off there."""
    for location, choice in _choices(locations).items() if trust.policy == "off" else ():
        if choice.policy == "require":
            logger.warning(
                "store.trust.policy is off for %s, but %s: who can write there decides what code runs",
                location,
                choice.reason,
            )


def choice_of(trust: TrustConfig, locations: Iterable[str]) -> tuple[TrustPolicy, str]:
    """The policy that a config gives, else the strictest that one of the store's places asks for.

    Returns:
        The policy, and the place with the reason why it asks for signatures; empty where none does, or the
        config gives the policy.
    """
    if trust.policy is not None:
        return trust.policy, ""
    for location, choice in _choices(locations).items():
        if choice.policy == "require":
            logger.info("Trust policy require: %s: %s", location, choice.reason)
            return "require", f"{location}: {choice.reason}"
    return "off", ""


def _choices(locations: Iterable[str]) -> dict[str, PolicyChoice]:
    """The choice for each place, of which one may lie on a network disk that went away."""
    places = tuple(locations)
    found = all_within([partial(choose_policy, place) for place in places], timeout_s=LOOK_S)
    silent = PolicyChoice(policy="require", reason=f"it did not answer within {LOOK_S:g} s")
    return {place: choice or silent for place, choice in zip(places, found, strict=True)}


def absolute(path: Path, base: Path) -> Path:
    """A path as a config gives it, as the one that it means."""
    return base / path.expanduser()
