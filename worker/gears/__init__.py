"""Dimension gears: the few sizes that a dimension of an input may take. One compile, one captured graph each.

``carried``    what gears may be, and which tensor carries which: `set_dim_gears`
``model``      the gears of one artifact, as data, and their combinations
``compiling``  how a call with gears is traced, and what is recorded of it; compile time only
``rules``      which artifact a call may use; a shape that is no gear, in words
``runner``     pads inputs and cuts outputs; makes inputs of every gear

Nothing that a load imports needs Dynamo or sympy.
"""

from warmrank.worker.gears.carried import checked_gears, set_dim_gears

__all__ = ["checked_gears", "set_dim_gears"]
