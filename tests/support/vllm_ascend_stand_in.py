"""A stand-in for vLLM and vllm-ascend, of which it has the file protocol of cached graphs and nothing else.

`tests/vllm/test_vllm_ascend.py` runs the real ones. Here are, under their names: the functions that hash; the
options and operators that decide on a graph; a backend that writes index and graphs as `VllmBackend`,
`CompilerManager` and `AscendCompiler` do. Its graphs are Python text, as npugraph_ex's are.
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
import torch

KEY = "artifact_compile_range_1_64_subgraph_0"
_HASHED = "model"


def digest(value: object) -> str:
    return hashlib.sha256(str(value).encode()).hexdigest()


@dataclasses.dataclass
class Part:
    """A part of vLLM's config, and the factors of its hash."""

    factors: dict[str, str]

    @property
    def model(self) -> str:
        return self.factors[_HASHED]

    @model.setter
    def model(self, path: str) -> None:
        self.factors = {**self.factors, _HASHED: path}

    def compute_hash(self) -> str:
        found: str = sys.modules["vllm.config.model"].hash_factors(self.factors)
        return found


@dataclasses.dataclass
class Config:
    """vLLM's config, as far as graphs depend on it."""

    model_config: Part
    compilation_config: Any
    parallel_config: Any = dataclasses.field(
        default_factory=lambda: SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1
        )
    )
    device_config: Any = dataclasses.field(default_factory=lambda: SimpleNamespace(device_type="cpu"))

    def compute_hash(self) -> str:
        return digest(self.model_config.compute_hash())


class Option:
    """npugraph_ex's holder of a value."""

    __module__ = "npugraph_ex.configs._option_base"

    def __init__(self, value: object) -> None:
        self.value = value


class Options:
    """vllm-ascend's options, or npugraph_ex's."""

    __module__ = "vllm_ascend.ascend_config"

    def __init__(self, **options: object) -> None:
        vars(self).update(options)


class Compiler:
    """`AscendCompiler`: its hash has three factors, and its graphs are files beside vLLM's index."""

    name = "AscendCompiler"

    def __init__(self) -> None:
        self.num_compiled = 0

    def compile(self, directory: Path) -> tuple[Callable[..., Any], tuple[str, str]]:
        self.num_compiled += 1
        has_custom = sys.modules["vllm_ascend.utils"].enable_custom_op()
        text = f"def kernel(x):\n    return (x * 2 {'+ 0' if has_custom else ''},)\n"
        if not os.environ.get("WITH_TRITON"):
            (directory / KEY).write_text(text)
        return _kernel(text), (KEY, str(directory / KEY))

    def load(self, path: Path) -> Callable[..., Any]:
        return _kernel(path.read_text()) if path.exists() else self.compile(path.parent)[0]


