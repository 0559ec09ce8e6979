"""The look-up: artifacts of one function in a cache directory, and why each of them does not fit.

TorchAir's paths: ``<cache_dir>/<Class>_<dynamic|static>[_aclgraphcache]_<key>/[<partition>/]<func>/``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from warmrank.cache_store.cache_dir.local import variants
from warmrank.cache_store.cache_dir.private_files import read_private, set_aside
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.keys import changed_components
from warmrank.worker.errors import ArtifactCorrupt, ArtifactMissing
from warmrank.worker.gears.carried import any_set
from warmrank.worker.keys.code import function_digest
from warmrank.worker.keys.request import Request
from warmrank.worker.runtime.artifact import Artifact, damaged_files, is_withheld, parse, verified
from warmrank.worker.runtime.check import MAX_REASONS, mismatches, tensor_mismatches
from warmrank.worker.runtime.runtime_state import declared_for, differences
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.runtime.artifact import PortableGuards
    from warmrank.worker.runtime.options import OnGearMiss


_log = logging.getLogger("torchair")

_MAX_SHOWN = 3

Misfits = Callable[["StoredArtifact"], tuple[str, ...]]
_META_VERSION = "1.0.0"


class StoredArtifact(Value):
    """An artifact as read from a file.

    Attributes:
        artifact: its content.
        path: the file.
        sha256: digest of the whole file, hex.
        size_bytes: size of the whole file.
        beside: where the files beside it lie, by name, if they were verified already.
    """

    artifact: Artifact
    path: Path
    sha256: str
    size_bytes: int
    beside: Mapping[str, Path] | None = None

    def files(self) -> Mapping[str, Path]:
        """Where the files beside the artifact lie, by name; each was verified.

        Raises:
            ArtifactCorrupt: one is missing or holds other bytes.
            UnusableCache: one is not private, or cannot be read.
        """
        if self.beside is not None:
            return self.beside
        return {file.name: verified(self.path.parent, file) for file in self.artifact.files}

    @classmethod
    def read(cls, path: Path) -> StoredArtifact:
        """Read and verify a file of this user's own.

        Raises:
            ArtifactCorrupt: the file is no artifact, or its bytes do not match its digest.
            UnusableCache: it is not private, or cannot be read.
        """
        data = read_private(path)
        digest = digest_bytes(data)
        artifact = parse(data, str(path))
        return cls(artifact=artifact, path=path, sha256=digest.sha256, size_bytes=digest.size_bytes)

    def mismatches(
        self,
        method: MethodType,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        device_kind: str,
        on_gear_miss: OnGearMiss = "error",
        *,
        learned: bool = False,
    ) -> tuple[str, ...]:
        """Conditions that do not hold for this module and call, in words; empty if the artifact fits.

        Args:
            method: the cached method.
            args: positional arguments of the call, without the module.
            kwargs: keyword arguments of the call.
            device_kind: whose autocast state counts beside the CPU's.
            on_gear_miss: what a shape that is no gear means.
            learned: tensors need not carry the gears of the artifact any more.

        Raises:
            TypeError: the function's signature does not take these arguments.
        """
        function = function_of(method)
        arguments = arguments_of(method, args, kwargs)
        guards, gears = self.artifact.guards, self.artifact.facts.gears
        if gears is not None or any_set():
            from warmrank.worker.gears.rules import GearRule, call_guards

            guards = call_guards(guards, gears, GearRule(on_miss=on_gear_miss, learned=learned))
        state = differences(guards.runtime_state, declared_for(method.__self__))  # type: ignore[arg-type]
        wrong = (*state, *mismatches(guards, function, arguments, device_kind=device_kind))[:MAX_REASONS]
        if not wrong and self.artifact.function != function_digest(function):
            # A base class, or another file, has a function of the same name, which did not change either.
            wrong = (f"made for another {self.artifact.name} than this {method.__qualname__}",)
        return wrong

    def tensor_mismatches(
        self, method: MethodType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """As `mismatches`, of what is never skipped: what compiled code takes for granted of its tensors."""
        function = function_of(method)
        return tensor_mismatches(self.guards_of_any_size, function, arguments_of(method, args, kwargs))

    @property
    def guards_of_any_size(self) -> PortableGuards:
        """The conditions without that on geared sizes, which a runner asks."""
        gears = self.artifact.facts.gears
        if gears is None:
            return self.artifact.guards
        from warmrank.worker.gears.rules import any_size

        return any_size(self.artifact.guards, gears)


def function_of(method: MethodType) -> FunctionType:
    """The plain function under a bound method."""
    function = method.__func__
    assert isinstance(function, FunctionType)  # noqa: S101 - cache_compile refuses anything else
    return function


def arguments_of(method: MethodType, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by parameter name, the module and defaults included.

    Raises:
        TypeError: the function's signature does not take these arguments.
    """
    try:
        bound = inspect.signature(function_of(method)).bind(method.__self__, *args, **kwargs)
    except TypeError as error:
        msg = f"{method.__qualname__}{inspect.signature(method)}: {error}"
        raise TypeError(msg) from None
    bound.apply_defaults()
    return bound.arguments


