"""What a caller can observe of a call beside its values, in both modes: as eager, or a miss, or a refusal."""

from __future__ import annotations

import copy
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tests.support.tracing import ROWS, cached, compiles_ahead, in_mode, outcome
from warmrank.worker.errors import NotPortable, WorkerError
from warmrank.worker.runtime.function import CachedFunction
from warmrank.worker.torch_private import libraries
from warmrank.worker.torch_private.warm import ambient

pytestmark = pytest.mark.usefixtures("no_grad")
both_modes = pytest.mark.parametrize(
    "mode", ["reduce-overhead", pytest.param("max-autotune", marks=[compiles_ahead, pytest.mark.slow])]
)


def cached_in_mode(method: Any, cache: Path, mode: str) -> CachedFunction:
    return cached(method, cache, config=in_mode(mode))


@pytest.fixture
def switches() -> Iterator[Any]:
    """Switches of torch, put back."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision, matmul.allow_fp16_reduced_precision_reduction
    yield matmul
    matmul.fp32_precision, matmul.allow_fp16_reduced_precision_reduction = before


class Chosen(torch.nn.Module):
    """Calls one function."""

    def __init__(self, choice: Any) -> None:
        super().__init__()
        self.choice = choice

    def forward(self, x: torch.Tensor, y: Any) -> Any:
        return self.choice(x, y)


class Mirrored(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values = np.arange(3.0)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.from_numpy(self.values.copy()) * x


class Raising:
    def __init__(self, factor: int) -> None:
        self._factor = factor

    @property
    def factor(self) -> int:
        if self._factor < 0:
            msg = "no factor"
            raise RuntimeError(msg)
        return self._factor


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = Raising(2)

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.scale.factor


@both_modes
def test_precision_of_the_newer_switches_is_followed(cache: Path, mode: str, switches: Any) -> None:
    model = Chosen(lambda x, _: x @ x)
    function = cached_in_mode(model.forward, cache, mode)
    x = torch.ones(2, 2)
    for precision in ("ieee", "tf32", "ieee"):
        switches.fp32_precision = precision
        assert torch.equal(function(x, None), model(x, None))
    assert len(function.variants) == 2


def test_state_that_cannot_be_looked_at_is_a_miss(cache: Path) -> None:
    model = Mirrored()
    function = cached(model.forward, cache)
    x = torch.ones(3)
    assert torch.equal(function(x), model(x))
    model.values = np.arange(3.0)[::-1]
    with pytest.raises(WorkerError, match=r"negative|numpy"):
        function(x)
    scaled = Scaled()
    function = cached(scaled.forward, cache)
    assert torch.equal(function(x), scaled(x))
    scaled.scale = Raising(-1)
    with pytest.raises(WorkerError, match="no factor"):
        function(x)


class Related(torch.nn.Module):
    """Returns tensors that share memory with what it was given, and what they are to it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2, 3))
        self.h = torch.nn.Buffer(torch.zeros(2, 3))
        self.c = torch.nn.Buffer(torch.ones(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> Any:
        whole = x.view(2, 3), x.contiguous(), x.to(torch.float32), x.reshape(2, 3), x.expand(2, 3), x.view(6)
        parts = x[1:], x.t(), x[:, 1].detach(), x.view(torch.int32), self.c.conj(), torch.view_as_real(self.c)
        written = self.h.add_(x), self.h.view(2, 3), self.h[1:].mul_(2)
        made = x + 1
        detached = x.detach(), self.w.detach(), self.w.view(6), self.w.view(2, 3).detach()
        return *whole, *parts, *written, made, made[1:], made.view(6), *detached, x


def relations(model: Related, x: torch.Tensor, found: Any) -> list[Any]:
    known = {id(x): "x", id(model.h): "h", id(model.w): "w", id(model.c): "c", id(None): None}
    return [
        (
            known.get(id(y)),
            known.get(id(y._base), "another"),
            (type(y), y.dtype, y.shape, y.stride(), y.storage_offset()),
            (y.requires_grad, y.is_conj()),
            y.resolve_conj().tolist(),
        )
        for y in found
    ]


@both_modes
@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
def test_outputs_are_to_inputs_what_they_are_in_eager(cache: Path, mode: str, inference: bool) -> None:
    model, eager = Related(), Related()
    function = cached_in_mode(model.forward, cache, mode)
    x, same = torch.ones(2, 3), torch.ones(2, 3)
    for _ in range(4):
        with torch.inference_mode(mode=inference):
            found, wanted = function(x), eager(same)
            ours, theirs = relations(model, x, found), relations(eager, same, wanted)
            if inference or mode == "max-autotune":  # new tensors share memory, but know no base
                ours[15:18] = theirs[15:18] = []
            assert ours == theirs
            for y in found[:-1]:
                if y.dim() == 2 and y is not x and y is not model.h:
                    y.t_()
    assert x.shape == model.h.shape == model.w.shape == (2, 3)


@both_modes
def test_write_through_an_output_is_known_to_autograd(cache: Path, mode: str) -> None:
    model = Related()
    function = cached_in_mode(model.forward, cache, mode)
    for _ in range(3):
        x = torch.ones(2, 3)
        before = x._version
        function(x)[6].add_(1)
        assert x._version > before


@both_modes
def test_write_of_a_call_is_known_to_autograd(cache: Path, mode: str) -> None:
    model = Related()
    function = cached_in_mode(model.forward, cache, mode)
    x = torch.ones(2, 3)
    for _ in range(4):
        weight = torch.ones(2, 3, requires_grad=True)
        with torch.enable_grad():
            loss = (weight * model.h).sum()
        function(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@both_modes
def test_view_of_another_tensor_at_the_same_address_is_one_of_that(cache: Path, mode: str) -> None:
    model = Related()
    function = cached_in_mode(model.forward, cache, mode)
    x = torch.ones(2, 3)
    for _ in range(3):
        alias = x.detach()
        found = function(alias)
        assert found[1] is alias
        assert found[6]._base is alias


class Cached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.cache = torch.nn.Buffer(torch.zeros(4, 3))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:
        x.data.add_(1)
        self.cache.data.index_copy_(0, at, x)
        return self.linear.weight.data.sum() * x, self.linear(x.data), x.data, self.cache.data[1:]


@both_modes
def test_data_of_a_tensor_is_read_and_written(cache: Path, mode: str) -> None:
    model = Cached()
    eager = copy.deepcopy(model)
    function = cached_in_mode(model.forward, cache, mode)
    at = torch.tensor([0, 3])
    x, same = torch.ones(2, 3), torch.ones(2, 3)
    for _ in range(3):
        for ours, theirs in zip(function(x, at), eager(same, at), strict=True):
            torch.testing.assert_close(ours, theirs)
        assert torch.equal(model.cache, eager.cache)
        assert torch.equal(x, same)


def test_tensor_that_lies_at_no_address_is_taken(cache: Path) -> None:
    model = Chosen(lambda x, _: x.to_dense() * 2)
    function = cached(model.forward, cache)
    x = ROWS.to_mkldnn()
    for _ in range(3):
        assert torch.equal(function(x, None), model(x, None))


class Pair(torch.Tensor):
    """Two tensors as one."""

    one: torch.Tensor
    other: torch.Tensor

    @staticmethod
    def __new__(cls, one: torch.Tensor, other: torch.Tensor) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)
        made.one, made.other = one, other
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["one", "other"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], meta: Any, size: Any, stride: Any) -> Pair:
        return Pair(inner["one"], inner["other"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        ones, others = (
            func(*[getattr(item, name) if isinstance(item, Pair) else item for item in args])
            for name in ("one", "other")
        )
        return Pair(ones, others)


class Wrapping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = torch.nn.Parameter(Pair(torch.ones(3), torch.ones(3)))

    def given(self, x: Any) -> Any:
        return x * 2

    def own(self, x: torch.Tensor) -> Any:
        return x * (self.kept * 2).one

    def within(self, x: torch.Tensor) -> Any:
        both: Any = Pair(x, x) * 2
        return both.one


@pytest.mark.parametrize(
    ("method", "x", "where"),
    [
        ("given", Pair(torch.ones(3), torch.ones(3)), r"L\['x'\] is a Pair"),
        ("own", torch.ones(3), r"_parameters\['kept'\] is a Pair"),
        ("within", torch.ones(3), "both: Any = Pair"),
        (
            "given",
            torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
            r"L\['x'\] is a NestedTensor",
        ),
    ],
    ids=["argument", "parameter", "within", "jagged"],
)
def test_tensor_made_of_others_is_refused_by_name(cache: Path, method: str, x: Any, where: str) -> None:
    function = cached(getattr(Wrapping(), method), cache)
    with pytest.raises(NotPortable, match=f"(?s){where}.*hand over the plain tensors|plain tensors.*{where}"):
        function(x)


def with_other_default(x: torch.Tensor, _y: Any) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    ones = torch.ones(2)
    torch.set_default_dtype(torch.float32)
    return x + ones


def sets(switch: Callable[[], None]) -> Callable[..., torch.Tensor]:
    def choice(x: torch.Tensor, _y: Any) -> torch.Tensor:
        switch()
        return x + 1

    return choice


SETTING = {
    "another default": with_other_default,
    "deterministic": sets(lambda: torch.use_deterministic_algorithms(True)),
    "autocast": sets(lambda: torch.set_autocast_enabled("cpu", True)),
    "precision": sets(lambda: torch.set_float32_matmul_precision("medium")),
    "flash": sets(lambda: torch.backends.cuda.enable_flash_sdp(False)),
    "autocast cache": sets(lambda: torch.set_autocast_cache_enabled(False)),
}


@pytest.mark.parametrize("setting", SETTING.values(), ids=SETTING)
def test_function_that_sets_a_switch_of_the_process_is_refused(cache: Path, setting: Any) -> None:
    function = cached(Chosen(setting).forward, cache)
    before = ambient("cpu")
    for _ in range(2):  # no artifact is left that the second call finds
        with pytest.raises(
            WorkerError, match=r"sets a switch of the whole process|set_autocast_(cache_)?enabled"
        ):
            function(torch.ones(2), None)
    assert ambient("cpu") == before


def by_math(x: torch.Tensor, _y: Any) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(x, x, x, is_causal=True)


def by_flash_then_any(x: torch.Tensor, _y: Any) -> torch.Tensor:
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        x = scaled_dot_product_attention(x, x, x)
    return scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("attention", [by_math, by_flash_then_any])
@both_modes
def test_choice_of_an_attention_kernel_counts_within_its_scope(
    cache: Path, mode: str, attention: Any
) -> None:
    torch.manual_seed(0)
    model, x, before = Chosen(attention), torch.randn(1, 2, 5, 8), ambient("cpu")
    function = cached_in_mode(model.forward, cache, mode)
    for _ in range(3):
        torch.testing.assert_close(function(x, None), model(x, None))
    assert ambient("cpu") == before


def asserting(x: torch.Tensor, _y: Any) -> torch.Tensor:
    torch._assert_async(x.sum() < 10)
    return x + 1


@both_modes
def test_assertion_without_a_result_is_kept(cache: Path, mode: str) -> None:
    function = cached_in_mode(Chosen(asserting).forward, cache, mode)
    for number in (1.0, 2.0, 3.0):
        assert torch.equal(function(torch.full((3,), number), None), torch.full((3,), number + 1))
    with pytest.raises(RuntimeError, match="nonzero"):
        function(torch.full((3,), 5.0), None)


def scaled_quotient(x: torch.Tensor, y: Any) -> torch.Tensor:
    return torch.addcdiv(x.clone().addcdiv_(x, x + 2, value=y), x, x + 3, value=y)


def test_fused_quotient_rounds_as_eager_and_asks_for_no_operator_of_inductors(cache: Path) -> None:
    model = Chosen(scaled_quotient)
    function = cached(model.forward, cache)
    x = torch.linspace(0.1, 7.0, 999)
    assert torch.equal(function(x, -0.37), model(x, -0.37))
    assert "prims" not in str(function.variants[0].stored.artifact.sections)


class Encoder(nn.Module):
    def __init__(self, norm: nn.Module | None = None, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.inner = nn.TransformerEncoder(layer, 2, norm, **options)

    def forward(self, x: torch.Tensor, padded: torch.Tensor | None, mask: torch.Tensor | None) -> Any:
        return self.inner(x, mask=mask, src_key_padding_mask=padded)


LAST = torch.tensor([[False, False, False], [False, False, True], [True, True, True]])
BETWEEN = torch.tensor([[False, True, False], [False, False, True], [False, False, False]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # which is eager's
@pytest.mark.one_in(5)
@pytest.mark.parametrize("padded", [LAST, BETWEEN, LAST.float() * -1e9, BETWEEN.float() * -0.5])
@pytest.mark.parametrize("options", [{}, {"norm": nn.LayerNorm(8)}, {"mask_check": False}])
def test_padding_of_an_encoder_is_filled_with_zeros_as_by_eager(padded, options, cache):
    model, x = Encoder(**options).eval(), torch.randn(3, 3, 8)
    for function in (cached(model.forward, cache), cached(model.forward, cache)):
        with torch.no_grad():
            expected = model(x, padded, None)
        assert torch.allclose(function(x, padded, None), expected, atol=1e-6)


def test_masks_of_an_encoder_are_taken_without_a_look_at_their_data(cache: Path) -> None:
    model, x = Encoder().eval(), torch.randn(3, 3, 8)
    function = cached(model.forward, cache)
    with torch.no_grad():
        for padded, mask in ((None, CAUSAL), (BETWEEN.float(), CAUSAL), (None, None)):
            assert torch.equal(function(x, padded, mask), model(x, padded, mask))


def test_encoder_itself_with_padding_is_refused(cache: Path) -> None:
    encoder, x = Encoder().inner.eval(), torch.randn(3, 3, 8)
    with pytest.raises(NotPortable, match="call it within a module of your own, or make it with enable_"):
        cached(encoder.forward, cache)(x, src_key_padding_mask=LAST)
    assert cached(encoder.forward, cache)(x).shape == x.shape


def test_attention_takes_eager_s_fast_path(cache: Path) -> None:
    """Of a row that is masked as a whole, the slow one makes zeros in place of NaN."""
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(3, 3, 8)
    options = {"key_padding_mask": LAST, "need_weights": False}
    with torch.no_grad():
        expected, _ = attention(x, x, x, **options)
    found, _ = cached(attention.forward, cache)(x, x, x, **options)
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert expected.isnan().any()


class Results(OrderedDict[str, Any]):
    """Members by names and by places, as what models of transformers return."""

    def __init__(self, first: Any, inner: Any = None) -> None:
        super().__init__()
        self["first"] = first
        if inner is not None:
            self["inner"] = inner

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


STORING: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "within another": lambda x, y: Results(x, Results(x + y)),
    "a member by its place": lambda x, y: Results(x, inner=Results(x + y))[1][0],
    "an object": lambda x, y: Chosen(Results(x + y)).choice[0],
    "a dict": lambda x, y: dict(kept=Results(x + y))["kept"][0],  # noqa: C408 - of C
    "an ordered dict": lambda x, y: OrderedDict(kept=Results(x + y))["kept"][0],
}


@pytest.mark.parametrize("store", STORING.values(), ids=STORING)
def test_container_with_own_methods_may_be_stored_anywhere(cache: Path, store: Any) -> None:
    model, x = Chosen(store), torch.ones(3)
    for way in ("compiled", "loaded"):
        function = cached(model.forward, cache)
        found, expected = function(x, 2.0), model(x, 2.0)
        assert type(found) is type(expected)
        assert str(found) == str(expected)
        assert outcome(function) == way


def test_container_with_own_methods_is_not_copied_as_a_whole(cache: Path) -> None:
    model = Chosen(lambda x, y: dict(Results(x + y))["first"])
    with pytest.raises(NotPortable, match="takes a Results as a whole"):
        cached(model.forward, cache)(torch.ones(3), 2.0)


def test_distribution_that_checks_values_is_refused_with_a_remedy(cache: Path) -> None:
    model, x = Chosen(lambda x, y: torch.distributions.Normal(x, 1.0, **y).log_prob(x + 1)), torch.ones(3)
    function = cached(model.forward, cache)
    with pytest.raises(NotPortable, match="pass validate_args=False"):
        function(x, {"validate_args": True})
    assert torch.equal(function(x, {"validate_args": False}), model(x, {"validate_args": False}))


class Limited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.limits: Any = torch.finfo(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.limits.max + self.limits.bits + len(self.limits.dtype)


def test_limits_of_a_dtype_may_be_an_attribute(cache: Path) -> None:
    model, x = Limited(), torch.ones(3)
    for way in ("compiled", "loaded"):
        function = cached(model.forward, cache)
        for limits in (torch.finfo(torch.float32), torch.finfo(torch.float16), torch.iinfo(torch.int8)):
            model.limits = limits
            assert torch.equal(function(x), model(x))
            assert outcome(function) == way


def test_lock_is_refused_with_a_remedy_and_the_place(cache: Path) -> None:
    remedy = r"takes a lock, .* call the function once without the cache"
    place = rf"\(test_like_eager\.py:{held.__code__.co_firstlineno + 1} in held, from .* in Chosen\.forward\)"
    with pytest.raises(NotPortable, match=f"{remedy}.*{place}"):
        cached(Chosen(held).forward, cache)(torch.ones(3), threading.Lock())


def held(x: torch.Tensor, lock: Any) -> torch.Tensor:
    with lock:
        return x + 1


class Dividing(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            x // 0.3,
            x // y,
            x % 6.28,
            torch.remainder(x, y),
            torch.fmod(x, 0.3),
            5.5 % x,
            torch.nextafter(x, y),
        )


@both_modes
def test_rounded_quotients_and_remainders_of_floats_are_eagers(mode: str, cache: Path) -> None:
    model = Dividing()
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.tensor([1.5, 2.7, 3.0, -0.3, -0.6, 100.0, 1e5, 0.3], dtype=dtype)
        y = torch.full_like(x, 0.3)
        found = cached(model.forward, cache, config=in_mode(mode))(x, y)
        assert [*map(torch.equal, found, model(x, y))] == [True] * 7


@torch.library.custom_op("warmrank_like_eager::bounded", mutates_args=())
def bounded(x: torch.Tensor, bounds: list[float]) -> torch.Tensor:
    return x.clamp(*bounds)


@bounded.register_fake
def _(x: torch.Tensor, bounds: list[float]) -> torch.Tensor:
    del bounds
    return torch.empty_like(x)


@compiles_ahead
@pytest.mark.slow
def test_operator_that_kernels_cannot_hand_an_infinity_is_refused_by_name(cache: Path) -> None:
    function = cached_in_mode(Chosen(bounded).forward, cache, "max-autotune")
    with pytest.raises(NotPortable, match="warmrank_like_eager::bounded takes an infinite number"):
        function(torch.ones(2), [0.0, math.inf])


@compiles_ahead
@pytest.mark.slow
def test_library_is_mapped_once_however_often_it_is_opened(cache: Path) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("warmrank-aoti-")

    x, counts = torch.linspace(0.1, 7.0, 99), []
    for _ in range(3):
        function = cached_in_mode(Chosen(torch.add).forward, cache, "max-autotune")
        assert torch.equal(function(x, -0.37), x - 0.37)
        counts.append(mapped())
        del function
    assert counts[0] == counts[1] == counts[2] > 0
    places = [*libraries._places.values()]
    for place in places:
        place.mkdir()  # as while another thread opens it
    function = cached_in_mode(Chosen(torch.add).forward, cache, "max-autotune")
    assert torch.equal(function(x, -0.37), x - 0.37)
    for place in places:
        place.rmdir()
