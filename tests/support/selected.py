"""The cases of a test module that a session runs."""

from __future__ import annotations

from typing import Any

import pytest


def selected(request: pytest.FixtureRequest, *arguments: str) -> set[Any]:
    """The values that the parametrized arguments have in the tests of this module that are run."""
    items: list[Any] = [item for item in request.session.items if item.path == request.path]
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return {param[argument] for param in params for argument in arguments if argument in param}
