"""A cached function: compiles on a miss, saves, loads, and says why it cannot."""

from __future__ import annotations

import logging
import os
import pickle
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.devices import fake_world
from tests.support.small_models import Cached, Plain, Unfit
from tests.support.stored import COMPONENTS, lay_artifact
from tests.support.tracing import ROWS, cached, cached_in_launch, files, model_of, outcome, reason
from warmrank.cache_store.cache_dir.local import add_variant
from warmrank.cache_store.errors import UnusableCache
from warmrank.worker import journal
from warmrank.worker.compile import compiler
from warmrank.worker.engines import engine_named
from warmrank.worker.errors import BackwardNotSupported, CompileForbidden, GraphBreak, RandomOp
from warmrank.worker.keys.request import Request
from warmrank.worker.runtime.describe import explain_absence
from warmrank.worker.runtime.find import Place, model_directory, partition_name, sibling_variants
from warmrank.worker.runtime.options import LaunchDefaults

pytestmark = pytest.mark.usefixtures("no_grad")

SAVED = re.compile(
    r"Cache ModelCacheMeta\(name='Plain\.affine\(x\)', "
    r"date='\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}', version='1\.0\.0', fx=None\) "
    r"(saved to|loaded from) (/\S+/Plain_dynamic_aclgraphcache_[0-9a-f]{32}/affine/compiled_module)"
)


# A miss, then a hit.


def test_first_call_compiles_and_equals_eager(cache: Path) -> None:
    model = Plain()
    function = cached(model.affine, cache)
    assert torch.equal(function(ROWS), model.affine(ROWS))
    assert outcome(function) == "compiled"


def test_artifact_lies_at_torchairs_path(cache: Path, affine_artifact: Path) -> None:
    assert re.fullmatch(
        r"Plain_dynamic_aclgraphcache_[0-9a-f]{32}/affine/compiled_module",
        affine_artifact.relative_to(cache).as_posix(),
    )


def test_artifact_is_private(cache: Path, affine_artifact: Path) -> None:
    assert stat.S_IMODE(affine_artifact.stat().st_mode) == 0o600
    assert stat.S_IMODE(affine_artifact.parent.stat().st_mode) == 0o700


@pytest.mark.usefixtures("affine_artifact")
def test_second_model_loads_without_tracing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compile_call", None)
    model = Plain()
    function = cached(model.affine, cache)
    assert torch.equal(function(ROWS), model.affine(ROWS))
    assert outcome(function) == "loaded"


def test_weights_that_changed_in_place_are_used(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    function(ROWS)
    nn.init.ones_(model_of(function).get_parameter("linear.weight"))
    assert torch.equal(function(ROWS), model_of(function).affine(ROWS))


def test_function_that_writes_in_place_does_so_once_for_each_call(cache: Path) -> None:
    model, reference = Cached(), Cached()
    function = cached(model.accumulate, cache)
    for _ in range(3):
        function(ROWS)
        reference.accumulate(ROWS)
    assert torch.equal(model.cache, reference.cache)


# What TorchAir logs.


def test_saving_and_loading_are_logged_as_torchair_does(cache, caplog):
    with caplog.at_level(logging.INFO, logger="torchair"):
        cached(Plain().affine, cache)(ROWS)
        cached(Plain().affine, cache)(ROWS)
    lines = [record for record in caplog.records if record.levelname == "INFO" and "Cache " in record.message]
    found = [SAVED.fullmatch(record.getMessage()) for record in lines]
    assert [match and match[1] for match in found] == ["saved to", "loaded from"]
    assert [Path(match[2]).is_file() for match in found if match] == [True, True]


# Where the cache lies.


def test_cache_dir_that_is_a_file_is_a_clear_error(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(UnusableCache, match=rf"directory {cache}"):
        cached(Plain().affine, cache)(ROWS)


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ({"tp_rank": 1}, "tp_rank1"),
        ({"pp_rank": 0}, "pp_rank0"),
        ({"tp_rank": 1, "pp_rank": 0}, "tp_rank1_pp_rank0"),
        ({"global_rank": 3}, "affine"),
    ],
)
def test_ranks_that_were_given_are_in_the_path_of_a_single_rank(cache, options, partition):
    assert partition in cached(Plain().affine, cache, **options).place().function_dir.parts


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ({}, "world4global_rank2"),
        ({"global_rank": 3}, "world4global_rank3"),
        ({"tp_rank": 0, "pp_rank": 1}, "world4global_rank2_tp_rank0_pp_rank1"),
    ],
)
def test_ranks_of_torch_distributed_are_in_the_path(cache, options, partition):
    with fake_world(rank=2, world_size=4):
        assert cached(Plain().affine, cache, **options).place().function_dir.parent.name == partition


