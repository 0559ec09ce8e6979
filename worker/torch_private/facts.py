"""Facts about torch on which this room relies, checked before the first compile.

A line of `FACTS` names an object of torch (``module``, ``module:Class``, ``module:Class()`` for an instance)
and what it has; behind a function's name, parameters that it takes: ``create_symbol(source)``. What a module
imports of torch's private parts, and what its classes step in for (`patching.steps_in`), are facts as well,
and that it can be imported. Its ``PROBES`` map a sentence to a function that returns whether it is so. A warm
load checks nothing: its artifact was compiled by this very torch, after all of it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from warmrank.worker.errors import TorchUnsupported
from warmrank.worker.torch_private.patching import named, targets_of
from warmrank.worker.values import Value

_log = logging.getLogger(__name__)

NEWEST: Final = (2, 15)
TESTED: Final = f"2.11 to {NEWEST[0]}.{NEWEST[1]}"
"""Releases of torch that the test suite ran on, see docs/status.md."""

_COMPILE = (
    "arithmetic", "as_shipped", "containers", "dynamo_guards", "encoders", "evaluated", "evaluated_calls",
    "evaluated_reads", "evaluated_sets", "evaluated_values", "kernels", "lifetimes", "lowering", "marks",
    "operators", "patching", "places", "positions", "raised", "symbols", "telling", "trace_notes",
    "tracer_changes", "tracing", "views", "warm",
)  # fmt: skip
GROUPS: Final = {
    "compile": _COMPILE, "trial": (), "inductor": ("inductor", "library_inputs"), "torchair": ("torchair",),
    "offline": ("fake_ranks",),
}  # fmt: skip
"""Use -> modules of this room. A ``trial`` is a trace, which takes longer than all the others."""
FACTS: Final = {
    "compile": """
        functools:cached_property  __get__
        functools:partialmethod  __get__
        torch._C  DispatchKey _SetExcludeDispatchKeyGuard _AutoDispatchBelowAutograd
        torch._C  _set_grad_enabled _dispatch_dump _construct_storage_from_data_pointer
        torch._C  _get_fp32_precision_getter _get_cublas_allow_fp16_accumulation _get_cudnn_sdp_enabled
        torch._C  _set_sdp_use_flash _set_sdp_use_mem_efficient _set_sdp_use_math _set_sdp_use_cudnn
        torch._C  _set_mkldnn_enabled _set_mkldnn_deterministic _set_cudnn_enabled _set_cudnn_deterministic
        torch._C  _set_cudnn_benchmark _set_cublas_allow_fp16_accumulation _set_cublas_allow_tf32
        torch._C  _set_cudnn_allow_tf32
        torch._C._autograd  _get_data_attr
        torch._C._dynamo.guards:DictGuardManager  get_key_value_managers
        torch._C._dynamo.guards:GuardManager  get_source get_leaf_guards get_child_managers
        torch._C._dynamo.guards:LeafGuard  verbose_code_parts
        torch._C._dynamo.guards:RootGuardManager  get_epilogue_lambda_guards
        torch._dynamo.config  ignore_logging_functions patch specialize_float automatic_dynamic_shapes
        torch._dynamo.config  allow_rnn enable_dynamo_decompositions
        torch._dynamo.convert_frame  fullgraph_capture(args, kwargs)
        torch._dynamo.convert_frame:BackendInput  backend_id graph_module example_inputs fake_mode
        torch._dynamo.convert_frame:BackendInput  tensor_to_context
        torch._dynamo.convert_frame:CaptureOutput  graph_capture_output backend_input
        torch._dynamo.convert_frame:GraphCaptureOutput  output_graph traced_code get_runtime_env
        torch._dynamo.convert_frame:GraphRuntimeEnv  bytecode import_sources external_refs
        torch._dynamo.exc  handle_observed_exception(tx)
        torch._dynamo.guards  make_guard_filter_entry(guard, builder)
        torch._dynamo.guards:CheckFunctionManager  build_guards(sorted_guards)
        torch._dynamo.guards:GuardBuilder  get_guard_manager_from_source MODULE_MATCH ID_MATCH
        torch._dynamo.output_graph  count_calls(g)
        torch._dynamo.output_graph:OutputGraph  input_source_to_sizes_strides shape_env
        torch._dynamo.side_effects:SideEffects  track_object_existing _get_modified_vars store_attr_mutations
        torch._dynamo.source:AttrSource  base member
        torch._dynamo.source:DictGetItemSource  base index
        torch._dynamo.source:TypeDictSource  base
        torch._dynamo.polyfills  impl_CONTAINS_OP_fallback
        torch._dynamo.symbolic_convert:InstructionTranslator  current_tx
        torch._dynamo.symbolic_convert:InstructionTranslatorBase  f_code f_globals
        torch._dynamo.symbolic_convert:TensorifyState  specialize(index)
        torch._dynamo.trace_rules  _lazy_module_init
        torch._dynamo.types:GuardFilterEntry  name has_value value guard_type orig_guard
        torch._dynamo.variables  PythonModuleVariable(value)
        torch._dynamo.variables.base:VariableTracker  build(tx, value, source)
        torch._dynamo.variables.builder:VariableBuilder  install_guards get_source source tx
        torch._dynamo.variables.builtin:BuiltinVariable  call_function_handler_cache
        torch._dynamo.variables.constant:ConstantVariable  as_proxy reconstruct(codegen)
        torch._dynamo.variables.functions:PolyfilledFunctionVariable  _get_polyfill_handlers
        torch._dynamo.variables.functions:UserFunctionVariable  get_source
        torch._dynamo.variables.lazy:LazyVariableTracker  is_realized original_value peek_value realize
        torch._dynamo.variables.lazy:LazyVariableTracker  realize_all(value)
        torch._dynamo.variables.torch:TorchInGraphFunctionVariable  _get_handlers
        torch._dynamo.variables.user_defined:UserDefinedObjectVariable  call_method(tx, name, args, kwargs)
        torch._dynamo.variables:ConstDictVariable  install_dict_contains_guard
        torch._dynamo.variables:ExceptionVariable  args python_type_name
        torch._guards  InvokeSubgraphCache
        torch._guards:Guard  originating_source create_fn code_list
        torch._guards:GuardsSet  add(guard)
        torch._higher_order_ops.cond:cond_op  py_kernels
        torch._higher_order_ops.scan  generic_scan(operator, init, xs, additional_inputs)
        torch._higher_order_ops.wrap:TagActivationCheckpoint  divide_kwargs(kwargs)
        torch._library.custom_ops  OPDEFS
        torch._library.simple_registry:singleton  find
        torch._ops:HigherOrderOperator  name
        torch._subclasses.fake_tensor  FakeTensorMode(allow_non_fake_inputs)
        torch._subclasses.fake_tensor:FakeTensorMode  cache_clear
        torch._subclasses.meta_utils:MetaTensorDesc  is_view base creation_meta
        torch.distributed.distributed_c10d:_World  pg_names
        torch.distributed:ProcessGroup  rank size
        torch.fx.experimental._config  backed_size_oblivious use_duck_shape
        torch.fx.experimental.proxy_tensor  make_fx(decomposition_table, tracing_mode, pre_dispatch)
        torch.fx.experimental.proxy_tensor  make_fx(_allow_non_fake_inputs)
        torch.fx.experimental.symbolic_shapes:ShapeEnv()  source_to_var specialization_stacks replace guards
        torch.fx.experimental.symbolic_shapes:ShapeEnv()  var_to_range backed_var_to_val
        torch.fx.experimental.symbolic_shapes:StatelessSymbolicContext  dynamic_sizes
        torch.fx.traceback  preserve_node_meta
        torch.nn.attention  _sdpa_kernel(backends, set_priority)
        torch.nn.modules.activation  _is_make_fx_tracing
        torch.nn.modules.transformer  _detect_is_causal_mask(mask, is_causal, size)
        torch.nn:TransformerEncoder  forward(src, mask, src_key_padding_mask, is_causal)
        torch:ops.aten.multi_margin_loss.default  py_kernels _dispatch_cache
        torch:Tensor  _base _version detach as_strided
    """,
    "inductor": """
        torch._C._aoti:AOTIModelContainerRunnerCpu  run
        torch._inductor.config  get_config_copy patch
        torch._inductor.lowering  fallback_handler(kernel, add_to_fallback_set) to_dtype(x, dtype)
        torch._subclasses.fake_tensor  FakeTensorMode(shape_env)
    """,
    "torchair": """
        torch._functorch._aot_autograd.schemas:ViewAndMutationMeta  mutated_inp_runtime_indices tokens
        torch._functorch._aot_autograd.schemas:ViewAndMutationMeta  num_intermediate_bases
        torch._guards:TracingContext  fw_metadata
    """,
    "offline": """
        torch._functorch.config  fake_tensor_allow_unsafe_data_ptr_access
        torch._subclasses.fake_tensor  DataDependentOutputException DynamicOutputShapeException
        torch._subclasses.fake_tensor  FakeTensorMode UnsupportedFakeTensorException is_fake
        torch.utils.backend_registration  _setup_privateuseone_for_python_backend
    """,
}
_NAME = re.compile(r"\w+(?:\([^)]*\))?")
_IMPORT = re.compile(r"(?m)^ *from (torch\.(?:_|\S+\._|fx\.experimental)\S*) import (\([^)]*\)|.+)$")


class Fact(Value):
    """A fact as it was found: what relies on it, and what is there instead; empty if it holds."""

    module: str
    text: str
    instead: str


def examined(group: str) -> Iterator[Fact]:
    """The facts of a group, each checked now."""
    for owner, names in declared(group):
        yield _examined(group, owner, names)
    yield from _probed(group, _PROBES if group == "trial" else {})
    for name in GROUPS[group]:
        module: ModuleType | None = None
        try:
            module = importlib.import_module(f"{__package__}.{name}")
        except (ImportError, AttributeError) as error:
            yield Fact(module=name, text="what it imports", instead=f"{type(error).__name__}: {error}")
        for owner, found in (*imported(name), *(() if module is None else replaced_by(module))):
            yield _examined(name, owner, found)
        yield from _probed(name, getattr(module, "PROBES", {}))


def _examined(module: str, owner: str, names: Sequence[str]) -> Fact:
    text = f"{owner} has {' '.join(names)}"
    return Fact(module=module, text=text, instead=_checked(_missing, owner, names))


def _probed(module: str, probes: Mapping[str, Callable[[], bool]]) -> Iterator[Fact]:
    for text, probe in probes.items():
        yield Fact(module=module, text=text, instead=_checked(lambda: "" if probe() else "it is not so"))  # noqa: B023


def declared(group: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Objects of torch that a group relies on, and names that each has, with parameters."""
    for line in FACTS.get(group, "").split("\n"):
        owner, _, names = line.strip().partition("  ")
        if owner:
            yield owner, _NAME.findall(names)


