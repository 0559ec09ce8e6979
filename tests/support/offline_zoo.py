"""Compiles the first call of every module of the zoo twice: ``offline_zoo CACHE_DIR``; prints JSON.

Once as a launch does, with real tensors, and once as an offline build does, with fake ones; for each module
the digests of the two artifacts, or what was raised instead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from pathlib import Path

import torch

import warmrank
from tests.support.zoo import memory  # noqa: F401 - fills the zoo, with what it imports
from tests.support.zoo.case import CASES, Case
from tests.support.zoo_child import _contexts
from warmrank.inference import cache_compile
from warmrank.worker.errors import WorkerError
from warmrank.worker.keys.environment import Target, building_for, environment
from warmrank.worker.torch_private.fake_ranks import fake_tensors


def outcome(name: str, case: Case, root: Path, *, offline: bool) -> str:
    """Digest of the artifact; empty for a module that another engine compiles."""
    machines = Target(device_kind="cpu", environment=environment())
    with building_for(machines) if offline else contextlib.nullcontext():
        torch.manual_seed(0)
        with fake_tensors() if offline else contextlib.nullcontext():
            module, calls = case.build(), list(case.calls())
        config = warmrank.CompilerConfig()
        for option, value in case.settings.items():
            *path, last = option.split(".")
            section = config
            for part in path:
                section = getattr(section, part)
            setattr(section, last, value)
        cached = cache_compile(module.forward, config=config, cache_dir=str(root / name), **case.options)
        if cached.engine().name != "graph":
            return ""
        try:
            with _contexts(case.context):
                variant = cached.compile(calls[0].args, calls[0].kwargs, reason="")
        except WorkerError as error:
            return f"{type(error).__name__}: {error}"
        return variant.stored.sha256


def main() -> None:
    root = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    found = {
        name: [outcome(name, case, root / str(offline), offline=offline) for offline in (False, True)]
        for name, case in CASES.items()
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
