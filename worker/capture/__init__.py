"""Captured graphs: from a shape's second call on, replayed at fixed addresses by `worker.runtime.runner`.

* `captures.py`: captures from the second call on, replays what fits a call, and fills its buffers;
* `pools.py`: pools and what is captured into them, memory reuse modes one and two;
* `statistics.py`: what was done;
* `self_capturing.py`: hands calls over to an engine that captures by itself;
* `plan.py`: a captured shape as text, and inputs to capture it again.
"""
