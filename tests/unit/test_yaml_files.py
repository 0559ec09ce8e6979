"""Documents that are larger than they look, or that hold themselves, are mistakes as any other."""

from __future__ import annotations

import pytest

from warmrank.orchestrator.config.reading import read_yaml
from warmrank.orchestrator.errors import ConfigError

TENFOLD = "\n".join(
    [
        "a0: &a0 [x]",
        *(f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]" for number in range(1, 9)),
    ]
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TENFOLD, "more than 100000 values"),
        ("a: &a\n  b: *a\n", "an alias of what it stands in"),
        ("a: " + "[" * 100 + "]" * 100, "more than 64 levels"),
        ("a: " + "[" * 3000 + "]" * 3000, "more than 64 levels"),
    ],
)
def test_document_that_cannot_be_walked_is_refused(text: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        read_yaml(text, "a.yaml")


def test_aliases_of_a_person_are_read() -> None:
    text = "a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n"
    assert read_yaml(text, "a.yaml") == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}
