"""Device kinds: which are built, and what is said of the others."""

from __future__ import annotations

import pytest

from warmrank.worker.devices import backend_for
from warmrank.worker.errors import DeviceUnavailable


def test_cpu_is_built() -> None:
    backend = backend_for("cpu")
    assert (backend.kind, backend.collectives) == ("cpu", "gloo")


def test_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DeviceUnavailable, match="no device kind 'tpu'; known kinds: cpu, cuda, npu"):
        backend_for("tpu")
