"""State of torch that loads and calls read: switches, operators by name, metadata of tensors.

State is read from the getters under torch's properties, which cost up to twenty times as much
(``tests/unit/test_ambient.py`` sets each property and looks for its name). Relied on beside that:

* while the older three switches of precision are at their defaults, so are the newer ones of cuBLAS, cuDNN
  and oneDNN's matrices; what is set for its convolutions and RNNs, their kernels read at each call;
* without a function mode on the stack there is no default device but the CPU;
* hooks of all modules stand in dictionaries of ``torch.nn.modules.module`` that stay the same objects;
* ``torch.library._impls`` holds a name for each kernel that Python registered, as ``aten/sin/CPU``;
* torch_npu 2.13: its switches are options of ``torch_npu._C``. One that was never set is None or empty:
  then HF32 is off for matmul and on for convolutions, internal formats are off once the device is
  initialised, and the model of the NPU decides on compiled kernels. ``_get_deterministic_level`` also
  stores the level; here it is only computed;
* Python keeps ``_initializing`` in the ``__spec__`` of a module that is being imported;
* Dynamo keeps preparations of packages in ``trace_rules._lazy_module_init``: of einops, a ``rearrange``;
* ``TensorGuards`` (``tests/unit/test_changes_after_load.py``) compares type, dispatch keys (of the calling
  thread: inference mode has others), dtype, device index, sizes and strides; ``requires_grad`` only while
  gradients are recorded. It reads a null pointer where sizes and strides are left out.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.library
from torch.autograd import forward_ad
from torch.nn.modules import module as module_hooks
from torch.utils._pytree import SUPPORTED_NODES

from warmrank.worker.errors import NotPortable

_KEYS_OF_ALL = ("CPU", "AutogradCPU", "Autograd", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
_ENDINGS = tuple(f"/{key}" for key in _KEYS_OF_ALL)
_GLOBAL_HOOKS = (
    module_hooks._global_forward_hooks,
    module_hooks._global_forward_pre_hooks,
    module_hooks._global_backward_hooks,
    module_hooks._global_backward_pre_hooks,
)
# What `torch.ops` is made of, by which an object is known to be an operator.
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
OperatorNamespace = torch._ops._OpNamespace
_BINDINGS = (types.BuiltinFunctionType, types.MethodDescriptorType)
_DISPATCHING = "torch._C", "_PyObjectDispatchFunc"  # what custom operators call, from torch 2.14 on
_num_function_modes = torch._C._len_torch_function_stack
_is_recording = torch.is_grad_enabled
_record = torch._C._set_grad_enabled
_is_inference = torch.is_inference_mode_enabled
_OLDER_DEFAULTS = "highest", False, True
_LIBRARIES = tuple(
    (library, operators)
    for library in ("generic", "cuda", "mkldnn")
    for operators in (("all",) if library == "generic" else ("all", "matmul", "conv", "rnn"))
)


PRECISION_NAMES = (
    "float32 matmul precision", "tf32 matmul", "tf32 cudnn", "float32 precision of each library",
)  # fmt: skip


def float32_precision() -> tuple[Any, ...]:
    """The values of `PRECISION_NAMES`: the older switches; then the newer ones, unless the older tell all."""
    try:
        older: tuple[Any, ...] = (
            torch.get_float32_matmul_precision(),
            torch._C._get_cublas_allow_tf32(),
            torch._C._get_cudnn_allow_tf32(),
        )
    except RuntimeError:  # somebody set ``fp32_precision``, to what these have no word for
        older = ("mixed",) * len(_OLDER_DEFAULTS)
    if older == _OLDER_DEFAULTS:
        return (*older, "")
    return (*older, " ".join(torch._C._get_fp32_precision_getter(*of) for of in _LIBRARIES))


@functools.lru_cache(maxsize=1)
def _kernels_in_python(_num: int) -> str:
    """Operators of torch's own that somebody gave a kernel in Python; their number tells of others by now."""
    # Most of a thousand are of other keys, which one comparison of endings shows.
    known = [*torch.library._impls]  # at once: another thread may import what adds to it
    found = (name for name in known if name.endswith(_ENDINGS) and name.startswith("aten/"))
    return " ".join(sorted(name.split("/")[1] for name in found))


