"""What an option of `CompilerConfig` does in warmrank: on which devices, in which modes, or why nothing.

Each option declares its effect, so that none is accepted and then ignored in silence: `verdict` turns the
declaration into one of three answers, and `CompilerConfig.check` acts on them.
"""

from __future__ import annotations

import enum
from dataclasses import replace

from worker.values import Value

MODES = ("max-autotune", "reduce-overhead", "npugraph_ex")


class Scope(enum.Enum):
    """Where an option does something."""

    HERE = "on every device"
    ASCEND = "on npu only"
    NOWHERE = "nowhere"


class Effect(Value):
    """What a value other than the default does.

    Attributes:
        scope: on which devices it does something.
        modes: in which modes it does; an option of another mode has no effect, as in TorchAir.
        why: why it does nothing where it does nothing; empty for an option that always does.
    """

    scope: Scope = Scope.HERE
    modes: tuple[str, ...] = MODES
    why: str = ""


EVERY_MODE = Effect()
CAPTURE = Effect(modes=("reduce-overhead",))
ASCEND = Effect(scope=Scope.ASCEND, why="it speaks to the Ascend toolchain")
ASCEND_ENGINE = replace(ASCEND, modes=("max-autotune",))
ASCEND_CAPTURE = replace(ASCEND, modes=("reduce-overhead",))
ASCEND_FLAT = replace(ASCEND, modes=("npugraph_ex",))


def nowhere(why: str) -> Effect:
    """The effect of an option that changes nothing in warmrank, whatever the device."""
    return Effect(scope=Scope.NOWHERE, why=why)


class Verdict(enum.Enum):
    """What comes of a value that somebody set."""

    WORKS = "works"
    NO_EFFECT = "no effect"
    NOT_YET = "not yet"


def verdict(effect: Effect, *, mode: str, device_kind: str) -> tuple[Verdict, str]:
    """What comes of an effect in a mode on a device, and why where it does not work."""
    if mode not in effect.modes:
        return Verdict.NO_EFFECT, f"it belongs to mode {' and '.join(effect.modes)}"
    if effect.scope is Scope.HERE:
        return Verdict.WORKS, ""
    if effect.scope is Scope.ASCEND and device_kind == "npu":
        return Verdict.NOT_YET, "it comes with engine torchair"
    return Verdict.NO_EFFECT, effect.why
