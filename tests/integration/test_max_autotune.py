"""Mode max-autotune: kernels compiled ahead of time, and kept beside the artifact.

A compile takes seconds, so the tests share what one of them made.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import autotune_models as models
from tests.support.checkout import ROOT, python
from tests.support.launching import rank_spec
from tests.support.stored import open_store
from tests.support.tracing import compiles_ahead, in_mode
from warmrank.cache_store.cache_dir.local import companions
from warmrank.inference import cache_compile, get_backend
from warmrank.orchestrator.inspect.store_contents import verify_cache
from warmrank.worker.configs.compiler_config import LaunchDefaults, launch_scope
from warmrank.worker.errors import CompileForbidden, NotPortable
from warmrank.worker.rank import manifests
from warmrank.worker.runtime.files import offered, remove
from warmrank.worker.runtime.function import CachedFunction

LAUNCH_KEY = "0f" * 32

pytestmark = [compiles_ahead, pytest.mark.usefixtures("no_grad")]


def cached(module: torch.nn.Module, cache_dir: Path, **options: Any) -> CachedFunction:
    return cache_compile(module.forward, config=in_mode("max-autotune"), cache_dir=cache_dir, **options)


def loaded(cache_dir: Path, place: tuple[int, int] | None = None) -> CachedFunction:
    """A cached function of a new module that may not compile."""
    with launch_scope.of(LaunchDefaults(no_compile=True, place=place)):
        return cached(models.mixed(), cache_dir)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[CachedFunction, Path]:
    """A function compiled with its kernels kept, and its cache directory."""
    cache = tmp_path_factory.mktemp("kept")
    function, limit = cached(models.mixed(), cache), sys.getrecursionlimit()
    with torch.no_grad():
        function.ensure(models.mixed_call(), {})
    assert sys.getrecursionlimit() == limit, "Inductor raised it for the process"
    return function, cache


@pytest.fixture
def copied(kept: tuple[CachedFunction, Path], tmp_path: Path) -> Path:
    """A cache directory to spoil."""
    return Path(shutil.copytree(kept[1], tmp_path / "copied"))


def package_in(cache: Path) -> Path:
    (path,) = cache.rglob("*.pt2")
    return path


def child(cache: Path, **environment: str) -> dict[str, Any]:
    """What a fresh process got out of a call."""
    environment.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # it is part of the key
    cwd = Path(environment.get("HOME", ROOT))
    code = "import sys; from tests.support.autotune_models import main; main(sys.argv[1])"
    printed = python("-c", code, str(cache), cwd=cwd, **environment)
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def assert_as_eager(function: CachedFunction, batch: int = 4, n: int = 3) -> None:
    """Results, what was written, and what shares memory with what."""
    reference = models.mixed()
    reference.seen.copy_(seen_by(function))
    call, eager_call = models.mixed_call(batch, n), models.mixed_call(batch, n)
    got, expected = function(*call), reference(*eager_call)
    assert_close = torch.testing.assert_close
    assert_close(got, expected)
    assert_close(call[1], eager_call[1])
    assert_close(seen_by(function), reference.seen)
    with_state = [*call[:3], seen_by(function), mixed_of(function).table]
    eager_state = [*eager_call[:3], reference.seen, reference.table]
    assert sharing([*flat(got), *with_state]) == sharing([*flat(expected), *eager_state])
    strides = [value.stride() for value in flat(got)]
    assert strides == [value.stride() for value in flat(expected)]


def mixed_of(function: CachedFunction) -> models.Mixed:
    assert isinstance(function.module, models.Mixed)
    return function.module


def seen_by(function: CachedFunction) -> torch.Tensor:
    return mixed_of(function).seen


def flat(results: tuple[object, ...]) -> list[torch.Tensor]:
    values = [*results[:-1], results[-1]["last"]]  # type: ignore[index]
    return [value for value in values if isinstance(value, torch.Tensor)]


def sharing(tensors: list[torch.Tensor]) -> list[list[int]]:
    """For each tensor, the positions of those in the same memory."""
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[index for index, other in enumerate(addresses) if other == mine] for mine in addresses]


def test_cold_call_equals_eager(kept: tuple[CachedFunction, Path]) -> None:
    function, _ = kept
    assert_as_eager(function)
    assert function.variants[0].stored.artifact.engine == "aoti"


def test_another_shape_runs_the_same_kernels(kept: tuple[CachedFunction, Path]) -> None:
    function, _ = kept
    assert_as_eager(function, batch=5, n=7)
    assert len(function.variants) == 1


def test_condition_that_inductor_adds_is_a_guard_of_the_artifact(kept: tuple[CachedFunction, Path]) -> None:
    function, cache = kept
    section = json.loads(function.variants[0].stored.artifact.sections["aoti"])
    assert not any(">= 2" in text for text in section["traced"])
    found = loaded(cache).find(models.mixed_call(n=-1), {})
    assert found.stored is None
    assert "n" in found.reason


def test_inputs_that_share_memory_are_replayed(kept, caplog):
    function, _ = kept
    reference = models.mixed()
    reference.seen.copy_(seen_by(function))
    _, cache, flags, n = models.mixed_call()
    eager_cache = cache.clone()
    # Eager adds to the buffer first, and sees it through the argument.
    with caplog.at_level(logging.WARNING, logger="torchair"):
        got = function(seen_by(function).as_strided((4, 8), (1, 4)), cache, flags, n)
    expected = reference(reference.seen.as_strided((4, 8), (1, 4)), eager_cache, flags, n)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(cache, eager_cache)
    assert "share memory" in caplog.text


def test_package_lies_beside_the_artifact_private_and_named_by_content(copied: Path) -> None:
    package = package_in(copied)
    assert package.parent == next(copied.rglob("compiled_module")).parent
    assert package.stat().st_mode & 0o777 == 0o600
    assert companions(package.parent) == (package,)


def test_warm_start_imports_no_compiler_and_equals_cold(kept: tuple[CachedFunction, Path]) -> None:
    _, cache = kept
    first = child(cache, CXX="no-such-compiler", WARMRANK_NO_COMPILE="1")
    assert (first["outcome"], first["heavy"]) == ("loaded", [])
    expected = torch.zeros(6, 8)
    expected[:4] = models.mixed_call()[0]
    torch.testing.assert_close(torch.tensor(first["cache"]), expected)


@pytest.mark.slow
def test_compile_elsewhere_gives_equal_bytes(kept: tuple[CachedFunction, Path], tmp_path: Path) -> None:
    _, cache = kept
    for name in ("tmp", "home", "inductor"):
        (tmp_path / name).mkdir()
    other = child(
        tmp_path / "cache",
        TMPDIR=str(tmp_path / "tmp"),
        HOME=str(tmp_path / "home"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"),
    )
    assert other["outcome"] == "compiled"
    for pattern in ("*.pt2", "compiled_module"):
        (mine,), (theirs,) = cache.rglob(pattern), (tmp_path / "cache").rglob(pattern)
        assert mine.name == theirs.name
        assert mine.read_bytes() == theirs.read_bytes()


def test_adoption_copies_the_package(copied: Path) -> None:
    function = loaded(copied, place=(1, 2))
    assert_as_eager(function)
    assert function.last_result is not None
    assert function.last_result.outcome == "adopted"
    packages = sorted(copied.rglob("*.pt2"))
    assert [path.parent.parent.name for path in packages][-1] == "world2global_rank1"
    assert len({path.read_bytes() for path in packages}) == 1
    assert len({path.stat().st_ino for path in packages}) == 2


@pytest.mark.parametrize(
    ("damage", "state"),
    [(lambda path: path.write_bytes(b"torn"), "corrupt"), (Path.unlink, "missing")],
    ids=["torn", "gone"],
)
def test_damaged_package_is_a_miss_with_its_reason(copied, damage, state, caplog):
    package = package_in(copied)
    damage(package)
    was_there = package.exists()
    (fault,) = verify_cache(copied).faults
    assert str(package) in fault
    with pytest.raises(CompileForbidden, match=rf"{state}: {package.name}"):
        loaded(copied)(*models.mixed_call())
    assert f"{state}: {package.name}" in caplog.text
    assert package.with_name(f"{package.name}.corrupt").exists() is was_there
    assert not package.exists()


def test_damaged_package_is_adopted_whole_from_a_sibling(copied: Path) -> None:
    loaded(copied, place=(1, 2))(*models.mixed_call())
    own = next(copied.rglob("world2global_rank1/forward/*.pt2"))
    own.write_bytes(b"torn")
    function = loaded(copied, place=(1, 2))
    assert_as_eager(function)
    assert own.read_bytes() == package_in_root(copied).read_bytes()


def package_in_root(cache: Path) -> Path:
    (path,) = cache.glob("*/forward/*.pt2")
    return path


def test_package_goes_through_the_store(kept: tuple[CachedFunction, Path], tmp_path: Path) -> None:
    function, cache = kept
    spec = rank_spec(cache, rank=0, world_size=1, entrypoint="made:up")
    stored = function.variants[-1].stored
    manifest = manifests.made(manifests.of_units(spec, [("Mixed.forward", function, stored, ())]))
    assert sorted(entry.path.rpartition("/")[2] for entry in manifest.artifacts) == [
        "compiled_module",
        package_in(cache).name,
    ]
    store = open_store(tmp_path / "store")
    ref = store.publish_partition(LAUNCH_KEY, manifest, cache).ref
    fetched = tmp_path / "fetched"
    store.fetch_partitions([ref], fetched)
    assert_as_eager(loaded(fetched))


def test_offered_artifact_brings_its_package_from_the_store(kept, tmp_path):
    function, cache = kept
    store = open_store(tmp_path / "store")
    stored = function.variants[-1].stored
    for path in (*stored.files().values(), stored.path):
        store.put_blob(path)
    elsewhere = loaded(tmp_path / "elsewhere")
    found = offered(elsewhere.place(), stored.sha256, store, cache_root=elsewhere.root())
    assert found is not None
    assert found.files()[package_in(cache).name].read_bytes() == package_in(cache).read_bytes()


def test_abandoned_cache_loses_its_packages(copied: Path) -> None:
    function = cached(models.mixed(), copied, on_recompile="abandon")
    function(*models.mixed_call())
    remove(function.place().function_dir)
    assert list(copied.rglob("*.pt2")) == []


@pytest.mark.slow
def test_torch_compile_takes_the_backend() -> None:
    backend = get_backend(compiler_config=in_mode("max-autotune"))
    module, reference = models.small(), models.small()
    x = torch.linspace(-1, 1, 16).reshape(2, 8)
    compiled = torch.compile(module, backend=backend, dynamic=True, fullgraph=True)
    torch.testing.assert_close(compiled(x), reference(x))
    torch.testing.assert_close(module.seen, reference.seen)


class State(torch.nn.Module):
    """Hands state on from buffer to buffer, and computes with and without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.before = torch.nn.Buffer(torch.ones(3, 3)), torch.nn.Buffer(torch.zeros(3, 3))
        self.left, self.right = torch.nn.Buffer(torch.ones(3)), torch.nn.Buffer(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        seen = self.last + x
        self.before.copy_(self.last)
        self.last.copy_(x)
        kept = self.left.clone()
        self.left.copy_(self.right)
        self.right.copy_(kept)
        with torch.autocast("cpu", enabled=False):
            exact = x @ x
        return seen, x @ x, exact


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CachedFunction:
    """A function that was compiled under autocast."""
    function = cache_compile(
        State().forward, config=in_mode("max-autotune"), cache_dir=tmp_path_factory.mktemp("state")
    )
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        function.ensure((torch.ones(3, 3),), {})
    return function


def test_buffer_that_was_overwritten_is_read_before_that(compiled: CachedFunction) -> None:
    model = compiled.module
    eager = copy.deepcopy(model)
    x = torch.arange(9.0).reshape(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(3):
            torch.testing.assert_close(compiled(x + step), eager(x + step))
            torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))


