"""What a cached function asks for, where its artifacts lie, and which of them fit a call.

Nothing is loaded, compiled or written here, but for what a store offers: that is fetched to be looked at.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

from warmrank.worker import files_beside
from warmrank.worker.cache_options import CacheOptions, EngineChoice, GuardMode, LaunchDefaults
from warmrank.worker.device_kinds import kind_of
from warmrank.worker.engines.choice import check_choice, engine_for
from warmrank.worker.lookup import Found, Place, by_digest, look_up, read_stored
from warmrank.worker.partition_paths import model_directory, partition_name
from warmrank.worker.present_sources import missing_operators
from warmrank.worker.request import Request, request
from warmrank.worker.settings import settings
from warmrank.worker.torch_private.prepared import prepare
from warmrank.worker.variant import StoredArtifact

if TYPE_CHECKING:
    import torch

    from warmrank.cache_store.store import Store
    from warmrank.worker.engines import Engine

OFFERED = "offered"


class FunctionLookup:
    """A bound method and how it is cached; `worker.cached_function.CachedFunction` runs it."""

    def __init__(self, method: MethodType, options: CacheOptions, defaults: LaunchDefaults) -> None:
        self._method = method
        self._defaults = defaults
        self._root: Path | None = None
        self._options = replace(
            options,
            config=copy.deepcopy(options.config),  # a later change of the caller's must not change the key
            cache_dir=options.cache_dir or defaults.cache_dir,
        )
        self._guards: GuardMode = options.guards or defaults.guards or "always"
        self._wanted: EngineChoice = options.engine or defaults.engine or "auto"
        check_choice(self._wanted, self._options.config)
        self._rank = defaults.place
        self.name = method.__func__.__qualname__.replace(".<locals>", "")

    @property
    def module(self) -> torch.nn.Module:
        """The module whose method this is."""
        module: torch.nn.Module = self._method.__self__  # type: ignore[assignment]
        return module

    @property
    def device_kind(self) -> str:
        """Kind of the device that the module lives on."""
        tensors = itertools.chain(self.module.parameters(), self.module.buffers())
        return kind_of(next((tensor.device.type for tensor in tensors), "cpu"))

    def engine(self) -> Engine:
        """The engine that compiles on the device that the module lives on now.

        Raises:
            BadConfig: what was asked for does not compile for this device.
        """
        return engine_for(self._options.config, wanted=self._wanted, device_kind=self.device_kind)

    def request(self) -> Request:
        """What this function asks for under the present configuration and environment."""
        return request(self.module, self._options, self.engine())

    def root(self) -> Path:
        """The cache directory, absolute: a relative one is settled by the first look-up."""
        if self._root is None:
            self._root = Path(self._options.cache_dir or settings().cache_home).resolve()
        return self._root

    def place(self, asked: Request | None = None) -> Place:
        """Where this function's artifacts lie for a request (by default, the present one)."""
        options = self._options
        asked = asked or self.request()
        name = model_directory(
            type(self.module).__name__, dynamic=options.dynamic, mode=options.config.mode, key=asked.key
        )
        rank, world_size = self._rank or _rank_and_world()
        partition = partition_name(
            world_size=world_size,
            rank=rank if options.global_rank is None else options.global_rank,
            tp_rank=options.tp_rank,
            pp_rank=options.pp_rank,
        )
        model_dir = self.root() / name
        return Place(model_dir=model_dir, function_dir=model_dir / partition / self._method.__func__.__name__)

    def find(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], refused: Mapping[str, str] | None = None
    ) -> Found:
        """Look for an artifact that fits this call: own partition first, then sibling partitions.

        Args:
            args: positional arguments of the call, without the module.
            kwargs: keyword arguments of the call.
            refused: digest -> why that artifact is passed over.

        Raises:
            TypeError: the function's signature does not take these arguments.
        """
        prepare()
        asked = self.request()

        def misfits(stored: StoredArtifact) -> tuple[str, ...]:
            why = (refused or {}).get(stored.sha256)
            return self.mismatches(stored, args, kwargs) if why is None else (why,)

        return look_up(self.place(asked), asked, misfits)

    def mismatches(
        self, stored: StoredArtifact, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Conditions of an artifact that this module and call do not meet; empty if it may be used."""
        if self._guards == "skip":
            missing = tuple(missing_operators(stored.artifact.guards.sources))
            return missing or stored.tensor_mismatches(self._method, args, kwargs)
        return stored.mismatches(self._method, args, kwargs, self.device_kind, self._options.on_gear_miss)

    def offered(self, sha256: str, store: Store | None) -> StoredArtifact | None:
        """The artifact with this digest: from the cache directory, else from the store; None if nowhere."""
        place = self.place()
        stored = by_digest(place, sha256)
        if stored is not None or store is None:
            return stored
        # Not into the own partition yet: its guards have not been asked.
        offered_dir = place.model_dir / OFFERED / place.function_dir.name
        path = store.fetch_blob(sha256, offered_dir, cache_root=self.root())
        stored = read_stored(path, [])
        return None if stored is None else files_beside.fetched(store, stored, self.root())


def _rank_and_world() -> tuple[int, int]:
    """Rank and world size of this process."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
