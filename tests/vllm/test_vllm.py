"""vLLM itself, with a tiny random model, through a store: `make test-vllm`.

Each start is a process of its own with its own HOME and cache. The tests go from one node to the next in this
order, because a start that compiles takes a minute of CPU.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.stored import overwrite

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM here: make test-vllm"),
]

HERE = Path(__file__).parent
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}


@dataclass
class Start:
    """One start of vLLM on a node."""

    node: Node
    log: str
    counters: dict[str, int]
    figures: dict[str, Any]

    @property
    def said(self) -> list[str]:
        return [line.partition("warmrank: ")[2] for line in self.log.splitlines() if "warmrank: " in line]

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        return {one["rank"]: one for one in explained(self.node)}


@dataclass
class Node:
    """A machine of its own: its HOME, its cache, and the model at a path of its own."""

    path: Path
    store: Path | str
    model: Path | None = None
    """Its own, unless it is named: vLLM's hash has the path in it."""

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    def environ(self, **variables: str) -> dict[str, str]:
        home = self.path / "home"
        home.mkdir(parents=True, exist_ok=True)
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(HERE / "gpu_path"),
            "HOME": str(home),
            "VLLM_CACHE_ROOT": str(self.cache),
            "OMP_NUM_THREADS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "WARMRANK_STORE": str(self.store),
            **variables,
        }

    def start(self, *, variables: dict[str, str] | None = None, **options: Any) -> Start:
        model, out = self.model or self.path / "models" / "tiny", self.path / "out.json"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text(json.dumps(CONFIG))
        command = [sys.executable, str(HERE / "serve_child.py"), str(model), str(out), json.dumps(options)]
        done = subprocess.run(
            command,
            env=self.environ(**variables or {}),
            cwd=self.path,
            capture_output=True,
            text=True,
            check=False,
        )
        log = done.stdout + done.stderr
        assert done.returncode == 0, log[-4000:]
        figures = json.loads(out.read_text())
        shown = {name: figures[name] for name in ("compile_s", "up_s", "cpu_s")}
        print(f"{self.path.name}: {shown}")  # noqa: T201 - the figures of docs/vllm.md
        return Start(self, log, figures["counters"], figures)

    def libraries(self) -> dict[str, Path]:
        """All libraries in its cache, by name, which is that of their content."""
        found = (path for path in self.cache.rglob("*.so") if "refused-" not in str(path))
        return {path.name: path for path in found}

    def kernels(self) -> set[str]:
        """Libraries of its models, without Inductor's probes of the compiler, whose number varies."""
        found = {name: path.with_suffix(".cpp").read_text() for name, path in self.libraries().items()}
        return {name for name, source in found.items() if "chk_kernel" not in source}


def run_warmrank(node: Node, *words: str) -> str:
    command = [sys.executable, "-m", "warmrank", *words]
    done = subprocess.run(command, env=node.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def explained(node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        run_warmrank(node, "explain", "--vllm", str(node.cache), "--json")
    )
    return found


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def store(nodes: Path) -> Path:
    return nodes / "store"


@pytest.fixture(scope="module")
def first(nodes: Path, store: Path) -> tuple[Start, Start]:
    """A cold start, and a warm one at the same place, which finds a file that was added since.

    Whether a warm start builds kernels of its own depends on the machine.
    """
    node = Node(nodes / "first", store)
    cold = node.start(linger_s=5)
    (kernels,) = node.cache.rglob("inductor_cache")
    (kernels / "added.bin").write_bytes(b"added")
    return cold, node.start(linger_s=5)


def test_cold_start_compiles_and_publishes(first):
    cold, _ = first
    assert cold.counters["num_aot_compiles"] == cold.counters["num_aot_artifacts_saved"] == 1
    compiled, published = cold.said
    assert "compiled in" in compiled
    assert "there is no store yet" in compiled
    assert "published" in published


def test_warm_start_in_place_loads_and_publishes_what_it_added(first):
    _, warm = first
    assert warm.counters["num_aot_artifacts_loaded"] == 1
    assert warm.counters["num_aot_compiles"] == 0
    loaded, *published = warm.said
    assert "loaded from this disk" in loaded
    assert published
    assert all("published" in line for line in published)


def test_new_node_with_other_paths_loads_and_builds_no_kernel(first, nodes, store):
    cold, warm = first
    start = Node(nodes / "elsewhere" / "second", store).start(linger_s=3)
    assert start.counters["num_aot_artifacts_loaded"] == 1
    assert start.counters["num_aot_compiles"] == 0
    assert start.node.kernels() == warm.node.kernels()
    assert [path.read_bytes() for path in start.node.cache.rglob("added.bin")] == [b"added"]
    assert start.figures["tokens"] == cold.figures["tokens"]
    assert [line for line in start.said if "loaded from the store" in line]
    assert start.outcomes["rank_0_0"]["source"] == "store"
    probes = start.node.libraries().keys() - warm.node.libraries().keys()
    assert bool(probes) == any("published" in line for line in start.said)


def with_kernels(first: tuple[Start, Start], path: Path, store: Path | str) -> Node:
    """A node that has the first one's kernels, so that it compiles in seconds, but no artifact."""
    whole = first[1].node
    shutil.copytree(whole.cache, path / "cache", ignore=shutil.ignore_patterns(".*warmrank", "rank_*"))
    return Node(path, store, whole.path / "models" / "tiny")


def test_store_that_is_down_costs_one_line_and_seconds(first, nodes):
    node = with_kernels(first, nodes / "down", "s3://nobody/here")
    there = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "x"}
    there |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "WARMRANK_TRUST": "off"}
    start = node.start(variables=there, linger_s=4)
    assert start.counters["num_aot_compiles"] == 1
    (said,) = start.said
    assert "compiled in" in said
    assert "the store gave nothing" in said
    assert start.outcomes["rank_0_0"]["fetch_s"] < 10


