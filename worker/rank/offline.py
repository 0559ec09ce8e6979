"""One rank of an offline build: goes through the stages of a launch that need no device and no other rank.

Stages in order: `start`, `build`, `probe`, `compile` or `load` or `adopt`, `partition`, `stop`. The world is
there in name only, and tensors have neither memory nor values, so nothing of the model ever runs. An
artifact's bytes are those that a rank of a launch compiles. What a trace would need values for is refused:
a value that is not known is never burned in.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.worker.errors import NeedsValues, NotPortable
from warmrank.worker.keys.code import package_of
from warmrank.worker.rank.rank_worker import RankWorker, pretend_groups
from warmrank.worker.results import LeftOut, Retraced
from warmrank.worker.runtime.asked import asks_for_rank
from warmrank.worker.runtime.files import is_withheld
from warmrank.worker.settings import Target, building_for

if TYPE_CHECKING:
    from warmrank.worker.rank.manifests import Fields
    from warmrank.worker.rank.rank_worker import RankSpec
    from warmrank.worker.rank.units import RankUnit


class OfflineRank(RankWorker):
    """Steps one rank through an offline build; what it is built for holds from `start` to `stop`."""

    def __init__(
        self, spec: RankSpec, *, machines: Target, real_tensors: bool = False, kernels: bool = True
    ) -> None:
        """``real_tensors``: build on the CPU with memory and values. Without ``kernels`` it only traces."""
        super().__init__(spec, lambda: None)
        self._machines = machines
        self._real_tensors = real_tensors
        self._kernels = kernels
        self._left_out: list[LeftOut] = []
        self._exits = contextlib.ExitStack()

    def start(self) -> dict[str, str]:
        """Make this process one rank of a world that is not there."""
        from warmrank.worker.devices import backend_for
        from warmrank.worker.torch_private import facts

        facts.require("offline")
        self._exits.enter_context(building_for(self._machines))
        backend_for(self._spec.device_kind).device(self._spec.local_rank)
        self._own(pretend_groups(self._spec))
        return dict(self._machines.environment)

    def build(self) -> tuple[str, ...]:
        """Build model and calls of fake tensors; units that need a device are left out."""
        from warmrank.worker.torch_private.fake_ranks import asked_for_values, fake_tensors

        with contextlib.nullcontext() if self._real_tensors else fake_tensors():
            try:
                super().build()
            except Exception as error:
                if self._real_tensors or not asked_for_values(error):
                    raise
                raise _needs_values(self._spec.entrypoint, error) from error
        for name, unit in tuple(self._units.items()):
            if why := self._why_not(unit.function.engine().name):
                del self._units[name]
                self._left_out.append(LeftOut(function=name, reason=why))
        return tuple(self._units)

    def retrace(self, function: str) -> Retraced:
        """Trace a unit again, and compare with the artifact that it would load."""
        unit = self._units[function]
        with self._watched(unit):
            return unit.retrace()

    def left_out(self) -> tuple[LeftOut, ...]:
        """Units that are not built offline, and why."""
        return tuple(self._left_out)

    def rank_bound(self) -> tuple[str, ...]:
        """Units whose artifacts hold on this rank alone: the code asks for its rank, or an audit says so."""
        stored = {name: unit.bound().stored for name, unit in self._units.items() if unit.variant is not None}
        return tuple(
            name
            for name, own in stored.items()
            if asks_for_rank(own.artifact.guards.asked) or is_withheld(own.path.parent, own.sha256)
        )

    def _manifest(self) -> Fields:
        """Nothing is captured."""
        from warmrank.worker.rank.manifests import of_units

        listed = [
            (name, unit.function, unit.variant.stored, ())
            for name, unit in self._units.items()
            if unit.variant is not None
        ]
        return of_units(self._spec, listed)

    def stop(self) -> None:
        """Take the world down."""
        super().stop()
        self._exits.close()

    @contextlib.contextmanager
    def _watched(self, unit: RankUnit) -> Iterator[None]:
        """Name the line of a trace that asks for values."""
        from warmrank.worker.torch_private.fake_ranks import asked_for_values

        try:
            yield
        except (NotPortable, RuntimeError) as error:
            is_ours = isinstance(error, NotPortable)
            if not ("FakeTensor" in str(error) if is_ours else asked_for_values(error)):
                raise
            raise _needs_values(unit.name, error) from error

    def _why_not(self, engine: str) -> str:
        """The reason why an engine compiles nothing here; empty if it does."""
        if engine == "aoti" and self._kernels:
            return "engine aoti compiles kernels for the very machine that they run on; a launch does"
        if engine == "torchair" and "torch_npu" not in sys.modules:
            return "engine torchair is the vendor's, and torch_npu is not here; build with engine: graph"
        return ""


def _needs_values(what: str, error: Exception) -> NeedsValues:
    """The error that names the last line outside of torch, as `` (file:line in function)``.

    The key of a function counts what its passes and decompositions reach, so it asks for tensors that they
    hold.
    """
    where = ""
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        module = str(step.tb_frame.f_globals.get("__name__", ""))
        if module == "warmrank.worker.keys.reachable":
            where = " that a pass or a decomposition of its configuration holds"
            break
        if package_of(module) not in ("torch", "warmrank.worker", "contextlib"):
            where = f" ({Path(code.co_filename).name}:{step.tb_lineno} in {code.co_name})"
        step = step.tb_next
    msg = (
        f"{what} needs the values of a tensor{where}, and an offline build has none: {error}. Compute it of "
        "Python numbers or keep it out of the graph; or, if the model fits into this machine's memory, build "
        "with --real-tensors (device cpu)."
    )
    return NeedsValues(msg, what=what, where=where.strip())
