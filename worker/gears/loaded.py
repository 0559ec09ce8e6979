"""The gears of a loaded artifact, as its calls are measured against them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import FunctionType
from typing import Any

from warmrank.worker.gears.carried import any_set, carried
from warmrank.worker.gears.model import GearFacts
from warmrank.worker.gears.rules import GearRule, any_size, call_guards, compile_carries_none, refuse_miss
from warmrank.worker.runtime.artifact import PortableGuards
from warmrank.worker.runtime.check import node_values
from warmrank.worker.runtime.options import OnGearMiss
from warmrank.worker.runtime.per_call import compile_input_check


class LoadedGears:
    """What an artifact's gears, or its lack of any, mean for calls of one function."""

    def __init__(
        self,
        gears: GearFacts | None,
        guards: PortableGuards,
        function: FunctionType,
        on_miss: OnGearMiss,
    ) -> None:
        self.gears = gears
        self.rule = GearRule(on_miss=on_miss, learned=True)
        self._guards = guards
        self._function = function

    @property
    def guards(self) -> PortableGuards:
        """The artifact's guards for calls in this process."""
        return self._guards if self.gears is None else call_guards(self._guards, self.gears, self.rule)

    def suit(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call that fits the guards may run an artifact that was made without gears."""
        return self.gears is not None or not any_set() or self._carries_none(module, *args, **kwargs)

    def refuse_miss(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that would fit, were its geared sizes others.

        Tensors that carry the gears may bring a combination that was dropped: it is compiled on its own.

        Raises:
            GearError: it names inputs, dimensions and sizes, what is allowed, and what to do.
        """
        if self.gears is None or not self._fits_any_size(module, *args, **kwargs):
            return
        bound = inspect.signature(self._function).bind(module, *args, **kwargs)
        bound.apply_defaults()
        values = node_values(self._guards.nodes, self._function, bound.arguments)
        sizes = tuple(values[axis.node].shape[axis.dim] for axis in self.gears.axes)
        if sizes in self.gears.dropped and all(carried(values[axis.node]) for axis in self.gears.axes):
            return
        refuse_miss(self.gears, sizes, self.rule.on_miss)

    @cached_property
    def _carries_none(self) -> Callable[..., bool]:
        return compile_carries_none(self._guards, self._function)

    @cached_property
    def _fits_any_size(self) -> Callable[..., bool]:
        assert self.gears is not None  # noqa: S101 - asked before
        return compile_input_check(any_size(self._guards, self.gears), self._function)
