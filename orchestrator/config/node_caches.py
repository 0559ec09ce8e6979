"""The node caches that a config declares, and whether they can lie where it says."""

from __future__ import annotations

from warmrank.orchestrator.config.models import Config
from warmrank.worker import node_caches
from warmrank.worker.node_caches import NodeCache
from warmrank.worker.settings import expanded, settings


def node_caches_of(config: Config) -> tuple[NodeCache, ...]:
    """The node caches of this node: engine torchair's own on npu, and those that the config declares."""
    faults = place_faults(config)
    return tuple(cache for cache in declared_caches(config) if cache.name not in faults)


def place_faults(config: Config) -> dict[str, str]:
    """Why node caches cannot lie where the config says, as this process understands its paths, by name."""
    own = {name: node_caches.engine_directory(config.cache_dir, name) for name in node_caches.OWN}
    named = [cache for cache in declared_caches(config) if cache.name not in own]
    return node_caches.place_faults(named, config.cache_dir, own)


def declared_caches(config: Config) -> tuple[NodeCache, ...]:
    """All that the config names, and engine torchair's own, whether or not they can be used here."""
    names = dict.fromkeys((*(node_caches.OWN if config.device == "npu" else ()), *config.node_caches))
    found = (_cache(config, name) for name in names)
    return tuple(cache for cache in found if cache is not None)


def _cache(config: Config, name: str) -> NodeCache | None:
    """A node cache; None for one that the config leaves out."""
    given = config.node_caches.get(name)
    if name in config.node_caches and given is None:
        return None
    if name in node_caches.OWN:
        return node_caches.own(name, config.cache_dir, collect=given.collect if given else "all")
    assert given is not None  # noqa: S101 - only an engine's own are there without being declared
    known = node_caches.operators(settings())
    is_known = name == node_caches.OPERATORS
    return NodeCache(
        name=name,
        directory=known.directory if is_known and not given.path else expanded(given.path),
        patterns=known.patterns if is_known and "patterns" not in given.model_fields_set else given.patterns,
        collect=given.collect,
    )
