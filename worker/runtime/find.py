"""The look-up: artifacts of one function in a cache directory, and why each of them does not fit.

TorchAir's paths: ``<cache_dir>/<Class>_<dynamic|static>[_aclgraphcache]_<key>/[<partition>/]<func>/``.

Beside an artifact lie files that belong to it, such as compiled kernels. They are written before the artifact
that names them, and verified before it counts as found: a missing or damaged one is a miss with its reason,
and never an error of a call. What is damaged is moved aside, not deleted; what is not this user's alone (a
link, another owner or mode) is not touched, as it may not be ours to move.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import ArtifactCorrupt, ArtifactMissing
from warmrank.worker.keys.code import function_digest
from warmrank.worker.keys.request import Request
from warmrank.worker.runtime.artifact import Artifact, ArtifactFile, corrupt, open_private, parse
from warmrank.worker.runtime.check import MAX_REASONS, any_gears, mismatches, object_mismatches
from warmrank.worker.values import Value, replace

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import OnGearMiss
    from warmrank.worker.runtime.artifact import PortableGuards

_log = logging.getLogger("torchair")
_META_VERSION = "1.0.0"
_FIRST_VARIANT = "compiled_module"  # as in `cache_store.cache_dir.local`, which a hit has no use for
Misfits = Callable[["StoredArtifact"], tuple[str, ...]]


class StoredArtifact(Value):
    """An artifact as read from a file.

    Attributes:
        sha256: digest of the whole file, hex.
        size_bytes: size of the whole file.
        beside: the verified files beside it, by name; None until they are.
    """

    artifact: Artifact
    path: Path
    sha256: str
    size_bytes: int
    beside: Mapping[str, Path] | None = None

    def files(self) -> Mapping[str, Path]:
        """The verified files beside the artifact, by name; raises as `verified`."""
        if self.beside is not None:
            return self.beside
        return {file.name: verified(self.path.parent, file) for file in self.artifact.files}

    @classmethod
    def read(cls, path: Path) -> StoredArtifact:
        """Read and verify a file of this user's own.

        Raises:
            ArtifactCorrupt: the file is no artifact, or its bytes do not match its digest.
            UnusableCache: it is a link, or not private, or cannot be read.
        """
        try:
            with open_private(path) as file:
                data = file.read()
        except OSError:
            from warmrank.cache_store.cache_dir.private_files import read_private

            data = read_private(path)  # says why not
        sha256 = hashlib.sha256(data).hexdigest()
        return cls(artifact=parse(data, str(path)), path=path, sha256=sha256, size_bytes=len(data))

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

        ``learned``: tensors need not carry the artifact's gears any more.
        """
        function, arguments = function_of(method), arguments_of(method, args, kwargs)
        guards, gears = self.artifact.guards, self.artifact.facts.gears
        if gears is not None or any_gears():
            from warmrank.worker.gears.rules import call_guards

            guards = call_guards(guards, gears, on_gear_miss, learned=learned)
        state: tuple[str, ...] = ()
        if guards.runtime_state or is_anything_declared():
            from warmrank.worker.runtime.runtime_state import declared_for, differences

            state = differences(guards.runtime_state, declared_for(method.__self__))  # type: ignore[arg-type]
        wrong = (*state, *mismatches(guards, function, arguments, device_kind=device_kind))[:MAX_REASONS]
        if not wrong and self.artifact.function != function_digest(function):
            # A base class, or another file, has a function of the same name, which did not change either.
            wrong = (f"made for another {self.artifact.name} than this {method.__qualname__}",)
        return wrong

    def tensor_mismatches(
        self, method: MethodType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """As `mismatches`, of tensors alone: never skipped, as compiled code reads their memory."""
        guards, arguments = self.guards_of_any_size.of_tensors(), arguments_of(method, args, kwargs)
        return tuple(object_mismatches(guards, function_of(method), arguments))

    @property
    def guards_of_any_size(self) -> PortableGuards:
        """The conditions without that on geared sizes, which a runner asks."""
        if (gears := self.artifact.facts.gears) is None:
            return self.artifact.guards
        from warmrank.worker.gears.rules import any_size

        return any_size(self.artifact.guards, gears)


def verified(directory: Path, file: ArtifactFile) -> Path:
    """Path of a file beside an artifact, its bytes verified.

    Raises:
        ArtifactMissing: it is not there.
        ArtifactCorrupt: it holds other bytes.
        UnusableCache: it is not private, or cannot be read.
    """
    path = directory / file.name
    if not path.exists():
        msg = f"{path} is missing, though the artifact beside it needs it; that is fetched or compiled again."
        raise ArtifactMissing(msg, where=str(path), why="it is missing")
    with open_private(path) as opened:
        sha256, size_bytes = hashlib.file_digest(opened, "sha256").hexdigest(), opened.tell()
    if (sha256, size_bytes) != (file.sha256, file.size_bytes):
        raise corrupt(str(path), "its bytes do not match the digest in the artifact beside it")
    return path


def read_stored(path: Path, reasons: list[str]) -> StoredArtifact | None:
    """Read one file; None, and why in ``reasons``, if it cannot be used."""
    try:
        return StoredArtifact.read(path)
    except Exception as error:  # noqa: BLE001 - all others are raised again
        _unusable(path, error, reasons)
        return None


def with_files(stored: StoredArtifact, reasons: list[str]) -> StoredArtifact | None:
    """The artifact with its files verified; None, and why in ``reasons``, if one cannot be used."""
    try:
        return replace(stored, beside=stored.files())
    except Exception as error:  # noqa: BLE001 - all others are raised again
        _unusable(stored.path, error, reasons)
        return None


def _unusable(path: Path, error: Exception, reasons: list[str]) -> None:
    """Say why an artifact is not used; move a damaged file out of the way."""
    from warmrank.cache_store.cache_dir.private_files import set_aside
    from warmrank.cache_store.errors import StoreError

    if not isinstance(error, ArtifactCorrupt | StoreError):
        raise error
    is_link = path.is_symlink()
    why = f"{path} is a symbolic link, which is never followed; remove it" if is_link else str(error)
    if isinstance(error, ArtifactCorrupt):
        damaged = Path(error.where)
        beside = "" if damaged == path else f": {damaged.name}"
        why = f"missing{beside}" if isinstance(error, ArtifactMissing) else f"corrupt{beside}: {error.why}"
        if not isinstance(error, ArtifactMissing):  # which another process may just have put there
            set_aside(damaged)
    reasons.append(why)
    _log.warning("%s is not used: %s", path, why)


def is_anything_declared() -> bool:
    """True if this process may have declared runtime state: then it has imported what takes declarations."""
    return "warmrank.worker.runtime.runtime_state" in sys.modules


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
    function = function_of(method)
    # The signature of its own code; `inspect` tells what a decorator says in its name.
    own = FunctionType(function.__code__, {}, argdefs=function.__defaults__, closure=function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    try:
        bound = inspect.signature(own).bind(method.__self__, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{method.__qualname__}{inspect.signature(method)}: {error}") from None
    bound.apply_defaults()
    return bound.arguments


class Place(Value):
    """Directories of one function's artifacts: the model's, and its own in the rank's partition."""

    model_dir: Path
    function_dir: Path


def model_directory(class_name: str, *, dynamic: bool, mode: str, key: str) -> str:
    """Name of the directory that all partitions of one model and configuration share."""
    captured = "_aclgraphcache" if mode in ("reduce-overhead", "npugraph_ex") else ""
    return f"{class_name}_{'dynamic' if dynamic else 'static'}{captured}_{key}"


def candidates(place: Place) -> Iterator[Path]:
    """Files to look at, own partition first, then the others' in a fixed order; each listed when needed."""
    own, model_dir = place.function_dir, place.model_dir
    first = own / _FIRST_VARIANT
    if is_there := os.path.lexists(first):
        yield first
    from warmrank.cache_store.cache_dir.local import variants

    yield from (path for path in variants(own) if not is_there or path != first)
    if not model_dir.is_dir():
        return
    siblings = sorted(path for path in model_dir.iterdir() if path.is_dir() and not path.name.startswith("."))
    for partition in (model_dir, *siblings):
        if partition != own.parent:
            yield from variants(partition / own.name)


class Found(Value):
    """Result of a look-up.

    Attributes:
        stored: the artifact that fits, or None.
        own: it lies in the partition that was asked, not in a sibling.
        reason: for a sibling's, whose it is; for none, what was looked at and why it did not fit.
    """

    stored: StoredArtifact | None
    own: bool
    reason: str


def look_up(place: Place, asked: Request, misfits: Misfits) -> Found:
    """The first artifact that answers the request and that `misfits` names no condition of."""
    reasons: list[str] = []
    unfit: list[tuple[str, ...]] = []
    tried: set[str] = set()
    for path in candidates(place):
        stored = read_stored(path, reasons)
        if stored is None or stored.sha256 in tried:
            continue
        own = path.parent == place.function_dir
        if wrong := other_request(stored, asked) or misfits(stored):
            tried.add(stored.sha256)
            unfit.append(wrong)
            continue
        if not own:
            from warmrank.worker.runtime.files import is_withheld

            launch = path.parent.parent.name
            if is_withheld(path.parent, stored.sha256):
                unfit.append((f"of {launch}, whose launch has not compared it with other ranks' traces",))
                continue
        # A sibling's copy may have its files where this one's are damaged.
        whole = with_files(stored, reasons) if stored.artifact.files else stored
        if whole is not None:
            return Found(stored=whole, own=own, reason="" if own else f"fits {path.parent.parent.name}")
    from warmrank.worker.runtime.describe import why_none

    return Found(stored=None, own=False, reason=why_none(place, asked, misfits, reasons, unfit))


def other_request(stored: StoredArtifact, asked: Request) -> tuple[str, ...]:
    """The components in which an artifact answers another request than its directory's name says."""
    components = stored.artifact.components
    if components == asked.components:
        return ()
    from warmrank.cache_store.text import changed_components

    return tuple(map(str, changed_components(components, asked.components)))


def announce(what: str, stored: StoredArtifact) -> None:
    """Log what was done with an artifact in TorchAir's words."""
    if not _log.isEnabledFor(logging.INFO):
        return
    from datetime import datetime

    made = ""  # of a file that is gone by now
    with contextlib.suppress(FileNotFoundError):
        moment = datetime.fromtimestamp(stored.path.stat().st_mtime)  # noqa: DTZ006 - TorchAir's is local time
        made = moment.strftime("%Y-%m-%d %H:%M:%S.%f")
    name = stored.artifact.name
    meta = f"ModelCacheMeta({name=}, date={made!r}, version={_META_VERSION!r}, fx=None)"
    _log.info("Cache %s %s %s", meta, what, stored.path)