def model_directory(class_name: str, *, dynamic: bool, mode: str, key: str) -> str:
    """Name of the directory that all partitions of one model and configuration share."""
    parts = [class_name, "dynamic" if dynamic else "static"]
    if mode in ("reduce-overhead", "npugraph_ex"):
        parts.append("aclgraphcache")
    return "_".join([*parts, key])


def partition_name(
    *, world_size: int, rank: int, tp_rank: int | None = None, pp_rank: int | None = None
) -> str:
    """Name of a rank's partition; empty for a single rank without parallel ranks, as in TorchAir."""
    parts = [f"world{world_size}global_rank{rank}"] if world_size > 1 else []
    if tp_rank is not None:
        parts.append(f"tp_rank{tp_rank}")
    if pp_rank is not None:
        parts.append(f"pp_rank{pp_rank}")
    return "_".join(parts)


def sibling_variants(function_dir: Path, model_dir: Path) -> tuple[Path, ...]:
    """Artifacts of the same function in other partitions of the same model directory, in a fixed order."""
    if not model_dir.is_dir():
        return ()
    name = function_dir.name
    own = function_dir.parent
    partitions = [model_dir, *sorted(path for path in model_dir.iterdir() if _is_partition(path))]
    return tuple(path for partition in partitions if partition != own for path in variants(partition / name))


