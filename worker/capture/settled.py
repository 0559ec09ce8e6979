"""The inputs of a graph that a call does not bring: the module's tensors, those of globals and closures.

Their conditions were checked once. Compiled kernels take addresses for granted, and a recorded graph much
more, so every run looks whether they still are what they were then, however guards are asked.

Invariant: after `SettledInputs.check` returned, each of them has the type, dtype, device, layout, sizes and
strides that its conditions were found to hold for, and all its elements lie in its storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from warmrank.worker.capture.entry import InputLayout
from warmrank.worker.devices.memory import lies_in_storage
from warmrank.worker.engines.overlap import picker
from warmrank.worker.errors import StateChanged
from warmrank.worker.torch_private.unchanged import Metadata, TensorWatch

_address = torch.Tensor.data_ptr


class SettledInputs:
    """Of one graph; until `settle` there are none."""

    def __init__(self, layout: InputLayout) -> None:
        self._layout = layout
        self._settled = Settled((), ())
        self._due: tuple[int, ...] | None = None

    def renew(self, positions: Sequence[int]) -> None:
        """Take the inputs at some positions of the next run for what the graph may run on."""
        self._due = tuple(positions)

    def observed(self, positions: Sequence[int], inputs: Sequence[Any]) -> Settled:
        """What `settle` takes, from inputs whose conditions are to be checked next.

        Raises:
            StateChanged: one of them has elements outside of its storage.
        """
        settled = Settled(tuple(positions), inputs)
        self._look(settled, inputs)
        return settled

    def settle(self, settled: Settled) -> None:
        """Take what was observed for what the graph may run on."""
        self._settled, self._due = settled, None

    def changed(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Positions of settled inputs that are something else now."""
        settled = self._settled
        return tuple(settled.positions[number] for number in settled.metadata.changed(settled.pick(inputs)))

    def check(self, inputs: Sequence[Any]) -> Settled:
        """Compare them, and look at the memory of those that moved; where nothing changed, in microseconds.

        Raises:
            StateChanged: one of them is something else now, or has elements outside of its storage; nothing
                ran yet.
        """
        if self._due is not None:
            self._layout.require_tensors(inputs)
            self.settle(self.observed(self._due, inputs))
        settled = self._settled
        if settled.positions and not settled.watch.same(inputs):
            self._compare(settled, inputs)
        return settled

    def _compare(self, settled: Settled, inputs: Sequence[Any]) -> None:
        settled.since = object()
        words = settled.watch.take(inputs)
        if not settled.metadata.of(settled.pick(inputs)):
            for index in self.changed(inputs):
                raise StateChanged(self._layout.described(index), inputs[index])
        if settled.moved(inputs):
            self._look(settled, inputs)
        settled.watch.keep(words)

    def _look(self, settled: Settled, inputs: Sequence[Any]) -> None:
        addresses = settled.present(inputs)
        for index in settled.positions:
            if not lies_in_storage(inputs[index]):
                size_bytes = inputs[index].untyped_storage().nbytes()
                found = f"a tensor in {size_bytes} bytes of storage"
                raise StateChanged(self._layout.described(index), found)
        settled.addresses = addresses


def _has_address(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies somewhere: a fake one, of an offline build, does not, and is never run on."""
    return tensor.layout is torch.strided and type(tensor).__name__ != "FakeTensor"


class Settled:
    """What was settled at one time.

    Attributes:
        positions: of the inputs.
        since: another object after any of them became another one, changed, or moved.
    """

    __slots__ = ("_pick_strided", "addresses", "metadata", "pick", "positions", "since", "watch")

    def __init__(self, positions: tuple[int, ...], inputs: Sequence[Any]) -> None:
        self.positions = positions
        self.pick = picker(positions)
        self.metadata = Metadata(self.pick(inputs))
        self._pick_strided = picker([i for i in positions if _has_address(inputs[i])])
        self.addresses: list[int] = []
        self.watch = TensorWatch(positions)
        self.since = object()

    def present(self, inputs: Sequence[Any]) -> list[int]:
        """Where these inputs lie."""
        return [*map(_address, self._pick_strided(inputs))]

    def moved(self, inputs: Sequence[Any]) -> bool:
        """Whether they lie elsewhere than when last looked at."""
        return self.present(inputs) != self.addresses
