"""Device kinds: which are built, and what is said of the others."""

from __future__ import annotations

import pytest

from worker.devices import backend_for
from worker.errors import NotYet


def test_cpu_is_built() -> None:
    backend = backend_for("cpu")
    assert (backend.kind, backend.collectives) == ("cpu", "gloo")


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_kind_that_is_not_built_yet_is_named(kind: str) -> None:
    with pytest.raises(NotYet, match=f"not yet built: device kind '{kind}'; use device kind 'cpu'"):
        backend_for(kind)


def test_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no device kind 'tpu'; known kinds: cpu, cuda, npu"):
        backend_for("tpu")
