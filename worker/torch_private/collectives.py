"""Collectives of a graph: waited for where they are called, or replaced on a rank by itself.

Relies on: ``wait_tensor`` of a tensor that no collective made returns it; functional collectives have kernels
for meta tensors. Part of a warm load: imports neither Dynamo nor sympy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from warmrank.worker.torch_private.kernels import Call, call_of
from warmrank.worker.torch_private.recording import Watch, leaves, traits_of
from warmrank.worker.torch_private.warm import known_groups


def waited(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    """A call, such as that of a collective, that is finished when it returns."""
    call = call_of(overload, args, kwargs)
    if not known_groups():
        return call

    def collective() -> Any:
        result = call()
        wait(leaves(result))
        return result

    return collective


def wait(values: Iterable[Any]) -> None:
    """Wait for the collectives whose results these are, of those that are."""
    finish = torch.ops._c10d_functional.wait_tensor.default._op
    for value in values:
        if isinstance(value, torch.Tensor):
            finish(value)


def broadcast(
    tensor: torch.Tensor, src: int | None = None, group: Any = None, group_src: int | None = None
) -> None:
    """``torch.distributed.broadcast``, by the operator that graphs hold, which counts ranks in the group."""
    from torch.distributed import distributed_c10d as c10d

    group = group or c10d.group.WORLD
    root = group_src if src is None else c10d.get_group_rank(group, src)
    sent = torch.ops._c10d_functional.broadcast(tensor, root, group.group_name)
    tensor.copy_(torch.ops._c10d_functional.wait_tensor(sent))


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,  # noqa: ARG001 - what the other ranks find there, nobody may count on
    op: Any = None,
    group: Any = None,
    group_dst: int | None = None,  # noqa: ARG001 - likewise
) -> None:
    """``torch.distributed.reduce``: all ranks have the result."""
    from torch.distributed import distributed_c10d as c10d

    c10d.all_reduce(tensor, c10d.ReduceOp.SUM if op is None else op, group)


def gather(
    tensor: torch.Tensor,
    gather_list: Sequence[torch.Tensor] | None = None,
    dst: int | None = None,  # noqa: ARG001 - the rank that has a list
    group: Any = None,
    group_dst: int | None = None,  # noqa: ARG001 - likewise
) -> None:
    """``torch.distributed.gather``: all ranks have the data; those with a list keep it."""
    from torch.distributed import distributed_c10d as c10d

    group = group or c10d.group.WORLD
    size = c10d.get_world_size(group)
    sent = torch.ops._c10d_functional.all_gather_into_tensor(tensor.reshape(-1), size, group.group_name)
    _fill(gather_list or (), torch.ops._c10d_functional.wait_tensor(sent).chunk(size))


def all_to_all(
    output_tensor_list: Sequence[torch.Tensor], input_tensor_list: Sequence[torch.Tensor], group: Any = None
) -> None:
    """``torch.distributed.all_to_all``, by the operator for parts of one tensor."""
    from torch.distributed import distributed_c10d as c10d

    group = group or c10d.group.WORLD
    given, taken = ([each.numel() for each in tensors] for tensors in (input_tensor_list, output_tensor_list))
    data = torch.cat([each.reshape(-1) for each in input_tensor_list])
    sent = torch.ops._c10d_functional.all_to_all_single(data, taken, given, group.group_name)
    _fill(output_tensor_list, torch.ops._c10d_functional.wait_tensor(sent).split(taken))


def _fill(targets: Sequence[torch.Tensor], data: Sequence[torch.Tensor]) -> None:
    if targets and [each.dtype for each in targets] != [each.dtype for each in data]:
        msg = f"a list of {len(data)} tensors of {data[0].dtype} was expected"
        raise ValueError(msg)
    for target, source in zip(targets, data, strict=False):
        target.copy_(source.view(target.shape))


def unsent(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Result of a collective on a rank by itself: its own data, again and again."""
    if overload._schema.is_mutable:
        return kwargs.get("out", args[0])
    shapes = pytree.tree_map_only(torch.Tensor, lambda item: item.to("meta"), (args, kwargs))
    given = iter([item for item in leaves(args) if isinstance(item, torch.Tensor)])

    def filled(result: torch.Tensor) -> torch.Tensor:
        own, size = next(given), result.numel()
        data = own.reshape(-1) if own.numel() else own.new_zeros(1)
        return data.repeat(-(-size // data.numel()))[:size].view(result.shape)

    return pytree.tree_map_only(torch.Tensor, filled, overload(*shapes[0], **shapes[1]))


class Alone(Watch):  # type: ignore[no-untyped-call]  # torch's `__init_subclass__`
    """Within it collectives send nothing: see `unsent`."""

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls all else."""
        return unsent(func, args, kwargs) if traits_of(func).sends else func(*args, **kwargs)
