"""What a traced method raises itself is told as Python tells it, with its line, and is no graph break."""

from __future__ import annotations

import inspect
import logging

import pytest
import torch

from tests.support.faulty import Faulty
from tests.support.tracing import tells_arguments, traced
from warmrank.worker.errors import FunctionRaised, GraphBreak

ROWS = torch.ones(2, 8)


def raised(name: str) -> FunctionRaised:
    with pytest.raises(FunctionRaised) as caught:
        traced(getattr(Faulty(), name), ROWS)
    return caught.value


def line_of(name: str, text: str) -> int:
    lines, first = inspect.getsourcelines(getattr(Faulty, name))
    return first + next(at for at, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("name", "said", "line"),
    [
        ("bad", "ValueError: bad shape in attention", "raise"),
        ("wide", "RuntimeError: a and b must have same reduction dim, but got [2, 7] X [8, 8].", "linear"),
        ("adds", "TypeError: unsupported operand type(s) for +: 'Tensor' and 'NoneType'", "None"),
        pytest.param("lacks", "KeyError: 'a'", "return", marks=tells_arguments),
        ("wants", "AttributeError: 'Faulty' object has no attribute 'nothing'", "nothing"),
        ("asserts", 'AssertionError: assert x.dim() > 3, "too flat"', "assert x"),
        ("calls", "TypeError: Too many positional arguments: got 3, expected 2", "linear"),
        ("misspells", "NameError: name 'no_such_name' is not defined", "no_such_name"),
    ],
)
def test_exception_is_named_with_the_line_of_the_method(name: str, said: str, line: str) -> None:
    error = raised(name)
    where = f"faulty.py:{line_of(name, line)} in Faulty.{name}"
    assert (error.function, error.reason, error.where) == (f"Faulty.{name}", said, where)
    assert str(error).startswith(f"{said} ({where}). ")


@tells_arguments
def test_exception_of_a_called_method_names_both_lines() -> None:
    error = raised("deep")
    assert error.reason == "OwnError: ('mine', 3)"
    assert error.where == (
        f"faulty.py:{line_of('attend', 'raise')} in attend, "
        f"from faulty.py:{line_of('deep', 'return')} in Faulty.deep"
    )


def test_advice_on_graph_breaks_is_not_given_and_dynamos_text_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="warmrank.worker.torch_private.raised"):
        error = raised("bad")
    text = str(error)
    assert "graph" not in text
    assert "Dynamo" not in text
    assert "Explanation" in caplog.text
    assert "Explanation" in str(error.__cause__)


@pytest.mark.parametrize("name", ["reads", "stops"])
def test_graph_break_stays_one(name: str) -> None:
    with pytest.raises(GraphBreak, match=f"Faulty.{name} does not form one whole graph"):
        traced(getattr(Faulty(), name), ROWS)
