"""Inductor: one graph of tensors to one shared library, which `libraries.py` opens.

Relied on (``tests/unit/test_aoti_engine.py``; compiled kernels:
``tests/integration/test_max_autotune.py``):

* ``compile_fx_aot`` within a tracing context uses that context's ``ShapeEnv``, so the conditions it puts on
  symbolic sizes are guards of the trace; it takes no symbolic integer as an input. A tensor with a symbolic
  size and stride 0 carries a number into the library, where ``sym_size`` reads it. The value of a
  ``SymInt`` placeholder has its symbol as ``node.expr``, after what was substituted since, and
  ``node.maybe_as_int()`` where it was specialised;
* with ``aot_inductor.package`` it returns the paths of what it made, one of them the ``.so``; with
  ``model_name_for_generated_files`` no name depends on a hash. Operators that have no C interface are
  called by name; ``<stem>.json`` beside the library lists them;
* what calls an operator compares the result's sizes and strides with those of the trace, if a variable of the
  environment asks for it: ``_codegen_assert_size_stride`` writes that;
* ``cpp.threads`` is the number of OpenMP threads in the code, and decides which loops are worth splitting;
* Inductor writes to inputs last, by ``copy_`` operators without users, and drops copies that change nothing
  (``a.copy_(b)``, ``a.clone()``): such a write then reads an input that another one may have overwritten by
  then. ``post_grad_custom_post_pass`` sees the graph afterwards;
* ``TORCHINDUCTOR_CACHE_DIR`` is read at each use, so it is set for the length of a compile: one at a time.
  Settings that come from environment variables read at import are set here, so that equal graphs give equal
  bytes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.errors import NotPortable, NotYet
from warmrank.worker.torch_private.libraries import LIBRARY, NODES
from warmrank.worker.torch_private.operators import constant_of, memory_of, mutated_arguments, nodes_at
from warmrank.worker.torch_private.patching import hooks_of, intercepted, steps_in
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

FACTS = {
    "torch._dynamo.exc": "TorchDynamoException",
    "torch._inductor.compile_fx": "compile_fx_aot",
    "torch._inductor.config": "get_config_copy patch",
    "torch._inductor.exc": "InductorError",
    "torch._inductor.virtualized": "V",
    "torch._subclasses.fake_tensor": "FakeTensorMode(shape_env)",
}

_NAME = "graph"
# Without these a library does the same: it is larger, or takes longer to make.
_OPTIONAL = frozenset({"aot_inductor.enable_line_tables", "aot_inductor.precompile_headers"})
_ENVIRONMENT = threading.Lock()
_IN_CPP = ("torch.ops.aten.", "torch.ops.prims.")  # torch's own operators


def _settings(directory: Path, march: str | None, compiler: str) -> dict[str, Any]:
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
        "size_asserts": True,
        "post_grad_custom_post_pass": read_before_overwritten,
    }
    from torch._inductor import config

    return known_settings(patches, config.get_config_copy())


class SizeChecks:
    """Steps in where Inductor writes what compares a result with the trace.

    Kernels are compiled for the sizes that a fake kernel answered. Those of an operator that is Python may
    hang on what changes later, and kernels would then read and write beyond its result.
    """

    @steps_in(
        "torch._inductor.codegen.cpp_wrapper_cpu:CppWrapperCpu",
        "_codegen_assert_size_stride(code, name, size, stride, op_name)",
        is_optional=True,  # from torch 2.13 on
    )
    def _write(self, original: Any, wrapper: Any, code: Any, *checked: Any) -> None:
        name, size, stride, operator, *_ = checked  # the last, from torch 2.14 on, is the dtype or None
        if operator == "input" or operator.startswith(_IN_CPP):
            original(wrapper, code, *checked)
        else:
            code.writeline(f'assert_size_stride({name}, {size}, {stride}, "{operator}");')
            code.writeline(_compared_dtype(wrapper, name, operator))


class OutOfPlace:
    """Leaves operators out of place; of a graph with several writes to one memory.

    Inductor writes in place where nothing reads the memory later, and then computes what is read between two
    writes after the second one.
    """

    @steps_in("torch._inductor.fx_passes.post_grad", "reinplace_inplaceable_ops")
    def _leave(self, original: Any, *given: Any) -> None:
        """Changes nothing."""


def _writes_twice(graph: Graph) -> bool:
    """True if two operators write to one memory."""
    written: set[int] = set()
    for node in graph.nodes:
        for target in nodes_at(node, mutated_arguments(node.target)) if node.op == "call_function" else ():
            memory = set(memory_of(target.meta.get("val")))
            if written & memory:
                return True
            written |= memory
    return False


def _compared_dtype(wrapper: Any, name: str, operator: str) -> str:
    """The C++ that compares the dtype of a result with that of the trace."""
    from torch._inductor.virtualized import V

    dtype = V.graph.get_dtype(name)
    return (
        "{ int32_t found; "
        f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype({name}, &found)); "
        f"if (found != {wrapper.codegen_dtype(dtype)}) "
        f'throw std::runtime_error("expected dtype {dtype}\\nError in op: {operator}"); }}'
    )


def read_before_overwritten(graph: Graph) -> None:
    """Copy what the last writes of a graph read of inputs that earlier ones of them overwrite."""
    *_, output = graph.nodes
    found = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    writes = [node for node in found if not node.users]
    for write in writes:
        output.prepend(write)  # so that all they read is made before the first of them
    overwritten: set[int] = set()
    for write in writes:
        target, value = write.args[:2]
        if not overwritten.isdisjoint(memory_of(value.meta["val"])):
            with graph.inserting_before(writes[0]):
                copied = graph.call_function(torch.ops.aten.clone.default, (value,))
            copied.meta["val"] = value.meta["val"].clone()
            write.update_arg(1, copied)
        overwritten.update(memory_of(target.meta["val"]))


def known_settings(patches: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The settings of ``patches`` that Inductor knows; only those that change no results may be unknown.

    Raises:
        NotYet: a setting that decides what is compiled is unknown to this torch.
    """
    unknown = sorted(patches.keys() - set(known) - _OPTIONAL)
    unknown += [] if any(hooks_of(SizeChecks())) else ["checks of sizes"]
    if unknown:
        feature = (
            f"mode max-autotune with torch {torch.__version__}, whose Inductor has no {', '.join(unknown)}"
        )
        raise NotYet(feature, instead="use mode reduce-overhead, or a torch release that has it")
    return {name: value for name, value in patches.items() if name in known}