def test_unsigned_entry_is_never_laid_out_where_signatures_are_required(first, nodes, store):
    start = with_kernels(first, nodes / "strict", store).start(
        variables={"WARMRANK_TRUST": "require"}, linger_s=4
    )
    assert start.counters["num_aot_artifacts_loaded"] == 0
    assert start.counters["num_aot_compiles"] == 1
    assert "unsigned" in start.outcomes["rank_0_0"]["why"]
    assert "not published" in start.outcomes["rank_0_0"]["published"]


def test_entry_signed_by_a_stranger_is_never_laid_out(first, nodes):
    """The same entry, signed: by a key that this node does not trust, then that it does."""
    store, keyrings = nodes / "signed store", {name: nodes / f"keys of {name}" for name in ("signer", "node")}
    entry = next((first[1].node.cache / "torch_compile_cache" / "torch_aot_compile").glob("[0-9a-f]*"))
    published = with_kernels(first, nodes / "signer", store)
    run_warmrank(published, "keys", "generate", "ci", "--keyring", str(keyrings["signer"]))
    run_warmrank(published, "keys", "generate", "other", "--keyring", str(keyrings["node"]))
    signing = {
        "WARMRANK_TRUST": "require",
        "WARMRANK_SIGNING_KEY": "ci",
        "WARMRANK_KEYRING": str(keyrings["signer"]),
    }
    shutil.copytree(entry / "rank_0_0", published.cache / entry.relative_to(first[1].node.cache) / "rank_0_0")
    assert "published" in published.start(variables=signing, linger_s=4).outcomes["rank_0_0"]["published"]
    strict = {"WARMRANK_TRUST": "require", "WARMRANK_KEYRING": str(keyrings["node"])}
    start = with_kernels(first, nodes / "stranger", store).start(variables=strict)
    assert start.counters["num_aot_artifacts_loaded"] == 0
    assert "unknown_signer" in start.outcomes["rank_0_0"]["why"]
    shared = {"WARMRANK_TRUST": "require", "WARMRANK_KEYRING": str(keyrings["signer"])}
    start = Node(nodes / "friend", store).start(variables=shared)
    assert start.counters["num_aot_artifacts_loaded"] == 1


def test_changed_option_compiles_and_is_named(first, nodes, store):
    start = Node(nodes / "changed", store).start(dtype="bfloat16", linger_s=3)
    assert start.counters["num_aot_compiles"] == 1
    why = start.outcomes["rank_0_0"]["why"]
    assert "model.dtype torch.float32 -> torch.bfloat16" in why


def test_two_ranks_are_fetched_once_and_load_both(nodes, store):
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    cold = Node(nodes / "two", store).start(variables=variables, tensor_parallel_size=2, linger_s=8)
    assert {one["outcome"] for one in cold.outcomes.values()} == {"compiled"}
    again = Node(nodes / "two again", store).start(variables=variables, tensor_parallel_size=2, linger_s=3)
    assert sorted(again.outcomes) == ["rank_0_0", "rank_1_0"]
    assert {one["outcome"] for one in again.outcomes.values()} == {"loaded"}
    assert sum(one["fetched_bytes"] > 0 for one in again.outcomes.values()) == 1
    assert sum(line.count("published") for line in cold.said) == 1


def test_damaged_entry_is_never_laid_out(first, nodes, store):
    damaged = nodes / "damaged store"
    shutil.copytree(store, damaged)
    for blob in (damaged / "cas").rglob("*"):
        if blob.is_file():
            overwrite(blob, b"x" * blob.stat().st_size)
    start = with_kernels(first, nodes / "damaged", damaged).start()
    assert start.counters["num_aot_artifacts_loaded"] == 0
    assert "corrupt" in start.log


