"""vLLM's plugin without vLLM, and vllm-ascend's graphs by a stand-in; `make test-vllm` has the real ones."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import logging
import os
import pprint
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.vllm_plugin import entries, factors, hooks
from warmrank.orchestrator.vllm_plugin.entries import (
    Entry,
    Outcome,
    Publisher,
    access,
    artifact_entry,
    bounded,
    ranks_of,
    read_components,
    read_outcomes,
    write_components,
)
from warmrank.orchestrator.vllm_plugin.factors import HASH, differences
from warmrank.worker.settings import Target, building_for

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


COMPONENTS = {"device": "cuda:0", "machine cpu": "x86_64 avx2", HASH: "a" * 64}


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    root = tmp_path / "torch_compile_cache" / "torch_aot_compile" / ("a" * 64)
    made = artifact_entry(root / "rank_0_0" / "model")
    made.artifact.parent.mkdir(parents=True)
    made.artifact.write_bytes(b"artifact")
    return made


def test_plugin_imports_nothing_unless_a_store_is_named():
    code = """
import sys
import threading
from warmrank.orchestrator.vllm_plugin import register
register()
loaded = {"torch", "pydantic", "vllm", "cryptography", "warmrank.cache_store"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "src", "PATH": ""}, check=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("WARMRANK_TRUST", "everybody"), ("WARMRANK_TIMEOUT_S", "soon"), ("WARMRANK_STORE", "x://y")],
)
def test_variable_that_cannot_be_used_is_named(name, value, tmp_path):
    with pytest.raises(BadArgument, match="--store" if name == "WARMRANK_STORE" else name):
        access({"WARMRANK_STORE": str(tmp_path), name: value})


def test_store_that_others_can_write_takes_only_what_is_signed():
    opened = access({"WARMRANK_STORE": "s3://bucket/warmrank"})
    assert opened.config.trust.policy == "require"
    assert not opened.publishes


def test_call_that_is_silent_is_left_alone():
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        bounded(lambda: time.sleep(5), 0.05)
    with pytest.raises(ValueError, match="invalid literal"):
        bounded(lambda: int("x"), 5)
    assert bounded(lambda: 7, 5) == 7


def test_artifact_for_another_device_or_machine_is_told_apart(entry):
    write_components(entry.artifact, COMPONENTS)
    here = {**COMPONENTS, "device": "cuda:1", HASH: "b" * 64}
    assert differences(read_components(entry.artifact), here) == "device cuda:0 -> cuda:1"
    assert differences(read_components(entry.artifact), COMPONENTS) == ""
    assert ranks_of(entry) == {"rank_0_0": COMPONENTS}


@pytest.mark.parametrize(
    "text", ["", "{", '{"format": 2, "components": {}}', '{"format": 1, "components": []}', "[]"]
)
def test_note_that_cannot_be_read_is_of_another_artifact(entry, text):
    assert read_components(entry.artifact) == {}
    (entry.root / entry.rank / "warmrank.json").write_text(text)
    assert "warmrank.json" in differences(read_components(entry.artifact), COMPONENTS)
    assert ranks_of(entry) == {"rank_0_0": {}}


X = torch.arange(3.0)
MACHINE = {
    "cann": "8.5.0",
    "driver": "ascend 25.5.0",
    "accelerator": "Ascend910B2",
    "torch_npu": "2.13.0 git a",
}


