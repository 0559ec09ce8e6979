"""Whether a call may run a loaded artifact, as its function's ``guards`` say; asked on every call.

=========  ====================================================================================
always     the arguments, and a look at whether anything else changed since a full check held
once       the arguments, and what is cheap; all else was checked at the load
skip       tensors and sizes among the arguments, without which compiled code reads other memory
=========  ====================================================================================

Thread safety: everything is read and replaced whole; full checks run under the lock of the cached function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from warmrank.worker.guards.inputs import compile_input_check
from warmrank.worker.guards.model import PortableGuards
from warmrank.worker.guards.once import reads_training

if TYPE_CHECKING:
    import torch

    from warmrank.worker.cache_options import GuardMode
    from warmrank.worker.guards.snapshot import Noise, Snapshot


class CallGuards:
    """The conditions of one artifact on the calls of one function.

    Args:
        guards: the conditions.
        function: the cached function.
        module: whose method it is.
        mode: when they are checked.
    """

    def __init__(
        self, guards: PortableGuards, function: FunctionType, module: torch.nn.Module, mode: GuardMode
    ) -> None:
        self._guards = guards.of_tensors() if mode == "skip" else guards
        self._function = function
        self._module = module
        self._watches = mode == "always"
        self._noise: Noise | None = None
        self._snapshot: Snapshot | None = None
        self._others: dict[int, frozenset[int]] = {}
        self._fits: Callable[..., bool] | None = None
        if not self._watches:
            self._fits = compile_input_check(self._guards, function, asked=() if mode == "skip" else None)
        self._reads_training = mode == "once" and reads_training(guards)
        self._training: bool | None = None
        self.settle()

    @property
    def asked(self) -> frozenset[int]:
        """Nodes whose conditions are evaluated on every call, beside arguments and what is written to."""
        return frozenset() if self._snapshot is None else self._snapshot.asked

    def hold(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call may run the artifact; some microseconds.

        Raises:
            TypeError: the function's signature does not take these arguments.
        """
        if not self._watches:
            return (self._training is None or self._module.training is self._training) and (
                self._fits is not None and self._fits(self._module, *args, **kwargs)
            )
        snapshot, fits = self._snapshot, self._fits
        if snapshot is None or fits is None:
            return False
        return fits(self._module, *args, **kwargs) and snapshot.holds()

    def settle(self) -> None:
        """Note the state of the module for which all conditions were just found to hold."""
        if self._reads_training:
            self._training = self._module.training

    def observe(self, arguments: Mapping[str, Any]) -> Snapshot | None:
        """Look at what the conditions hang on, before they are checked; None if they are not watched."""
        if not self._watches:
            return None
        from warmrank.worker.guards.snapshot import Noise, take  # a process's first call needs none of it

        self._noise = self._noise or Noise()
        return take(self._guards, self._function, arguments, noise=self._noise)

    def changed(self, tensors: Collection[int]) -> None:
        """All conditions hold: count what nevertheless is not what it was.

        Args:
            tensors: nodes of tensors that are not what a runner had settled for.
        """
        if self._snapshot is not None and self._noise is not None:
            self._noise.count([*self._snapshot.changed(), *(("tensor", node) for node in tensors)])

    def keep(self, snapshot: Snapshot, elsewhere: Collection[int]) -> None:
        """Take what was observed for what the conditions hold for.

        Args:
            snapshot: what `observe` gave before the check.
            elsewhere: ids of tensors whose metadata a runner compares.
        """
        if self._fits is None or self.asked != snapshot.asked:
            self._others = dict(snapshot.others)
            self._fits = compile_input_check(
                self._guards, self._function, asked=snapshot.asked, others=self._others
            )
        self._others.update(snapshot.others)
        snapshot.leave(elsewhere)
        self._snapshot = snapshot
