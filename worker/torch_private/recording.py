"""Notes what one run of a graph does on the CPU: which operators it calls, on which memory.

A dispatch mode sees the operators that are left when composite ones have dissolved: the kernels that an
eager run calls. Of tensors it notes where they lie (`Place`), never the tensors themselves, so the run
needs no more memory than an eager one. Operators that only make views are not noted.

Relies on: ``TorchDispatchMode.__init_subclass__`` leaves ``__torch_dispatch__`` as it is where
``_should_skip_dynamo`` says no, and would else wrap it, which imports Dynamo. Part of a warm load: imports
neither Dynamo nor sympy.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from warmrank.worker.errors import NotCapturable
from warmrank.worker.torch_private.operators import argument_of, as_list, may_do_more, mutated_arguments
from warmrank.worker.torch_private.places import (
    Origin,
    Place,
    check,
    follow,
    hand_out,
    identity_of,
    ordinary,
    origins,
    place_of,
)
from warmrank.worker.torch_private.warm import fills_new_memory

_RESIZING = frozenset({"resize_", "resize_as_", "resize_as_sparse_", "set_", "_resize_output_"})
# What has no lasting effect: memory without values, and checks of sizes, which do not change.
_IDLE = frozenset(
    {
        "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
        "_assert_tensor_metadata",
    }
)  # fmt: skip
_MASKED = frozenset({"index", "_unsafe_index"})
_COLLECTIVES = frozenset({"_c10d_functional", "c10d_functional"})
_WAIT = "wait_tensor"
_PROBABILITIES = ("dropout", "dropout_p", "p", "train", "training")
RANDOM = "draws random numbers"
_KEYS = torch._C.DispatchKey
_excluded = torch._C._SetExcludeDispatchKeyGuard
REFUSED_TAGS = {
    torch.Tag.nondeterministic_seeded: RANDOM,
    torch.Tag.data_dependent_output: "hands a value of a tensor to Python",
    torch.Tag.dynamic_output_shape: "makes a result whose size depends on values",
}


class Traits(NamedTuple):
    """Traits of an overload, from its schema and its name."""

    # where the arguments that it writes to stand: positions, or names of keyword-only ones
    written: tuple[str | int, ...] = ()
    refused: str = ""  # why it cannot be recorded; empty if it can
    changes_metadata: bool = False  # it changes the layout of its first argument, and no memory
    returns: bool = True  # it returns something
    views: bool = False  # it returns views of its arguments
    idle: bool = False  # calling it again has no effect
    # its second argument may hold masks, by which the size of the result depends on values
    masked: bool = False
    sends: bool = False  # a collective, which starts what `wait_tensor` waits for
    collective: bool = False  # see `Operation`


@functools.cache
def traits_of(func: Any) -> Traits:
    """The traits of an overload, or of whatever else arrives at a dispatch mode."""
    if not isinstance(func, torch._ops.OpOverload):
        return Traits(refused="is a higher-order operator")
    namespace, _, name = func._schema.name.partition("::")
    aten, collective = namespace == "aten", namespace in _COLLECTIVES
    masked = aten and name in _MASKED
    # An index operator has the tag for masks' sake, which are seen in its arguments.
    reasons = [reason for tag, reason in REFUSED_TAGS.items() if tag in func.tags and not masked]
    if aten and name in _RESIZING:
        reasons.append("changes the memory behind a tensor")
    if namespace == "c10d":
        reasons.append("is a collective that is not functional")
    arguments, returns = func._schema.arguments, func._schema.returns
    return Traits(
        written=tuple(
            arguments[position].name if arguments[position].kwarg_only else position
            for position in mutated_arguments(func)
        ),
        refused="; ".join(reasons),
        changes_metadata=torch.Tag.inplace_view in func.tags,
        returns=bool(returns),
        views=any(item.alias_info is not None and not item.alias_info.is_write for item in returns),
        # What starts a collective is waited for where it is called.
        idle=(aten and name in _IDLE) or (collective and name == _WAIT),
        masked=masked,
        sends=collective and name != _WAIT,
        collective=may_do_more(func),
    )


def draws_nothing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True if a seeded operator is told not to draw: probability zero, or not training."""
    told = (argument_of(func, args, kwargs, name) for name in _PROBABILITIES)
    # A probability in a tensor may be another one in the next call.
    return any(isinstance(value, int | float) and not value for value in told)


