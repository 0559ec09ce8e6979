"""Workloads: entrypoints and scripts."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.launching import rank_spec
from tests.support.made_artifacts import make_artifact
from tests.support.small_models import Plain
from warmrank.cache_store.cache_dir.local import add_variant
from warmrank.cache_store.digests import Digest, digest_file
from warmrank.examples import llama
from warmrank.examples.llama_model import build_model
from warmrank.examples.llama_weights import LlamaSizes, full_weights
from warmrank.inference import cache_compile
from warmrank.worker import journal
from warmrank.worker.errors import CompileForbidden, ScriptFailed, WorkloadError
from warmrank.worker.rank import manifests
from warmrank.worker.rank.rank_worker import RankSpec
from warmrank.worker.rank.workload import Call, RankContext, Workload, build_workload, journal_of, run_script
from warmrank.worker.results import FunctionResult, StageSeconds
from warmrank.worker.runtime.artifact import ArtifactFile
from warmrank.worker.runtime.files import to_bytes
from warmrank.worker.runtime.runtime_state import declared_for

pytestmark = pytest.mark.usefixtures("forget_modules")


def context(**groups: Any) -> RankContext:
    return RankContext(
        rank=3, world_size=8, local_rank=1, device_kind="cpu", device=torch.device("cpu"), groups=groups
    )


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """An entrypoint that returns a given value."""

    def entrypoint(value: object) -> str:
        monkeypatch.setattr("tests.support.small_models.entry", lambda context: value, raising=False)
        return "tests.support.small_models:entry"

    return entrypoint


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"nokey": 3},
            "workload.arguments: got an unexpected keyword argument 'nokey'. Given: nokey; it takes",
        ),
        ({"nokey": 3}, "layers: int = 2"),
        ({"layer": 3, "width": 1}, "Did you mean layers?"),
    ],
)
def test_arguments_that_the_entrypoint_does_not_take_are_told_as_the_config_s(monkeypatch, arguments, said):
    def entry(_context: RankContext, *, layers: int = 2, width: int = 4) -> Workload:
        raise AssertionError("it was called")

    monkeypatch.setattr("tests.support.small_models.entry", entry, raising=False)
    with pytest.raises(WorkloadError) as raised:
        build_workload("tests.support.small_models:entry", context(), arguments)
    assert said.replace("'", "") in str(raised.value).replace("'", "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda call: {"calls": call}, "calls is Call; expected a tuple"),
        (lambda call: {"calls": (each for each in (call,))}, "calls is generator; expected a tuple"),
        (lambda call: {"calls": (call.function,)}, r"calls\[0\] is CachedFunction; expected warmrank.Call"),
        (
            lambda call: {"calls": (replace(call, args=torch.ones(2)),)},
            r"calls\[0\].args is Tensor; expected a",
        ),
        (
            lambda call: {"calls": (replace(call, kwargs=(1,)),)},
            r"calls\[0\].kwargs is tuple; expected a dict",
        ),
        (lambda call: {"check": True}, "check is bool; expected a function"),
        (lambda call: {"model": None}, "model is NoneType; expected a torch.nn.Module"),
    ],
)
def test_field_of_another_kind_is_refused_by_name(change: Any, said: str, returned: Any) -> None:
    model = Plain()
    call = Call(function=cache_compile(model.affine), args=(torch.ones(2),))
    workload = Workload(**{"model": model, "calls": (call,), **change(call)})
    with pytest.raises(WorkloadError, match=f"small_models:entry: {said}"):
        build_workload(returned(workload), context(), {})


def test_list_of_arguments_serves_as_a_tuple(returned: Any) -> None:
    model, arguments = Plain(), [torch.ones(2)]
    call = Call(function=cache_compile(model.affine), args=arguments)  # type: ignore[arg-type] # as users write it
    workload: Any = Workload(model=model, calls=[call])  # type: ignore[arg-type] # as users write it
    (built,) = build_workload(returned(workload), context(), {}).calls
    assert built == replace(call, args=(*arguments,))


def test_runtime_state_is_declared_for_the_model_and_the_modules_of_all_calls(returned):
    model, other = Plain(), Plain()
    calls = (Call(function=cache_compile(model.affine)), Call(function=cache_compile(other.affine)))
    workload = Workload(model=model, calls=calls, runtime_state={"kv_cache_bytes": 1 << 33})
    build_workload(returned(workload), context(), {})
    assert declared_for(model) == declared_for(other) == {"kv_cache_bytes": str(1 << 33)}


def test_runtime_state_of_another_kind_is_refused_with_the_entrypoint(returned):
    model = Plain()
    values: Any = {"kv_cache_bytes": torch.tensor(3)}
    workload = Workload(
        model=model, calls=(Call(function=cache_compile(model.affine)),), runtime_state=values
    )
    expected = (
        "small_models:entry returned a Workload whose runtime state kv_cache_bytes is a Tensor; expected int"
    )
    with pytest.raises(WorkloadError, match=expected):
        build_workload(returned(workload), context(), {})


SMALL = LlamaSizes(layers=2, dim=32, heads=4, kv_heads=2, hidden=48, batch=2, max_seq=32)


def small_model(sizes: LlamaSizes = SMALL) -> Any:
    return build_model(sizes, full_weights(sizes), cached=False)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_generated_logits_equal_the_reference(batch: int, kv_heads: int) -> None:
    sizes = LlamaSizes(layers=2, dim=32, heads=4, kv_heads=kv_heads, hidden=48, batch=batch, max_seq=32)
    result = llama.check(small_model(sizes), full_weights(sizes), (5, 9), 6, None)
    assert result.ok
    assert result.max_error < llama.TOLERANCE / 10


def test_check_fails_when_a_weight_is_wrong() -> None:
    model = small_model()
    model.layers[1].attention.wv.weight[0, 0] += 1
    result = llama.check(model, full_weights(SMALL), (5,), 2, None)
    assert not result.ok


@pytest.fixture
def spec(tmp_path: Path) -> RankSpec:
    return rank_spec(
        tmp_path / "cache", rank=3, world_size=4, local_rank=1, local_world_size=2, node_rank=1,
        master_addr="node0", master_port=29500, entrypoint="",
    )  # fmt: skip


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_script_finds_torchruns_variables(spec: RankSpec, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run_script(
        spec, script(tmp_path, f"import json, os\njson.dump(dict(os.environ), open({str(out)!r}, 'w'))"), ()
    )
    found: dict[str, Any] = json.loads(out.read_text())
    expected = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        "TORCHAIR_CACHE_HOME": spec.cache_dir,
        "WARMRANK_JOURNAL": str(journal_of(spec)),
    }
    assert {name: found.get(name) for name in expected} == expected


def test_script_that_misses_where_compiling_is_forbidden_says_so(spec: RankSpec, tmp_path: Path) -> None:
    text = """
    from warmrank.worker import journal
    journal.append_forbidden("M.a", "M.a would have to be compiled")
    raise SystemExit(1)
    """
    with pytest.raises(CompileForbidden, match=r"M.a would have to be compiled") as raised:
        run_script(spec, script(tmp_path, text), ())
    assert raised.value.function == "M.a"


@pytest.mark.parametrize(
    ("end", "said"), [("os.kill(os.getpid(), 9)", "was killed by SIGKILL"), ("os._exit(3)", "status 3")]
)
def test_script_that_failed_is_reported_by_how_it_ended(
    spec: RankSpec, tmp_path: Path, end: str, said: str
) -> None:
    with pytest.raises(ScriptFailed, match=rf"script.py .*{said}; its last lines:\n\s*loading"):
        run_script(spec, script(tmp_path, f"import os\nprint('loading', flush=True)\n{end}"), ())


ARTIFACT = make_artifact()
OUTCOMES = st.sampled_from(["compiled", "loaded", "adopted"])
SECONDS = st.builds(StageSeconds, trace_s=st.floats(0, 9), load_s=st.floats(0, 9))
RESULTS = st.builds(
    FunctionResult,
    function=st.text(),
    ok=st.booleans(),
    outcome=OUTCOMES,
    reason=st.text(),
    digest=st.text("0123456789abcdef"),
    size_bytes=st.integers(0),
    path=st.text(),
    seconds=SECONDS,
)


@given(results=st.lists(RESULTS, max_size=3))
def test_journal_round_trips(results: list[FunctionResult], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARMRANK_JOURNAL", str(path))
        for item in results:
            journal.append(item, ARTIFACT)
    assert [entry for entry, _ in journal.read(path)] == results


def test_script_manifest_lists_the_files_beside_an_artifact(
    spec: RankSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ArtifactFile(name="ge_cache_0123456789abcdef.pt2", sha256="0123456789abcdef" * 4, size_bytes=7)
    artifact = make_artifact(name="M.decode(x)", files=(file,))
    directory = "M_dynamic_aclgraphcache_0f/world4global_rank3/decode"
    path = add_variant(Path(spec.cache_dir, directory), to_bytes(artifact))
    digest = digest_file(path)
    result = FunctionResult(
        function="M.decode", ok=True, outcome="compiled", reason="", digest=digest.sha256,
        size_bytes=digest.size_bytes, path=str(path),
    )  # fmt: skip
    journal_of(spec).parent.mkdir(parents=True)
    monkeypatch.setenv("WARMRANK_JOURNAL", str(journal_of(spec)))
    journal.append(result, artifact)
    entries = {entry.path: entry.digest for entry in manifests.made(manifests.of_script(spec)).artifacts}
    assert entries == {
        f"{directory}/compiled_module": digest,
        f"{directory}/{file.name}": Digest(sha256=file.sha256, size_bytes=7),
    }