INSTALLED = """
import os, vllm.envs, warmrank.orchestrator.vllm_plugin as plugin
from vllm.compilation import decorators
original = decorators._try_load_aot_compiled_fn
def is_hooked(**variables):
    os.environ.update(variables)
    plugin.register()
    return decorators._try_load_aot_compiled_fn is not original
store = os.environ.pop("WARMRANK_STORE")
assert not is_hooked()
assert not is_hooked(WARMRANK_STORE=store, VLLM_DISABLE_COMPILE_CACHE="1")
assert not is_hooked(VLLM_DISABLE_COMPILE_CACHE="0", WARMRANK_TRUST="everybody")
assert is_hooked(WARMRANK_TRUST="off")
hooked = decorators._try_load_aot_compiled_fn
plugin.register()
assert decorators._try_load_aot_compiled_fn is hooked
del decorators._try_load_aot_compiled_fn
plugin.register()
"""


def test_plugin_does_nothing_unasked_and_never_raises(nodes, store):
    node = Node(nodes / "unasked", store)
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED], env=node.environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this vLLM is not served") + done.stdout.count("this vLLM is not served") == 2


def test_artifact_for_another_machine_on_a_shared_disk_is_not_loaded(first, nodes, store):
    """vLLM's hash is the same on both machines; it would load what has the other one's instructions."""
    node = with_kernels(first, nodes / "shared", nodes / "no store")
    (entry,) = (node.cache / "torch_compile_cache" / "torch_aot_compile").glob("[0-9a-f]*")
    whole = first[1].node.cache / entry.relative_to(node.cache)
    shutil.copytree(whole / "rank_0_0", entry / "rank_0_0")
    note = entry / "rank_0_0" / "warmrank.json"
    components = json.loads(note.read_text())["components"]
    other = {**components, "machine cpu": "another one", "device": "cuda:1"}
    note.write_text(json.dumps({"format": 1, "components": other}))
    start = node.start(linger_s=4)
    assert start.counters["num_aot_artifacts_loaded"] == 0
    why = start.outcomes["rank_0_0"]["why"]
    assert "device cuda:1 -> cpu" in why
    assert "machine cpu another one" in why
    assert json.loads(note.read_text())["components"] == components


def test_whole_cache_moves_by_sync_without_the_plugin(first, nodes):
    """In vLLM's layout since 0.32, under the version of whatever distribution vLLM is from."""
    whole, store = first[1].node, nodes / "synced store"
    node = Node(nodes / "synced", store, whole.path / "models" / "tiny")
    how = ("--store", str(store), "--key", "vllm", "--key", "torch")
    run_warmrank(whole, "store", "sync", "push", "vllm", str(whole.cache), *how)
    run_warmrank(node, "store", "sync", "pull", "vllm", str(node.cache), *how)
    start = node.start(variables={"WARMRANK_STORE": ""})
    assert start.counters["num_aot_artifacts_loaded"] == 1
    assert start.node.kernels() == whole.kernels()
    assert not start.said


def test_vllm_serve_is_unchanged_and_shows_its_metrics(nodes, store):
    """Twice, as its command is typed; the second node follows a cold start alone."""
    for name, outcome in (("served", "compiled"), ("served again", "loaded")):
        node = Node(nodes / name, store, nodes / "served" / "model")
        with served(node) as port:
            page = read(port, "/metrics")
        (line,) = [one for one in page.splitlines() if one.startswith("warmrank_vllm_artifact{")]
        assert f'outcome="{outcome}"' in line


@contextlib.contextmanager
def served(node: Node) -> Iterator[int]:
    assert node.model is not None
    node.model.mkdir(parents=True, exist_ok=True)
    (node.model / "config.json").write_text(json.dumps(CONFIG))
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{index}": index for index in range(3, 256)}}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
    (node.model / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": model})
    )
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (node.model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    options = "--load-format dummy --dtype float32 --max-model-len 64 --max-num-seqs 2"
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(node.model), *options.split()]
    command += ["--kv-cache-memory-bytes", str(1 << 24)]
    environ = node.environ(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
    log = node.path / "serve.log"
    with log.open("w") as out:
        process = subprocess.Popen([*command, "--port", str(port)], env=environ, stdout=out, stderr=out)
    try:
        until(lambda: read(port, "/health") == "200", process, log)
        until(lambda: "published" in log.read_text() or "loaded from" in log.read_text(), process, log)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=120)


def read(port: int, path: str) -> str:
    """A page of the server; empty while there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read().decode() or str(answer.status)
    except OSError:
        return ""
    finally:
        connection.close()


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    while not condition():
        assert process.poll() is None, log.read_text()[-4000:]
        time.sleep(1)