class Stepped(Publisher):
    """A publisher that publishes when it is asked, and not by a thread."""

    def _start(self) -> None:
        pass


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Node:
    """A machine with its own paths; each start is a process's, as far as vLLM's state goes."""

    def __init__(self, path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.store, self._monkeypatch = path, store, monkeypatch
        self.num_compiled = 0

    def start(self, machine: Mapping[str, str] = MACHINE, trust: str = "off") -> Outcome | None:
        self._monkeypatch.setenv("VLLM_CACHE_ROOT", str(self.path / "cache"))
        opened = access({"WARMRANK_STORE": self.store, "WARMRANK_TRUST": trust, "WARMRANK_TIMEOUT_S": "5"})
        counter = SimpleNamespace(num_backend_compilations=0, num_cache_entries_updated=0)
        publisher = Stepped(opened)
        backend_type = type("VllmBackend", (Backend,), {})
        hooks.hook_graphs(backend_type, opened, publisher, counter)
        backend = backend_type(config_for(self.path / "model"), counter)
        factors._version.cache_clear()
        factors._sources.cache_clear()
        with building_for(Target(device_kind="npu", environment=machine)):
            kernel = backend(torch.fx.symbolic_trace(Twice()), [X])
        assert torch.equal(kernel(X)[0], X * 2)
        self.num_compiled = backend.compiler_manager.num_compiled
        publisher.step(is_last=True)
        return next(iter(read_outcomes(self.path / "cache")), None)

    @property
    def index(self) -> Path:
        (found,) = (self.path / "cache").glob("torch_compile_cache/*/rank_0_0/backbone/vllm_compile_cache.py")
        return found


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    return install(monkeypatch, tmp_path / "vllm_ascend")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[Any, Any]) -> Callable[[str], Node]:
    del options
    return lambda name: Node(tmp_path / name, str(tmp_path / "store"), monkeypatch)


def test_secret_among_the_variables_is_stored_as_a_digest(node, monkeypatch, tmp_path):
    (tmp_path / "vllm_ascend" / "more.py").write_text('os.environ.get("ASCEND_TOKEN")')
    monkeypatch.setenv("ASCEND_TOKEN", "sesame")
    one = node("first")
    one.start()
    note = json.loads(one.index.with_name("warmrank.json").read_text())
    assert "variable ASCEND_TOKEN" in note["components"]
    assert "sesame" not in str(note)


def switch_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vllm_ascend.utils"], "enable_custom_op", lambda: True)


def test_graph_of_other_custom_operators_on_this_disk_is_not_loaded(node, monkeypatch):
    """vllm-ascend's hash stays what it was (15188); both selections are in the store afterwards."""
    one = node("first")
    one.start()
    with monkeypatch.context() as switched:
        switch_operators(switched)
        again = one.start()
        assert (again.outcome, one.num_compiled) == ("compiled", 1)
        assert "on this disk is another one: custom operators off -> on" in again.why
        assert "+ 0" in (one.index.parent / KEY).read_text()
    back = one.start()
    assert (back.outcome, back.source, one.num_compiled) == ("loaded", "store", 0)


def test_graph_that_was_made_without_the_plugin_is_not_loaded(node):
    one = node("first")
    one.start()
    one.index.with_name("warmrank.json").unlink()
    again = one.start()
    assert (again.outcome, again.source) == ("loaded", "store")
    one.index.with_name("warmrank.json").unlink()
    one.store = str(one.path / "another store")
    assert "unknown custom operators" in one.start().why


@pytest.mark.parametrize("name", MACHINE)
def test_another_machine_is_a_miss_that_names_it(node, name):
    node("first").start()
    there = node("second").start(machine={**MACHINE, name: "9.0.0"})
    assert there.outcome == "compiled"
    assert f"machine {name} {MACHINE[name]} -> 9.0.0" in there.why


def test_what_vllm_ascend_reads_is_a_miss_that_names_it(node, options, monkeypatch, tmp_path):
    node("first").start()
    theirs, npugraph_ex = options
    changes: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
        "variable VLLM_ASCEND_ENABLE_NZ added (2)": lambda patch: patch.setenv("VLLM_ASCEND_ENABLE_NZ", "2"),
        "ascend.enable_mlapo true -> false": lambda patch: patch.setattr(theirs, "enable_mlapo", False),
        "ascend.ascend_compilation_config.fuse_norm_quant true -> false": lambda patch: patch.setattr(
            theirs.ascend_compilation_config, "fuse_norm_quant", False
        ),
        "npugraph_ex.force_eager true -> false": lambda patch: patch.setattr(
            npugraph_ex.force_eager, "value", False
        ),
        "custom operators off -> on": switch_operators,
        "custom layers ": lambda patch: patch.setitem(
            sys.modules["vllm.model_executor.custom_op"].op_registry_oot, "Linear", Twice
        ),
        "vllm_ascend unknown sources ": lambda _: (tmp_path / "vllm_ascend" / "ops.py").touch(),
    }
    for number, (said, change) in enumerate(changes.items()):
        with monkeypatch.context() as patch:
            change(patch)
            there = node(f"changed {number}").start()
        assert (there.outcome, said in there.why) == ("compiled", True), there.why


