"""Named factors that vllm-ascend makes graphs from, and leaves out of every hash.

Facts relied on (vllm-ascend 0.23; missing names end the plugin's service of this start, with their name):

* ``vllm_ascend.utils.enable_custom_op()`` says whether its own operators are in force (vllm-ascend 15188),
  ``vllm.model_executor.custom_op.op_registry_oot`` which layers were replaced by its own.
* ``vllm_ascend.ascend_config.get_ascend_config()`` holds all options of ``additional_config``, some of which
  come from variables.
* ``vllm_ascend.compilation.compiler_interface._configure_backend`` gives npugraph_ex its options.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

COMPILER = "AscendCompiler"
OPERATORS = "custom operators"
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


def factors(config: Any) -> dict[str, object]:
    """Settings that vllm-ascend reads beside vLLM's config, by name; none where it does not run.

    Raises:
        AttributeError, ImportError: this vllm-ascend has not what its factors are read from.
    """
    if not _is_used(config):
        return {}
    from vllm_ascend.ascend_config import get_ascend_config

    options = get_ascend_config()
    return {
        "vllm_ascend": _version(),
        **_operators(config),
        **dict(_flat("ascend", options)),
        **_npugraph_ex(config, options.ascend_compilation_config),
    }


def variables(config: Any) -> dict[str, str]:
    """The variables that sources of vllm-ascend and npugraph_ex read, as far as they are set."""
    if not _is_used(config):
        return {}
    texts = [*_sources(_PACKAGE).values(), *_sources("npugraph_ex").values()]
    names = {name for text in texts for name in _READ.findall(text)}
    found = {name: os.environ[name] for name in names if name in os.environ}
    if _PATHS in found:
        found[_PATHS] = ":".join(Path(path).name for path in found[_PATHS].split(":") if path)
    return {name: value for name, value in sorted(found.items()) if not _NOT_IN_GRAPHS.fullmatch(name)}


def _is_used(config: Any) -> bool:
    from vllm.platforms import current_platform

    compiler = str(config.compilation_config.backend)
    return any(name.startswith(f"{_PACKAGE}.") for name in (compiler, type(current_platform).__module__))


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
    digest = hashlib.sha256(repr(sorted(_sources(_PACKAGE).items())).encode()).hexdigest()
    return f"{version} sources {digest[:16]}"


def _operators(config: Any) -> dict[str, object]:
    """The custom operators in force."""
    import torch
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm_ascend.utils import enable_custom_op

    compilation = config.compilation_config
    is_on = enable_custom_op()  # registers them, if nobody asked before
    schemas = [str(schema) for schema in torch._C._jit_get_all_schemas()]  # noqa: SLF001 - no public list
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
    found = dict(_flat("npugraph_ex", theirs))

    def take(_: Any, given: Mapping[str, Mapping[str, object]]) -> None:
        found.update({f"npugraph_ex.{name}": _plain(value) for name, value in given["options"].items()})

    _configure_backend(theirs, options, config, process_kwargs_options=take)
    return found


def _flat(prefix: str, options: Any) -> Iterator[tuple[str, object]]:
    """Options under dotted names: attributes of objects, of which npugraph_ex's hold a ``value`` each."""
    for name, option in sorted(vars(options).items()):
        value = getattr(option, "value", option)
        if name in _NO_OPTIONS:
            continue
        if type(value).__module__.partition(".")[0] in (_PACKAGE, "npugraph_ex") and hasattr(
            value, "__dict__"
        ):
            yield from _flat(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", _plain(value)


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