def compile_library(
    graph: GraphModule,
    inputs: Sequence[Any],
    *,
    directory: Path,
    cache: Path,
    march: str | None,
    compiler: str,
) -> dict[str, bytes]:
    """The shared library of a graph, ``graph.so``, and what it reads when opened, by file name.

    Args:
        graph: ATen operators over tensors; may write to its inputs.
        inputs: fake tensors.
        directory: where the compiler writes; its path is part of the bytes, so use the same one always.
        cache: where Inductor keeps precompiled headers.
        march: what the C++ compiler may use of the processor; None leaves it to Inductor.
        compiler: the C++ compiler.

    Raises:
        NotPortable: Inductor cannot compile it.
        NotYet: this torch's Inductor lacks a setting that it needs.
    """
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
    return {name: path.read_bytes() for name, path in needed.items() if path is not None}


def _made(graph: GraphModule, inputs: Sequence[Any], cache: Path, settings: dict[str, Any]) -> Any:
    """Paths of the files that Inductor makes of a graph."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_aot
    from torch._inductor.exc import InductorError

    with (
        _environment({"TORCHINDUCTOR_CACHE_DIR": str(cache)}),
        config.patch(settings),
        torch.no_grad(),
        intercepted(hooks_of(SizeChecks(), *([OutOfPlace()] if _writes_twice(graph.graph) else []))),
    ):
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
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of the process; two at once would put back what the other set."""
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


class LibraryInputs(Value):
    """Arguments of a library, in their order."""

    fakes: tuple[torch.Tensor, ...]  # fake tensors, in the order of the call
    tensors: tuple[int, ...]  # positions of the graph's inputs that are handed on
    # positions of the graph's inputs that are numbers, each handed on as a tensor of that size
    numbers: tuple[int, ...]
    constants: tuple[str, ...]  # names of the graph's constants


def bind_inputs(library: GraphModule) -> LibraryInputs:
    """Rewrite ``library`` so that all of its inputs are tensors: first tensors, then numbers, then constants.

    Raises:
        NotPortable: an input is neither a tensor nor a number, or a constant cannot be kept.
    """
    graph = library.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    tensors = tuple(index for index, node in enumerate(placeholders) if _is_tensor(node))
    fakes = [_alone(placeholders[index]) for index in tensors]
    numbers = _bind_numbers(library, placeholders, fakes)
    constants = _lift_constants(library, fakes)
    graph.lint()
    library.recompile()
    return LibraryInputs(fakes=tuple(fakes), tensors=tensors, numbers=numbers, constants=constants)