def test_place_of_a_launch_without_process_groups_is_in_the_path(cache: Path) -> None:
    function = cached_in_launch(Plain().affine, cache, LaunchDefaults(place=(1, 2)))
    assert function.place().function_dir.parent.name == "world2global_rank1"


# What a later process finds damaged.


def test_corrupt_artifact_is_set_aside_and_compiled_again(cache: Path, affine_artifact: Path) -> None:
    whole = affine_artifact.read_bytes()
    affine_artifact.write_bytes(whole[:-1])
    function = cached(Plain().affine, cache)
    assert torch.equal(function(ROWS), model_of(function).affine(ROWS))
    assert outcome(function) == "compiled"
    assert "do not match the digest" in reason(function)
    assert affine_artifact.read_bytes() == whole
    assert affine_artifact.with_name("compiled_module.corrupt").read_bytes() == whole[:-1]


TORN = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "zeroed": lambda whole: bytes(len(whole)),
}


@pytest.mark.parametrize("tear", TORN.values(), ids=TORN)
def test_artifact_that_a_power_cut_tore_is_compiled_once_more(cache, affine_artifact, tear):
    whole = affine_artifact.read_bytes()
    affine_artifact.write_bytes(tear(whole))
    outcomes = []
    for _ in range(2):
        function = cached(Plain().affine, cache)
        assert torch.equal(function(ROWS), model_of(function).affine(ROWS))
        outcomes.append(outcome(function))
    assert outcomes == ["compiled", "loaded"]
    assert affine_artifact.read_bytes() == whole


def test_artifact_that_others_can_read_is_not_used(cache: Path, affine_artifact: Path) -> None:
    affine_artifact.chmod(0o644)
    found = cached(Plain().affine, cache).find((ROWS,), {})
    assert found.stored is None
    assert f"chmod 600 {affine_artifact}" in found.reason


# What cannot be cached, with nothing half-written.


def test_compiling_that_is_forbidden_is_an_error_with_the_reason(cache, monkeypatch):
    monkeypatch.setenv("WARMRANK_NO_COMPILE", "1")
    with pytest.raises(
        CompileForbidden,
        match=r"Plain.affine would have to be compiled, which is forbidden here: the cache holds",
    ) as raised:
        cached(Plain().affine, cache)(ROWS)
    assert raised.value.reason == "the cache holds nothing for Plain.affine"
    assert not cache.exists()


def test_random_operator_is_an_error_with_operator_and_line(cache: Path) -> None:
    with pytest.raises(
        RandomOp, match=r"(?s)dropout.* draws random numbers.*self.dropout\(self.linear\(x\)\)"
    ):
        cached(Unfit().drops, cache)(ROWS)
    assert files(cache) == []


def test_graph_break_is_an_error_with_reason_and_line(cache: Path) -> None:
    with pytest.raises(GraphBreak, match=r"(?s)Data-dependent branching.*if x.sum\(\) > 0:"):
        cached(Unfit().breaks, cache)(ROWS)
    assert files(cache) == []


