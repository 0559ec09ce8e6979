"""The cheapest ways to call a kernel again and again, and to have it write into memory that is there.

A call through ``torch.ops`` boxes every argument; torch's own bindings (``torch.add``, ``Tensor.add_``)
reach the same overload at half the price. One is used if, called with these kinds of arguments under a
dispatch mode that runs no kernel, it reaches that overload with the same arguments.

Relies on: ``OpOverload._op`` is the overload without its Python wrapper; ``_AutoDispatchBelowAutograd`` skips
autograd's kernels; each functional overload with a ``structured_delegate`` has a kernel for
``CompositeExplicitAutogradNonFunctional``, and that delegate one for ``Meta``. Part of a warm load: imports
neither Dynamo nor sympy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from warmrank.worker.torch_private.operators import mutated_arguments
from warmrank.worker.torch_private.recording import Watch
from warmrank.worker.values import Value

Call = Callable[[], Any]

HOMES_IN_C = (
    torch._C._nn,
    torch._C._linalg,  # type: ignore[attr-defined]
    torch._C._special,  # type: ignore[attr-defined]
    torch._C._fft,  # type: ignore[attr-defined]
)
_HOMES = (torch._C._VariableFunctions, *HOMES_IN_C)
_METHODS = torch._C.TensorBase
_ALLOCATING = frozenset({"aten::clone", "aten::_to_copy"})


class OutVariant(Value):
    """The overload that writes the results of another one into given tensors."""

    overload: Any  # the operator
    names: tuple[str, ...]  # its arguments that take the results, in their order; all others are the same


@functools.cache
def out_variant(overload: Any) -> OutVariant | None:
    """The overload of the same operator with the same arguments that writes into given tensors, if any.

    Only of structured operators: both their overloads are generated around one kernel, which is handed
    results of the right sizes. Others may use ``out`` as memory to compute in, and resize it for that
    (`binary_cross_entropy`, `huber_loss`).
    """
    if overload.namespace != "aten" or mutated_arguments(overload):
        return None
    wanted = [(item.name, str(item.type)) for item in overload._schema.arguments]
    returns = [str(item.type) for item in overload._schema.returns]
    if not returns or set(returns) != {"Tensor"}:
        return None
    packet = overload._overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        arguments = candidate._schema.arguments
        outs = tuple(item.name for item in arguments if item.is_out)
        rest = [(item.name, str(item.type)) for item in arguments if not item.is_out]
        if len(outs) == len(returns) and rest == wanted:
            return OutVariant(overload=candidate, names=outs) if _structured(overload, candidate) else None
    return None


def _structured(overload: Any, out: Any) -> bool:
    """True if a functional overload and one with ``out`` are generated from one structured kernel.

    Copying forms of views are registered alike, and are not. Losses with a ``reduction`` are, but use ``out``
    as scratch of the inputs' size before they reduce: they would write beyond its place.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return (
        torch.Tag.view_copy not in overload.tags
        and not any(argument.name == "reduction" for argument in overload._schema.arguments)
        and has_kernel(overload.name(), "CompositeExplicitAutogradNonFunctional")
        and all(has_kernel(out.name(), key) for key in ("CPU", "Meta"))
    )


@functools.cache
def only_copies(overload: Any) -> bool:
    """True if the result holds the first argument's values, at most in another type."""
    return str(overload._schema.name) in _ALLOCATING


def into(
    variant: OutVariant, args: Sequence[Any], kwargs: dict[str, Any], outs: Sequence[torch.Tensor]
) -> Call:
    """The call that writes into ``outs`` what the functional overload returns for these arguments."""
    return call_of(variant.overload, args, {**kwargs, **dict(zip(variant.names, outs, strict=True))})


def call_of(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    """The cheapest way to call an overload with these arguments."""
    args = tuple(args)
    key = (overload, _kinds(args), _kinds(kwargs))
    binding = _BINDINGS.get(key)
    if binding is None:
        binding = _BINDINGS[key] = _binding(overload, args, kwargs)
    return binding.call(args, kwargs)


def run(calls: Iterable[Call]) -> None:
    """Call them in turn; autograd has no part in it."""
    with torch._C._AutoDispatchBelowAutograd():
        for call in calls:
            call()


class _Binding(NamedTuple):
    """A way to call an overload."""

    function: Any  # what to call
    outs: tuple[str, ...] = ()  # the schema's names of what the function takes as ``out``

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call with these arguments, which are those of the schema."""
        if self.outs:
            results = tuple([kwargs[name] for name in self.outs])
            kwargs = {name: value for name, value in kwargs.items() if name not in self.outs}
            kwargs["out"] = results[0] if len(results) == 1 else results
        return functools.partial(self.function, *args, **kwargs)


# What was found out about bindings in this process: one entry for each kind of arguments of an overload.
_BINDINGS: dict[Any, _Binding] = {}


def _binding(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Binding:
    """A binding that reaches the overload with these arguments; the overload itself where there is none."""
    itself = _Binding(overload._op)
    namespace, _, name = overload._schema.name.partition("::")
    if namespace != "aten":
        return itself
    outs = tuple(item.name for item in overload._schema.arguments if item.is_out)
    found = [_Binding(getattr(home, name), outs=outs) for home in _HOMES if hasattr(home, name)]
    if not outs and args and isinstance(args[0], torch.Tensor) and hasattr(_METHODS, name):
        found.insert(0, _Binding(getattr(_METHODS, name)))
    wanted = _arriving(functools.partial(overload, *args, **kwargs)) if found else None
    if wanted is None or wanted[0] is not overload:  # a composite, which is taken apart on the way
        return itself
    return next(
        (binding for binding in found if _same(_arriving(binding.call(args, kwargs)), wanted)), itself
    )


class _Arrived(Exception):
    """Takes the operator that a call reaches, and its arguments, out of it before a kernel runs."""


class _Arrivals(Watch):  # type: ignore[no-untyped-call]
    """Lets no operator run."""

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Raises `_Arrived`."""
        raise _Arrived(func, args, kwargs)


def _arriving(call: Call) -> tuple[Any, ...] | None:
    """The first operator that a call reaches, and its arguments; None if it does not take these."""
    with torch._C._AutoDispatchBelowAutograd(), _Arrivals():  # as it is going to be run
        try:
            call()
        except _Arrived as arrived:
            return arrived.args
        except (TypeError, ValueError, RuntimeError):
            return None
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - two NaNs


def _kinds(value: Any) -> Any:
    """Kinds of arguments by which a binding may choose an overload."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0, value.dtype
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_kinds, value))
    if isinstance(value, dict):
        return tuple((key, _kinds(item)) for key, item in value.items())
    return type(value)