def test_variable_that_names_a_place_of_this_machine_is_no_miss(node, monkeypatch):
    node("first").start()
    monkeypatch.setenv("HCCL_SO_PATH", "/elsewhere/libhccl.so")
    assert node("second").start().outcome == "loaded"


def test_unsigned_graphs_on_this_disk_are_put_aside_where_signatures_are_required(node):
    node("first").start()
    one = node("second")
    one.start()
    assert (one.start(trust="require").outcome, one.num_compiled) == ("compiled", 1)


def test_store_that_does_not_answer_costs_one_line(node, caplog):
    one = node("first")
    one.store = str(one.path / "no" / "directory")
    Path(one.path / "no").mkdir(parents=True)
    Path(one.store).write_text("a file")
    with caplog.at_level(logging.INFO, "vllm.warmrank"):
        assert one.start().outcome == "compiled"
    assert len([line for line in caplog.messages if "the store gave nothing" in line]) == 1


def test_graphs_that_vllm_ascend_does_not_save_are_told(node, monkeypatch):
    monkeypatch.setenv("WITH_TRITON", "1")
    node("first").start()
    there = node("second").start()
    assert (there.outcome, there.source) == ("loaded", "store")
    assert "1 of 1 graphs compiled" in there.line()


@pytest.mark.parametrize("module", ["vllm.envs", "vllm_ascend.utils", "vllm_ascend.ascend_config"])
def test_unknown_vllm_ascend_is_left_alone(node, monkeypatch, caplog, module):
    """Its hash has another factor, or a name that is relied on is gone."""
    if module == "vllm.envs":
        changed = iter([{"A": "1"}, {"A": "2"}])
        monkeypatch.setattr(sys.modules[module], "compile_factors", lambda: next(changed))
    else:
        monkeypatch.setitem(sys.modules, module, SimpleNamespace())
    assert node("first").start() is None
    assert "not served" in caplog.text


class SlowAccess:
    """Settings whose reader waits, as for a slow store."""

    def __init__(self) -> None:
        self.is_asked, self.answers = threading.Event(), threading.Event()

    @property
    def publishes(self) -> bool:
        self.is_asked.set()
        return not self.answers.wait(10)


def publisher_of(entry: Entry, opened: SlowAccess) -> Publisher:
    write_components(entry.artifact, COMPONENTS)
    publisher = Publisher(opened)  # type: ignore[arg-type]
    publisher.take(
        entry,
        Outcome(
            entry="a", rank=entry.rank, model="", outcome="loaded", source="disk", why="", fetch_s=0,
            fetched_bytes=0, compile_s=0, at_s=0,
        ),
    )  # fmt: skip
    return publisher


def test_files_are_published_once_they_rest_however_often_they_are_looked_at(entry, monkeypatch):
    opened = SlowAccess()
    opened.answers.set()
    publisher = publisher_of(entry, opened)
    publisher.step()
    publisher.step()  # at once, as when another entry comes
    assert not opened.is_asked.is_set()
    monkeypatch.setattr(entries, "_LOOK_EVERY_S", 0.0)
    publisher.step()
    assert opened.is_asked.is_set()


def test_program_that_ends_waits_for_what_is_being_published(entry):
    opened = SlowAccess()
    publisher = publisher_of(entry, opened)
    looks = [threading.Thread(target=publisher.step, kwargs={"is_last": True}) for _ in range(2)]
    looks[0].start()
    assert opened.is_asked.wait(10)
    looks[1].start()
    looks[1].join(0.2)
    assert looks[1].is_alive()
    opened.answers.set()
    for look in looks:
        look.join(10)
        assert not look.is_alive()
