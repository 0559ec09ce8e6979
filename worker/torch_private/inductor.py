"""Inductor: one graph of tensors to one shared library, which `libraries.open_library` opens.

Relied on (``tests/unit/test_graph_engine.py``, ``tests/integration/test_max_autotune.py``):

* ``compile_fx_aot`` within a tracing context puts conditions on symbolic sizes into that context's
  ``ShapeEnv``, and takes inputs as `library_inputs` says;
* with ``aot_inductor.package`` it returns the paths of what it made, one of them the ``.so``. Operators
  that have no C interface are called by name; ``<stem>.json`` beside the library lists them;
* ``cpp.threads`` is the number of OpenMP threads in the code, and decides which loops are worth splitting;
* Inductor writes to inputs last, by ``copy_`` operators without users, and drops copies that change nothing
  (``a.copy_(b)``, ``a.clone()``): such a write then reads an input that another one may have overwritten by
  then. ``post_grad_custom_post_pass`` sees the graph afterwards;
* ``TORCHINDUCTOR_CACHE_DIR`` is read at each use, so it is set for the length of a compile: one at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.errors import NotPortable, NotYet
from warmrank.worker.torch_private.as_shipped import as_shipped
from warmrank.worker.torch_private.eager_kernels import (
    SIXTEEN_BITS,
    is_eagers,
    is_rounded,
    losses_as_eager,
)
from warmrank.worker.torch_private.libraries import LIBRARY, NODES
from warmrank.worker.torch_private.library_inputs import PlainSizesFirst, bind_inputs
from warmrank.worker.torch_private.operators import as_list, mutated_arguments, nodes_at, storage_ids
from warmrank.worker.torch_private.patching import intercepted, steps_in
from warmrank.worker.torch_private.rows import with_checks
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

_NAME = "graph"
# Without these a library does the same: it is larger, or takes longer to make.
_OPTIONAL = frozenset({"aot_inductor.enable_line_tables", "aot_inductor.precompile_headers"})
_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_ENVIRONMENT = threading.Lock()
_QUOTIENTS = (torch.ops.aten.div.Tensor_mode, torch.ops.aten.floor_divide.default)
_OVER_DIMS = (torch.ops.aten.amin.default, torch.ops.aten.amax.default)
_PRODUCTS = (torch.ops.aten.mul.Tensor, torch.ops.aten.div.Tensor)
_OF_TENSORS = {
    torch.ops.aten.remainder.Scalar: torch.ops.aten.remainder.Tensor,
    torch.ops.aten.remainder.Scalar_Tensor: torch.ops.aten.remainder.Tensor,
    torch.ops.aten.fmod.Scalar: torch.ops.aten.fmod.Tensor,
    torch.ops.aten.pow.Scalar: torch.ops.aten.pow.Tensor_Tensor,
    torch.ops.aten.pow.Tensor_Scalar: torch.ops.aten.pow.Tensor_Tensor,
}
"""Overloads that take a tensor in place of a number."""
_IN_CPP = ("torch.ops.aten.", "torch.ops.prims.")  # torch's own operators


class Library(Value):
    """A compiled library, and what it takes: first tensors, then numbers, then constants."""

    files: Mapping[str, bytes]  # ``graph.so``, and what it reads when opened
    tensors: tuple[int, ...]  # positions of the graph's inputs that are handed on
    numbers: tuple[int, ...]  # positions of the inputs that are numbers, each a tensor of that size
    constants: tuple[str, ...]  # names of the graph's constants


def compile_library(
    graph: GraphModule, *, directory: Path, cache: Path, march: str | None, compiler: str
) -> Library:
    """Compile a graph, which is rewritten so that all of its inputs are tensors.

    Args:
        graph: ATen operators over tensors and numbers; may write to its inputs.
        directory: where the compiler writes; its path is part of the bytes, so use the same one always.
        cache: where Inductor keeps precompiled headers.
        march: what the C++ compiler may use of the processor; None leaves it to Inductor.
        compiler: the C++ compiler.

    Raises:
        NotPortable: Inductor cannot compile it, an input is neither a tensor nor a number, or a constant
            cannot be kept.
        NotYet: this torch's Inductor lacks a setting that it needs.
    """
    tensors, numbers, constants = bind_inputs(graph)
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    with warnings.catch_warnings():
        # Inductor's own, some at its import; of no use to who calls a cached function.
        warnings.simplefilter("ignore")
        made = _made(graph, inputs, cache, _settings(directory, march, compiler))
    files = {Path(str(item)).name: Path(str(item)) for item in made}
    needed = {
        LIBRARY: files.pop(f"{_NAME}.wrapper.so", None),
        NODES: files.pop(f"{_NAME}.wrapper.json", None),
    }
    others = sorted(name for name in files if not name.endswith((".cpp", "_metadata.json")))
    if needed[LIBRARY] is None or others:
        made_instead = ", ".join(others) or "no library"
        msg = f"Inductor made {made_instead}; a library that needs nothing else was expected"
        raise NotPortable(msg, what="inductor", made=others)
    found = {name: path.read_bytes() for name, path in needed.items() if path is not None}
    if NODES in found:
        _refuse_infinities(found[NODES])
    return Library(files=found, tensors=tensors, numbers=numbers, constants=constants)


def _refuse_infinities(nodes: bytes) -> None:
    """Refuse operators called by name that take an infinity or NaN, which torch writes and cannot read."""
    for node in (entry["node"] for entry in json.loads(nodes)["nodes"]):
        floats = [each["arg"].get(kind) for each in node["inputs"] for kind in ("as_float", "as_floats")]
        if any(isinstance(number, str) for value in floats for number in as_list(value)):
            msg = (
                f"{node['target']} takes an infinite number or NaN, which compiled kernels cannot hand on; "
                'use mode "reduce-overhead"'
            )
            raise NotPortable(msg, what=node["target"])


def _made(graph: GraphModule, inputs: Sequence[Any], cache: Path, settings: dict[str, Any]) -> Any:
    """Paths of the files that Inductor makes of a graph."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_aot
    from torch._inductor.exc import InductorError

    hooks = intercepted(AsEager(graph.graph), PlainSizesFirst())
    shipped = as_shipped(config, lambda *_: False, **settings)
    with _cache_at(cache), shipped, torch.no_grad(), hooks, losses_as_eager():
        try:
            return compile_fx_aot(graph, list(inputs))
        except (
            InductorError, TorchDynamoException, RuntimeError, AssertionError, NotImplementedError
        ) as error:  # fmt: skip
            reason = str(error).strip() or repr(error)
            msg = (
                f"Inductor cannot compile the graph ahead of time: {type(error).__name__}: {reason[:2000]}\n"
                'Use mode "reduce-overhead" (engine graph) for this function.'
            )
            raise NotPortable(msg, what="inductor", reason=reason) from error


