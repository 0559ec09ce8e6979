"""Dimension gears: the few sizes that a dimension of an input may take. One compile, one captured graph each.

``model``      what gears may be, on tensors and in one artifact, and their combinations
``rules``      which artifact a call may use; pads inputs and cuts outputs; a shape that is no gear, in words
``compiling``  how a call with gears is traced, and what is recorded of it; compile time only
"""