def test_autocast_of_the_caller_does_not_reach_what_is_computed_without(compiled: CachedFunction) -> None:
    x = torch.full((3, 3), 1 + 2**-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, cast, exact = compiled(x)
    assert (cast.dtype, exact.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(exact, x @ x)


class Cache(torch.nn.Module):
    """Writes to a part of a cache, and then to others what it reads of the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.nn.Buffer(torch.zeros(8, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, at, x)
        first = self.cache[:4]
        first.mul_(2)
        self.cache[4:].add_(first)
        return self.cache.sum(0)


@pytest.mark.slow
def test_what_is_read_between_two_writes_is_not_computed_after_them(tmp_path: Path) -> None:
    model, eager = Cache(), Cache()
    function = cache_compile(model.forward, config=in_mode("max-autotune"), cache_dir=tmp_path)
    for step in range(3):
        x, at = torch.full((2, 4), step + 0.5), torch.tensor([step, step + 1])
        torch.testing.assert_close(function(x, at), eager(x, at))
        torch.testing.assert_close(model.cache, eager.cache)


@torch.library.custom_op("warmrank_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float, *, times: int = 2, plus: int = 1, name: str = "a") -> torch.Tensor:
    return x * by * times + plus + len(name)


@scaled.register_fake
def _(x: torch.Tensor, by: float, *, times: int = 2, plus: int = 1, name: str = "a") -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("warmrank_tests::noted", mutates_args=())
def noted(x: torch.Tensor) -> None:
    """Has no result."""


@noted.register_fake
def _(x: torch.Tensor) -> None:
    """Has none either."""


class Operators(torch.nn.Module):
    """Calls operators by name that have defaults, some on complex numbers, some that return bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 2)
        self.bytes = 2 * torch.arange(40, dtype=torch.uint8) + 3
        self.signed = -1 - torch.arange(40, dtype=torch.int8)

    def forward(self, x: torch.Tensor, index: torch.Tensor, number: int) -> Any:
        z = torch.view_as_complex(self.table(index))
        scales = scaled(x, 2.0), scaled(x, 3.0, plus=4), scaled(x, 3.0, times=4, name="bb")
        computed = z - 1, 2.5 - z, z * number, z[0] / 2, z - z * 2, 1j - z, z + True, z == 1, z.isclose(z * 1)
        large = index.to(torch.uint8) * 100
        powers = 2**index, (-3) ** index.int(), 2.5**index, index**40, index.int() ** 3, number**index
        of_numbers = x % number, number % (x + 1), x // number, torch.fmod(x, number / 3), x.half() % number
        filled = torch.full((2,), 1 + 2j), z[None].tril(), z ** (1 + 1j), z.masked_fill(x > 0, 1j), z.sgn()
        of_nothing = torch.var_mean(x[:0]), x[:0].mean(), x[:0].sum(), x[:0].prod()
        return (
            scales,
            computed,
            large.any() * 3,
            large.all(0),
            large.any(0, keepdim=True) + large,
            of_nothing,
            powers,
            of_numbers,
            filled,
            torch.min(index.repeat(9, 2) > 0, 0),
            torch.sort(-x, out=(torch.empty(3), torch.empty(3, dtype=torch.int64))),
            [f(self.bytes) for f in (torch.amin, torch.min, torch.argmin)],
            [f(self.signed) for f in (torch.amax, torch.max, torch.argmax)],
            self.bytes.prod(dtype=torch.int8),
            torch.nn.functional.multilabel_margin_loss(x, index % 1 - 1),
            torch.nn.functional.fractional_max_pool3d(
                torch.arange(343.0).sin().reshape(1, 7, 7, 7),
                3,
                (2, 3, 4),
                _random_samples=x.reshape(1, 1, 3) / 3,
            ),
        )

    def noting(self, x: torch.Tensor) -> torch.Tensor:
        noted(x)
        return x + 1


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> CachedFunction:
    return cache_compile(
        Operators().forward, config=in_mode("max-autotune"), cache_dir=tmp_path_factory.mktemp("operators")
    )


@pytest.mark.filterwarnings("ignore:var_mean")
@pytest.mark.parametrize("number", [3, 5])
def test_types_and_values_of_operators_are_eagers(operators: CachedFunction, number: int) -> None:
    given = torch.arange(3.0), torch.tensor([1, 4, 0]), number
    torch.testing.assert_close(operators(*given), operators.module.forward(*given), equal_nan=True)


def test_error_of_an_operator_is_eagers(operators: CachedFunction) -> None:
    given = torch.arange(3.0), torch.tensor([1, 9, 0]), 3
    with pytest.raises(IndexError) as wanted:
        operators.module.forward(*given)
    with pytest.raises(IndexError) as found:
        operators(*given)
    assert str(found.value) == str(wanted.value)


class Rows(torch.nn.Module):
    """Looks up rows by numbers, in each of the ways that Inductor's own kernels take others than eager's."""

    def forward(self, x: torch.Tensor, *rows: torch.Tensor) -> Any:
        selected, copied, added, reduced, unpooled, single, filled = rows
        cell, first = x[0, 0], single[1:]
        return (
            x.index_select(0, selected), x.t().index_select(1, selected),
            x[:, 0].index_select(0, selected[0]), x.index_copy(0, copied, x[:2] + 5),
            x.index_add(0, added, x[:2], alpha=2), x.bfloat16().index_add(0, added, x[:2].bfloat16()),
            x.scatter_reduce(0, reduced[:, None].expand(2, 3), x[:2] + 5, "amax"),
            torch.nn.functional.max_unpool1d(x[None, :2, :2], unpooled[None, :, None].expand(1, 2, 2), [2]),
            cell.index_select(0, first), cell.index_add(0, first, cell, alpha=3),
            cell.index_copy(0, first, cell + 1), x[0].index_copy(0, first, cell),
            x.index_fill(0, filled, 2.5), cell.index_fill(0, filled[1:] * 0 - 1, cell),
        )  # fmt: skip


@pytest.mark.slow
def test_row_that_is_not_there_is_an_error_as_in_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")  # where torch refuses eager's kernels for which it has a decomposition
    x, good = torch.arange(12.0).reshape(4, 3), [torch.tensor([2, 0]) for _ in range(7)]
    function = cache_compile(Rows().forward, config=in_mode("max-autotune"), cache_dir=tmp_path)
    torch.testing.assert_close(function(x, *good), function.module.forward(x, *good))
    given = [x, *good[:6], torch.tensor([1, -1])]  # which counts from the end
    torch.testing.assert_close(function(*given), function.module.forward(*given))
    for number, bad in [*itertools.product(range(6), (-1, 4)), (6, 4), (6, -5)]:
        rows = [*good[:number], torch.tensor([1, bad]), *good[number + 1 :]]
        for forward in (function.module.forward, function):
            with pytest.raises((IndexError, RuntimeError)):
                forward(x, *rows)


class Checked(torch.nn.Module):
    """Losses of numbers and labels that must be in range, and quotients of integers."""

    def forward(self, x: torch.Tensor, label: torch.Tensor, divisor: torch.Tensor) -> Any:
        functional = torch.nn.functional
        numbers = torch.tensor([7, -7, 3, 0])
        return (
            torch.div(numbers, divisor, rounding_mode="trunc") + torch.div(numbers, 2, rounding_mode="trunc"),
            functional.binary_cross_entropy(x, torch.ones_like(x)),
            functional.multi_margin_loss(x, label),
            functional.multilabel_margin_loss(x, label[:, None].expand(2, 3)),
        )


def test_what_is_out_of_range_is_an_error_as_in_eager(tmp_path: Path) -> None:
    function = cache_compile(Checked().forward, config=in_mode("max-autotune"), cache_dir=tmp_path)
    x, label, divisor = torch.rand(2, 3), torch.tensor([2, 0]), torch.tensor([2, 2, -3, 5])
    torch.testing.assert_close(function(x, label, divisor), function.module.forward(x, label, divisor))
    for call in ((x + 1, label, divisor), (x, label + 1, divisor), (x, label, divisor - 2)):
        with pytest.raises(RuntimeError) as wanted:
            function.module.forward(*call)
        with pytest.raises(RuntimeError, match=re.escape(str(wanted.value))):
            function(*call)


class Windows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_meta:
            return x + 1
        x.unfold(0, 2, 4)[1:].mul_(3)
        return x + 1


@pytest.mark.parametrize(
    ("device", "reason"),
    [("cpu", r"mul_\.Tensor writes through unfold"), ("meta", "an input is a tensor on device meta")],
)
def test_write_through_windows_and_device_meta_are_refused(device: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotPortable, match=reason):
        cached(Windows(), tmp_path)(torch.arange(8.0, device=device))


class Rewritten(torch.nn.Module):
    """Inductor's own rewrites take numbers for finite, rows for some, and what is multiplied by 0 for 0."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()

    def forward(self, x: torch.Tensor, q: torch.Tensor, mask: torch.Tensor, index: torch.Tensor) -> Any:
        positions, rows = torch.arange(2049, device=x.device), x[None, :3, :4]
        return (
            torch.addmm(x[3:, :2], x[:1], x[:, :2].repeat(2, 1)[:5], beta=0),
            positions.half().float(),
            positions.to(torch.uint8).to(torch.int32) + 1,
            x * 0,
            0 / x,
            x.half() * 0,
            self.attention(rows, rows, rows, need_weights=False),
            torch.softmax(q @ q.transpose(-1, -2) / 2.0 + mask, -1) @ q,
            torch.full((3,), 2.7, dtype=torch.int64).cumsum(0),
            torch.zeros(2, 3, dtype=torch.float64).scatter(1, index, 0.3),
            torch.softmax(mask[0] * 0.0, -1),
            (q.half() * 3).float().softmax(-1),
        )


@pytest.mark.slow
def test_rewrites_of_graphs_that_are_not_exact_are_left_out(tmp_path: Path) -> None:
    x = torch.arange(20.0).reshape(4, 5) - 7
    x[3] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 2.0])
    mask = torch.tensor([[0.0, 0.0, 0.0], [-float("inf")] * 3, [3e38, -3e38, 0.0]])
    given = x, torch.rand(1, 2, 3, 4), mask, torch.tensor([[1], [2]])
    function = cached(Rewritten(), tmp_path)
    torch.testing.assert_close(function(*given), function.module.forward(*given), equal_nan=True)
    with pytest.raises(RuntimeError, match="out of bounds"):
        function(*given[:3], torch.tensor([[1], [3]]))


class Masked(torch.nn.Module):
    def forward(self, x: torch.Tensor, kept: torch.Tensor, length: int) -> torch.Tensor:
        mask = torch.full((x.shape[-2], length), 0.5)
        return x @ kept.transpose(-1, -2) + mask[:, : kept.shape[-2]]


@pytest.mark.slow
def test_length_of_a_cache_may_follow_from_a_number(tmp_path: Path) -> None:
    function = cache_compile(Masked().forward, config=in_mode("max-autotune"), cache_dir=tmp_path)
    for length in (8, 6):
        given = torch.ones(2, 3, 4), torch.ones(2, length, 4), length
        torch.testing.assert_close(function(*given), function.module.forward(*given))


def test_operator_that_returns_nothing_is_refused_by_name(tmp_path: Path) -> None:
    function = cache_compile(Operators().noting, config=in_mode("max-autotune"), cache_dir=tmp_path)
    with pytest.raises(NotPortable, match=r"warmrank_tests\.noted\.default returns nothing(?s:.*)noted\(x\)"):
        function(torch.ones(3))


class SixteenBits(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> Any:
        half, short = x.half(), (x * 1.1).bfloat16()
        beside = [(y / n, y * n, n * y, y + n, n - y, y > n) for y in (x.half(), x.bfloat16())]
        normed = torch.rms_norm(half, (8,)).float() * 2
        loss = torch.nn.functional.mse_loss
        once = [
            (
                *(torch.full_like(y, 0.1) + y, torch.full_like(y, 0.1) * y, y + 0.1),
                *(y**3, y.add(x0, alpha=0.3), y.lerp(x0, 0.7), torch.nn.functional.glu(y), loss(y, x0)),
            )
            for y, x0 in ((half, half.cos()), (short, short.cos()))
        ]
        return short.float(), short * 1.5 + short, half * 1.5 + half, normed, beside, once


@pytest.mark.slow
def test_sixteen_bits_are_rounded_to_as_in_eager_and_numbers_beside_them_are_not(tmp_path: Path) -> None:
    function = cache_compile(SixteenBits().forward, config=in_mode("max-autotune"), cache_dir=tmp_path)
    x = torch.randn(64, 8)
    for n in (2051, 257, 70_000):
        torch.testing.assert_close(function(x, n), SixteenBits()(x, n), rtol=0, atol=0)
