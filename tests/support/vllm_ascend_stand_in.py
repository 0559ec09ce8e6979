"""A stand-in for vLLM and vllm-ascend, of which it has the file protocol of cached graphs and nothing else.

`tests/vllm/test_vllm_ascend.py` runs the real ones. Here are, under their names, what hashes and decides on a
graph, and a backend that writes index and graphs as `VllmBackend`, `CompilerManager` and `AscendCompiler` do.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import pprint
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

KEY = "artifact_compile_range_1_64_subgraph_0"
_PLACE = ((1, 64), 0, "AscendCompiler")


def digest(value: object) -> str:
    return hashlib.sha256(str(value).encode()).hexdigest()


class ModelConfig:
    def __init__(self, model: Path) -> None:
        self.model = str(model)

    def compute_hash(self) -> str:
        return digest(self.model)


@dataclasses.dataclass
class Config:
    """`VllmConfig`, as far as graphs depend on it."""

    model_config: ModelConfig
    compilation_config: Any
    parallel_config: Any
    device_config: Any

    def compute_hash(self) -> str:
        return digest(self.model_config.compute_hash())


def config_for(model: Path) -> Config:
    """A config of a model, whose code lies beside it."""
    model.mkdir(parents=True, exist_ok=True)
    (model / "model.py").write_text("def forward(x):\n    return x * 2\n")
    compilation = SimpleNamespace(
        backend="vllm_ascend.compilation.compiler_interface.AscendCompiler",
        cache_dir="",
        traced_files={str(model / "model.py")},
        enabled_custom_ops=Counter(rms_norm=2),
        disabled_custom_ops=Counter(),
    )
    sizes = dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), 1)
    parallel, device = SimpleNamespace(**sizes), SimpleNamespace(device_type="cpu")
    return Config(ModelConfig(model), compilation, parallel, device)


class Options:
    """vllm-ascend's options, or npugraph_ex's, which hold a ``value`` each."""

    __module__ = "vllm_ascend.ascend_config"

    def __init__(self, **options: object) -> None:
        vars(self).update(options)


class Manager:
    """`CompilerManager` with an `AscendCompiler`, whose hash has three factors."""

    def __init__(self, counter: Any) -> None:
        self.compiler, self.counter = SimpleNamespace(name=_PLACE[2]), counter
        self.cache: dict[Any, Any] = {}
        self.num_compiled = 0

    def compute_hash(self, config: Config) -> str:
        return digest([config is not None, "torch_npu 2.13.0", True, False])[:10]

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        self.index, self.is_off = Path(cache_dir, "vllm_compile_cache.py"), disable_cache
        if not disable_cache and self.index.exists():
            self.cache = ast.literal_eval(self.index.read_text())

    def compile(self) -> Callable[..., Any]:
        self.counter.num_backend_compilations += 1
        if _PLACE in self.cache:
            path = Path(self.cache[_PLACE]["graph_handle"][1])
            return _kernel(path.read_text() if path.exists() else self._compiled())
        path, text = self.index.with_name(KEY), self._compiled()
        if not os.environ.get("WITH_TRITON"):
            path.write_text(text)
        self.cache[_PLACE] = {"graph_handle": (KEY, str(path)), "cache_key": None}
        self.counter.num_cache_entries_updated += 1
        if not self.is_off:
            self.index.write_text(pprint.pformat(self.cache, indent=4))
        return _kernel(text)

    def _compiled(self) -> str:
        self.num_compiled += 1
        is_on = vars(sys.modules["vllm_ascend.utils"]).get("enable_custom_op", bool)()
        return f"def kernel(x):\n    return (x * 2 {'+ 0' if is_on else ''},)\n"


def _kernel(text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102 - as npugraph_ex does it
    found: Callable[..., Any] = names["kernel"]
    return found


class Backend:
    """`VllmBackend`."""

    def __init__(self, config: Config, counter: Any) -> None:
        self.vllm_config, self.compiler_manager = config, Manager(counter)

    def __call__(self, graph: object, example_inputs: object) -> Callable[..., Any]:
        config = self.vllm_config.compilation_config
        env = digest(sys.modules["vllm.envs"].compile_factors())
        code = digest(
            "\n".join(text for path in config.traced_files for text in (path, Path(path).read_text()))
        )
        factors = [
            env,
            self.vllm_config.compute_hash(),
            code,
            self.compiler_manager.compute_hash(self.vllm_config),
        ]
        config.traced_files.clear()
        root = Path(os.environ["VLLM_CACHE_ROOT"], "torch_compile_cache", digest(factors)[:10])
        config.cache_dir = str(root)
        directory = root / "rank_0_0" / "backbone"
        directory.mkdir(parents=True, exist_ok=True)
        self.compiler_manager.initialize_cache(str(directory), False, "backbone")
        (directory / "cache_key_factors.json").write_text(json.dumps(dict(os.environ)))  # for people to read
        return self.compiler_manager.compile()


def install(monkeypatch: pytest.MonkeyPatch, sources: Path) -> tuple[Options, Options]:
    """Make the stand-ins importable, with sources of vllm-ascend's; returns its and npugraph_ex's options."""
    sources.mkdir(parents=True)
    (sources / "envs.py").write_text('os.getenv("VLLM_ASCEND_ENABLE_NZ", 1), os.environ["HCCL_SO_PATH"]\n')
    npugraph_ex = Options(force_eager=Options(value=True))
    graphs = Options(enable_npugraph_ex=True, fuse_norm_quant=True)
    options = Options(enable_mlapo=True, vllm_config=object(), ascend_compilation_config=graphs)

    def configure(*_: object, process_kwargs_options: Callable[[object, object], None]) -> None:
        given = {name: option.value for name, option in vars(npugraph_ex).items()}
        process_kwargs_options(npugraph_ex, {"options": given})

    def hash_factors(config: Config) -> list[str]:
        return [digest(sys.modules["vllm.envs"].compile_factors()), config.compute_hash()]

    contents: dict[str, dict[str, object]] = {
        "vllm.envs": {"compile_factors": lambda: {"VLLM_USE_V1": "1"}},
        "vllm.platforms": {"current_platform": object()},
        "vllm.config.utils": {"hash_factors": digest},
        "vllm.compilation.caching": {"aot_compile_hash_factors": hash_factors},
        "vllm.model_executor.custom_op": {"op_registry_oot": {"RMSNorm": Options}},
        "vllm_ascend": {"__path__": [str(sources)]},
        "vllm_ascend.utils": {"enable_custom_op": lambda: False},
        "vllm_ascend.ascend_config": {"get_ascend_config": lambda: options},
        "vllm_ascend.compilation.compiler_interface": {"_configure_backend": configure},
        "npugraph_ex": {"__path__": [], "CompilerConfig": Options},
    }
    for name, attributes in contents.items():
        parents = [name[:end] for end, letter in enumerate(name) if letter == "."]
        for module in [*parents, name]:
            if module not in sys.modules:
                monkeypatch.setitem(sys.modules, module, ModuleType(module))
            parent, _, child = module.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[module])
        vars(sys.modules[name]).update(attributes)
    return options, npugraph_ex
