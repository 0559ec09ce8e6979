"""The conditions of one artifact on the calls that follow the one it was loaded for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from warmrank.worker.runtime.per_call import compile_input_check, reads_training
from warmrank.worker.runtime.snapshot import Snapshot, take

if TYPE_CHECKING:
    import torch

    from warmrank.worker.configs.compiler_config import GuardMode
    from warmrank.worker.runtime.artifact import PortableGuards
    from warmrank.worker.torch_private.unchanged import Key


class CallGuards:
    """The conditions of one artifact on the calls of one module's function."""

    def __init__(
        self, guards: PortableGuards, function: FunctionType, module: torch.nn.Module, mode: GuardMode
    ) -> None:
        self._guards = guards.of_tensors() if mode == "skip" else guards
        self._function = function
        self._module = module
        self._watches = mode == "always"
        self._noise: Counter[Key] = Counter()  # changes while all conditions held
        self._snapshot: Snapshot | None = None
        self._others: dict[int, frozenset[int]] = {}
        self._fits: Callable[..., bool] | None = None
        self._reads_training = False
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
        """True if a call may run the artifact; some microseconds.

        Raises:
            TypeError: the function's signature does not take these arguments.
        """
        fits, snapshot = self._fits, self._snapshot
        if fits is None:
            return False
        if self._watches:
            return snapshot is not None and fits(self._module, *args, **kwargs) and snapshot.holds()
        return (self._training is None or self._module.training is self._training) and (
            fits(self._module, *args, **kwargs)
        )

    def settle(self) -> None:
        """Note the state of the module for which all conditions were just found to hold."""
        if self._reads_training:
            self._training = self._module.training

    def observe(self, arguments: Mapping[str, Any]) -> Snapshot | None:
        """Look at what the conditions hang on, before they are checked; None if they are not watched."""
        if not self._watches:
            return None
        return take(self._guards, self._function, arguments, noise=self._noise)

    def changed(self, tensors: Collection[int]) -> None:
        """All conditions hold: count what changed nevertheless, and nodes of the runner's ``tensors``."""
        if self._snapshot is not None:
            self._noise.update([*self._snapshot.changed(), *(("tensor", node) for node in tensors)])

    def keep(self, snapshot: Snapshot, elsewhere: Collection[int]) -> None:
        """Settle on what was observed; tensors with the ids ``elsewhere`` are compared by a runner."""
        if self._fits is None or self.asked != snapshot.asked:
            self._others = dict(snapshot.others)
            self._fits = compile_input_check(
                self._guards, self._function, asked=snapshot.asked, others=self._others
            )
        self._others.update(snapshot.others)
        snapshot.leave(elsewhere)
        self._snapshot = snapshot
