"""Captured graphs: from a shape's second call on, replayed at fixed addresses by `worker.runtime.runner`.

* `captures.py`: captures from the second call on, replays, and goes on without capture where it must;
* `eager.py`: runs a graph of an engine that is not captured, or captures by itself;
* `entry.py`: one captured graph: does it fit this call, and how are its buffers filled;
* `pools.py`: pools and what is captured into them, memory reuse modes one and two;
* `statistics.py`: what was done;
* `plan.py`: a captured shape as text, and inputs to capture it again.
"""