def imported(name: str) -> Any:
    """A module, if its import is over; None while another thread is at it, too."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def foreign_function_modes() -> int:
    """Number of active torch function modes, without those that set a default device."""
    active = [torch._C._get_function_stack_at(index) for index in range(_num_function_modes())]
    defaults = imported("torch.utils._device")  # nobody has set a default device before it is imported
    return sum(defaults is None or not isinstance(mode, defaults.DeviceContext) for mode in active)


def _fills() -> bool:
    return bool(torch.utils.deterministic.fill_uninitialized_memory)  # type: ignore[attr-defined]


def fills_new_memory() -> bool:
    """True if ``torch.empty`` and its kin fill what they make."""
    return torch.are_deterministic_algorithms_enabled() and _fills()


SETTINGS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic warn only": torch.is_deterministic_algorithms_warn_only_enabled,
    "fill uninitialized memory": _fills,
    "autocast cpu": functools.partial(torch.is_autocast_enabled, "cpu"),
    "autocast cpu dtype": functools.partial(torch.get_autocast_dtype, "cpu"),
    "autocast cache": torch.is_autocast_cache_enabled,
    "flash attention": torch._C._get_flash_sdp_enabled,
    "memory-efficient attention": torch._C._get_mem_efficient_sdp_enabled,
    "math attention": torch._C._get_math_sdp_enabled,
    "mkldnn": torch._C._get_mkldnn_enabled,
    "mkldnn deterministic": torch._C._get_mkldnn_deterministic,
    # A captured graph holds the kernels that these chose; and a function may read them on a CPU, too, where
    # they stand for Dynamo's own guard. The first two of cuBLAS give a pair: in general, and with split k.
    "cudnn": torch._C._get_cudnn_enabled,
    "cudnn deterministic": torch._C._get_cudnn_deterministic,
    "cudnn benchmark": torch._C._get_cudnn_benchmark,
    "cudnn attention": torch._C._get_cudnn_sdp_enabled,
    "fp16 reduced precision": torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    "bf16 reduced precision": torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    "fp16 accumulation": torch._C._get_cublas_allow_fp16_accumulation,
}
"""State that functions of torch set for the process or the thread: its name in artifacts, and its reader."""
MODE_NAMES = (
    "default device", "global module hooks", "torch function modes", "torch function", "kernels in Python",
)  # fmt: skip
_READERS = tuple(SETTINGS.values())
SETTING_NAMES = (*SETTINGS, *PRECISION_NAMES)


def settings() -> tuple[Any, ...]:
    """Values of `SETTINGS`, and of `PRECISION_NAMES`."""
    return (*[read() for read in _READERS], *float32_precision())


def _modes() -> tuple[Any, ...]:
    """Values of `MODE_NAMES`."""
    num_modes = _num_function_modes()
    return (
        torch.get_default_device().type if num_modes else "cpu",
        sum(map(len, _GLOBAL_HOOKS)),
        foreign_function_modes() if num_modes else 0,
        torch._C._is_torch_function_enabled(),
        _kernels_in_python(len(torch.library._impls)),
    )


def is_followed() -> bool:
    """True if something else follows the operators of a call: a trace, a transform, or a dispatch mode."""
    return (
        torch.compiler.is_compiling()  # first, because Dynamo inlines this
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def is_symbolic_trace() -> bool:
    """True if ``torch.fx`` traces symbolically: then arguments are no tensors, so no artifact fits."""
    tracer = imported("torch.fx._symbolic_trace")
    return tracer is not None and bool(tracer.is_fx_symbolic_tracing())


NPU_NAMES = (
    "npu deterministic level", "npu hf32 matmul", "npu hf32 convolution", "npu internal format",
    "npu jit compile", "npu cube math type", "npu compatible implementation",
)  # fmt: skip
NPU_NONE = (None,) * len(NPU_NAMES)


def _npu_switches() -> tuple[Any, ...]:
    """The switches in the order of `NPU_NAMES`; None for each where torch_npu is not loaded."""
    native = getattr(imported("torch_npu"), "_C", None)
    if native is None:
        return NPU_NONE
    option, level = native._npu_getOption, 0
    if torch.are_deterministic_algorithms_enabled():  # releases without levels have level 1
        level = max(1, getattr(native, "_npu_get_deterministic_level", lambda: 1)())
    return (
        level,
        option("ALLOW_MATMUL_HF32") == b"enable",
        option("ALLOW_CONV_HF32") in (None, b"", b"enable"),
        option("ALLOW_INTERNAL_FORMAT") == b"enable",
        (option("jitCompile") or b"by model").decode(),
        (option("CUBE_MATH_TYPE") or b"default").decode(),
        option("TORCH_NPU_USE_COMPATIBLE_IMPL") == b"1",
    )


_AMBIENT_NAMES = (
    *SETTING_NAMES, *MODE_NAMES, "autocast accelerator", "autocast accelerator dtype", *NPU_NAMES,
)  # fmt: skip
_ACCELERATORS = ("npu", "cuda")


def ambient(device_kind: str) -> tuple[Any, ...]:
    """The state of the process that a trace depends on; comparable with ``==`` inside one process.

    Left out on purpose: the number of threads (it changes no result of the graph engine), the current device
    index (the graph is relative to it), and grad and inference mode: a cached function is traced and runs
    without gradients, whatever the caller's mode (`worker.runtime.check` refuses arguments that would record
    them).
    """
    accelerator = device_kind if device_kind in _ACCELERATORS else None
    return (
        *settings(),
        *_modes(),
        torch.is_autocast_enabled(accelerator) if accelerator else False,
        torch.get_autocast_dtype(accelerator) if accelerator else None,
        *(_npu_switches() if device_kind == "npu" else NPU_NONE),
    )


def portable_ambient(device_kind: str) -> dict[str, str]:
    """The same by name, as text.

    Raises:
        NotPortable: hooks, modes or kernels are active that another process, or a graph, cannot have.
    """
    named = _by_name(ambient(device_kind))
    for name in ("global module hooks", "torch function modes", "kernels in Python"):
        if named[name] not in ("", "0"):
            msg = f"{named[name]} {name} are active while a cached function is traced; remove them first"
            raise NotPortable(msg, what=name)
    return named


def ambient_differences(traced: Mapping[str, str], state: tuple[Any, ...]) -> tuple[str, ...]:
    """Readable differences between a traced state and the present one; what is in neither is none."""
    present = _by_name(state)
    return tuple(
        f"{name}: {traced.get(name)} -> {present.get(name)}"
        for name in _AMBIENT_NAMES
        if traced.get(name) != present.get(name)
    )


def _by_name(state: tuple[Any, ...]) -> dict[str, str]:
    """Name -> text, without torch_npu's switches where it is not there."""
    return {
        name: str(value)
        for name, value in zip(_AMBIENT_NAMES, state, strict=True)
        if value is not None or name not in NPU_NAMES
    }


