"""Ranks that are not there: a world of any size in one process, and tensors without memory.

Relied on: groups of the backend ``fake`` have any size, and their collectives send nothing. Under a
`FakeTensorMode` every new tensor is fake, on a device of any kind, also one that is not here; what would need
a value raises, but small tensors made of Python numbers know theirs. ``Module.to`` swaps fake parameters, and
refuses those that somebody holds weakly, which the mode's own memo does; emptying it before is harmless. An
address is 0 unless ``fake_tensor_allow_unsafe_data_ptr_access`` is off when the mode is made: then asking for
one raises. ``_setup_privateuseone_for_python_backend`` gives torch a device type without its native part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.settings import memory_kind
from warmrank.worker.torch_private.patching import intercepted, steps_in

# ``torch.npu`` where there is none: as much as torch asks of a device type's module. It says that no device
# is available, so that a fake mode makes literals on the CPU and copies them, as for CUDA without a GPU.
_ABSENT_NPU = SimpleNamespace(
    is_available=lambda: False,
    is_initialized=lambda: False,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda _seed: None,
    device_count=lambda: 1,
    current_device=lambda: 0,
    set_device=lambda _device: None,
)


def start_world(rank: int, world_size: int) -> None:
    """Make this process one rank of a world whose other ranks are not there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def fake_device(kind: str) -> torch.device:
    """The device that fake tensors of a kind lie on; torch is told of the kind where need be.

    Raises:
        DeviceUnavailable: this build of torch cannot trace for the kind.
    """
    memory = memory_kind(kind)
    if memory == "cpu":
        return torch.device("cpu")
    if memory == "cuda" and torch.version.cuda is None:
        msg = (
            f"to build for device kind cuda takes the torch of its machines, a build with CUDA; torch "
            f"{torch.__version__} is built without. Install their build here: it needs no GPU."
        )
        raise DeviceUnavailable(msg, kind=kind, missing="torch with CUDA")
    if memory == "npu" and not hasattr(torch, "npu"):
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend("npu", backend_module=_ABSENT_NPU)
    return torch.device(memory, 0)


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Make every tensor that is made within a fake one, without memory and values."""
    import torch._functorch.config as functorch_config
    from torch._subclasses.fake_tensor import FakeTensorMode

    with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
    with intercepted(_Forgets(mode)), mode:
        yield


class _Forgets:
    """Empties a mode's memo, which holds tensors weakly, before two are swapped."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode

    @steps_in("torch.utils", "swap_tensors")
    def _swap(self, original: Callable[..., None], *tensors: Any) -> None:
        self._mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        original(*tensors)


def import_tracer() -> None:
    """Import what a trace and a model of fake tensors import, ahead of them."""
    import torch._dynamo.convert_frame
    import torch._dynamo.exc
    import torch._functorch.config
    import torch._subclasses.fake_tensor
    import torch.fx.experimental.proxy_tensor
    import torch.testing._internal.distributed.fake_pg

    with fake_tensors():  # the first operators import tables of them
        layer = torch.nn.Linear(2, 2).to("cpu", torch.bfloat16)
        torch.nn.init.normal_(layer.weight)


def asked_for_values(error: BaseException) -> bool:
    """True if an error says that a fake tensor was asked for what only a real one has."""
    from torch._subclasses import fake_tensor

    kinds = (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
    )
    texts = ("tensor subclasses", "data pointer", "meta tensor", "'meta' device")
    is_said = isinstance(error, RuntimeError | TypeError) and any(text in str(error) for text in texts)
    return is_said or isinstance(error, kinds)


def is_fake(value: Any) -> bool:
    """True if a tensor has no values."""
    from torch._subclasses import fake_tensor

    return fake_tensor.is_fake(value)