def _is_partition(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


class Found(Value):
    """Result of a look-up: the artifact that fits, or why none does.

    Attributes:
        stored: the artifact, or None.
        own: it lies in the partition that was asked, not in a sibling.
        reason: for a sibling's, whose it is; for none, what was looked at and why it did not fit.
    """

    stored: StoredArtifact | None
    own: bool
    reason: str


class Place(Value):
    """Where one function's artifacts lie.

    Attributes:
        model_dir: directory of the model and configuration, which all partitions share.
        function_dir: directory of the function in the rank's own partition.
    """

    model_dir: Path
    function_dir: Path


def look_up(place: Place, asked: Request, misfits: Misfits) -> Found:
    """The first artifact that fits: own partition first, then sibling partitions.

    Args:
        place: where to look.
        asked: the request that an artifact must answer.
        misfits: says why an artifact may not be used; empty if it may.
    """
    reasons: list[str] = []
    unfit: list[tuple[str, ...]] = []
    tried: set[str] = set()
    for path in _candidates(place):
        stored = read_stored(path, reasons)
        if stored is None or stored.sha256 in tried:
            continue
        tried.add(stored.sha256)
        own = path.parent == place.function_dir
        wrong = other_request(stored, asked) or misfits(stored)
        if not wrong and not own and is_withheld(path.parent, stored.sha256):
            wrong = (
                f"of {path.parent.parent.name}, whose launch has not compared it with other ranks' traces",
            )
            tried.discard(stored.sha256)
        if wrong:
            unfit.append(wrong)
        elif (whole := with_files(stored, reasons)) is None:
            tried.discard(stored.sha256)  # a sibling's copy may have its files
        else:
            return Found(stored=whole, own=own, reason="" if own else f"fits {path.parent.parent.name}")
    reason = _in_words(reasons, unfit) or _nearest(place, asked, misfits)
    return Found(stored=None, own=False, reason=reason)


def with_files(stored: StoredArtifact, reasons: list[str]) -> StoredArtifact | None:
    """The artifact with its files verified; None, and why in ``reasons``, if one cannot be used."""
    if not stored.artifact.files:
        return stored
    try:
        return replace(stored, beside=stored.files())
    except ArtifactMissing as error:
        reasons.append(f"missing: {Path(error.where).name}")
    except ArtifactCorrupt as error:
        reasons.append(f"corrupt: {Path(error.where).name}: {error.why}")
        for path in damaged_files(stored.path.parent, stored.artifact.files):
            set_aside(path)
    except StoreError as error:
        reasons.append(str(error))
    _log.warning("%s is not used: file beside it: %s", stored.path, reasons[-1])
    return None


def _in_words(faults: Sequence[str], unfit: Sequence[tuple[str, ...]]) -> str:
    """Why no artifact fits: files with faults, and the conditions of those that are nearest."""
    from warmrank.worker.runtime.describe import in_brief

    nearest = [*faults, *dict.fromkeys(in_brief(wrong) for wrong in sorted(unfit, key=len))]
    shown, more = nearest[:_MAX_SHOWN], len(nearest) - _MAX_SHOWN
    return " | ".join([*shown, f"and {more} more"] if more > 0 else shown)


def other_request(stored: StoredArtifact, asked: Request) -> tuple[str, ...]:
    """The components in which an artifact answers another request than its directory's name says."""
    return tuple(map(str, changed_components(stored.artifact.components, asked.components)))


def by_digest(place: Place, sha256: str) -> StoredArtifact | None:
    """The artifact with this digest in any partition, or None."""
    for path in _candidates(place):
        stored = read_stored(path, [])
        if stored is not None and stored.sha256 == sha256 and (whole := with_files(stored, [])) is not None:
            return whole
    return None


def read_stored(path: Path, reasons: list[str]) -> StoredArtifact | None:
    """Read one file; a fault goes into ``reasons``, and a corrupt file out of the way.

    What is not this user's alone (a link, another owner or mode) is not touched: it may not be ours to move.
    """
    try:
        if path.is_symlink():
            reasons.append(f"{path} is a symbolic link, which is never followed; remove it")
        else:
            return StoredArtifact.read(path)
    except ArtifactCorrupt as error:
        set_aside(path)
        reasons.append(f"corrupt: {error.why}")
    except StoreError as error:
        reasons.append(str(error))
    _log.warning("%s is not used: %s", path, reasons[-1])
    return None


def _candidates(place: Place) -> Iterator[Path]:
    """Files to look at, own partition first; the siblings are listed only if that was not enough."""
    yield from variants(place.function_dir)
    yield from sibling_variants(place.function_dir, place.model_dir)


def _nearest(place: Place, asked: Request, misfits: Misfits) -> str:
    """Why nothing lies under this request, told by the nearest other request of this class."""
    from warmrank.worker.runtime.describe import explain_absence

    def of_file(path: Path) -> tuple[str, ...]:
        try:
            return misfits(StoredArtifact.read(path))
        except (ArtifactCorrupt, StoreError):
            return ()

    return explain_absence(place.model_dir, place.function_dir.name, asked, of_file)


def announce(what: str, stored: StoredArtifact) -> None:
    """Log what was done with an artifact in TorchAir's words."""
    if _log.isEnabledFor(logging.INFO):
        name = stored.artifact.name
        meta = f"ModelCacheMeta({name=}, date={_made(stored.path)!r}, version={_META_VERSION!r}, fx=None)"
        _log.info("Cache %s %s %s", meta, what, stored.path)


def _made(path: Path) -> str:
    """When a file was made, in local time, as TorchAir prints it; nothing for one that is gone by now."""
    from datetime import datetime

    try:
        moment = datetime.fromtimestamp(path.stat().st_mtime)  # noqa: DTZ006 - TorchAir's is local time
    except FileNotFoundError:
        return ""
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
