"""What releases of torch lack: tests of it run on the others."""

from __future__ import annotations

import pytest
import torch


def since(release: str, reason: str) -> pytest.MarkDecorator:
    """A mark for tests that run from a release on."""
    return pytest.mark.skipif(torch.__version__ < release, reason=f"before torch {release}: {reason}")


compiles_ahead = since("2.12", "mode max-autotune is refused by name, as Inductor has no cpp.march")
tells_arguments = since("2.12", "Dynamo forgets arguments of exceptions")
traces_more = since("2.12", "Dynamo breaks the graph there")
