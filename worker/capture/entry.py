"""One captured graph: whether it fits a call, and how its buffers are filled.

Invariant: a graph is replayed only if every input that it reads where it lies is at the address that was
captured, with the layout that was captured; everything else was copied into its buffers just before.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.capture.plan import shapes_of
from warmrank.worker.devices import memory_of, picker
from warmrank.worker.errors import NotCapturable
from warmrank.worker.torch_private.places import hand_out

if TYPE_CHECKING:
    from warmrank.worker.devices.port import CapturedGraph
    from warmrank.worker.runtime.runner import InputLayout, Settled

_address = torch.Tensor.data_ptr


class _Placed:
    """Inputs that are used where they lie, and where that is."""

    __slots__ = ("_pick", "_tensors", "addresses", "layouts", "positions")

    def __init__(self, positions: tuple[int, ...], inputs: Sequence[Any]) -> None:
        self.positions = positions
        self._pick = picker(positions)
        self._tensors = self._pick(inputs)
        self.addresses = [*map(_address, self._tensors)]
        self.layouts = [*map(_layout_of, self._tensors)]

    def same(self, inputs: Sequence[Any]) -> bool:
        """Whether inputs lie where these do."""
        tensors = self._pick(inputs)
        try:
            if [*map(_address, tensors)] != self.addresses:
                return False
        except TypeError:  # no tensor any more
            return False
        # An object that was here before has the layout that it had: `worker.runtime.runner` looks at that.
        if not all(map(operator.is_, tensors, self._tensors)):
            if [*map(_layout_of, tensors)] != self.layouts:
                return False
            self._tensors = tensors
        return True


class Entry:
    """One captured graph and what it was captured for.

    Attributes:
        captured: the graph.
        hand_out: makes a call's outputs of its inputs, after a replay.
        key: of `InputLayout.key`.
        shapes: what the capture plan says of it; None where that cannot be written.
    """

    __slots__ = (
        "__weakref__", "_called", "_copied", "_end", "_inside", "_layout", "_mutated", "_numbers",
        "_pick_numbers", "_placed", "_positions", "_rest", "_since", "captured", "hand_out", "key", "shapes",
    )  # fmt: skip

    def __init__(
        self,
        layout: InputLayout,
        captured: CapturedGraph,
        inputs: Sequence[Any],
        copied: frozenset[int],
        *,
        clone_output: bool,
    ) -> None:
        self.captured = captured
        self.hand_out = hand_out(captured.outputs, captured.origins, len(inputs), clone=clone_output)
        self.key = layout.key(inputs)
        self.shapes = shapes_of(layout, inputs)
        self._layout = layout
        self._inside = tuple(index for index in layout.copied if index not in copied)
        self._placed = self._rest = _Placed((*layout.compared, *self._inside), inputs)
        self._positions: tuple[int, ...] = ()
        self._since: object = None
        self._called = tuple(
            (index, inputs[index].shape, inputs[index].stride(), inputs[index].storage_offset())
            for index in self._placed.positions
            if index not in layout.of_module
        )
        self._pick_numbers = picker(layout.numbers)
        self._numbers = self._pick_numbers(inputs)
        self._mutated = _written(inputs, layout.mutated)
        self._end = max((behind for _, behind in self._mutated), default=0)
        self._copied = tuple(
            _filled(index, inputs[index], captured.inputs[index]) for index in sorted(copied)
        )

    def fits(self, inputs: Sequence[Any], settled: Settled | None = None) -> bool:
        """Whether a replay computes what the graph would compute of these inputs; a few microseconds.

        ``settled`` are those that were just looked at, where they lie, too.
        """
        if not self._lie_where_captured(inputs, settled):
            return False
        for index, shape, strides, offset in self._called:
            tensor = inputs[index]
            if (
                tensor.shape != shape
                or tensor.stride() != strides
                or tensor.storage_offset() != offset  # from which `as_strided` counts
            ):
                return False
        if self._pick_numbers(inputs) != self._numbers:
            return False
        for index, shape, strides, _ in self._copied:
            tensor = inputs[index]
            if tensor.shape != shape or (strides is not None and tensor.stride() != strides):
                return False
            if self._mutated and self._is_inside(tensor):
                return False
        return True

    def fill(self, inputs: Sequence[Any]) -> None:
        """Copy the user's inputs into the buffers."""
        for index, _, strides, buffer in self._copied:
            buffer.copy_(inputs[index] if strides is None else memory_of(inputs[index]))

    def misfit(self, inputs: Sequence[Any]) -> str:
        """Why inputs of this key do not fit, in words."""
        described = self._layout.described
        if self._layout.key(inputs) != self.key:
            return "another shape"  # `fits` is asked about inputs of every key
        placed = self._placed
        for index, address, layout in zip(placed.positions, placed.addresses, placed.layouts, strict=True):
            if inputs[index].data_ptr() != address:
                return f"{described(index)} has a new address"
            if _layout_of(inputs[index]) != layout:
                return f"{described(index)} has another layout"
        for index, *_ in self._copied:
            if self._is_inside(inputs[index]):
                return f"{described(index)} now lies in a mutated input"
        return "user inputs have other strides"

    def _lie_where_captured(self, inputs: Sequence[Any], settled: Settled | None) -> bool:
        """Compare addresses; of the settled inputs only after something about them changed."""
        if settled is None or settled.since is not self._since:
            if not self._placed.same(inputs):
                return False
            if settled is not None:
                self._leave(settled, inputs)
            return True
        return self._rest.same(inputs)

    def _leave(self, settled: Settled, inputs: Sequence[Any]) -> None:
        if self._positions is not settled.positions:
            elsewhere = frozenset(settled.positions)
            rest = tuple(index for index in self._placed.positions if index not in elsewhere)
            self._positions, self._rest = settled.positions, _Placed(rest, inputs)
        self._since = settled.since

    def _is_inside(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of a mutated input, whose writes it then has to see."""
        return tensor.data_ptr() < self._end and _overlaps(tensor, self._mutated)


def inside(inputs: Sequence[Any], layout: InputLayout) -> frozenset[int]:
    """Positions of user inputs that lie in the memory of a mutated input."""
    for index in (*layout.fixed, *layout.copied):
        if inputs[index].layout is not torch.strided:
            msg = f"{layout.described(index)} has layout {inputs[index].layout}, which lies at no address"
            raise NotCapturable(msg, operator="")
    mutated = _written(inputs, layout.mutated)
    return frozenset(index for index in layout.copied if _overlaps(inputs[index], mutated))


def _written(inputs: Sequence[Any], mutated: Sequence[int]) -> frozenset[tuple[int, int]]:
    """Stretches of memory that the graph may write to: first address, and the one behind the last."""
    storages = [inputs[index].untyped_storage() for index in mutated]
    return frozenset((storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages)


def _overlaps(tensor: torch.Tensor, stretches: Iterable[tuple[int, int]]) -> bool:
    """Whether a tensor may have memory in one of them, if only as a slice of one array of numpy's."""
    begin = tensor.data_ptr()
    storage = tensor.untyped_storage()
    end = storage.data_ptr() + storage.nbytes()
    return any(begin < behind and first < end for first, behind in stretches)


def _filled(index: int, value: torch.Tensor, buffer: torch.Tensor) -> tuple[int, Any, Any, torch.Tensor]:
    """A copied input: position, shape, the strides that it must have (None for any), memory to copy into."""
    memory = memory_of(buffer)
    # Where elements overlap, the memory is copied as it lies, so the other side has to lie alike.
    return index, value.shape, None if memory is buffer else value.stride(), memory


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    lazy_bits = tensor.is_conj(), tensor.is_neg()
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, *lazy_bits
