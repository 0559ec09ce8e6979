"""Runs suites of a TorchAir checkout, and prints which tests pass.

    python -m tests.upstream CHECKOUT [--vendor] [--device npu|cpu] [--suite NAME] [--test NAME] [--json FILE]

``--vendor`` runs them against the installed TorchAir on the emulated NPU, for the baseline. Each suite runs
in a process of its own. The mode is reduce-overhead where a suite names none, and a second trace abandons
the cache, as in TorchAir.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.checkout import PYTHONPATH

SUITES = {
    "cache_compile": "tests/st/torchair_cache_compile_st.py",
    "gear": "tests/st/torchair_gear_st.py",
    "aclgraph": "tests/st/torchair_aclgraph_st.py",
    "npugraph_ex_cache": "tests/st/torchair_npugraph_ex_cache_st.py",
    "smoke": "tests/smoke/cache_compile_test.py",
    "npugraph_ex_smoke": "npugraph_ex/tests/smoke/cache_compile_test.py",
}


def main() -> None:
    """Run the suites that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream")
    parser.add_argument("checkout", type=Path, help="a checkout of Ascend/torchair")
    parser.add_argument("--vendor", action="store_true", help="against TorchAir itself")
    parser.add_argument("--device", choices=("npu", "cpu"), default="npu")
    parser.add_argument("--suite", choices=sorted(SUITES), action="append")
    parser.add_argument("--test", default="", help="only tests whose name holds this")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    suites = options.suite or list(SUITES)
    if options.child:
        options.json.write_text(json.dumps(outcomes(options.checkout, suites[0], options)))
        return
    every: dict[str, dict[str, str]] = {}
    for suite in suites:
        every[suite] = _in_a_process(suite, options)
        passed = sum(outcome == "ok" for outcome in every[suite].values())
        print(f"{suite:20} {passed} of {len(every[suite])}")  # noqa: T201
        for test, outcome in every[suite].items():
            if outcome != "ok":
                print(f"    {test}: {outcome}")  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(every, indent=1))


def _in_a_process(suite: str, options: argparse.Namespace) -> dict[str, str]:
    command = [
        sys.executable,
        "-m",
        "tests.upstream",
        str(options.checkout.resolve()),
        "--child",
        "--suite",
        suite,
    ]
    command += ["--device", options.device, *(["--vendor"] if options.vendor else []), "--test", options.test]
    with tempfile.TemporaryDirectory() as work:
        answer = Path(work) / "outcomes.json"
        command += ["--json", str(answer)]
        ended = subprocess.run(
            command,
            cwd=work,
            env={
                **os.environ,
                "PYTHONPATH": PYTHONPATH,
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if not answer.exists():
            return {"the suite": ended.stderr[-2000:] or f"ended with {ended.returncode}"}
        found: dict[str, str] = json.loads(answer.read_text())
    return found


def outcomes(checkout: Path, suite: str, options: argparse.Namespace) -> dict[str, str]:
    """Test -> ``ok``, or the last line of its error."""
    warnings.simplefilter("ignore")
    if options.device == "npu":
        from tests import npu_emulator

        npu_emulator.install()
    file = checkout / SUITES[suite]
    sys.path[:0] = [str(file.parent), str(checkout / "tests" / "st")]
    _answer_helpers()
    if options.device == "npu":
        _prefer_reduce_overhead()
    if not options.vendor:
        _use_warmrank(options.device)
    with contextlib.redirect_stdout(io.StringIO()):
        if options.device == "npu":
            _keep_the_emulated_npu()
        module = _loaded(file)
        result = _Outcomes()
        for test in _tests(unittest.defaultTestLoader.loadTestsFromModule(module)):
            if options.test in test.id():
                test.run(result)
    return result.found


class _Outcomes(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's names
        self.found[test.id().rpartition(".")[2]] = "ok"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.found[test.id().rpartition(".")[2]] = f"{err[0].__name__}: {err[1]}"[:600]

    addError = addFailure  # noqa: N815


def _tests(suite: Any) -> list[unittest.TestCase]:
    return [test for item in suite for test in (_tests(item) if hasattr(item, "__iter__") else [item])]


def _loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _answer_helpers() -> None:
    """The suites' extension in C++ (a device that is none) is the emulator's business, or nobody's."""
    import torch

    extension = ModuleType("_privateuse1_backend")
    extension.register_hook = lambda: None  # type: ignore[attr-defined]
    extension.npu_device = lambda: torch.device("cpu")  # type: ignore[attr-defined]
    sys.modules["_privateuse1_backend"] = extension
    for owner, name in ((torch.utils, "rename_privateuse1_backend"), (torch, "_register_device_module")):
        setattr(owner, name, lambda *_: None)


def _keep_the_emulated_npu() -> None:
    """The suites' stubs of ``torch.npu`` lack what torch_npu itself calls; the emulated one has it."""
    import torch

    stubs = importlib.import_module("torchair_st_stub_aclgraph_utils")
    stubs.patch_ops_npu_module = lambda stub: torch.ops.npu  # type: ignore[attr-defined]
    stubs.patch_torch_point_npu_module = lambda stub: torch.npu  # type: ignore[attr-defined]
    stubs.patch_torch_npu_module = lambda stub: sys.modules["torch_npu"]  # type: ignore[attr-defined]


def _prefer_reduce_overhead() -> None:
    torchair = importlib.import_module("torchair")
    made = torchair.CompilerConfig.__init__

    @functools.wraps(made)
    def init(self: Any) -> None:
        made(self)
        self.mode = "reduce-overhead"

    torchair.CompilerConfig.__init__ = init


def _use_warmrank(device: str) -> None:
    """TorchAir's names answered by warmrank, and its private ones by `tests.upstream.stand_ins`."""
    from tests.upstream import stand_ins
    from warmrank.worker import torchair_script

    paths = torchair_script.OURS
    for package in ("torchair", "npugraph_ex"):
        paths[f"{package}.inference"] = stand_ins.__name__  # type: ignore[index]
        paths[f"{package}.inference._cache_compiler"] = stand_ins.__name__  # type: ignore[index]
    stand_ins.watch_compiles()
    if device == "cpu":
        torchair_script.redirect()
        importlib.import_module("torch_npu")
    else:
        torchair_script.redirect_names()


if __name__ == "__main__":
    main()
