"""The named components that an entry of vLLM's compile cache depends on: its key in the store.

The key is vLLM's own hash, computed by vLLM's functions with paths left out, and what that hash lacks: rank
and world, device, the machine's environment, the model's parameters, options that vLLM leaves out of its hash
although they change the graph, and what vllm-ascend makes graphs from and leaves out of every hash. vLLM's
factors stand beside their hash by name, so that a miss names the one that differs.

Facts relied on (vllm-ascend 0.23; missing names end the plugin's service of this start, with their name):

* ``vllm_ascend.utils.enable_custom_op()`` says whether its own operators are in force (vllm-ascend 15188),
  ``vllm.model_executor.custom_op.op_registry_oot`` which layers were replaced by its own.
* ``vllm_ascend.ascend_config.get_ascend_config()`` holds all options of ``additional_config``, some of which
  come from variables.
* ``vllm_ascend.compilation.compiler_interface._configure_backend`` gives npugraph_ex its options.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from warmrank.cache_store.text import changed_components
from warmrank.worker.keys.request import environment

HASH = "vllm hash"
COMPILER = "AscendCompiler"
OPERATORS = "custom operators"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_LONGEST = 1000
_ANY_PATH = "(any path)"
_TORCH = ("aten::", "prims::", "prim::", "higher_order::")
_PACKAGE = "vllm_ascend"
_NAMESPACE = "_C_ascend::"
_READ = re.compile(r"""(?:environ(?:\.get\(|\[)|getenv\()\s*["']([A-Za-z]\w*)["']""")
# Variables that build the package, name places and addresses of a machine, or tune what is around a graph.
_NOT_IN_GRAPHS = re.compile(
    r"BUILD_KERNEL_SRC|BISHENG_REAL_PATH|CMAKE_BUILD_TYPE|COMPILE_CUSTOM_KERNELS|CXX_COMPILER|C_COMPILER"
    r"|MAX_JOBS|VERBOSE|MSMONITOR_USE_DAEMON|TORCH_COMPILE_DEBUG|PYTORCH_NPU_ALLOC_CONF|LOCAL_WORLD_SIZE"
    r"|ASCEND_(HOME_PATH|RT_VISIBLE_DEVICES|DEVICE_ID|GLOBAL_LOG_LEVEL|TRANSFER_TIMEOUT|LOCAL_COMM_RES)"
    r"|HCCL_SO_PATH|HCCL_RDMA_\w+|TORCHAIR_CACHE_HOME|MOONCAKE_\w+|MMC_\w+|DS_\w+|EXPERT_MAP_RECORD"
)
_PATHS = "ASCEND_CUSTOM_OPP_PATH"
_NO_OPTIONS = frozenset(
    {"vllm_config", "dump_config_path", "ascend_log_path", "data_dump_dir", "_fixed_attrs"}
)


class UnknownKey(Exception):
    """This vLLM computes its key in another way than this release of warmrank knows."""


def components(model: Any, rank: str, vllm_hash: str) -> dict[str, str]:
    """The named components of the artifact of a rank (``rank_0_0``) that vLLM is about to look for.

    Raises:
        UnknownKey: vLLM's functions do not give ``vllm_hash``.
    """
    config = model.vllm_config
    _check(vllm_hash, _hash(model, config))
    neutral = _without_paths(config)
    return {
        **_common(config, neutral, rank),
        "model class": type(model).__qualname__,
        "model parameters": _parameters(model),
        HASH: _hash(model, neutral),
    }


def graph_components(
    config: Any, graph: Any, rank: str, directory_hash: str, sources: Mapping[str, str], compiler_hash: str
) -> dict[str, str]:
    """The named components of the graphs that vLLM's compiler of another make is about to look for.

    Args:
        config: vLLM's.
        graph: the `torch.fx.GraphModule` of this part of the model.
        rank: name of the rank's directory and the part's, such as ``rank_0_0/backbone``.
        directory_hash: name of the entry's directory; empty where vLLM did not derive it from the factors.
        sources: text of every file that was traced, by path; empty for those that cannot be read.
        compiler_hash: the compiler's own hash.

    Raises:
        UnknownKey: vLLM's functions do not give ``directory_hash``.
    """
    from vllm.compilation.caching import aot_compile_hash_factors

    def hash_of(config: Any, code: str) -> str:
        env, own, *_ = aot_compile_hash_factors(config)
        return _digest(str([env, own, code, compiler_hash]))

    named = [text for path in sorted(sources) if path != "<string>" for text in (path, sources[path]) if text]
    if directory_hash:
        _check(directory_hash, hash_of(config, _digest("\n".join(named)))[: len(directory_hash)])
    neutral = _without_paths(config)
    code = _digest("\n".join(sorted(_digest(text) for text in sources.values())))
    return {
        **_common(config, neutral, rank),
        "model code": code,
        "graph inputs": _inputs(graph),
        "graph operators": _operators(graph),
        HASH: hash_of(neutral, code),
    }


def _common(config: Any, neutral: Any, rank: str) -> dict[str, str]:
    import torch

    parallel, device = config.parallel_config, str(config.device_config.device_type)
    if device != "cpu":  # kernels may have the index of their device in them (SkyRL 2183)
        device = f"{device}:{torch.accelerator.current_device_index()}"
    return {
        **_named(neutral),
        **{f"machine {name}": value for name, value in environment().items()},
        **_of_ascend(config),
        "rank": rank,
        "world": f"tp={parallel.tensor_parallel_size} pp={parallel.pipeline_parallel_size} "
        f"dp={parallel.data_parallel_size}",
        "device": device,
    }


def _check(expected: str, found: str) -> None:
    if found != expected:
        raise UnknownKey(f"its entry is {expected[:12]}, and its own functions give {found[:12]}")


def differences(stored: Mapping[str, str], here: Mapping[str, str]) -> str:
    """The components in which an entry on this disk is another one than is asked for; empty for none."""
    return "; ".join(str(change) for change in changed_components(stored, here) if change.name != HASH)


def _hash(model: Any, config: Any) -> str:
    from vllm.compilation.caching import aot_compile_hash_factors
    from vllm.compilation.decorators import _model_hash_key

    factors = [*aot_compile_hash_factors(config), _model_hash_key(model.forward)]
    return hashlib.sha256(str(factors).encode()).hexdigest()


def _without_paths(config: Any) -> Any:
    """A copy of vLLM's config in which no model has a path: the graph is the same wherever it lies."""
    config = copy.copy(config)
    config.model_config = _moved(config.model_config)
    draft = getattr(config, "speculative_config", None)
    if draft is not None:
        config.speculative_config = copy.copy(draft)
        config.speculative_config.draft_model_config = _moved(draft.draft_model_config)
    return config


def _moved(model_config: Any) -> Any:
    if model_config is None:
        return None
    model_config = copy.copy(model_config)
    for name in ("model", "model_weights"):
        if getattr(model_config, name, None):
            setattr(model_config, name, _ANY_PATH)
    for name in ("hf_config", "hf_text_config"):
        described: Any = getattr(model_config, name, None)
        if getattr(described, "_name_or_path", None):
            described = copy.copy(described)
            described._name_or_path = _ANY_PATH  # noqa: SLF001 - the path that transformers keeps in a config
            setattr(model_config, name, described)
    return model_config


def _named(config: Any) -> dict[str, str]:
    """Every factor of vLLM's hash by name, as far as vLLM itself names them."""
    from vllm import envs
    from vllm.compilation.caching import aot_compile_hash_factors

    named = {
        f"env {name}": _variable(name, value)
        for name, value in envs.compile_factors().items()
        if value is not None
    }
    for field in fields(config):
        part: Any = getattr(config, field.name, None)
        if not hasattr(part, "compute_hash"):
            continue
        name = field.name.removesuffix("_config")
        with _recorded() as recorded:
            digest = part.compute_hash()
        named |= _flat(name, recorded[digest]) if digest in recorded else {name: _short(digest)}
    # The first two are the hashes of what stands above; there may be no others.
    for index, factor in enumerate(aot_compile_hash_factors(config)[2:]):
        name = f"inductor {index}"
        named |= _flat(name, factor) if isinstance(factor, Mapping) else {name: _digest(repr(factor))}
    # These change a graph and are not in vLLM's hash (vllm 50891, 53366, 55383).
    speculative = getattr(config, "speculative_config", None)
    multimodal = getattr(config.model_config, "multimodal_config", None)
    return {
        **named,
        "num_speculative_tokens": str(getattr(speculative, "num_speculative_tokens", None)),
        "limit_mm_per_prompt": _short(getattr(multimodal, "limit_per_prompt", None)),
    }


@contextlib.contextmanager
def _recorded() -> Iterator[dict[str, Mapping[str, Any]]]:
    """Note what vLLM hashes, by the hash; its modules hold the function under their own names."""
    from vllm.config.utils import hash_factors

    recorded: dict[str, Mapping[str, Any]] = {}

    def record(items: dict[str, Any]) -> str:
        digest: str = hash_factors(items)
        recorded[digest] = items
        return digest

    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("vllm.config") and getattr(module, "hash_factors", None) is hash_factors
    ]
    for module in holders:
        module.hash_factors = record  # type: ignore[attr-defined]
    try:
        yield recorded
    finally:
        for module in holders:
            module.hash_factors = hash_factors  # type: ignore[attr-defined]


def _flat(prefix: str, factors: Mapping[str, Any]) -> dict[str, str]:
    """Factors under dotted names; a model's own config is JSON, of which each key counts."""
    flat: dict[str, str] = {}
    for name, value in factors.items():
        if isinstance(value, str) and value.startswith("{"):
            with contextlib.suppress(ValueError):
                inner = json.loads(value)
                flat.update({f"{prefix}.{name}.{key}": _short(inner[key]) for key in inner})
                continue
        flat[f"{prefix}.{name}"] = _short(value)
    return flat


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= _LONGEST else _digest(text)


def _variable(name: str, value: object) -> str:
    return _digest(json.dumps(value, default=str)) if _SECRET.search(name) else _short(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _parameters(model: Any) -> str:
    """Names, shapes and types of what a graph takes: LoRA and quantised layers change them, and no hash."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    lines = sorted(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors)
    return _digest("\n".join(lines))


def _inputs(graph: Any) -> str:
    """Number, shapes and types of a graph's inputs; sizes that may vary have no value."""
    lines = []
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        shape = [size if isinstance(size, int) else "any" for size in getattr(value, "shape", ())]
        lines.append(f"{type(value).__name__} {shape} {getattr(value, 'dtype', '')}")
    return f"{len(lines)}, {_digest(' '.join(lines))[:16]}"


def _operators(graph: Any) -> str:
    """Number of calls of each operator that is not torch's own: custom ones were chosen while tracing.

    Torch's own may be rewritten in place between a first trace and an artifact that is loaded.
    """
    targets = [
        getattr(node.target, "overloadpacket", node.target)
        for module in graph.modules()
        for node in getattr(getattr(module, "graph", None), "nodes", ())
        if node.op == "call_function"
    ]
    names = [getattr(target, "_qualified_op_name", "") for target in targets]  # such as npu::npu_rms_norm
    called = Counter(name for name in names if name and not name.startswith(_TORCH))
    return _short(" ".join(f"{name}={called[name]}" for name in sorted(called)) or "none")


def _of_ascend(config: Any) -> dict[str, str]:
    """Settings that vllm-ascend reads beside vLLM's config, by name; none where it does not run.

    Raises:
        AttributeError, ImportError: this vllm-ascend has not what they are read from.
    """
    from vllm.platforms import current_platform

    compiler = str(config.compilation_config.backend)
    if not any(name.startswith(f"{_PACKAGE}.") for name in (compiler, type(current_platform).__module__)):
        return {}
    from vllm_ascend.ascend_config import get_ascend_config

    options = get_ascend_config()
    found: dict[str, object] = {
        "vllm_ascend": _version(),
        **_custom_operators(config),
        **dict(_options("ascend", options)),
        **_npugraph_ex(config, options.ascend_compilation_config),
    }
    named = {name: _short(_plain(value)) for name, value in found.items()}
    # After them: vllm-ascend sets some variables when its operators are asked for.
    texts = [*_sources(_PACKAGE).values(), *_sources("npugraph_ex").values()]
    for name in sorted({name for text in texts for name in _READ.findall(text)} & os.environ.keys()):
        value = os.environ[name]
        if name == _PATHS:
            value = ":".join(Path(path).name for path in value.split(":") if path)
        if not _NOT_IN_GRAPHS.fullmatch(name):
            named[f"variable {name}"] = _variable(name, value)
    return named


@functools.cache
def _sources(package: str) -> Mapping[str, str]:
    """The text of every module of a package, by its path below it; none where it is not there."""
    try:
        roots = importlib.import_module(package).__path__
    except ImportError:
        return {}
    return {
        path.relative_to(root).as_posix(): path.read_text("utf-8", "replace")
        for root in map(Path, roots)
        for path in sorted(root.rglob("*.py"))
    }


@functools.cache
def _version() -> str:
    """Version and digest of the sources, which an installation in place may change at any time."""
    try:
        version = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return f"{version} sources {_digest(repr(sorted(_sources(_PACKAGE).items())))[:16]}"


def _custom_operators(config: Any) -> dict[str, object]:
    """The custom operators in force."""
    import torch
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm_ascend.utils import enable_custom_op

    compilation = config.compilation_config
    is_on = enable_custom_op()  # registers them, if nobody asked before
    schemas = [str(schema) for schema in torch._C._jit_get_all_schemas()]  # noqa: SLF001, TID251 - no public list
    layers = {name: f"{made.__module__}.{made.__qualname__}" for name, made in op_registry_oot.items()}
    return {
        OPERATORS: "on" if is_on else "off",
        f"{OPERATORS} registered": sorted(text for text in schemas if text.startswith(_NAMESPACE)),
        f"{OPERATORS} enabled": sorted(compilation.enabled_custom_ops),
        f"{OPERATORS} disabled": sorted(compilation.disabled_custom_ops),
        "custom layers": layers,
    }


def _npugraph_ex(config: Any, options: Any) -> dict[str, object]:
    """The options that npugraph_ex compiles with: its own defaults, and what vllm-ascend hands it."""
    if not options.enable_npugraph_ex:
        return {}
    try:
        import npugraph_ex
    except ImportError:  # vllm-ascend takes torchair then, of which it keeps nothing
        return {"npugraph_ex": "none"}
    from vllm_ascend.compilation.compiler_interface import _configure_backend

    theirs = npugraph_ex.CompilerConfig()
    found = dict(_options("npugraph_ex", theirs))

    def take(_: Any, given: Mapping[str, Mapping[str, object]]) -> None:
        found.update({f"npugraph_ex.{name}": value for name, value in given["options"].items()})

    _configure_backend(theirs, options, config, process_kwargs_options=take)
    return found


def _options(prefix: str, options: Any) -> Iterator[tuple[str, object]]:
    """Options under dotted names: attributes of objects, of which npugraph_ex's hold a ``value`` each."""
    for name, option in sorted(vars(options).items()):
        value = getattr(option, "value", option)
        if name in _NO_OPTIONS:
            continue
        is_theirs = type(value).__module__.partition(".")[0] in (_PACKAGE, "npugraph_ex")
        if is_theirs and hasattr(value, "__dict__"):
            yield from _options(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", value


def _plain(value: Any) -> object:
    """A value as JSON has it, alike in every process."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(str(_plain(inner)) for inner in value)
    if value is None or isinstance(value, str | int | float):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
