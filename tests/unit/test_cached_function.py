"""A cached function: compiles on a miss, saves, loads, and says why it cannot."""

from __future__ import annotations

import logging
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cache_store.errors import UnusableCache
from tests.support.fake_group import fake_world
from tests.support.small_models import Cached, Derived, Plain, Unfit
from worker import compiler, journal
from worker.cached_function import CachedFunction, LaunchDefaults, launch_defaults
from worker.errors import BackwardNotSupported, CompileForbidden, GraphBreak, NotYet, RandomOp
from worker.inference import cache_compile

pytestmark = pytest.mark.usefixtures("no_grad")

ROWS = torch.arange(8.0).reshape(2, 4)
SAVED = re.compile(
    r"Cache ModelCacheMeta\(name='Plain\.affine\(x: .*\) -> .*', "
    r"date='\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}', version='1\.0\.0', fx=None\) "
    r"(saved to|loaded from) (/\S+/Plain_dynamic_aclgraphcache_[0-9a-f]{32}/affine/compiled_module)"
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def cached(method: Callable[..., Any], cache: Path, **options: Any) -> CachedFunction:
    return cache_compile(method, cache_dir=cache, **options)


def outcome(function: CachedFunction) -> str:
    assert function.last_result is not None
    return function.last_result.outcome


def reason(function: CachedFunction) -> str:
    assert function.last_result is not None
    return function.last_result.reason


def warm(method: Callable[..., Any], cache: Path, *args: Any, **options: Any) -> Path:
    """Compile a method once, and give the path of its artifact."""
    function = cached(method, cache, **options)
    function.compile(args or (ROWS,), {}, reason="")
    assert function.last_result is not None
    return Path(function.last_result.path)


def files(cache: Path) -> list[str]:
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


@pytest.fixture
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("traced")

    monkeypatch.setattr(compiler, "compile_call", refuse)


# A miss, then a hit.


def test_first_call_compiles_and_equals_eager(cache: Path) -> None:
    model = Plain()
    function = cached(model.affine, cache)
    assert torch.equal(function(ROWS), model.affine(ROWS))
    assert outcome(function) == "compiled"


def test_first_call_says_that_the_cache_was_empty(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    function(ROWS)
    assert reason(function) == "the cache holds nothing for Plain.affine"


def test_first_call_measures_its_stages(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    function(ROWS)
    assert function.last_result is not None
    seconds = function.last_result.seconds
    assert min(seconds.trace_s, seconds.compile_s, seconds.load_s) > 0


def test_artifact_lies_at_torchairs_path(cache: Path) -> None:
    path = warm(Plain().affine, cache)
    assert re.fullmatch(
        r"Plain_dynamic_aclgraphcache_[0-9a-f]{32}/affine/compiled_module", path.relative_to(cache).as_posix()
    )


def test_artifact_of_a_static_trace_lies_under_static(cache: Path) -> None:
    assert "/Plain_static_aclgraphcache_" in str(warm(Plain().affine, cache, dynamic=False))


def test_artifact_is_private(cache: Path) -> None:
    path = warm(Plain().affine, cache)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_artifact_is_all_that_is_written(cache: Path) -> None:
    path = warm(Plain().affine, cache)
    assert files(cache) == [path.relative_to(cache).as_posix()]


@pytest.mark.usefixtures("no_tracing")
def test_second_model_loads_without_tracing(cache: Path, request: pytest.FixtureRequest) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "compile_call", COMPILE)
        warm(Plain().affine, cache)
    model = Plain()
    function = cached(model.affine, cache)
    assert torch.equal(function(ROWS), model.affine(ROWS))
    assert outcome(function) == "loaded"


COMPILE = compiler.compile_call


def test_later_calls_use_what_was_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = cached(Plain().affine, cache)
    function(ROWS)
    monkeypatch.setattr(function, "ensure", None)
    assert torch.equal(function(ROWS), function.module.affine(ROWS))


def test_weights_that_changed_in_place_are_used(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    function(ROWS)
    nn.init.ones_(function.module.get_parameter("linear.weight"))
    assert torch.equal(function(ROWS), function.module.affine(ROWS))


def test_weights_that_were_replaced_are_used(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    function(ROWS)
    function.module.linear.weight = nn.Parameter(torch.ones(4, 4))
    assert torch.equal(function(ROWS), function.module.affine(ROWS))


def test_function_that_writes_in_place_does_so_once_for_each_call(cache: Path) -> None:
    model, reference = Cached(), Cached()
    function = cached(model.accumulate, cache)
    for _ in range(3):
        function(ROWS)
        reference.accumulate(ROWS)
    assert torch.equal(model.cache, reference.cache)


def test_module_without_tensors_is_on_the_cpu(cache: Path) -> None:
    class Bare(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    function = cached(Bare().forward, cache)
    assert function.device_kind == "cpu"
    assert torch.equal(function(ROWS), ROWS + 1)


def test_module_on_a_device_that_is_not_built_yet_is_refused(cache: Path) -> None:
    function = cached(Plain().to("meta").affine, cache)
    with pytest.raises((NotYet, ValueError), match="device kind 'meta'"):
        function(ROWS.to("meta"))


def test_name_of_a_local_class_is_readable(cache: Path) -> None:
    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    assert cached(Local().forward, cache).name == "test_name_of_a_local_class_is_readable.Local.forward"


# What TorchAir logs.


def test_saving_and_loading_are_logged_as_torchair_does(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="torchair"):
        cached(Plain().affine, cache)(ROWS)
        cached(Plain().affine, cache)(ROWS)
    lines = [record for record in caplog.records if record.levelname == "INFO" and "Cache " in record.message]
    found = [SAVED.fullmatch(record.getMessage()) for record in lines]
    assert [match and match[1] for match in found] == ["saved to", "loaded from"]
    assert [Path(match[2]).is_file() for match in found if match] == [True, True]


def test_nothing_is_logged_at_torchairs_own_level(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cached(Plain().affine, cache)(ROWS)
    assert capsys.readouterr().out == ""


# Where the cache lies.


def test_cache_dir_may_be_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function = cache_compile(Plain().affine, cache_dir="here/below")
    assert function.root() == tmp_path / "here" / "below"
    warm(Plain().affine, Path("here/below"))
    assert len(files(tmp_path / "here" / "below")) == 1


def test_cache_dir_is_torchairs_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cache_compile(Plain().affine).root() == tmp_path / ".torchair_cache"


def test_cache_dir_is_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHAIR_CACHE_HOME", str(tmp_path / "home"))
    assert cache_compile(Plain().affine).root() == tmp_path / "home"


def test_cache_dir_that_was_given_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHAIR_CACHE_HOME", str(tmp_path / "home"))
    assert cache_compile(Plain().affine, cache_dir=tmp_path / "given").root() == tmp_path / "given"


def test_cache_dir_of_a_launch_is_used_where_none_was_given(tmp_path: Path) -> None:
    token = launch_defaults.set(LaunchDefaults(cache_dir=str(tmp_path / "launch")))
    try:
        function = cache_compile(Plain().affine)
    finally:
        launch_defaults.reset(token)
    assert function.root() == tmp_path / "launch"


def test_cache_dir_that_cannot_be_written_is_a_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    monkeypatch.setattr("cache_store.private_files.os.access", lambda path, mode: False)
    with pytest.raises(UnusableCache, match=rf"directory {cache}: expected writable, .*; chmod u\+rwx {cache}"):
        cached(Plain().affine, cache)(ROWS)
    assert files(cache) == []


def test_cache_dir_of_another_user_is_a_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    monkeypatch.setattr("cache_store.private_files.os.geteuid", lambda: 12345)
    with pytest.raises(UnusableCache, match=rf"{cache}: expected owner uid 12345, found uid \d+; name a cache_dir"):
        cached(Plain().affine, cache)(ROWS)
    assert files(cache) == []


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
def test_ranks_that_were_given_are_in_the_path_of_a_single_rank(
    cache: Path, options: dict[str, int], partition: str
) -> None:
    assert partition in cached(Plain().affine, cache, **options).place().function_dir.parts


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ({}, "world4global_rank2"),
        ({"global_rank": 3}, "world4global_rank3"),
        ({"tp_rank": 0, "pp_rank": 1}, "world4global_rank2_tp_rank0_pp_rank1"),
    ],
)
def test_ranks_of_torch_distributed_are_in_the_path(cache: Path, options: dict[str, int], partition: str) -> None:
    with fake_world(rank=2, world_size=4):
        assert cached(Plain().affine, cache, **options).place().function_dir.parent.name == partition


def test_place_of_a_launch_without_process_groups_is_in_the_path(cache: Path) -> None:
    token = launch_defaults.set(LaunchDefaults(place=(1, 2)))
    try:
        function = cached(Plain().affine, cache)
    finally:
        launch_defaults.reset(token)
    assert function.place().function_dir.parent.name == "world2global_rank1"


# Several variants.


def test_shape_that_the_trace_covers_needs_no_second_variant(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    for rows in (2, 3, 7):
        x = torch.ones(rows, 4)
        assert torch.equal(function(x), function.module.affine(x))
    assert len(files(cache)) == 1


def test_shape_that_the_trace_does_not_cover_adds_a_variant(cache: Path) -> None:
    function = cached(Plain().affine, cache, dynamic=False)
    for rows in (2, 3):
        x = torch.ones(rows, 4)
        assert torch.equal(function(x), function.module.affine(x))
    assert [Path(name).name for name in files(cache)] == ["compiled_module", "compiled_module.1"]
    assert "sizes [2, 4] -> [3, 4]" in reason(function)


def test_every_variant_is_found_again(cache: Path) -> None:
    for rows in (2, 3):
        warm(Plain().affine, cache, torch.ones(rows, 4), dynamic=False)
    function = cached(Plain().affine, cache, dynamic=False)
    for rows in (3, 2):
        function(torch.ones(rows, 4))
        assert outcome(function) == "loaded"


def test_variant_that_was_used_last_is_asked_first(cache: Path) -> None:
    function = cached(Plain().affine, cache, dynamic=False)
    for rows in (2, 3, 2):
        function(torch.ones(rows, 4))
    sizes = [dict_of_sizes(variant.stored.artifact.guards.checks) for variant in function.variants]
    assert sizes == [[2, 4], [3, 4]]


def dict_of_sizes(checks: Any) -> Any:
    return next(expected["sizes"] for _, kind, expected in checks if kind == "tensor" and expected["sizes"][1:])


def test_second_trace_abandons_the_cache_where_that_was_asked(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    function = cached(Plain().affine, cache, dynamic=False, on_recompile="abandon")
    with caplog.at_level(logging.WARNING, logger="torchair"):
        for rows in (2, 3, 2, 5):
            x = torch.ones(rows, 4)
            assert torch.equal(function(x), function.module.affine(x))
    assert "Skip cache as Plain.affine recompiled" in caplog.text
    assert files(cache) == []


def test_one_trace_keeps_the_cache_where_abandoning_was_asked(cache: Path) -> None:
    function = cached(Plain().affine, cache, dynamic=False, on_recompile="abandon")
    function(ROWS)
    function(ROWS)
    assert len(files(cache)) == 1


def test_threads_that_call_at_once_get_right_results(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    barrier = threading.Barrier(4)
    wrong: list[BaseException] = []

    def call() -> None:
        try:
            with torch.no_grad():
                barrier.wait()
                # Its own clone, because a replay of another thread overwrites the output.
                function(ROWS)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            wrong.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(files(cache)) == 1


# Several functions of one module.


def test_two_functions_of_one_module_lie_beside_each_other(cache: Path) -> None:
    model = Plain()
    paths = [warm(model.affine, cache), warm(model.scaled, cache)]
    assert [path.parent.name for path in paths] == ["affine", "scaled"]
    assert paths[0].parent.parent == paths[1].parent.parent


def test_two_functions_of_one_module_do_not_disturb_each_other(cache: Path) -> None:
    model = Plain()
    one, other = cached(model.affine, cache), cached(model.scaled, cache)
    for _ in range(2):
        assert torch.equal(one(ROWS), model.affine(ROWS))
        assert torch.equal(other(ROWS, 3.0), model.scaled(ROWS, 3.0))


def test_two_functions_of_one_name_are_not_mistaken_for_each_other(cache: Path) -> None:
    model = Derived()
    base = super(Derived, model).affine
    warm(model.affine, cache)
    function = cached(base, cache)
    assert torch.equal(function(ROWS), base(ROWS))


# Which calls fit.


def test_arguments_that_the_method_does_not_take_are_a_type_error(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    for _ in range(2):
        with pytest.raises(TypeError, match="unexpected keyword argument 'y'|missing a required argument"):
            function(y=ROWS)
        function(ROWS)


def test_keyword_and_default_arguments_are_taken_as_the_method_does(cache: Path) -> None:
    function = cached(Plain().scaled, cache)
    model = function.module
    assert torch.equal(function(x=ROWS), model.scaled(ROWS))
    assert torch.equal(function(ROWS, 3.0, negate=True), model.scaled(ROWS, 3.0, negate=True))


def test_number_is_followed(cache: Path) -> None:
    function = cached(Plain().repeated, cache)
    for times in (2, 3, 0, 1):
        assert torch.equal(function(ROWS, times), function.module.repeated(ROWS, times))


def test_state_of_the_process_is_followed(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    function(ROWS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = function.module.affine(ROWS)
        assert torch.equal(function(ROWS), expected)


def test_inference_mode_and_no_grad_share_a_variant(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    with torch.inference_mode():
        function(ROWS)
    assert torch.equal(function(ROWS), function.module.affine(ROWS))
    assert len(function.variants) == 1


def test_guards_are_checked_once_by_default(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    function(ROWS)
    function.module.factor = 5
    assert torch.equal(function(ROWS), function.module.linear(ROWS) * 2)


def test_guards_are_checked_on_every_call_where_that_was_asked(cache: Path) -> None:
    function = cached(Plain().affine, cache, guards="always")
    function(ROWS)
    function.module.factor = 5
    assert torch.equal(function(ROWS), function.module.affine(ROWS))
    assert "self.factor: 2 -> 5" in reason(function)


def test_guards_that_fail_are_a_miss_with_the_reason(cache: Path) -> None:
    warm(Plain().affine, cache)
    model = Plain()
    model.factor = 5
    function = cached(model.affine, cache)
    assert torch.equal(function(ROWS), model.affine(ROWS))
    assert (outcome(function), reason(function)) == ("compiled", "self.factor: 2 -> 5")


def test_guards_are_not_checked_where_that_was_asked(cache: Path) -> None:
    warm(Plain().affine, cache)
    model = Plain()
    model.factor = 5
    function = cached(model.affine, cache, guards="skip")
    assert torch.equal(function(ROWS), model.linear(ROWS) * 2)
    assert outcome(function) == "loaded"


# What a later process finds damaged.


def test_corrupt_artifact_is_set_aside_and_compiled_again(cache: Path) -> None:
    path = warm(Plain().affine, cache)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    function = cached(Plain().affine, cache)
    assert torch.equal(function(ROWS), function.module.affine(ROWS))
    assert outcome(function) == "compiled"
    assert "do not match the digest" in reason(function)
    assert path.read_bytes() == whole
    assert path.with_name("compiled_module.corrupt").read_bytes() == whole[:-1]


def test_corrupt_artifact_is_warned_about_by_its_path(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = warm(Plain().affine, cache)
    path.write_bytes(b"")
    with caplog.at_level(logging.WARNING, logger="torchair"):
        cached(Plain().affine, cache)(ROWS)
    assert str(path) in caplog.text


def test_artifact_that_others_can_read_is_not_used(cache: Path) -> None:
    path = warm(Plain().affine, cache)
    path.chmod(0o644)
    found = cached(Plain().affine, cache).find((ROWS,), {})
    assert found.stored is None
    assert f"chmod 600 {path}" in found.reason


def test_artifact_of_another_user_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(Plain().affine, cache)
    monkeypatch.setattr("cache_store.private_files.os.geteuid", lambda: 12345)
    found = cached(Plain().affine, cache).find((ROWS,), {})
    assert found.stored is None
    assert "expected owner uid 12345" in found.reason


# Partitions of other ranks.


def partition(cache: Path, rank: int, world_size: int = 2) -> CachedFunction:
    token = launch_defaults.set(LaunchDefaults(place=(rank, world_size)))
    try:
        return cached(Plain().affine, cache)
    finally:
        launch_defaults.reset(token)


def test_artifact_of_another_rank_is_adopted(cache: Path) -> None:
    partition(cache, 0)(ROWS)
    function = partition(cache, 1)
    assert torch.equal(function(ROWS), function.module.affine(ROWS))
    assert (outcome(function), reason(function)) == ("adopted", "fits world2global_rank0")


def test_artifact_that_was_adopted_lies_in_the_own_partition(cache: Path) -> None:
    for rank in (0, 1):
        partition(cache, rank)(ROWS)
    found = files(cache)
    assert [name.split("/")[1] for name in found] == ["world2global_rank0", "world2global_rank1"]
    assert len({(cache / name).read_bytes() for name in found}) == 1
    assert len({(cache / name).stat().st_ino for name in found}) == 2


def test_artifact_of_another_world_size_is_adopted(cache: Path) -> None:
    partition(cache, 0, world_size=2)(ROWS)
    function = partition(cache, 3, world_size=4)
    function(ROWS)
    assert outcome(function) == "adopted"


def test_own_artifact_is_preferred(cache: Path) -> None:
    for rank in (0, 1):
        partition(cache, rank)(ROWS)
    function = partition(cache, 1)
    function(ROWS)
    assert outcome(function) == "loaded"


# What cannot be cached, with nothing half-written.


def test_compiling_that_is_forbidden_is_an_error_with_the_reason(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMRANK_NO_COMPILE", "1")
    with pytest.raises(
        CompileForbidden, match="Plain.affine would have to be compiled, which is forbidden here: the cache holds"
    ) as raised:
        cached(Plain().affine, cache)(ROWS)
    assert raised.value.reason == "the cache holds nothing for Plain.affine"
    assert not cache.exists()


def test_compiling_that_a_launch_forbids_is_an_error(cache: Path) -> None:
    token = launch_defaults.set(LaunchDefaults(no_compile=True))
    try:
        function = cached(Plain().affine, cache)
    finally:
        launch_defaults.reset(token)
    with pytest.raises(CompileForbidden):
        function(ROWS)


def test_loading_is_not_forbidden_with_compiling(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(Plain().affine, cache)
    monkeypatch.setenv("WARMRANK_NO_COMPILE", "1")
    function = cached(Plain().affine, cache)
    function(ROWS)
    assert outcome(function) == "loaded"


def test_random_operator_is_an_error_with_operator_and_line(cache: Path) -> None:
    with pytest.raises(RandomOp, match=r"(?s)dropout.* draws random numbers.*self.dropout\(self.linear\(x\)\)"):
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
        pytest.raises(BackwardNotSupported, match=r"argument L\['x'\] of Plain.affine requires gradients") as raised,
    ):
        function(ROWS.clone().requires_grad_())
    assert raised.value.argument == "L['x']"
    assert files(cache) == []


def test_argument_that_asks_for_gradients_is_taken_where_none_are_recorded(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    x = ROWS.clone().requires_grad_()
    assert torch.equal(function(x), function.module.affine(x))


def test_failure_does_not_spoil_later_calls(cache: Path) -> None:
    model = Unfit()
    function = cached(model.drops, cache)
    with pytest.raises(RandomOp):
        function(ROWS)
    model.eval()
    assert torch.equal(function(ROWS), model.drops(ROWS))


# The journal of a script.


def test_every_look_up_is_written_to_the_journal(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMRANK_JOURNAL", str(tmp_path / "journal"))
    for _ in range(2):
        cached(Plain().affine, cache)(ROWS)
    entries = journal.read(tmp_path / "journal")
    assert [result.outcome for result, _ in entries] == ["compiled", "loaded"]
    assert {details["root"] for _, details in entries} == {str(cache)}


# Collectives.


class Sums(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, group=self.group)
        return y


def test_function_with_a_collective_is_adopted_by_the_rank_of_another_group(cache: Path) -> None:
    found = []
    for rank in (0, 3):
        with fake_world(rank=rank, world_size=4):
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            function = cached(Sums(pairs[rank // 2]).forward, cache)
            function(ROWS)
            found.append(outcome(function))
    assert found == ["compiled", "adopted"]


def test_function_with_a_collective_is_not_adopted_by_a_group_of_another_size(cache: Path) -> None:
    found = []
    for world_size in (2, 4):
        with fake_world(rank=0, world_size=world_size) as world:
            function = cached(Sums(world).forward, cache)
            function(ROWS)
            found.append(outcome(function))
    assert found == ["compiled", "compiled"]
