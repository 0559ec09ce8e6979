"""The inputs of one graph: what is done with each, and whether those that no call brings changed.

Conditions on the module's tensors, and on those of globals and closures, were checked once. Compiled kernels
take addresses for granted, and a recorded graph much more, so every run looks again, however guards are set.

Invariant: after `SettledInputs.check` returned, each of them has the type, dtype, device, layout, sizes and
strides that its conditions were found to hold for, and all its elements lie in its storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.devices.memory import lies_in_storage, picker
from warmrank.worker.errors import StateChanged
from warmrank.worker.runtime.artifact import MUTATED, NUMBER, STATE, USER, GraphFacts
from warmrank.worker.torch_private.metadata import Metadata

if TYPE_CHECKING:
    from warmrank.worker.torch_private.unchanged import TensorWatch

_address = torch.Tensor.data_ptr


class InputLayout:
    """The inputs of one graph by what is done with them; positions, in order.

    Attributes:
        copied: user inputs that are copied into buffers.
        fixed: inputs that are used where they lie.
        compared: those of them whose address is compared on each call.
        mutated: inputs that the graph writes to.
        kept: inputs that live longer than a call: the module's, and mutated ones.
        shaped: inputs whose shape is part of the key.
        numbers: inputs that are numbers, part of the key too.
        of_module: tensors of the module.
    """

    def __init__(self, facts: GraphFacts, *, clone_input: bool, frozen_parameters: bool) -> None:
        self._classes = classes = facts.input_classes
        self._names = facts.input_names or tuple(f"input {index}" for index in range(len(classes)))
        self.of_module = frozenset(facts.module_inputs)
        by_kind: dict[str, set[int]] = {STATE: set(), MUTATED: set(), USER: set(), NUMBER: set()}
        for index, kind in enumerate(classes):
            by_kind[kind].add(index)
        frozen = by_kind[STATE] & self.of_module
        tensors = by_kind[STATE] | by_kind[MUTATED] | by_kind[USER]
        copied = by_kind[USER] if clone_input else set[int]()
        fixed = tensors - copied
        self.numbers = tuple(sorted(by_kind[NUMBER]))
        self.mutated = tuple(sorted(by_kind[MUTATED]))
        self.copied = tuple(sorted(copied))
        self.fixed = tuple(sorted(fixed))
        self.shaped = tuple(sorted(tensors - frozen))
        self.compared = tuple(sorted(fixed - frozen if frozen_parameters else fixed))
        self.kept = tuple(sorted(fixed & (self.of_module | by_kind[MUTATED])))
        self._pick_mutated = picker(self.mutated)

    def key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """What tells one captured graph of a function from another."""
        return (*[inputs[index].shape for index in self.shaped], *[inputs[index] for index in self.numbers])

    def require_tensors(self, inputs: Sequence[Any]) -> None:
        """Refuse inputs that are no tensors any more: the module's are not asked about on each call."""
        for index, kind in enumerate(self._classes):
            if kind != NUMBER and not isinstance(inputs[index], torch.Tensor):
                raise StateChanged(self._names[index], inputs[index])

    def note_writes(self, inputs: Sequence[Any]) -> None:
        """Tell autograd that mutated inputs were written to, past operators that would have done so."""
        if self.mutated:
            torch.autograd.graph.increment_version(self._pick_mutated(inputs))

    def described(self, index: int) -> str:
        """An input in words."""
        kind = self._classes[index]
        words = {MUTATED: "mutated input", USER: "user input"}
        state = "parameter or buffer" if index in self.of_module else "input that is used where it lies"
        return f"{words.get(kind, state)} {self._names[index]}"


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

        Raises `StateChanged`: one of them has elements outside of its storage.
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

        Raises `StateChanged`: one of them is something else now, or has elements outside of its storage;
        nothing ran yet.
        """
        if self._due is not None:
            self._layout.require_tensors(inputs)
            self.settle(self.observed(self._due, inputs))
            return self._settled  # just looked at
        settled = self._settled
        if settled.positions and not settled.watched().same(inputs):
            self._compare(settled, inputs)
        return settled

    def _compare(self, settled: Settled, inputs: Sequence[Any]) -> None:
        settled.since = object()
        words = settled.watched().take(inputs)
        if not settled.metadata.of(settled.pick(inputs)):
            for index in self.changed(inputs):
                raise StateChanged(self._layout.described(index), inputs[index])
        if settled.moved(inputs):
            self._look(settled, inputs)
        settled.watched().keep(words)

    def _look(self, settled: Settled, inputs: Sequence[Any]) -> None:
        addresses = settled.present(inputs)
        for index in settled.positions:
            if not lies_in_storage(inputs[index]):
                size_bytes = inputs[index].untyped_storage().nbytes()
                found = f"a tensor in {size_bytes} bytes of storage"
                raise StateChanged(self._layout.described(index), found)
        settled.addresses = addresses


class Settled:
    """What was settled at one time.

    Attributes:
        positions: of the inputs.
        since: another object after any of them became another one, changed, or moved.
    """

    __slots__ = ("_pick_strided", "_watch", "addresses", "metadata", "pick", "positions", "since")

    def __init__(self, positions: tuple[int, ...], inputs: Sequence[Any]) -> None:
        self.positions = positions
        self.pick = picker(positions)
        self.metadata = Metadata(self.pick(inputs))
        # Those that lie somewhere: a fake one, of an offline build, does not, and is never run on.
        strided = []
        for index in positions:
            tensor = inputs[index]
            if tensor.layout is torch.strided and type(tensor).__name__ != "FakeTensor":
                strided.append(index)
        self._pick_strided = picker(strided)
        self.addresses: list[int] = []
        self.since = object()
        self._watch: TensorWatch | None = None

    def watched(self) -> TensorWatch:
        """What tells quickly that nothing changed; a process's first call needs none."""
        if self._watch is None:
            from warmrank.worker.torch_private.unchanged import TensorWatch

            self._watch = TensorWatch(self.positions)
        return self._watch

    def present(self, inputs: Sequence[Any]) -> list[int]:
        """Where these inputs lie."""
        return [*map(_address, self._pick_strided(inputs))]

    def moved(self, inputs: Sequence[Any]) -> bool:
        """Whether they lie elsewhere than when last looked at."""
        return self.present(inputs) != self.addresses