@contextlib.contextmanager
def _cache_at(directory: Path) -> Iterator[None]:
    """Set Inductor's directory for the process, and put back the recursion limit, which Inductor raises.

    Two at once would put back what the other set.
    """
    with _ENVIRONMENT:
        before, limit = os.environ.get(_CACHE_VARIABLE), sys.getrecursionlimit()
        os.environ[_CACHE_VARIABLE] = str(directory)
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)
            del os.environ[_CACHE_VARIABLE]
            if before is not None:
                os.environ[_CACHE_VARIABLE] = before


def _settings(directory: Path, march: str | None, compiler: str) -> dict[str, Any]:
    """Settings for equal bytes of equal graphs, also those that Inductor reads from the environment."""
    from torch._inductor import config
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    known = config.get_config_copy()
    patches: dict[str, Any] = {
        "aot_inductor.package": True,
        "aot_inductor.output_path": str(directory),
        "aot_inductor.model_name_for_generated_files": _NAME,
        "aot_inductor.metadata": {},
        # Tables of lines are three quarters of a library, and name paths.
        "aot_inductor.enable_line_tables": False,
        "aot_inductor.precompile_headers": True,
        "aot_inductor.embed_kernel_binary": True if torch.cuda.is_available() else None,
        # The number of the key. With `dynamic_threads` each kernel, however small, would wake all threads.
        "cpp.threads": torch.get_num_threads(),
        "cpp.dynamic_threads": False,
        "cpp.simdlen": None,
        "cpp.march": march,
        "cpp.cxx": (None, compiler),
        # Autotuning picks kernels by their times, so equal graphs would give different bytes.
        "max_autotune": False,
        "max_autotune_gemm": False,
        "freezing": False,
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        "compile_threads": 1,
        "keep_output_stride": True,
        "fallback_random": False,
        # Else it leaves out what rounds to 16 bits in between.
        "emulate_precision_casts": True,
        # Rewrites of graphs take numbers for finite, and no softmax for one of nothing.
        "pattern_matcher": False,
        "optimize_scatter_upon_const_tensor": False,
        "size_asserts": True,
        "post_grad_custom_post_pass": _read_before_overwritten,
    }
    unknown = sorted(patches.keys() - set(known) - _OPTIONAL)
    unknown += [] if hasattr(CppWrapperCpu, "_codegen_assert_size_stride") else ["checks of sizes"]
    if unknown:
        feature = (
            f"mode max-autotune with torch {torch.__version__}, whose Inductor has no {', '.join(unknown)}"
        )
        raise NotYet(feature, instead="use mode reduce-overhead, or a torch release that has it")
    return {name: value for name, value in patches.items() if name in known}