def _alone(node: Node) -> Any:
    """A fake tensor like a placeholder's in memory of its own: a library is for inputs that lie apart."""
    value = node.meta["val"]
    with value.fake_mode:
        alone = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    node.meta["val"] = alone
    return alone


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _bind_numbers(library: GraphModule, placeholders: list[Node], fakes: list[Any]) -> tuple[int, ...]:
    graph = library.graph
    sizes = {
        size.node.expr: (node, dim)
        for node in reversed(placeholders)
        if _is_tensor(node)
        for dim, size in enumerate(node.meta["val"].shape)
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
    }
    first = next(node for node in graph.nodes if node.op != "placeholder")
    carried: list[int] = []
    for index, node in enumerate(placeholders):
        if _is_tensor(node):
            continue
        value = node.meta.get("val")
        known = value.node.maybe_as_int() if isinstance(value, torch.SymInt) else value
        if known is None and isinstance(value, torch.SymInt) and node.users and not value >= 0:
            known = int(value)  # no size can carry it: a condition of the artifact says that it is this one
        if not node.users:
            pass
        elif known is None and isinstance(value, torch.SymInt):
            with graph.inserting_before(first):
                if value.node.expr not in sizes:
                    carried.append(index)
                    sizes[value.node.expr] = (_carrier(library, node, fakes), 0)
                read = graph.call_function(torch.ops.aten.sym_size.int, sizes[value.node.expr])
            read.meta["val"] = value
            node.replace_all_uses_with(read)
        elif type(known) in (bool, int, float):
            for user in tuple(node.users):
                _replace(user, node, known)
        else:
            msg = f"the graph has an input {value!r} ({type(value).__qualname__}), which no library can take"
            raise NotPortable(msg, what=repr(value))
        graph.erase_node(node)
    return tuple(carried)


def _carrier(library: GraphModule, node: Node, fakes: list[Any]) -> Node:
    """A new input, after the others, whose size is the number that ``node`` stands for.

    As a size it counts as 2 or more, which is a condition of the artifact from then on; Dynamo gives other
    numbers an artifact of their own.
    """
    value = node.meta["val"]
    env = value.node.shape_env
    with env.ignore_fresh_unbacked_symbols(), _fake_mode(library, fakes, env):
        fake = torch.empty_strided((value,), (0,), dtype=torch.uint8)
    last = [other for other in library.graph.nodes if other.op == "placeholder"][-1]
    with library.graph.inserting_after(last):
        carrier = library.graph.placeholder(f"{node.name}_carrier")
    carrier.meta["val"] = fake
    fakes.append(fake)
    return carrier


def _fake_mode(library: GraphModule, fakes: list[Any], env: Any = None) -> Any:
    """The mode of a graph's fake tensors; a new one where it has none."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    values = (*fakes, *(node.meta.get("val") for node in library.graph.nodes))
    found = (value.fake_mode for value in values if hasattr(value, "fake_mode"))
    return next(found, None) or FakeTensorMode(shape_env=env)


def _lift_constants(library: GraphModule, fakes: list[Any]) -> tuple[str, ...]:
    names: dict[str, Node] = {}
    mode = None
    for node in [node for node in library.graph.nodes if node.op == "get_attr"]:
        target = str(node.target)
        if target not in names:
            value = constant_of(library, target)
            mode = mode or _fake_mode(library, fakes)
            inputs = [other for other in library.graph.nodes if other.op == "placeholder"]
            point = (
                library.graph.inserting_after(inputs[-1])
                if inputs
                else library.graph.inserting_before(next(iter(library.graph.nodes)))
            )
            with point:
                names[target] = library.graph.placeholder(f"constant_{len(names)}")
            names[target].meta["val"] = mode.from_tensor(value, static_shapes=True)
            fakes.append(names[target].meta["val"])
        node.replace_all_uses_with(names[target])
        library.graph.erase_node(node)
    return tuple(names)


def _replace(user: Node, node: Node, literal: Any) -> None:
    def swap(argument: Node) -> Any:
        return literal if argument is node else argument

    user.args = torch.fx.node.map_arg(user.args, swap)
    user.kwargs = torch.fx.node.map_arg(user.kwargs, swap)