def test_argument_that_asks_for_gradients_is_an_error_that_names_it(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    with (
        torch.enable_grad(),
        pytest.raises(BackwardNotSupported, match=r"argument x of Plain.affine requires gradients") as raised,
    ):
        function(ROWS.clone().requires_grad_())
    assert raised.value.argument == "L['x']"
    assert files(cache) == []


def test_argument_that_asks_for_gradients_is_taken_where_none_are_recorded(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    x = ROWS.clone().requires_grad_()
    assert torch.equal(function(x), model_of(function).affine(x))


def test_artifact_for_an_argument_with_gradients_is_not_used_where_they_are_recorded(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    x = ROWS.clone().requires_grad_()
    function(x)
    with torch.enable_grad(), pytest.raises(BackwardNotSupported, match="requires gradients"):
        function(x)
    with torch.enable_grad(), pytest.raises(BackwardNotSupported, match="requires gradients"):
        cached(model_of(function).affine, cache)(x)
    assert len(files(cache)) == 1


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_grad_mode_of_the_caller_makes_no_further_variant(cache: Path, mode: Any) -> None:
    function = cached(Plain().affine, cache)
    expected = function(ROWS).clone()
    with mode():
        assert torch.equal(function(ROWS), expected)
        found = function(ROWS + 1)
    assert len(function.variants) == 1
    assert not found.requires_grad


def test_function_sees_that_gradients_are_off(cache: Path) -> None:
    class Asks(torch.nn.Module):
        def f(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if torch.is_grad_enabled() else x - 1

    with torch.enable_grad():
        assert torch.equal(cached(Asks().f, cache)(ROWS), ROWS - 1)


def test_failure_does_not_spoil_later_calls(cache: Path) -> None:
    model = Unfit()
    function = cached(model.drops, cache)
    with pytest.raises(RandomOp):
        function(ROWS)
    model.eval()
    assert torch.equal(function(ROWS), model.drops(ROWS))


# The journal of a script.


def test_every_look_up_is_written_to_the_journal(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("WARMRANK_JOURNAL", str(tmp_path / "journal"))
    for _ in range(2):
        cached(Plain().affine, cache)(ROWS)
    entries = journal.read(tmp_path / "journal")
    assert [result.outcome for result, _ in entries] == ["compiled", "loaded"]
    assert {details["root"] for _, details in entries} == {str(cache)}


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


def compiled_in_spite_of(cache: Path) -> str:
    """Compiles and runs; gives the reason of the miss."""
    function = cached(Plain().affine, cache)
    assert torch.equal(function(ROWS), model_of(function).affine(ROWS))
    assert outcome(function) == "compiled"
    return reason(function)


def test_pickle_of_torchair_is_moved_aside_and_never_unpickled(cache, affine_artifact, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Bomb())
    affine_artifact.write_bytes(pickled)
    assert "a pickle, as TorchAir writes them" in compiled_in_spite_of(cache)
    assert affine_artifact.with_name("compiled_module.corrupt").read_bytes() == pickled
    assert not (tmp_path / "exploded").exists()


def test_second_damaged_file_does_not_replace_the_first_that_was_moved_aside(cache, affine_artifact):
    for content in (b"first", b"second"):
        affine_artifact.write_bytes(content)
        compiled_in_spite_of(cache)
    aside = sorted(affine_artifact.parent.glob("*.corrupt*"))
    assert [path.read_bytes() for path in aside] == [b"first", b"second"]


def link_to_itself_elsewhere(artifact: Path) -> None:
    target = artifact.with_name("elsewhere")
    artifact.rename(target)
    artifact.symlink_to(target)


def readable_by_others(artifact: Path) -> None:
    artifact.chmod(0o644)


def directory(artifact: Path) -> None:
    artifact.unlink()
    artifact.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (link_to_itself_elsewhere, "is a symbolic link, which is never followed; remove it"),
        (readable_by_others, "mode 0644"),
        (directory, "found Is a directory"),
    ],
)
def test_what_is_not_this_users_own_file_is_left_where_it_is(cache, affine_artifact, spoil, words):
    spoil(affine_artifact)
    before = affine_artifact.lstat()
    assert words in compiled_in_spite_of(cache)
    assert affine_artifact.lstat().st_ino == before.st_ino
    assert not list(affine_artifact.parent.glob("*.corrupt*"))


ASKED = Request(components={**COMPONENTS, "torch": "2.13.1"}, key="0f", engine=engine_named("graph"))
MODEL_DIR = "Llama_dynamic_aclgraphcache_0f"


def test_absence_in_an_empty_cache_names_class_and_function(tmp_path: Path) -> None:
    reason = explain_absence(tmp_path / MODEL_DIR, "decode", ASKED)
    assert reason == "the cache holds nothing for Llama.decode"


def test_absence_names_the_components_that_differ(tmp_path: Path) -> None:
    lay_artifact(tmp_path / "Llama_dynamic_aclgraphcache_1a" / "decode")
    reason = explain_absence(tmp_path / MODEL_DIR, "decode", ASKED)
    assert reason == "nearest artifact differs: torch 2.13.0 -> 2.13.1"


def test_artifact_of_the_same_model_is_nearer_than_that_of_another_tp_size(tmp_path: Path) -> None:
    for directory, components in (
        ("1a", {**ASKED.components, "parameters": "of tp 2"}),
        ("2b", {**COMPONENTS, "cann": "7"}),
    ):
        lay_artifact(tmp_path / f"Llama_dynamic_aclgraphcache_{directory}" / "decode", components)
    reason = explain_absence(tmp_path / MODEL_DIR, "decode", ASKED)
    assert "torch 2.13.0 -> 2.13.1" in reason
    assert "parameters" not in reason


def test_absence_names_a_few_conditions_each_once_and_counts_the_rest(tmp_path: Path) -> None:
    lay_artifact(tmp_path / "Llama_dynamic_aclgraphcache_1a" / "decode", {"module": "aa"})
    asked = Request(components={**COMPONENTS, "module": "bb"}, key="0f", engine=engine_named("graph"))
    missing = [f"self._modules['{index}'] is missing" for index in (6, 6, 6, 7, 8, 9, 10)]
    reason = explain_absence(tmp_path / MODEL_DIR, "decode", asked, lambda _path: tuple(missing))
    named = "; ".join([*dict.fromkeys(missing[:5]), "and 2 more"])
    assert reason.endswith(f"({named})")


@pytest.mark.parametrize(
    ("dynamic", "mode", "expected"),
    [
        (True, "reduce-overhead", "Llama_dynamic_aclgraphcache_0f"),
        (False, "reduce-overhead", "Llama_static_aclgraphcache_0f"),
        (True, "npugraph_ex", "Llama_dynamic_aclgraphcache_0f"),
        (True, "max-autotune", "Llama_dynamic_0f"),
    ],
)
def test_model_directory_is_torchairs(dynamic: bool, mode: str, expected: str) -> None:
    assert model_directory("Llama", dynamic=dynamic, mode=mode, key="0f") == expected


@pytest.mark.parametrize(
    ("world_size", "rank", "tp_rank", "pp_rank", "expected"),
    [
        (1, 0, None, None, ""),
        (2, 1, None, None, "world2global_rank1"),
        (4, 3, 1, None, "world4global_rank3_tp_rank1"),
        (4, 3, None, 0, "world4global_rank3_pp_rank0"),
        (4, 3, 1, 0, "world4global_rank3_tp_rank1_pp_rank0"),
        (1, 0, 0, 0, "tp_rank0_pp_rank0"),
    ],
)
def test_partition_name_appends_what_was_given(world_size, rank, tp_rank, pp_rank, expected):
    assert partition_name(world_size=world_size, rank=rank, tp_rank=tp_rank, pp_rank=pp_rank) == expected


def test_siblings_are_the_same_function_of_other_partitions(tmp_path: Path) -> None:
    for partition in ("world2global_rank1", "world2global_rank0", "world1"):
        add_variant(tmp_path / partition / "decode", partition.encode())
        add_variant(tmp_path / partition / "prefill", partition.encode())
    own = tmp_path / "world2global_rank0" / "decode"
    assert [
        path.parent.parent.name for path in sibling_variants(Place(model_dir=tmp_path, function_dir=own))
    ] == [
        "world1",
        "world2global_rank1",
    ]


def test_siblings_of_a_partition_include_the_artifact_of_a_single_rank(tmp_path: Path) -> None:
    alone = add_variant(tmp_path / "decode", b"made by one rank")
    own = tmp_path / "world2global_rank0" / "decode"
    assert sibling_variants(Place(model_dir=tmp_path, function_dir=own)) == (alone,)
