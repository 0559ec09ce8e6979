"""Which line of the user's put a condition on symbolic sizes, as the tracer notes it.

Relies on: ``ShapeEnv.guards`` holds ``expr`` and ``sloc`` of each; ``sloc.maybe_user_loc`` is text of form
``<code>  # <file, shortened>:<line> in <function>``, or None; ``ShapeEnv.var_to_sources`` names the places of
a symbol.
"""

from __future__ import annotations

import re
from typing import Any

from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.values import Value

_LOCATION = re.compile(r"(?P<text>.*)  # (?P<file>.*):(?P<line>[0-9]+) in (?P<name>.*)", re.DOTALL)


class ShapeLine(Value):
    """One condition: the expressions of the sizes that it is on, and the line that needs it.

    Attributes:
        sources: expressions over ``L``, such as ``L['x'].size()[0]``.
        frame: end of the file's path, line, function and text.
    """

    sources: frozenset[str]
    frame: tuple[str, int, str, str]


def shape_lines(shape_env: Any) -> tuple[ShapeLine, ...]:
    """The lines of all conditions for which one is known, in the order in which they were met."""
    found = []
    for guard in shape_env.guards:
        location = _LOCATION.fullmatch(guard.sloc.maybe_user_loc or "")
        known = [shape_env.var_to_sources.get(symbol) for symbol in guard.expr.free_symbols]
        if location is None or not all(known):
            continue
        frame = (location["file"], int(location["line"]), location["name"], location["text"])
        sources = frozenset(source_name(places[0]) for places in known)
        found.append(ShapeLine(sources=sources, frame=frame))
    return tuple(found)