def _kernel(text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102 - as npugraph_ex does it
    found: Callable[..., Any] = names["kernel"]
    return found


class Manager:
    """`CompilerManager`."""

    def __init__(self, counter: Any) -> None:
        self.compiler, self.counter = Compiler(), counter
        self.cache: dict[Any, Any] = {}

    def compute_hash(self, config: Config) -> str:
        return digest([config is not None, "torch_npu 2.13.0", True, False])[:10]

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        self.index, self.is_off = Path(cache_dir, "vllm_compile_cache.py"), disable_cache
        if not disable_cache and self.index.exists():
            self.cache = ast.literal_eval(self.index.read_text())

    def compile(self) -> Callable[..., Any]:
        self.counter.num_backend_compilations += 1
        place = ((1, 64), 0, self.compiler.name)
        if place in self.cache:
            return self.compiler.load(Path(self.cache[place]["graph_handle"][1]))
        kernel, handle = self.compiler.compile(self.index.parent)
        self.cache[place] = {"graph_handle": handle, "cache_key": None}
        self.counter.num_cache_entries_updated += 1
        if not self.is_off:
            self.index.write_text(pprint.pformat(self.cache, indent=4))
        return kernel


class Backend:
    """`VllmBackend`."""

    def __init__(self, config: Config, counter: Any) -> None:
        self.vllm_config, self.compiler_manager = config, Manager(counter)

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: object) -> Callable[..., Any]:
        config = self.vllm_config
        env = sys.modules["vllm.config.utils"].hash_factors(sys.modules["vllm.envs"].compile_factors())
        traced = sorted(config.compilation_config.traced_files)
        code = digest("\n".join(text for path in traced for text in (path, Path(path).read_text())))
        factors = [env, config.compute_hash(), code, self.compiler_manager.compute_hash(config)]
        config.compilation_config.traced_files.clear()
        root = Path(os.environ["VLLM_CACHE_ROOT"], "torch_compile_cache", digest(factors)[:10])
        config.compilation_config.cache_dir = str(root)
        directory = root / "rank_0_0" / "backbone"
        directory.mkdir(parents=True, exist_ok=True)
        self.compiler_manager.initialize_cache(str(directory), False, "backbone")
        (directory / "cache_key_factors.json").write_text(json.dumps(dict(os.environ)))  # for people to read
        return self.compiler_manager.compile()


def counter() -> Any:
    """`compilation_counter`."""
    return SimpleNamespace(num_backend_compilations=0, num_cache_entries_updated=0)


def config_for(model: Path, **factors: str) -> Config:
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
    return Config(model_config=Part({_HASHED: str(model), **factors}), compilation_config=compilation)


def install(monkeypatch: pytest.MonkeyPatch, sources: Path) -> tuple[Options, Options]:
    """Make the stand-ins importable, with sources of vllm-ascend's; returns its and npugraph_ex's options."""
    sources.mkdir(parents=True)
    (sources / "envs.py").write_text(
        'read = os.getenv("VLLM_ASCEND_ENABLE_NZ", 1), os.environ["HCCL_SO_PATH"]\n'
    )
    npugraph_ex = Options(force_eager=Option(value=True))
    options = Options(
        enable_mlapo=True,
        vllm_config=object(),
        ascend_compilation_config=Options(enable_npugraph_ex=True, fuse_norm_quant=True),
    )

    def hash_factors(factors: dict[str, object]) -> str:
        return digest(json.dumps(factors, sort_keys=True))

    def configure(*_: object, process_kwargs_options: Callable[[object, object], None]) -> None:
        given = {name: option.value for name, option in vars(npugraph_ex).items()}
        process_kwargs_options(npugraph_ex, {"options": given})

    contents: dict[str, dict[str, object]] = {
        "vllm.envs": {"compile_factors": lambda: {"VLLM_USE_V1": "1"}},
        "vllm.platforms": {"current_platform": object()},
        "vllm.config.utils": {"hash_factors": hash_factors},
        "vllm.config.model": {"hash_factors": hash_factors},
        "vllm.compilation.caching": {
            "aot_compile_hash_factors": lambda config: [
                hash_factors(sys.modules["vllm.envs"].compile_factors()),
                config.compute_hash(),
            ]
        },
        "vllm.model_executor.custom_op": {"op_registry_oot": {"RMSNorm": Options}},
        "vllm_ascend": {"__path__": [str(sources)]},
        "vllm_ascend.utils": {"enable_custom_op": lambda: False},
        "vllm_ascend.ascend_config": {"get_ascend_config": lambda: options},
        "vllm_ascend.compilation.compiler_interface": {"_configure_backend": configure},
        "npugraph_ex": {"__path__": [], "CompilerConfig": Options},
    }
    for name, attributes in contents.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = ".".join(parts[:end])
            if module not in sys.modules:
                monkeypatch.setitem(sys.modules, module, ModuleType(module))
                if end > 1:
                    setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], sys.modules[module])
        vars(sys.modules[name]).update(attributes)
    return options, npugraph_ex