def refusal(func: Any, why: str) -> NotCapturable:
    """The error that names the operator and the remedy."""
    msg = (
        f"operator {func} {why}, so it cannot be captured; leave it out of the cached function, or run the "
        "function without capture (debug.run_eagerly)"
    )
    return NotCapturable(msg, operator=str(func), why=why)


def is_mask(index: Any) -> bool:
    """True if an index selects as many elements as it has true ones."""
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


class Operation(NamedTuple):
    """One call of a kernel."""

    overload: Any  # the operator
    args: tuple[Any, ...]  # its arguments; tensors are places
    kwargs: dict[str, Any]  # likewise
    # what it returned, flat: places of tensors in memory that was new, None for all else
    results: tuple[Place | None, ...]
    touched: frozenset[int]  # numbers of all storages that it reads or writes
    # its result may be touched only after it was waited for: a collective, or an operator that may start one
    collective: bool


@dataclass(slots=True)
class Recording:
    """One run."""

    operations: list[Operation] = field(default_factory=list)  # in their order
    # storages that were there before, inputs' and constants': number -> a tensor in it
    given: dict[int, torch.Tensor] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)  # storages that the run made: number -> bytes
    inputs: tuple[Any, ...] = ()  # of the graph; tensors are places
    outputs: tuple[Any, ...] = ()  # what the graph returned, likewise
    results: tuple[Any, ...] = ()  # the same as it is
    origins: tuple[Origin | None, ...] = ()  # of each output