def known_groups() -> dict[str, Any]:
    """All process groups of this process that this rank belongs to, in the order of their creation."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return {}
    from torch.distributed import distributed_c10d

    names = distributed_c10d._world.pg_names
    return {str(name): group for group, name in names.items() if group.rank() >= 0}


def group_references() -> list[weakref.ref[Any]]:
    """Weak references to all process groups; those to others differ, though they get the same addresses."""
    created = sys.modules.get("torch.distributed.distributed_c10d")
    return [] if created is None else [*map(weakref.ref, created._world.pg_names)]


def rank_and_world() -> tuple[int, int]:
    """Rank and world size of this process; (0, 1) outside of ``torch.distributed``."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


# Of pytrees, and of what ``copy`` and ``pickle`` do; where classes come from that the tracer registers.
REGISTRIES: Final = ((SUPPORTED_NODES, "torch.distributed."), (copyreg.dispatch_table, "sympy."))


def is_registry(value: Any) -> bool:
    """True for one of these, or the dict in which einops keeps the classes of tensors that it has met."""
    met = getattr(imported(f"{_EINOPS}._backends"), "_type2backend", SUPPORTED_NODES)
    return value is met or any(value is registry for registry, _ in REGISTRIES)


def dict_keys(mapping: dict[Any, Any]) -> list[Any]:
    """Keys in the order in which they were put there, whatever a subclass says.

    Of registries in which an import of Dynamo's puts more than the user's own imports, without that.
    """
    keys = list(dict.keys(mapping))
    added = next((module for registry, module in REGISTRIES if mapping is registry), None)
    return keys if added is None else [key for key in keys if not key.__module__.startswith(added)]


