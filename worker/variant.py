"""One loaded artifact, bound to one module: checks its conditions, runs its frame."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.node.local import read_private
from warmrank.worker.artifact import Artifact, parse, verified
from warmrank.worker.capture.eager import EagerRunner
from warmrank.worker.capture.runner import CaptureOptions, runner_for
from warmrank.worker.code_digests import function_digest
from warmrank.worker.engines import Site, engine_named
from warmrank.worker.errors import ArtifactCorrupt
from warmrank.worker.frame import bind
from warmrank.worker.gears.carried import any_set
from warmrank.worker.graph_facts import NUMBER, readable
from warmrank.worker.guards import ambient
from warmrank.worker.guards.calls import CallGuards
from warmrank.worker.guards.check import MAX_REASONS, argument_names, mismatches, tensor_mismatches
from warmrank.worker.guards.paths import text
from warmrank.worker.runtime_state import RuntimeStateGuard, declared_for, differences
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.cache_options import GuardMode, OnGearMiss
    from warmrank.worker.devices import DeviceBackend
    from warmrank.worker.gears.loaded import LoadedGears
    from warmrank.worker.gears.runner import GearedRunner
    from warmrank.worker.guards.model import PortableGuards
    from warmrank.worker.guards.snapshot import Snapshot


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


class Variant:
    """A loaded artifact, ready to run."""

    def __init__(
        self,
        stored: StoredArtifact,
        site: Site,
        *,
        backend: DeviceBackend,
        guards: GuardMode,
        on_gear_miss: OnGearMiss = "error",
        code_in_options: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """Load an artifact and bind it.

        Args:
            stored: the artifact.
            site: the method that it runs for, and how that is cached.
            backend: of the device that it runs on.
            guards: when conditions are asked.
            on_gear_miss: what happens to sizes that no gear stands for.
            code_in_options: `worker.request.code_in_options` of the present moment.
        """
        started = perf_counter()
        artifact, method = stored.artifact, site.method
        function = function_of(method)
        groups = _groups(artifact.roles)
        engine = engine_named(artifact.engine)
        site = replace(site, frame=artifact.frame.code, digest=stored.sha256)
        graph = engine.load(artifact.sections, stored.files(), groups, site=site)
        self.stored = stored
        self.runner = runner_for(engine, graph, artifact.facts, backend, CaptureOptions.of(site.config))
        self._method = method
        self._module: Any = method.__self__
        self._guards = guards
        self._device_kind = backend.kind
        self._ambient = ambient.snapshot(backend.kind)
        self._on_gear_miss: OnGearMiss = on_gear_miss
        self._gears: LoadedGears | None = None
        if guards == "skip":
            rules = stored.guards_of_any_size
        else:
            rules = artifact.guards if artifact.facts.gears is None else self._loaded_gears().guards
        self._calls = CallGuards(rules, function, method.__self__, guards)  # type: ignore[arg-type]
        declared = artifact.guards.runtime_state
        self._runtime_state = RuntimeStateGuard(self._module, declared)  # type: ignore[arg-type]
        self._known_code = code_in_options()
        self._code_in_options = code_in_options if self._known_code and guards == "always" else None
        self._geared: GearedRunner | None = None
        if artifact.facts.gears is not None:
            from warmrank.worker.gears.runner import GearedRunner

            plain = EagerRunner(graph, artifact.facts, backend)
            self._geared = GearedRunner(self.runner, artifact.facts.gears, on_miss=on_gear_miss, plain=plain)
        # The guards let nothing but gears pass, so the runner needs to be asked only where they do not.
        asked = guards == "skip" or on_gear_miss == "pad"
        runner = self._geared if asked and self._geared is not None else self.runner
        self._frame = bind(artifact.frame, function, runner)
        self._unpack = bind(artifact.frame, function, _hand_over)
        self.settle()
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
        return (
            self._guards == "skip"
            or (state == self._ambient and self._runtime_state.holds() and not self._code_changed())
        ) and self.fits(args, kwargs)

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """`accepts`, as far as arguments and module decide."""
        return self._calls.hold(args, kwargs) and (
            self._guards == "skip"
            or self.stored.artifact.facts.gears is not None
            or not any_set()
            or self._loaded_gears().suit(self._module, args, kwargs)
        )

    def _loaded_gears(self) -> LoadedGears:
        """Gears are imported where somebody uses any."""
        if self._gears is None:
            from warmrank.worker.gears.loaded import LoadedGears

            artifact, function = self.stored.artifact, function_of(self._method)
            self._gears = LoadedGears(artifact.facts.gears, artifact.guards, function, self._on_gear_miss)
        return self._gears

    def _code_changed(self) -> bool:
        """Whether a compile would now use other decompositions or passes than this artifact."""
        return self._code_in_options is not None and self._code_in_options() != self._known_code

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """Check all conditions anew, and note what they hold for; in words, those that do not hold.

        Raises:
            StateChanged: a tensor has elements outside of its storage.
            TypeError: the function's signature does not take these arguments.
        """
        if self._guards == "skip":
            wrong = self.stored.tensor_mismatches(self._method, args, kwargs)
            if not wrong:
                self.settle()
            return wrong
        if self._code_changed():
            return ("a decomposition or pass in the options, or what it reads, changed since",)
        snapshot = self._calls.observe(arguments_of(self._method, args, kwargs))
        wrong = self.stored.mismatches(
            self._method, args, kwargs, self._device_kind, self._on_gear_miss, learned=True
        )
        if not wrong and snapshot is None:
            self.settle()
        elif not wrong and snapshot is not None:
            self._settle_for(snapshot, self.inputs_of(args, kwargs))
        return wrong

    def _settle_for(self, snapshot: Snapshot, inputs: Sequence[Any]) -> None:
        settled = self.runner.settled
        self._calls.changed(self._nodes_at(settled.changed(inputs)))
        positions = self._settled_positions(snapshot.asked)
        observed = settled.observed(positions, inputs)
        if snapshot.holds():  # else another thread changed something since, and the next call checks again
            settled.settle(observed)
            self._calls.keep(snapshot, {id(inputs[index]) for index in positions})

    def _settled_positions(self, asked: Collection[int]) -> tuple[int, ...]:
        """The graph's tensors whose conditions no call checks, because no call brings them."""
        facts, guards = self.stored.artifact.facts, self.stored.artifact.guards
        per_call = {readable(text(guards.nodes, node)) for node in (*guards.volatile, *asked)}
        arguments = argument_names(function_of(self._method).__code__)
        names = facts.input_names or ("",) * len(facts.input_classes)
        return tuple(
            index
            for index, (kind, name) in enumerate(zip(facts.input_classes, names, strict=True))
            if kind != NUMBER and name not in per_call and re.split(r"\W", name)[0] not in arguments
        )

    def _nodes_at(self, positions: Collection[int]) -> list[int]:
        """The nodes of the tensors at some positions."""
        names = {self.stored.artifact.facts.input_names[index] for index in positions}
        nodes = self.stored.artifact.guards.nodes
        return [node for node in range(len(nodes)) if readable(text(nodes, node)) in names] if names else []

    def __repr__(self) -> str:
        artifact = self.stored.artifact
        return f"<Variant {self.stored.sha256[:12]} of {artifact.name}, engine {artifact.engine}>"

    def settle(self) -> None:
        """Note the state of the module for which all conditions were just found to hold."""
        self._calls.settle()
        if self._code_in_options is not None:
            self._known_code = self._code_in_options()
        self.runner.settled.renew(self._settled_positions(self._calls.asked))

    def refuse_gear_miss(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that would fit, were its geared sizes others.

        Raises:
            GearError: no gear stands for the sizes.
        """
        if self.stored.artifact.facts.gears is not None:
            self._loaded_gears().refuse_miss(self._module, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        return self._frame(self._module, *args, **kwargs)

    def inputs_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The graph's inputs in a call, which is not run."""
        try:
            self._unpack(self._module, *args, **kwargs)
        except _Inputs as handed_over:
            return handed_over.inputs
        msg = f"{self.stored.artifact.name}: the frame of the artifact does not call its graph"
        raise ArtifactCorrupt(msg, where=str(self.stored.path), why="its frame does not call its graph")

    def capture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Capture for this call's shapes, or for all gears, without lasting effect on any of its inputs."""
        for inputs in self.gear_inputs(args, kwargs):
            self.runner.prepare(*inputs)

    def hand_over(self) -> None:
        """Let the node keep what the engine made at run time, if it makes anything."""
        self.runner.hand_over()

    def gear_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The graph's inputs in calls like this one: of every gear, largest first; its own without gears."""
        inputs = self.inputs_of(args, kwargs)
        return [inputs] if self._geared is None else self._geared.gear_inputs(inputs)


def _groups(roles: Sequence[str]) -> dict[str, str]:
    """This process's names of the groups with these roles."""
    if not roles:
        return {}
    from warmrank.worker.groups import resolve

    return {role: resolve(role)[0] for role in roles}


class _Inputs(BaseException):
    """Carries a graph's inputs out of the frame, past everything that it does after the graph."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.inputs = inputs


def _hand_over(*inputs: Any) -> tuple[Any, ...]:
    raise _Inputs(inputs)
