"""What an option of `CompilerConfig` does: by which engines, in which modes, or why nothing.

Each option declares its effect, so that none is accepted and then ignored in silence: `verdict` turns the
declaration into one of two answers, and `CompilerConfig.check` says the second one aloud. Engine torchair
hands what works to TorchAir, or refuses it (`worker.engines.torchair_options`).
"""

from __future__ import annotations

import enum
from dataclasses import replace

from warmrank.worker.values import Value

MODES = ("max-autotune", "reduce-overhead", "npugraph_ex")


TORCHAIR = "torchair"
_CAPTURED = ("reduce-overhead", "npugraph_ex")


class Scope(enum.Enum):
    """Which engines do something about an option."""

    HERE = "every engine"
    ASCEND = "engine torchair only"
    NOWHERE = "no engine"


class Effect(Value):
    """What a value other than the default does.

    Attributes:
        scope: which engines do something about it.
        modes: in which modes they do; an option of another mode has no effect, as in TorchAir.
        torchair_modes: in which modes engine torchair does, where these differ from `modes`.
        why: why it does nothing where it does nothing; empty for an option that always does.
    """

    scope: Scope = Scope.HERE
    modes: tuple[str, ...] = MODES
    torchair_modes: tuple[str, ...] | None = None
    why: str = ""

    def modes_of(self, engine: str) -> tuple[str, ...]:
        """The modes in which an engine does something about it."""
        return self.modes if engine != TORCHAIR or self.torchair_modes is None else self.torchair_modes


EVERY_MODE = Effect()
CAPTURE = Effect(modes=("reduce-overhead",), torchair_modes=_CAPTURED)
FROZEN = replace(CAPTURE, torchair_modes=MODES)
ASCEND = Effect(scope=Scope.ASCEND, why="it belongs to engine torchair")
ASCEND_ENGINE = replace(ASCEND, modes=("max-autotune",))
ASCEND_CAPTURE = replace(ASCEND, modes=_CAPTURED)
ASCEND_FLAT = replace(ASCEND, modes=("npugraph_ex",))


def torchair_only(why: str, *, modes: tuple[str, ...] = MODES) -> Effect:
    """The effect of an option that only TorchAir's graphs know; `why` says why those of others do not."""
    return Effect(scope=Scope.ASCEND, torchair_modes=modes, why=why)


def captured_by_torchair(why: str) -> Effect:
    """As `torchair_only`, of the graphs that TorchAir captures."""
    return torchair_only(why, modes=_CAPTURED)


def nowhere(why: str) -> Effect:
    """The effect of an option that changes nothing in warmrank, whatever the engine."""
    return Effect(scope=Scope.NOWHERE, why=why)


class Verdict(enum.Enum):
    """What comes of a value that somebody set."""

    WORKS = "works"
    NO_EFFECT = "no effect"


def verdict(effect: Effect, *, mode: str, engine: str = "") -> tuple[Verdict, str]:
    """What comes of an effect in a mode with an engine, and why where it does not work.

    Args:
        effect: what the option declares.
        mode: of the configuration.
        engine: name of the engine that compiles; empty for the one of warmrank's own that the mode means.
    """
    engine = engine or (TORCHAIR if mode == "npugraph_ex" else "")
    modes = effect.modes_of(engine)
    if mode not in modes:
        return Verdict.NO_EFFECT, f"it belongs to mode {' and '.join(modes)}"
    if effect.scope is Scope.HERE or (effect.scope is Scope.ASCEND and engine == TORCHAIR):
        return Verdict.WORKS, ""
    return Verdict.NO_EFFECT, effect.why