def record(
    graph: Callable[..., Sequence[Any]], inputs: Sequence[Any], copied: Collection[int] = ()
) -> Recording:
    """Run the graph once, out of inference mode, and note what it does; inputs at ``copied`` are buffers.

    In inference mode, composite operators would arrive whole.

    Raises:
        NotCapturable: it calls an operator that cannot be repeated on fixed addresses; its ``outputs`` are
            those of the run, which goes on to its end, because what it sent to other ranks cannot be undone.
    """
    seen = [ordinary(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    recorder = _Recorder(seen)
    with recorder:
        results = tuple(graph(*seen))
    recording = recorder.recording
    try:
        if recorder.refused is not None:
            raise recorder.refused
        recording.outputs = tuple([recorder.replaced(value) for value in results])
    except NotCapturable as error:
        follow(inputs, seen)
        error.outputs = hand_out(results, origins(seen, results, ()), len(inputs), clone=False)(inputs)
        raise
    recording.results, recording.origins = results, origins(seen, results, copied)
    return recording


def leaves(values: Any) -> list[Any]:
    """Results of an operator, with lists of tensors unpacked."""
    return [item for value in as_list(values) for item in as_list(value)]


def leaves_of(overload: Any) -> Callable[[Any], Sequence[Any]]:
    """`leaves`, or what does the same sooner for results of this operator."""
    return as_list if all(str(item.type) == "Tensor" for item in overload._schema.returns) else leaves


class Watch(TorchDispatchMode, ABC):
    """Sees every operator that is called within it; may be part of a warm load, for it imports no Dynamo."""

    supports_higher_order_operators = True  # to refuse them with our own words

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        # Torch leaves lazy bits out for a mode, and operators that are made of others make views with them.
        with _excluded(_KEYS.Conjugate, False), _excluded(_KEYS.Negative, False):
            return self.called(func, args, kwargs or {})

    @abstractmethod
    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run or replace the call of an operator, and return its result."""


class _Recorder(Watch):
    """Notes every operator while it runs it, until one cannot be repeated; the others just run."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.recording = Recording()
        self.refused: NotCapturable | None = None
        self._inputs = frozenset(map(id, inputs))
        self._numbers: dict[int, int] = {}
        self._started: set[int] = set()  # storages of results that may have to be waited for
        self._alive: list[StorageWeakRef] = []  # so that no address gets a second meaning
        self.recording.inputs = tuple(self.replaced(value) for value in inputs)
        self._writable = frozenset(self.recording.given)

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operator, and notes what it does."""
        layouts: list[Any] = []
        with self._refusals():
            layouts = self._before(func, args, kwargs)
        result = func(*args, **kwargs)
        with self._refusals():
            self._after(func, args, kwargs, result, layouts)
        return result

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Keeps the first refusal."""
        try:
            yield
        except NotCapturable as error:
            self.refused = error

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Layouts of what the operator is about to write to."""
        if self.refused is not None:
            return []
        traits = traits_of(func)
        if traits.refused and not (traits.refused == RANDOM and draws_nothing(func, args, kwargs)):
            raise refusal(func, traits.refused)
        if traits.idle and traits.returns and not traits.collective and fills_new_memory():
            raise refusal(func, "fills new memory, as torch.use_deterministic_algorithms has it")
        if traits.changes_metadata:  # of a tensor, whose next use tells its layout
            if id(args[0]) in self._inputs:
                raise refusal(func, "changes the layout of an input")
            self.place(args[0])
            return []
        if traits.masked and any(is_mask(index) for index in args[1]):
            raise refusal(func, REFUSED_TAGS[torch.Tag.dynamic_output_shape] + " of a mask")
        if traits.collective and traits.idle and identity_of(args[0]) not in self._started:
            raise refusal(func, "waits for what was not started by an operator of the graph")
        return self._written(func, traits, args, kwargs)

    def _after(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, layouts: list[Any]
    ) -> None:
        """Notes a call that was made."""
        if self.refused is not None or (traits := traits_of(func)).changes_metadata:
            return
        if layouts != self._written(func, traits, args, kwargs):
            raise refusal(func, "changes the size of a tensor that it writes to")
        made = (item for item in as_list(result) if isinstance(item, torch.Tensor))
        if traits.written or not (traits.views and all(identity_of(item) in self._numbers for item in made)):
            self._note(func, traits, args, kwargs, result)
        if traits.collective and not traits.idle:
            self._started |= {identity_of(item) for item in leaves(result) if isinstance(item, torch.Tensor)}

    def _note(
        self, func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Adds the call to the recording, unless it has no effect that a replay must repeat."""
        touched: set[int] = set()
        noted_args = tuple([self.replaced(value, touched) for value in args])
        noted_kwargs = {key: self.replaced(value, touched) for key, value in kwargs.items()}
        results = tuple([self._made(func, value, touched) for value in leaves(result)])
        made = any(place is not None for place in results)
        if traits.idle or not (made or traits.written or not traits.returns):
            return
        self.recording.operations.append(
            Operation(func, noted_args, noted_kwargs, results, frozenset(touched), traits.collective)
        )

    def place(self, tensor: torch.Tensor) -> Place:
        """Place of a tensor; memory that nobody announced is taken for a constant, and held."""
        number = self._numbers.get(identity_of(tensor))
        if number is None:
            check(tensor)
            number = self._number(tensor.untyped_storage())
            self.recording.given[number] = tensor
        return place_of(number, tensor)

    def replaced(self, value: Any, touched: set[int] | None = None) -> Any:
        """The value, with places instead of tensors."""
        if isinstance(value, torch.Tensor):
            place = self.place(value)
            if touched is not None:
                touched.add(place[0])
            return place
        if type(value) is list or type(value) is tuple:
            return type(value)([self.replaced(item, touched) for item in value])
        return value

    def _number(self, storage: torch.UntypedStorage) -> int:
        number = self._numbers[storage._cdata] = len(self._numbers)
        self._alive.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return number

    def _made(self, func: Any, value: Any, touched: set[int]) -> Place | None:
        """The place of a result in new memory; None for a view, a number or nothing."""
        if not isinstance(value, torch.Tensor):
            if isinstance(value, int | float) and func.namespace != "aten":
                raise refusal(func, "hands a number to Python, which may depend on a tensor")
            return None
        if identity_of(value) in self._numbers:
            return None
        check(value)
        storage = value.untyped_storage()
        number = self._number(storage)
        self.recording.made[number] = storage.nbytes()
        touched.add(number)
        return place_of(number, value)

    def _written(self, func: Any, traits: Traits, args: Any, kwargs: Any) -> list[Any]:
        """The layouts of what the operator writes to, which it must leave as they are."""
        layouts = []
        for where in traits.written:
            value = kwargs.get(where) if isinstance(where, str) else (*args[where : where + 1], None)[0]
            for tensor in (item for item in as_list(value) if isinstance(item, torch.Tensor)):
                place = self.place(tensor)
                if place.storage in self.recording.given and place.storage not in self._writable:
                    raise refusal(func, "writes to a tensor that is neither an input nor made by the graph")
                layouts.append((place, tensor.untyped_storage().nbytes()))
        return layouts
