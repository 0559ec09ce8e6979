"""One loaded artifact, bound to one module: checks its conditions, runs its frame."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from cache_store.digests import digest_bytes
from cache_store.node.local import read_private
from worker.artifact import Artifact, parse, verified
from worker.capture import CaptureOptions, GraphRunner
from worker.code_digests import function_digest
from worker.engines import engine_named
from worker.frame import bind
from worker.groups import resolve
from worker.guards import ambient
from worker.guards.check import mismatches
from worker.guards.inputs import compile_input_check

if TYPE_CHECKING:
    from worker.cache_options import GuardMode
    from worker.devices import DeviceBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """An artifact as read from a file.

    Attributes:
        artifact: its content.
        path: the file.
        sha256: digest of the whole file, hex.
        size_bytes: size of the whole file.
    """

    artifact: Artifact
    path: Path
    sha256: str
    size_bytes: int

    def files(self) -> dict[str, Path]:
        """Where the files beside the artifact lie, by name; each was verified just now.

        Raises:
            ArtifactCorrupt: one is missing or holds other bytes.
            UnusableCache: one is not private, or cannot be read.
        """
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
        self, method: MethodType, args: tuple[Any, ...], kwargs: Mapping[str, Any], device_kind: str
    ) -> tuple[str, ...]:
        """Conditions that do not hold for this module and call, in words; empty if the artifact fits.

        Raises:
            TypeError: the function's signature does not take these arguments.
        """
        function = function_of(method)
        bound = inspect.signature(function).bind(method.__self__, *args, **kwargs)
        bound.apply_defaults()
        wrong = mismatches(self.artifact.guards, function, bound.arguments, device_kind=device_kind)
        if not wrong and self.artifact.function != function_digest(function):
            # A base class, or another file, has a function of the same name, which did not change either.
            wrong = (f"made for another {self.artifact.name} than this {method.__qualname__}",)
        return wrong


def function_of(method: MethodType) -> FunctionType:
    """The plain function under a bound method."""
    function = method.__func__
    assert isinstance(function, FunctionType)  # noqa: S101 - cache_compile refuses anything else
    return function


class Variant:
    """A loaded artifact, ready to run."""

    def __init__(
        self,
        stored: StoredArtifact,
        method: MethodType,
        *,
        backend: DeviceBackend,
        capture: CaptureOptions,
        guards: GuardMode,
    ) -> None:
        started = perf_counter()
        artifact = stored.artifact
        function = function_of(method)
        groups = {role: resolve(role)[0] for role in artifact.roles}
        graph = engine_named(artifact.engine).load(artifact.sections, stored.files(), groups)
        self.stored = stored
        self.runner = GraphRunner(graph, artifact.facts, backend, capture)
        self._method = method
        self._module = method.__self__
        self._guards = guards
        self._device_kind = backend.kind
        self._ambient = ambient.snapshot(backend.kind)
        self._fits = compile_input_check(artifact.guards, function)
        self._frame = bind(artifact.frame, function, self.runner)
        self._prepare = bind(artifact.frame, function, self.runner.prepare)
        self.bind_s = perf_counter() - started

    def accepts(self, state: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether this call may run this artifact.

        Args:
            state: `ambient.snapshot` of the process at the call.
            args: positional arguments of the call, without the module.
            kwargs: keyword arguments of the call.

        Raises:
            TypeError: the function's signature does not take these arguments.
        """
        if self._guards == "skip":
            return True
        if self._guards == "always":
            return not self.stored.mismatches(self._method, args, kwargs, self._device_kind)
        return state == self._ambient and self._fits(self._module, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        return self._frame(self._module, *args, **kwargs)

    def capture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Capture for this call's shapes, without lasting effect on any of its inputs.

        A frame that writes to Python objects cannot be run without that effect; its first call captures.
        """
        if self.stored.artifact.frame.names.get("writes"):
            return
        self._prepare(self._module, *args, **kwargs)
