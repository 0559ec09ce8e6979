"""The machines that an offline build is for, and whether this one can build for them.

What `warmrank environment` prints on one of them is what artifacts are keyed by. Python and torch must be the
same here, because they take part in every trace; drivers, devices and instructions need not be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warmrank.orchestrator.config.models import Config, ScriptWorkload
from warmrank.orchestrator.config.reading import require_workload
from warmrank.orchestrator.errors import BadArgument
from warmrank.worker.keys.environment import environment

_TRACED_WITH = ("python", "torch", "cuda")
_NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTarget:
    """The machines that are built for.

    Attributes:
        environment: named components of their environment.
        source: where these come from, for the report.
    """

    environment: Mapping[str, str]
    source: str


def target_here() -> BuildTarget:
    """Machines like this one."""
    return BuildTarget(
        environment=environment(), source="machines like this one (no --environment was given)"
    )


def read_target(path: Path) -> BuildTarget:
    """What `warmrank environment` wrote on a machine that is built for.

    Raises:
        BadArgument: the file is no such thing, or names other components than this release knows.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"--environment {path}: {error}; expected what warmrank environment prints on a target machine"
        raise BadArgument(msg) from error
    known = set(environment())
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        msg = f"--environment {path}: expected a JSON object of strings, as warmrank environment prints"
        raise BadArgument(msg)
    if odd := sorted(known ^ found.keys()):
        msg = (
            f"--environment {path}: components {', '.join(odd)} are missing there or unknown here; write it "
            "with the release of warmrank that builds"
        )
        raise BadArgument(msg)
    return BuildTarget(environment=found, source=f"the machines of {path}")


def check_target(config: Config, target: BuildTarget, *, real_tensors: bool) -> None:
    """Refuse what cannot be built here.

    Raises:
        BadArgument: says what, and what to do.
    """
    require_workload(config, config.name)
    if isinstance(config.workload, ScriptWorkload):
        msg = f"workload.script {config.workload.script}: an offline build needs a workload.entrypoint"
        raise BadArgument(msg)
    here = environment()
    differing = [name for name in _TRACED_WITH if here[name] != target.environment[name]]
    if here["torch_npu"] not in (_NONE, target.environment["torch_npu"]):
        differing.append("torch_npu")
    if differing:
        parts = "; ".join(f"{name} here {here[name]}, there {target.environment[name]}" for name in differing)
        msg = f"the trace would be another one than on the machines that are built for: {parts}"
        raise BadArgument(msg)
    if config.device != "cpu" and target.environment["accelerator"] == _NONE:
        msg = (
            f"device kind {config.device}: {target.source} have no accelerator; run warmrank environment on "
            "a machine that has one, and name its output as --environment"
        )
        raise BadArgument(msg)
    if real_tensors and config.device != "cpu":
        msg = f"--real-tensors: there is no {config.device} here to hold them; only device cpu can have them"
        raise BadArgument(msg)
    if config.device == "npu" and here["torch_npu"] == _NONE:
        msg = (
            "device kind npu: torch_npu is not installed here, and it takes part in every trace (its methods "
            "of torch.Tensor, its switches), so no NPU would load what is built; build where torch_npu and "
            "CANN are installed, which needs no NPU"
        )
        raise BadArgument(msg)
