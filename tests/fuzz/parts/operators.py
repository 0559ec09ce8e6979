"""Operators in Python, and decompositions."""

# ruff: noqa: E501 - a program's text in one line per part reads as a table

from __future__ import annotations

from tests.fuzz.program import part

_OPERATOR = """
SHAPE# = 2
@torch.library.custom_op("fuzz::op#", mutates_args=())
def op#(y: torch.Tensor) -> torch.Tensor:
    return y.new_ones(y.shape[0] + EXTRA#) * FACTOR# + y.sum()
@op#.register_fake
def _(y):
    return y.new_empty(y.shape[0] + EXTRA#)
"""

OPERATORS = (
    part(
        "operator / constants beside it",
        {"helper": "EXTRA# = 1\nFACTOR# = 3" + _OPERATOR, "body": "z# = helper.op#(y)\ny = y + z#.sum() + z#.shape[0]"},
        sources={"factor": {"helper": "EXTRA# = 1\nFACTOR# = 7" + _OPERATOR}, "shape": {"helper": "EXTRA# = 2\nFACTOR# = 3" + _OPERATOR}, "body": {"helper": "EXTRA# = 1\nFACTOR# = 3" + _OPERATOR.replace("+ y.sum()", "- y.sum()")}},
        mutations={"factor": "helper.FACTOR# = 7", "shape": "helper.EXTRA# = 2"},
    ),
    part(
        "operator / constants elsewhere",
        {"conf": "EXTRA# = 1\nFACTOR# = 3", "helper": _OPERATOR.replace("EXTRA#", "conf.EXTRA#").replace("FACTOR#", "conf.FACTOR#"), "body": "z# = helper.op#(y)\ny = y + z#.sum() + z#.shape[0]"},
        sources={"factor": {"conf": "EXTRA# = 1\nFACTOR# = 7"}, "shape": {"conf": "EXTRA# = 2\nFACTOR# = 3"}},
        mutations={"factor": "conf.FACTOR# = 7", "shape": "conf.EXTRA# = 2"},
    ),
    part(
        "operator / code elsewhere",
        {"conf": "def extra#():\n    return 1\ndef factor#(y):\n    return y * 3", "helper": _OPERATOR.replace("EXTRA#", "conf.extra#()").replace("* FACTOR#", "* conf.factor#(2)"), "body": "z# = helper.op#(y)\ny = y + z#.sum() + z#.shape[0]"},
        sources={"factor": {"conf": "def extra#():\n    return 1\ndef factor#(y):\n    return y * 7"}, "shape": {"conf": "def extra#():\n    return 2\ndef factor#(y):\n    return y * 3"}},
        mutations={"factor": "conf.factor# = lambda y: y * 7", "shape": "conf.extra# = lambda: 2"},
    ),
    part(
        "operator / decomposed to others",
        {"conf": "N# = 3", "helper": "lib# = torch.library.Library('fuzzlib#', 'DEF')\nlib#.define('f(Tensor y) -> Tensor')\n@torch.library.impl(lib#, 'f', 'CompositeImplicitAutograd')\ndef f#(y):\n    return y * conf.N#", "body": "y = torch.ops.fuzzlib#.f(y) + 1"},
        sources={"constant": {"conf": "N# = 7"}},
        mutations={"constant": "conf.N# = 7"},
    ),
    part(
        "operator / own decomposition",
        {
            "conf": "N# = 3",
            "helper": "lib# = torch.library.Library('fuzzlib#', 'DEF')\nlib#.define('g(Tensor y) -> Tensor')\n@torch.library.impl(lib#, 'g', 'CompositeExplicitAutograd')\ndef g#(y):\n    return y * conf.N#\n@torch.library.register_fake('fuzzlib#::g')\ndef _(y):\n    return torch.empty_like(y)\ndef d#(y):\n    return conf.N# * y",
            "body": "y = torch.ops.fuzzlib#.g(y) + 1",
            "options": "custom_decompositions={torch.ops.fuzzlib#.g.default: helper.d#}",
        },
        sources={"constant": {"conf": "N# = 7"}},
        mutations={"constant": "conf.N# = 7"},
    ),
)  # fmt: skip
