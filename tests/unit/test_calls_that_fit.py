"""Whatever a call brings, a variant that does not fit never runs: random calls against eager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.tracing import cached
from warmrank.worker.errors import NotPortable, WorkerError
from warmrank.worker.runtime.function import CachedFunction

LAYOUTS = {
    "whole": lambda x: x,
    "turned": lambda x: x.t(),
    "slice": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "row of another": lambda x: torch.stack([x, x])[1],
    "expanded": lambda x: x[:1].expand(x.shape[0] or 2, -1) if x.numel() else x,
}


class Marked(torch.Tensor):
    """A tensor of the user's own kind."""


class Asking(nn.Module):
    """Answers differently for whatever differs, so that another call's graph shows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 3 if x.is_contiguous() else x * 5
        y = y + 7 if x.dtype is torch.float32 else y + 11
        y = y * 13 if x.requires_grad else y
        return y + x.shape[0] if x.shape[0] > x.shape[1] else y - x.shape[1]


class Given(NamedTuple):
    """What one argument is like."""

    rows: int
    columns: int
    dtype: torch.dtype
    layout: str
    requires_grad: bool
    marked: bool

    def tensor(self) -> torch.Tensor:
        numbers = torch.arange(self.rows * self.columns, dtype=torch.float32).view(self.rows, self.columns)
        x = LAYOUTS[self.layout](numbers.clone()).to(self.dtype)
        x = x.detach().requires_grad_(self.requires_grad)
        marked: torch.Tensor = x.as_subclass(Marked) if self.marked else x
        return marked


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CachedFunction]:
    with torch.no_grad():
        yield cached(Asking().forward, tmp_path_factory.mktemp("asked"))


ARGUMENTS = st.builds(
    Given,
    rows=st.integers(0, 5),
    columns=st.integers(0, 5),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    requires_grad=st.booleans(),
    marked=st.sampled_from([False] * 9 + [True]),
)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(given_=ARGUMENTS)
def test_call_equals_eagers_or_is_refused(asked: CachedFunction, given_: Given) -> None:
    x = given_.tensor()
    wanted = asked.module(x)
    try:
        got = asked(x)
    except WorkerError:
        assert given_.marked
        return
    assert (got.dtype, got.shape, type(got)) == (wanted.dtype, wanted.shape, type(wanted))
    assert torch.equal(got, wanted)


@pytest.mark.usefixtures("no_grad")
def test_tensor_of_the_users_own_kind_is_refused_by_name(cache: Path) -> None:
    with pytest.raises(NotPortable, match="Marked"):
        cached(Asking().forward, cache)(torch.ones(2, 3).as_subclass(Marked))


@pytest.mark.usefixtures("no_grad")
def test_kind_of_device_is_looked_at(cache: Path) -> None:
    function = cached(Asking().forward, cache)
    function(torch.ones(2, 3))
    here: Any = function.variants[0]
    assert here.fits((torch.ones(4, 5),), {})
    assert not here.fits((torch.ones(4, 5, device="meta"),), {})
