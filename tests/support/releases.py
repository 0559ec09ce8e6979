"""What releases of torch lack: tests of it run on the others."""

from __future__ import annotations

import pytest
import torch


def since(release: str, reason: str) -> pytest.MarkDecorator:
    """A mark for tests that run from a release on."""
    return pytest.mark.skipif(torch.__version__ < release, reason=f"before torch {release}: {reason}")


compiles_ahead = since("2.13", "mode max-autotune is refused by name, as Inductor has no cpp.march")
tells_arguments = since("2.12", "Dynamo forgets arguments of exceptions")
traces_more = since("2.12", "Dynamo breaks the graph there")
adds_enums = pytest.mark.skipif(
    "2.12" <= torch.__version__ < "2.13", reason="Dynamo 2.12 breaks the graph where an IntEnum is added"
)
