"""The only room that touches torch's private modules; what each use relies on stands beside it.

Read against torch 2.11 to 2.15; another release touches only this room. Modules say what they rely on at
their heads, and `facts` checks it before the first compile. The tracer costs a second to import, and `sympy`
with it, so a warm load imports nothing of it; `kernels` and what it uses is part of a warm load, and imports
neither.
"""
