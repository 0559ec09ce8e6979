"""The conditions of one loaded artifact on the calls after its load.

When conditions are checked, by ``guards``:

=========  ====================================================================================
always     the arguments, and a look at whether anything else changed since a full check held
once       the arguments, and what is cheap; all else was checked at the load
skip       tensors and sizes among the arguments, without which compiled code reads other memory
=========  ====================================================================================

Thread safety: everything is read and replaced whole; full checks run under the lock of the cached function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from warmrank.worker import groups
from warmrank.worker.runtime.artifact import readable
from warmrank.worker.runtime.check import any_gears, node_values, text
from warmrank.worker.runtime.find import arguments_of, function_of, is_anything_declared
from warmrank.worker.runtime.per_call import compile_input_check, reads_training
from warmrank.worker.runtime.runner import Settled
from warmrank.worker.runtime.snapshot import Snapshot
from warmrank.worker.values import replace

if TYPE_CHECKING:
    import torch

    from warmrank.worker.configs.compiler_config import GuardMode, OnGearMiss
    from warmrank.worker.runtime.artifact import PortableGuards
    from warmrank.worker.runtime.runtime_state import RuntimeStateGuard
    from warmrank.worker.runtime.variant import Variant
    from warmrank.worker.torch_private.unchanged import Key


class CallGuards:
    """Conditions of a variant on calls.

    Attributes:
        asked: nodes whose conditions are evaluated on every call, beside arguments and what is written to.
    """

    def __init__(self, variant: Variant, mode: GuardMode, on_gear_miss: OnGearMiss) -> None:
        self.asked: frozenset[int] = frozenset()
        self._variant = variant
        self._artifact = artifact = variant.stored.artifact
        self._gears = artifact.facts.gears
        self._groups = groups.state()
        self._function = function_of(variant.method)
        self._module: torch.nn.Module = variant.method.__self__  # type: ignore[assignment]
        self._mode = mode
        self._on_gear_miss = on_gear_miss
        self._noise: Counter[Key] = Counter()  # changes while all conditions held
        self._snapshot: Snapshot | None = None
        self._others: dict[int, frozenset[int]] = {}
        self._runtime_state: RuntimeStateGuard | None = None
        self._guards = self._for_calls()
        self._fits: Callable[..., bool] | None = None
        self._reads_training = mode == "once" and reads_training(self._guards)
        self._training: bool | None = None
        if mode != "always":
            asked = () if mode == "skip" else None
            self._fits = compile_input_check(self._guards, self._function, asked=asked)

    def accept(self, state: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """True if this call may run the artifact, where `ambient` gave ``state``.

        Raises:
            TypeError: the function's signature does not take these arguments.
        """
        if self._groups != groups.state():
            return False
        if self._mode != "skip" and not (
            state == self._variant.ambient and self._state_holds() and not self._variant.code_changed()
        ):
            return False
        return self.fit(args, kwargs)

    def fit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """`accept`, as far as arguments and module decide; some microseconds."""
        fits, snapshot = self._fits, self._snapshot
        if (
            fits is None
            or (snapshot is None and self._mode == "always")
            or (self._training is not None and self._module.training is not self._training)
            or not fits(self._module, *args, **kwargs)
            or (snapshot is not None and not snapshot.holds())
        ):
            return False
        if self._mode == "skip" or self._gears is not None or not any_gears():
            return True
        return self._carries_none(self._module, *args, **kwargs)

    def may_fit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """False if the arguments alone break a condition, so that none of the others need be looked at."""
        try:
            return self._mode == "skip" or self._arguments_fit(self._module, *args, **kwargs)
        except TypeError:  # the signature does not take them, which a check says in its words
            return True

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """Check all conditions anew, and note what they hold for; in words, those that do not hold.

        Raises:
            StateChanged: a tensor has elements outside of its storage.
            TypeError: the function's signature does not take these arguments.
        """
        variant, stored = self._variant, self._variant.stored
        snapshot, known_groups = None, groups.state()
        if lost := variant.lost_groups():
            return (f"the process group with role {lost[0]} is another one since",)
        if self._mode == "skip":
            wrong = stored.tensor_mismatches(variant.method, args, kwargs)
        elif variant.code_changed():
            return ("a decomposition or pass in the options, or what it reads, changed since",)
        else:
            if self._mode == "always":  # before the check: a change in between shows on the next call
                arguments = arguments_of(variant.method, args, kwargs)
                snapshot = Snapshot(self._guards, self._function, arguments, noise=self._noise)
            kind = variant.device_kind
            wrong = stored.mismatches(variant.method, args, kwargs, kind, self._on_gear_miss, learned=True)
        if wrong:
            return wrong
        variant.bind_frame()
        if snapshot is None:
            variant.settle()
        else:
            self._keep(snapshot, variant.inputs_of(args, kwargs))
        self._groups = known_groups
        return ()

    def settle(self) -> None:
        """Note the state of the module for which all conditions were just found to hold."""
        self._groups = groups.state()
        if self._reads_training:
            self._training = self._module.training

    def refuse_gear_miss(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise `GearError` for a call that would fit, were its geared sizes others.

        Tensors that carry the gears may bring a combination that was dropped: it is compiled on its own.
        """
        from warmrank.worker.gears.model import carried
        from warmrank.worker.gears.rules import refuse_miss

        gears = self._gears
        if gears is None or not self._fits_any_size(self._module, *args, **kwargs):
            return
        arguments = arguments_of(self._variant.method, args, kwargs)
        values = node_values(self._artifact.guards.nodes, self._function, arguments)
        sizes = tuple(values[axis.node].shape[axis.dim] for axis in gears.axes)
        if not (sizes in gears.dropped and all(carried(values[axis.node]) for axis in gears.axes)):
            refuse_miss(gears, sizes, self._on_gear_miss)

    def _for_calls(self) -> PortableGuards:
        """The artifact's guards for calls in this process."""
        if self._mode == "skip":
            return self._variant.stored.guards_of_any_size.of_tensors()
        if self._gears is None:
            return self._artifact.guards
        from warmrank.worker.gears.rules import call_guards

        return call_guards(self._artifact.guards, self._gears, self._on_gear_miss, learned=True)

    def _state_holds(self) -> bool:
        """True if what is declared for the module is what the artifact was made with."""
        if self._runtime_state is None:
            if not is_anything_declared():  # then none was when it was made, which a load looked at
                return True
            from warmrank.worker.runtime.runtime_state import RuntimeStateGuard

            self._runtime_state = RuntimeStateGuard(self._module, self._artifact.guards.runtime_state)
        return self._runtime_state.holds()

    def _keep(self, snapshot: Snapshot, inputs: tuple[Any, ...]) -> None:
        """Settle on what was observed before all conditions were found to hold."""
        variant, runner = self._variant, self._variant.runner
        if self._snapshot is not None:  # count what changed nevertheless, the runner's tensors among it
            facts, nodes = self._artifact.facts, self._artifact.guards.nodes
            moved = {facts.input_names[index] for index in runner.settled.changed(inputs)}
            tensors = [node for node in range(len(nodes)) if moved and readable(text(nodes, node)) in moved]
            self._noise.update([*self._snapshot.changed(), *(("tensor", node) for node in tensors)])
        positions = variant.settled_positions(snapshot.asked)
        observed = Settled(runner.layout, positions, inputs)
        if not snapshot.holds():  # another thread changed something since, and the next call checks again
            return
        runner.settled, runner.due = observed, None
        if self._fits is None or self.asked != snapshot.asked:
            self._others = dict(snapshot.others)
            self._fits = compile_input_check(
                self._guards, self._function, asked=snapshot.asked, others=self._others
            )
        self._others.update(snapshot.others)
        snapshot.leave({id(inputs[index]) for index in positions})  # which the runner compares
        self.asked, self._snapshot = snapshot.asked, snapshot

    @cached_property
    def _carries_none(self) -> Callable[..., bool]:
        """True if none of a call's tensors carries gears; takes the module and the call's arguments."""
        from warmrank.worker.gears.rules import carry_none

        guards = self._artifact.guards
        checks = carry_none(guards)
        return compile_input_check(replace(guards, checks=checks, shapes=()), self._function)

    @cached_property
    def _arguments_fit(self) -> Callable[..., bool]:
        """True if the conditions on arguments, and on what the function writes to, hold now."""
        return compile_input_check(self._guards, self._function, asked=())

    @cached_property
    def _fits_any_size(self) -> Callable[..., bool]:
        return compile_input_check(self._variant.stored.guards_of_any_size, self._function)