def imported(name: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Private modules of torch that a module imports from, and what; read out of its source."""
    for owner, names in _IMPORT.findall(Path(__file__).with_name(f"{name}.py").read_text("utf-8")):
        yield owner, re.findall(r"\w+", re.sub(r" as \w+", "", names))


def replaced_by(module: ModuleType) -> Iterator[tuple[str, Sequence[str]]]:
    """Objects of torch whose functions the classes of a module step in for, and these, with parameters."""
    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            targets = [target for member in vars(kind).values() for target in targets_of(member)]
            yield from ((target.owner, target.names) for target in targets if not target.is_optional)


def require(*groups: str) -> None:
    """Check the facts of groups, each once in a process; the trial only of a torch newer than the tests'.

    Raises:
        TorchUnsupported: it names all facts that do not hold, this torch, and the releases that work.
    """
    for group in groups:
        _require(group)


@functools.cache
def _require(group: str) -> None:
    if group == "trial" and not untested():
        return
    broken = [fact for fact in examined(group) if fact.instead]
    if broken:
        lines = "\n".join(f"  {fact.module}: {fact.text}: {fact.instead}" for fact in broken)
        msg = (
            f"this is torch {torch.__version__}, in which facts do not hold that compiling relies on:\n"
            f"{lines}\nCompile with torch {TESTED}."
        )
        facts = [fact.text for fact in broken]
        raise TorchUnsupported(msg, facts=facts, torch=str(torch.__version__), works=TESTED)
    if group == "trial":
        told = "torch %s is newer than those that warmrank is tested with (%s); all that it relies on holds"
        _log.warning(told, torch.__version__, TESTED)


def untested() -> str:
    """The releases that are tested, where torch is newer than those; empty for all others."""
    release = re.findall(r"\d+", str(torch.__version__))[:2]
    return TESTED if tuple(map(int, release)) > NEWEST else ""


def _checked(check: Callable[..., str], *about: Any) -> str:
    """A check's words for what is there instead of a fact; empty if that holds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Inductor's own at its import, of no use to whoever compiles
            return check(*about)
    except Exception as error:  # noqa: BLE001 - a torch that nobody has read may raise anything
        return f"{type(error).__name__}: {error}"


def _missing(path: str, names: Sequence[str]) -> str:
    """The names that an object does not have, and functions that take other parameters."""
    owner = named(path)
    parsed = [text.removesuffix(")").partition("(")[::2] for text in names]
    wrong = [name for name, _ in parsed if not _has(owner, name)]
    if wrong:
        return f"no {', '.join(wrong)}"
    for name, wanted in parsed:
        known = inspect.signature(getattr(owner, name)).parameters if wanted else ()
        if not set(wanted.split(", ")) <= {"", *known}:
            return f"{name}({', '.join(known)})"
    return ""


def _has(owner: Any, name: str) -> bool:
    """True if an object has an attribute, or the instances of a class have it from when they are made."""
    if hasattr(owner, name) or (isinstance(owner, dict) and name in owner):
        return True
    if isinstance(owner, ModuleType):
        return hasattr(owner, "__path__") and find_spec(f"{owner.__name__}.{name}") is not None
    kinds = owner.__mro__ if isinstance(owner, type) else ()
    making = [vars(kind).get(method) for kind in kinds for method in ("__init__", "__post_init__")]
    named = [getattr(getattr(method, "__code__", None), "co_names", ()) for method in making]
    return any(name in names for names in named) or any(
        name in vars(kind).get("__annotations__", ()) for kind in kinds
    )


class _Trial(torch.nn.Module):
    """One small method, traced for the facts that its trace shows; takes up to a second."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, device="cpu"), requires_grad=False)
        self.calls = 0
        self.scale = 3
        self.known: dict[str, int] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = 1
        try:
            factor = self.known["factor"]
        except KeyError:
            factor = getattr(self, "factor", self.scale)
        return x * self.weight * factor if x.shape[0] > 2 else x


@functools.cache
def _trial() -> tuple[Any, bool]:
    """The trace, and whether the method ran."""
    from warmrank.worker.torch_private.tracing import trace

    trial, x = _Trial(), torch.ones(6, 4, device="cpu")[2:]
    with torch.no_grad():
        found, _ = trace(trial.forward, (x,), {}, dynamic=True, decompositions={}, build=lambda _: None)
    return found, trial.calls == 1


def _guards(*kinds: str) -> str:
    """The conditions of the trial's guards, and their sources."""
    found = [guard for guard in _trial()[0].guards if guard.kind in kinds]
    return " and ".join(f"{guard.source} {' and '.join(guard.conditions)}" for guard in found)


def _operators() -> list[str]:
    nodes = _trial()[0].lowered.graph.graph.nodes
    return [str(node.target) for node in nodes if node.op == "call_function"]


_PROBES: dict[str, Callable[[], bool]] = {
    "a method is traced without being run": lambda: not _trial()[1],
    "parameters are inputs of the graph": lambda: any(
        "weight" in item.source for item in _trial()[0].lowered.inputs
    ),
    "the graph holds the operators": lambda: _operators() == ["aten.mul.Tensor", "aten.mul.Tensor"],
    "a condition on a size is a guard": lambda: "size()[0]" in _guards("SHAPE_ENV"),
    "sizes that are equal by chance stay apart": lambda: "size()[0] == " not in _guards("SHAPE_ENV"),
    "a view puts no conditions on its base": lambda: "_base" not in _guards("SHAPE_ENV"),
    "a number is guarded by its value": lambda: "scale" in _guards("EQUALS_MATCH", "CONSTANT_MATCH"),
    "a key that is absent is guarded": lambda: "factor" in _guards("DICT_NOT_CONTAINS", "DICT_CONTAINS"),
    "an attribute that is absent is noted": lambda: any(
        fact.kind == "no_attr" and fact.detail == "factor" for fact in _trial()[0].evaluated.facts
    ),
    "a write to an attribute is noted": lambda: any(
        write.attribute == "calls" for write in _trial()[0].writes
    ),
}
