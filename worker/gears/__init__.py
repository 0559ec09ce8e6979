"""Dimension gears: the few sizes that a dimension of an input may take. One compile, one captured graph each.

``checks``     what gears may be
``carried``    which tensor carries which gears: `set_dim_gears`
``merge``      gears of several dimensions become combinations (``zip``, ``product``)
``model``      the gears of one artifact, as data
``compiling``  how a call with gears is traced; compile time only
``record``     from a trace to that data; compile time only
``rules``      which artifact a call may use
``misses``     a shape that is no gear, in words
``loaded``     what the gears of a loaded artifact mean for its calls
``trials``     whether padding changes results
``runner``     pads inputs and cuts outputs; makes inputs of every gear

``carried``    imports torch only where a tensor is at hand, and nothing here imports Dynamo or sympy.
"""

from warmrank.worker.gears.carried import set_dim_gears
from warmrank.worker.gears.checks import checked_gears

__all__ = ["checked_gears", "set_dim_gears"]
