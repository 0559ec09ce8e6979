"""The warm path: find an artifact, check its guards, bind it, run it. Imports nothing of the compile side.

* `function.py`: `CachedFunction`, what `cache_compile` returns;
* `find.py`, `artifact.py`, `files.py`: where artifacts lie, what one holds, how they are saved and adopted;
* `check.py`, `constants.py`, `sources.py`, `ambient.py`, `asked.py`, `runtime_state.py`: all guards, once;
* `variant.py`: an artifact bound to a module;
* `snapshot.py`, `per_call.py`, `depends.py`: what is checked on every call after the first;
* `describe.py`: misses in words;
* `runner.py`: runs the graph, from a shape's second call on by `worker.capture`;
* `eager.py`: runs a graph of an engine that is not captured, or captures by itself.
"""
