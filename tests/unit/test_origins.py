"""Lines of the user's: found whatever torch makes of their paths."""

from __future__ import annotations

from types import CodeType
from typing import Any

import pytest

from warmrank.worker.compile.origins import _Lines


def code(file: str, name: str = "forward") -> CodeType:
    scope: dict[str, Any] = {}
    exec(compile(f"def {name}(x):\n    return x\n", file, "exec"), scope)  # noqa: S102 - made above
    found: CodeType = scope[name].__code__
    return found


@pytest.mark.parametrize(
    "shortened", ["/srv/a/model.py", "srv/a/model.py", "rv/a/model.py", "a/model.py", "model.py"]
)
def test_shortened_path_is_that_of_the_traced_file(shortened: str) -> None:
    lines = _Lines([code("/srv/b/model.py"), code("/srv/a/model.py")])
    expected = "/srv/a/model.py" if "a/" in shortened else "/srv/b/model.py"
    assert lines.whole((shortened, 2, "forward", "return x"))[0] == expected
