"""Runs modules of the zoo, eagerly and cached; prints JSON.

``zoo_child CACHE_DIR [captured] [only=MODULE]...``; all that can be kept without ``only``. With ``captured``
each call is captured ahead, so that it replays; else a shape's first call runs its graph.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import warmrank
from tests.support.compare import cloned, difference, storages
from tests.support.zoo import memory, programs  # noqa: F401 - fill the zoo, with what they import
from tests.support.zoo.case import CASES, REFUSED, Case
from warmrank.inference import cache_compile
from warmrank.worker.errors import WorkerError

FORBIDDEN = ("torch._dynamo", "torch._inductor", "sympy", "ray")


def run(name: str, case: Case, root: Path) -> dict[str, Any]:
    """Outcome and fault of each call."""
    torch.manual_seed(0)
    eager = case.build()
    module = copy.deepcopy(eager)
    config = warmrank.CompilerConfig()
    for option, value in case.settings.items():
        *path, last = option.split(".")
        section = config
        for part in path:
            section = getattr(section, part)
        setattr(section, last, value)
    cached = cache_compile(module.forward, config=config, cache_dir=str(root / name), **case.options)
    outcomes, faults, reason = [], [], ""
    for wanted_call, got_call in zip(case.calls(), case.calls(), strict=True):
        before = cached.last_result
        with _contexts(case.context):
            wanted = eager.forward(*wanted_call.args, **wanted_call.kwargs)
            try:
                if "captured" in sys.argv:
                    cached.warm_up(*got_call.args, **got_call.kwargs)
                got = cached(*got_call.args, **got_call.kwargs)
            except WorkerError as error:
                return {"outcomes": [type(error).__name__], "faults": [], "reason": str(error)}
        result = cached.last_result
        assert result is not None
        outcomes.append("ran" if result == before else result.outcome)
        reason = result.reason
        faults.append(
            difference(cloned(wanted), cloned(got), "result", case.tolerance)
            or difference(wanted_call.args, got_call.args, "arguments", case.tolerance)
            or difference(_state(eager), _state(module), "state", case.tolerance)
            or _sharing(wanted_call, wanted, got_call, got)
        )
    return {"outcomes": outcomes, "faults": faults, "reason": reason}


def _contexts(text: str) -> Any:
    from contextlib import ExitStack

    stack = ExitStack()
    entered = eval(text, {"torch": torch})  # noqa: S307 - it stands in the zoo
    for context in entered if isinstance(entered, tuple) else (entered,):
        stack.enter_context(context)
    return stack


def _state(module: nn.Module) -> dict[str, Any]:
    """Tensors and plain attributes, as they are after a call."""
    plain = (bool, int, float, str, list, torch.Tensor)
    return {
        **cloned(dict(module.state_dict())),
        **{name: cloned(value) for name, value in vars(module).items() if isinstance(value, plain)},
    }


def _sharing(wanted_call: Any, wanted: Any, got_call: Any, got: Any) -> str:
    """An output must share memory with an input exactly where eager's does."""
    inputs = [storages([call.args, call.kwargs]) for call in (wanted_call, got_call)]
    shared = [
        [[address == other for other in given] for address in storages(out)]
        for given, out in zip(inputs, (wanted, got), strict=True)
    ]
    return "" if shared[0] == shared[1] else "outputs share memory with other inputs than eager's"


def main() -> None:
    warnings.simplefilter("error")
    root = Path(sys.argv[1])
    only = [argument.removeprefix("only=") for argument in sys.argv if argument.startswith("only=")]
    cases = CASES | REFUSED
    found = {name: run(name, cases[name], root) for name in only or CASES}
    imported = [name for name in FORBIDDEN if name in sys.modules]
    sys.stdout.write(json.dumps({"imported": imported, "found": found}))


if __name__ == "__main__":
    main()
