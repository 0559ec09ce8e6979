"""Whatever Python state a traced function reads, an artifact does not fit once that state is different."""

from __future__ import annotations

import pytest
import torch

from tests.support.reader import CHANGES, Reader
from tests.support.tracing import Checked, adds_enums, compiled, misfits

X = torch.arange(6.0).reshape(3, 2)


@pytest.fixture(autouse=True)
def _variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMRANK_READER_SET", "set")
    monkeypatch.delenv("WARMRANK_READER", raising=False)


@pytest.mark.one_in(24)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=adds_enums if name == "integer_enum_member" else ()) for name in CHANGES],
)
@torch.no_grad()
def test_artifact_fits_equal_state_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(Reader(name).forward, X)
    assert misfits(artifact, Reader(name).forward, X) == ()
    before = Reader(name)(X)
    changed = Reader(name)
    checked = Checked(artifact.guards, Reader.forward, changed, x=X)
    assert checked.holds()
    CHANGES[name](changed, monkeypatch)
    assert not torch.equal(changed(X), before)
    assert misfits(artifact, changed.forward, X)
    assert not checked.holds()  # nor for a call after the change, once it was loaded
