"""Conditions on the calls of one function, without an artifact around them."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from warmrank.worker.runtime.artifact import PortableGuards
from warmrank.worker.runtime.check import mismatches
from warmrank.worker.runtime.variant import CallGuards


class Checked:
    """Conditions on one function of a module, with the full check that a cached function makes."""

    def __init__(self, guards: PortableGuards, function: Any, module: Any, **arguments: Any) -> None:
        assert isinstance(function, FunctionType)
        self._guards, self._function = guards, function
        self._arguments = {"self": module, **arguments}
        self.num_full_checks = 0
        self.calls = CallGuards(guards, function, module, "always")
        assert self.call()

    def holds(self) -> bool:
        return self.calls.hold(tuple(self._arguments.values())[1:], {})

    def call(self) -> bool:
        """Whether the conditions hold, in full where that cannot be told quickly."""
        if self.holds():
            return True
        self.num_full_checks += 1
        snapshot = self.calls.observe(self._arguments)
        assert snapshot is not None
        fits = not mismatches(self._guards, self._function, self._arguments, device_kind="cpu")
        if fits:
            self.calls.changed(())
            self.calls.keep(snapshot, ())
        return fits
