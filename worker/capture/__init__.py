"""The capture runtime: one captured graph per shape key from its second call on, replayed at fixed addresses.

* `runner.py`: runs one loaded graph; captures, replays, and goes on without capture where it must;
* `first_calls.py`: the shapes that ran once and are not captured yet;
* `direct.py`, `handed.py`: run a graph of an engine that is not captured, or captures by itself;
* `choice.py`: which of the three runs an engine's graphs;
* `entry.py`: one captured graph: does it fit this call, and how are its buffers filled;
* `rooms.py`: pools and what is captured into them, memory reuse modes one and two;
* `options.py`, `statistics.py`: what the configuration asks for, and what was done;
* `plan.py`: a captured shape as text, and inputs to capture it again.
"""

from warmrank.worker.capture.choice import Runner, runner_for
from warmrank.worker.capture.direct import DirectRunner
from warmrank.worker.capture.options import CaptureOptions
from warmrank.worker.capture.runner import GraphRunner
from warmrank.worker.capture.statistics import CaptureStatistics

__all__ = ["CaptureOptions", "CaptureStatistics", "DirectRunner", "GraphRunner", "Runner", "runner_for"]