class AsEager:
    """Steps in where Inductor would compute something else than eager does."""

    def __init__(self, graph: Graph) -> None:
        self._writes_twice = _writes_twice(graph)

    @steps_in(
        "torch._inductor.codegen.cpp_wrapper_cpu:CppWrapperCpu",
        "_codegen_assert_size_stride(code, name, size, stride, op_name)",
        is_optional=True,  # from torch 2.13 on
    )
    def _compare(self, original: Any, wrapper: Any, code: Any, *checked: Any) -> None:
        """Compare results with the trace.

        Kernels are compiled for the sizes that a fake kernel answered. Those of an operator that is Python
        may hang on what changes later, and kernels would then read and write beyond its result.
        """
        from torch._inductor.virtualized import V

        name, size, stride, operator, *_ = checked  # the last, from torch 2.14 on, is the dtype or None
        if operator == "input" or operator.startswith(_IN_CPP):
            original(wrapper, code, *checked)
            return
        dtype = V.graph.get_dtype(name)
        code.writeline(f'assert_size_stride({name}, {size}, {stride}, "{operator}");')
        code.writeline(
            "{ int32_t found; "
            f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype({name}, &found)); "
            f"if (found != {wrapper.codegen_dtype(dtype)}) "
            f'throw std::runtime_error("expected dtype {dtype}\\nError in op: {operator}"); }}'
        )

    @steps_in("torch._export.serde.serialize:GraphModuleSerializer", "serialize_inputs(target, args, kwargs)")
    def _complete(
        self, original: Any, serializer: Any, target: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        """Write down defaults of an operator that the library calls by name.

        Inductor leaves those of keywords out, yet hands over integers among them, which are too many then.
        """
        arguments = target._schema.arguments if isinstance(target, torch._ops.OpOverload) else ()
        defaults = {
            argument.name: argument.default_value
            for argument in arguments
            if argument.kwarg_only and argument.has_default_value()
        }
        return original(serializer, target, args, {**defaults, **kwargs})

    @steps_in("torch._inductor.graph:GraphLowering", "call_function(target, args, kwargs)")
    def _lower(self, original: Any, lowering: Any, target: Any, args: Any, kwargs: Any) -> Any:
        """Give kernels eager's dtype (``any`` of bytes), and run eager's own where Inductor's differ.

        Inductor's own quotient of integers ends the process where eager raises an error for a zero.
        """
        from torch._inductor.ir import TensorBox
        from torch._inductor.lowering import fallback_handler, to_dtype

        node = lowering.current_node
        is_quotient = _may_divide_by_zero(node)
        if is_quotient or is_eagers(node):
            if target in _QUOTIENTS and not isinstance(args[1], TensorBox):
                target, kwargs = torch.ops.aten.div.Scalar_mode, {"rounding_mode": "floor", **kwargs}
                args = (args[0], 0) if is_quotient else args
            if target in _OVER_DIMS and not any(args[1:2]):  # a list of nothing is not handed on
                args = (args[0], [*range(len(args[0].get_size()))] or [0], *args[2:])
            return fallback_handler(target, add_to_fallback_set=False)(*args, **kwargs)  # type: ignore[no-untyped-call]
        traced = node.meta.get("val")
        if target is torch.ops.aten.full.default and traced.dtype in SIXTEEN_BITS:
            args = (args[0], _rounded(args[1], traced.dtype))
        made = original(lowering, target, args, kwargs)
        if isinstance(made, TensorBox) and isinstance(traced, torch.Tensor):
            return made if made.get_dtype() == traced.dtype else to_dtype(made, traced.dtype)
        return made

    @steps_in("torch._inductor.compile_fx", "select_decomp_table")
    def _select(self, original: Any) -> dict[Any, Any]:
        """Keep eager's checks of rows and of losses, which Inductor's decompositions leave out."""
        return with_checks(original())

    @steps_in("torch._inductor.index_propagation:SymPyOps", "to_dtype(value, dtype)")
    def _cast_position(self, original: Any, value: Any, dtype: torch.dtype, *given: Any, **more: Any) -> Any:
        """Round places of ``arange`` to the type that they are cast to."""
        return (
            original(value, dtype, *given, **more) if dtype in (torch.int64, value.dtype) else NotImplemented
        )

    @steps_in("torch._inductor.lowering", "promote_constants(inputs)")
    def _promote(self, original: Any, inputs: Any, *given: Any, **more: Any) -> Any:
        """Multiply and divide 16 bits by a number as it is; eager rounds it to 16 bits for all else."""
        from torch._inductor.ir import Constant, ExpandView, IndexingConstant
        from torch._inductor.virtualized import V

        is_product = V.graph.current_node.target in _PRODUCTS

        def as_eager(value: Any) -> Any:
            number: Any = getattr(value, "data", None)
            if getattr(number, "dtype", None) not in SIXTEEN_BITS:
                return value
            if is_product and isinstance(number, IndexingConstant):
                made: Any = IndexingConstant(index=number.index, dtype=torch.float32, device=number.device)
            elif isinstance(number, Constant) and not is_product:
                rounded = _rounded(number.value, number.dtype)
                made = Constant(value=rounded, dtype=number.dtype, device=number.device)
            else:
                return value
            return ExpandView.create(made, list(value.get_size()))

        return [as_eager(value) for value in original(inputs, *given, **more)]

    @steps_in("torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder", "_add_peephole_patterns")
    def _fold_no_products(self, _original: Any, _folder: Any) -> None:
        """Compute ``x * 0``, which is NaN where ``x`` is, or is infinite."""

    @steps_in("torch._inductor.graph", "make_fallback")
    def _fall_back(self, original: Any, *given: Any, **options: Any) -> None:
        """Take eager's kernel also where the environment has ``CI``, where torch's own tests want none."""
        original(*given, **{**options, "warn": False})

    @steps_in("torch._inductor.codegen.cpp_wrapper_cpu:CppWrapperCpu", "_generate_scatter_fallback")
    def _check(self, original: Any, wrapper: Any, *given: Any) -> None:
        """Let a library notice that the kernel for ``scatter_reduce`` failed; up to torch 2.14 it goes on."""
        from torch._inductor.utils import IndentedBuffer

        lines: list[str] = []
        with wrapper.set_writeline(IndentedBuffer(), lines.append):
            original(wrapper, *given)
        for line in lines:
            call = line.removesuffix(";")
            is_unchecked = call.startswith("aoti_torch_")
            wrapper.writeline(f"AOTI_TORCH_ERROR_CODE_CHECK({call});" if is_unchecked else line)

    @steps_in("torch._inductor.ir:FallbackKernel", "codegen(wrapper)")
    def _call(self, original: Any, kernel: Any, wrapper: Any) -> None:
        """Call operators of numbers by name: others take doubles up to torch 2.14, so ``2**n`` is a float."""
        overload = kernel.op_overload
        if isinstance(overload, torch._ops.OpOverload) and any(
            map(_is_number_given, overload._schema.arguments)
        ):
            kernel.use_runtime_dispatch = True
        original(kernel, wrapper)

    @steps_in("torch._inductor.fx_passes.post_grad", "reinplace_inplaceable_ops")
    def _leave(self, original: Any, *given: Any) -> Any:
        """Leave operators out of place in a graph that writes to one memory twice.

        Inductor writes in place where nothing reads the memory later, and then computes what is read between
        two writes after the second one.
        """
        return None if self._writes_twice else original(*given)


def _is_number_given(argument: torch._C.Argument) -> bool:
    """True if each call gives an argument, which is a number."""
    return isinstance(argument.type, torch.NumberType) and not argument.has_default_value()


def _rounded(number: Any, dtype: torch.dtype) -> Any:
    """A number as a tensor of a dtype holds it; a symbol as it is."""
    return torch.tensor(number, dtype=dtype).item() if isinstance(number, int | float) else number


def _may_divide_by_zero(node: Node) -> bool:
    """True if an operator divides integers on a CPU, rounds to zero, and no number but 0 is the divisor.

    Of a symbolic number it is a condition of the artifact.
    """
    made = node.meta.get("val")
    if not (
        node.target is torch.ops.aten.div.Tensor_mode
        and isinstance(made, torch.Tensor)
        and node.kwargs.get("rounding_mode") == "trunc"
        and made.device.type == "cpu"
        and not made.is_floating_point()
    ):
        return False
    divisor: Any = node.args[1]
    value = divisor.meta["val"] if hasattr(divisor, "meta") else divisor
    return isinstance(value, torch.Tensor) or not value


def _writes_twice(graph: Graph) -> bool:
    """True if two operators write to one memory."""
    written: set[int] = set()
    for node in graph.nodes:
        for target in nodes_at(node, mutated_arguments(node.target)) if node.op == "call_function" else ():
            memory = storage_ids(target)
            if written & memory:
                return True
            written |= memory
    return False


def _numbers_as_tensors(graph: Graph) -> None:
    """Make numbers tensors where Inductor hands over none, or another one than eager computes with.

    It has no kernels for complex numbers, and hands a number beside them over as it is, as complex128 or not
    at all; nor does it hand one that varies to eager's kernels.
    """
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        values = [item.meta.get("val") for item in (*node.all_input_nodes, node)]
        dtypes = [value.dtype for value in values if isinstance(value, torch.Tensor) and value.is_complex()]
        if dtypes:
            _numbers_beside_complex(node, dtypes[0])
        elif is_rounded(node) or node.target is torch.ops.aten.pow.Scalar:
            like = node.meta["val"]
            for index, value in enumerate(node.args):
                if hasattr(value, "meta") and _is_number(value):
                    with graph.inserting_before(node):
                        node.update_arg(index, _full(graph, value, like.dtype, like))
                    node.target = _OF_TENSORS.get(node.target, node.target)


def _numbers_beside_complex(node: Any, dtype: torch.dtype) -> None:
    """Make an operator's numbers tensors of the type that it computes in."""
    graph, like = node.graph, node.meta["val"]
    if node.target is torch.ops.aten.full.default:
        with graph.inserting_before(node):
            filled = _complex_tensor(graph, node.args[1], dtype, like, node.args[0])
        node.replace_all_uses_with(filled)
        graph.erase_node(node)
        return
    if any(isinstance(arg, complex) for arg in node.args):
        node.target = _OF_TENSORS.get(node.target, node.target)
    for index, (value, taken) in enumerate(zip(node.args, node.target._schema.arguments, strict=False)):
        if isinstance(taken.type, torch.TensorType) and _is_number(value):
            with graph.inserting_before(node):
                node.update_arg(index, _complex_tensor(graph, value, dtype, like))


def _complex_tensor(
    graph: Graph, number: Any, dtype: torch.dtype, like: torch.Tensor, size: Any = ()
) -> Node:
    """A tensor full of a number, on the device of another tensor."""
    real, imaginary = (number.real, number.imag) if isinstance(number, complex) else (number, 0)
    parts = [
        _full(graph, float(part) if isinstance(part, int) else part, dtype.to_real(), like, size)
        for part in (real, imaginary)
    ]
    made = graph.call_function(torch.ops.aten.complex.default, tuple(parts))
    made.meta["val"] = parts[0].meta["val"].to(dtype)
    return made


def _full(graph: Graph, number: Any, dtype: torch.dtype, like: torch.Tensor, size: Any = ()) -> Node:
    """A tensor full of a real number, on the device of ``like``, and of its shape unless the size is none."""
    options: dict[str, Any] = {"dtype": dtype, "device": like.device}
    made = graph.call_function(torch.ops.aten.full.default, (size, number), options)
    made.meta["val"] = like.new_empty(like.shape if size else (), dtype=dtype)
    return made


def _is_number(value: Any) -> bool:
    """True if an argument is a number, or stands for one."""
    known = value.meta.get("val") if hasattr(value, "meta") else value
    return isinstance(known, int | float | complex | torch.SymInt | torch.SymFloat)


def _read_before_overwritten(graph: Graph) -> None:
    """Copy what the last writes of a graph read of inputs that earlier ones of them overwrite.

    Inductor's own passes are over by then. Numbers that it does not hand over are made tensors, too.
    """
    *_, output = graph.nodes
    found = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    writes = [node for node in found if not node.users]
    for write in writes:
        output.prepend(write)  # so that all they read is made before the first of them
    overwritten: set[int] = set()
    for write in writes:
        target, value = write.args[:2]
        if not overwritten.isdisjoint(storage_ids(value)):
            with graph.inserting_before(writes[0]):
                copied = graph.call_function(torch.ops.aten.clone.default, (value,))
            copied.meta["val"] = value.meta["val"].clone()
            write.update_arg(1, copied)
        overwritten.update(storage_ids(target))
    _numbers_as_tensors(graph)