class Metadata:
    """Type, dtype, device, layout, sizes, strides, lazy bits and ``requires_grad`` of some tensors."""

    __slots__ = ("_guards", "_known", "_strided")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._known = [*map(metadata_of, tensors)]
        self._strided = all(tensor.layout is torch.strided for tensor in tensors)
        self._guards: dict[bool, torch._C._dynamo.guards.TensorGuards] = {}

    def of(self, tensors: Sequence[Any]) -> bool:
        """True if tensors have the same metadata; about 0.1 us each."""
        guards = self._guards.get(_is_inference())
        if guards is not None:
            recording = _is_recording()
            _record(True)
            try:
                if guards.check(*tensors):
                    return True
            except TypeError:  # no tensor any more
                return False
            finally:
                _record(recording)
        return self._compared(tensors)

    def changed(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """Positions of the tensors that differ now."""
        pairs = zip(self._known, tensors, strict=True)
        return tuple(
            index
            for index, (known, value) in enumerate(pairs)
            if not isinstance(value, torch.Tensor) or metadata_of(value) != known
        )

    def _compared(self, tensors: Sequence[Any]) -> bool:
        """The same in Python, for modes that no check was made in yet, and layouts that have no strides."""
        if self.changed(tensors):
            return False
        if self._strided and tensors:
            self._guards[_is_inference()] = torch._C._dynamo.guards.TensorGuards(
                *tensors,
                dynamic_dims_sizes=[list(tensor.size()) for tensor in tensors],  # type: ignore[misc]
                dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],  # type: ignore[misc]
            )
            # What it compares is only known to it from here on.
            return not self.changed(tensors)
        return True


def metadata_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Comparable with ``==`` inside one process; of a parameter without a shape yet, as of an empty one."""
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.is_nested:  # whose rows have sizes of their own
            kind = type(tensor), tensor.dtype, tensor.device, "nested", tensor.requires_grad
            return (*kind, None, None, False, False)
        strides = tensor.stride() if tensor.layout is torch.strided else None
        lazy_bits = tensor.is_conj(), tensor.is_neg()
        return (
            type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, tensor.size(),
            strides, *lazy_bits,
        )  # fmt: skip


def replaced_operator(path: str) -> NotPortable:
    """The refusal of an operator whose name means something else in this process."""
    msg = (
        f"{path} was replaced in this process by something else, and the graph calls the operator by that "
        "name; put it back, or call your replacement by a name of its own"
    )
    return NotPortable(msg, what=path)


def replacing_call(operator: Any) -> Any:
    """Replacement of the function that torch put behind an operator; None where nobody replaced it."""
    called = operator._op
    own = isinstance(called, types.BuiltinFunctionType) and called.__name__ in ("", operator.__name__)
    kind = type(called)
    return None if own or (kind.__module__, kind.__qualname__) == _DISPATCHING else called


def is_called(function: Any, name: str) -> bool:
    """True if a function is the overload, or a binding in C, for a name such as ``aten_add_Tensor``."""
    if isinstance(function, torch._ops.OpOverload):
        known = f"{function._schema.name}.{function._overloadname}"
        return known.replace("::", "_").replace(".", "_") == name and replacing_call(function) is None
    return isinstance(function, _BINDINGS) and f"_{function.__name__}_" in name


_EINOPS: Final = "einops"


def prepare() -> None:
    """Prepare packages that this process has imported, each once."""
    if (einops := imported(_EINOPS)) is not None:
        _prepare_einops(einops)


@functools.cache
def _prepare_einops(einops: Any) -> None:
    functions = vars(importlib.import_module("einops.einops"))
    before = dict(functions)
    with torch._C.DisableTorchFunction():
        einops.rearrange(torch.empty(1), "i -> i")
        einops.rearrange(torch.nn.Parameter(torch.empty(1)), "i -> i")
    functions.update(before)  # up to einops 0.8.1 torch puts wrappers there, which no trace enters


def _prepared() -> set[str]:
    importlib.import_module("torch._dynamo.decorators")
    return set(importlib.import_module("torch._dynamo.trace_rules")._lazy_module_init)


PROBES = {
    "Dynamo prepares einops alone": lambda: _prepared() <= {_EINOPS},
}
