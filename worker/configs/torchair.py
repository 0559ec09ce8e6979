"""TorchAir's own configurations, and ``options=``, as ours.

Relied on (torch_npu 2.13 and 2.14): an option of ``torchair.CompilerConfig`` or
``npugraph_ex.CompilerConfig`` is an attribute of it or of a section, and holds its value, or an object with
the value under ``_value``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import Section, changed, names, same
from warmrank.worker.configs.sections import NpuGraphEx
from warmrank.worker.errors import BadConfig, NoCounterpart, UnknownOption

_SECTIONS = ("torchair.configs.", "npugraph_ex.configs.")


def of_torchair(config: Any, parameter: str) -> CompilerConfig:
    """The equivalent of TorchAir's `CompilerConfig`, or of npugraph_ex's flat one.

    Raises:
        BadConfig: it is no configuration.
        NoCounterpart: it sets options that ours does not have; names all.
    """
    if isinstance(config, NpuGraphEx):
        return _flat({name.rpartition(".")[2]: value for name, _, value in changed(config)})
    package = type(config).__module__.partition(".")[0]
    if package not in ("torchair", "npugraph_ex") or type(config).__name__ != "CompilerConfig":
        msg = f"{parameter} is {config!r} ({type(config).__name__}); expected CompilerConfig"
        raise BadConfig(msg, parameter=parameter)
    given = dict(_changed(config, type(config)()))
    if package == "npugraph_ex":
        return _flat(given)
    ours = CompilerConfig()
    given.setdefault("mode", _value(config.mode))  # TorchAir's default is another
    _fill(ours, given, "torchair")
    return ours


def with_options(config: CompilerConfig, given: Any) -> CompilerConfig:
    """A copy with the ``options=`` of ``torch.compile`` or ``cache_compile``, which are npugraph_ex's."""
    if not given:
        return config
    if not isinstance(given, Mapping):
        msg = f"options is {given!r} ({type(given).__name__}); expected a dict"
        raise BadConfig(msg, parameter="options")
    made = copy.deepcopy(config)
    known = names(NpuGraphEx)
    for name, value in given.items():
        if name not in known:
            raise BadConfig(f"options has no {name!r}; there are {', '.join(known)}", parameter="options")
        setattr(made.npugraphex_config, name, value)
    return _effective(made)


def _flat(given: Mapping[str, Any]) -> CompilerConfig:
    """npugraph_ex's options; its mode where TorchAir is there to compile it."""
    ours = CompilerConfig()
    roots = getattr(sys.modules.get("torch_npu"), "__path__", ())
    if any((Path(root) / "dynamo" / "npugraph_ex").is_dir() for root in roots):
        ours.mode = "npugraph_ex"
    _fill(ours.npugraphex_config, given, "npugraph_ex")
    return _effective(ours)


_STATIC = "experimental_config.aclgraph._aclnn_static_shape_kernel"
FLAT = {
    "aclgraph_config.use_custom_pool": "use_graph_pool",
    "debug.aclgraph.clone_input": "clone_input",
    "debug.aclgraph.disable_mempool_reuse_in_same_fx": "reuse_graph_pool_in_same_fx",
    "debug.aclgraph.disable_reinplace_inplaceable_ops_pass": "inplace_pass",
    "debug.aclgraph.disable_reinplace_input_mutated_ops_pass": "input_inplace_pass",
    "debug.aclgraph.enable_output_clone": "clone_output",
    "debug.aclgraph.remove_cat_ops": "remove_cat_ops",
    "debug.aclgraph.static_capture_size_limit": "capture_limit",
    "debug.deadlock_check": "deadlock_check",
    "debug.run_eagerly": "force_eager",
    "dump_config.data_dump_stage": "data_dump_stage",
    "dump_config.dump_path": "data_dump_dir",
    "dump_config.enable_dump": "dump_tensor_data",
    _STATIC: "static_kernel_compile",
    f"{_STATIC}_sym_index": "_vllm_aclnn_static_kernel_sym_index",
    f"{_STATIC}_sym_value_range": "_vllm_aclnn_static_kernel_sym_range",
    "experimental_config.aclgraph._super_kernel_debug_options": "super_kernel_debug_options",
    "experimental_config.aclgraph._super_kernel_optimize": "super_kernel_optimize",
    "experimental_config.aclgraph._super_kernel_optimize_options": "super_kernel_optimize_options",
    "experimental_config.frozen_parameter": "frozen_parameter",
    "experimental_config.pattern_fusion_pass": "pattern_fusion_pass",
    "experimental_config.remove_noop_ops": "remove_noop_ops",
}
"""Our name -> name in ``npugraph_ex.CompilerConfig``, of options that both forms of TorchAir's have."""

INVERTED = frozenset({"reuse_graph_pool_in_same_fx", "inplace_pass", "input_inplace_pass"})
"""Names in ``npugraph_ex.CompilerConfig`` that mean the opposite of what `FLAT` maps to them."""
_OBEYED = ("use_graph_pool", "reuse_graph_pool_in_same_fx", "capture_limit", "clone_input", "clone_output")
_PASSES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")


def _effective(config: CompilerConfig) -> CompilerConfig:
    """In mode reduce-overhead, the flat options under the names that this mode obeys."""
    if config.mode == "reduce-overhead":
        ours = {theirs: name for name, theirs in FLAT.items() if theirs in _OBEYED}
        ours |= {name: name for name in _PASSES}
        for name, _, value in list(changed(config.npugraphex_config)):
            last = name.rpartition(".")[2]
            if last in ours:
                _put(config, ours[last], not value if last in INVERTED else value)
                del config.npugraphex_config.__dict__[last]
    return config


def _fill(ours: Section, given: Mapping[str, Any], package: str) -> None:
    missing = []
    for name, value in given.items():
        try:
            _put(ours, name, value)
        except UnknownOption:
            missing.append(f"{package}.CompilerConfig.{name} = {value!r}")
    if missing:
        msg = f"warmrank has no counterpart of {', '.join(missing)}; leave them at their defaults"
        raise NoCounterpart(msg, problems=tuple(missing))


def _put(section: Any, name: str, value: Any) -> None:
    *parts, last = name.removeprefix("npugraphex_config.").split(".")
    for part in parts:
        section = getattr(section, part)
    setattr(section, last, value)


def _changed(theirs: Any, fresh: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Options of an object of TorchAir's that are not as in a new one: dotted name, value."""
    found: list[tuple[str, Any]] = []
    for name, held in vars(theirs).items():
        default = getattr(fresh, name, None)
        public = name.removeprefix("_")
        seen = public if isinstance(getattr(type(theirs), public, None), property) else name
        if name == "_fixed_attrs" or hasattr(held, "replacement"):  # and what TorchAir itself reads no more
            continue
        if not is_option(held) and type(held).__module__.startswith(_SECTIONS):
            found += _changed(held, default, f"{prefix}{seen}.")
        elif not same(_value(held), _value(default)):
            found.append((f"{prefix}{seen}", _value(held)))
    return found


def is_option(value: Any) -> bool:
    """True if an attribute of TorchAir's is an object that holds an option's value."""
    return isinstance(getattr(type(value), "value", None), property)


def _value(held: Any) -> Any:
    return vars(held)["_value"] if is_option(held) else held
