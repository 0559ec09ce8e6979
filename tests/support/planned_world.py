"""Made-up clusters for the planner: what ranks ask for, which artifacts fit where, which compiles fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from warmrank.orchestrator.launch.plan import (
    Action,
    Attempt,
    Cluster,
    PlanState,
    Slot,
    apply_round,
    begin,
    plan_round,
)
from warmrank.worker.results import FunctionProbe, ProbeState


def digest_of(function: str, kind: object) -> str:
    """Ranks of one kind write the same bytes; calls of one function, other ones."""
    return f"{function}/{kind}"


@dataclass(frozen=True, kw_only=True)
class PlannedWorld:
    """A cluster whose guards decide.

    Attributes:
        nodes: node of every rank.
        kinds: the true class of a rank for a function: artifacts of this kind fit, and no other.
        keys: what it asks for.
        held: what its probe finds, and of which kind.
        broken: slots whose compile fails.
        reason: why an artifact of one kind does not fit another.
    """

    nodes: Mapping[int, int]
    kinds: Mapping[Slot, int]
    keys: Mapping[Slot, str]
    held: Mapping[Slot, tuple[ProbeState, int]] = field(default_factory=dict)
    broken: frozenset[Slot] = frozenset()
    reason: Callable[[int, int], str] = lambda made, own: f"{made} was burned in, found {own}"

    def probes(self) -> dict[int, tuple[FunctionProbe, ...]]:
        """What every rank finds."""
        found: dict[int, list[FunctionProbe]] = {rank: [] for rank in self.nodes}
        for slot, key in self.keys.items():
            state, kind = self.held.get(slot, ("miss", 0))
            asked = FunctionProbe(
                function=slot[1],
                request_key=key,
                components={},
                state=state,
                reason="looked",
                digest="" if state == "miss" else digest_of(slot[1], kind),
            )
            found[slot[0]].append(asked)
        return {rank: tuple(probes) for rank, probes in found.items()}

    def attempt(self, slot: Slot, actions: Mapping[Slot, Action]) -> Attempt:
        """What comes of an action."""
        action, own = actions[slot], digest_of(slot[1], self.kinds[slot])
        if action.kind == "compile":
            if slot in self.broken:
                return Attempt(ok=False, digest="", reason="it does not compile")
            return Attempt(ok=True, digest=own)
        digest = action.digest
        if action.leader is not None:
            leader = (action.leader, slot[1])
            if leader in self.broken:
                return Attempt(ok=False, digest="")
            digest = digest_of(slot[1], self.kinds[leader])
        made = int(digest.rpartition("/")[2])
        return Attempt(ok=digest == own, digest=digest, reason=self.reason(made, self.kinds[slot]))


@dataclass(kw_only=True)
class Course:
    """A whole launch: every round's state and plan, what each slot got, who was given up."""

    rounds: list[tuple[PlanState, dict[Slot, Action]]] = field(default_factory=list)
    got: dict[Slot, str] = field(default_factory=dict)
    end: PlanState

    def compiled(self) -> Counter[str]:
        """How often each artifact was compiled."""
        return Counter(
            self.got[slot]
            for _, actions in self.rounds
            for slot, action in actions.items()
            if action.kind == "compile" and slot in self.got
        )


def carried_out(world: PlannedWorld, *, max_rounds: int) -> Course:
    """Plan and carry out until nobody wants anything.

    Raises:
        AssertionError: it does not end: each rank refuses at most so many offers, waits for two leaders for
            each of these, and is told.
    """
    course = Course(end=begin(world.probes(), Cluster(nodes=world.nodes, max_rounds=max_rounds)))
    while course.end.demands:
        state = course.end
        actions = plan_round(state)
        attempts = {
            slot: world.attempt(slot, actions) for slot, action in actions.items() if action.kind != "give up"
        }
        course.rounds.append((state, actions))
        course.got |= {slot: attempt.digest for slot, attempt in attempts.items() if attempt.ok}
        course.end = apply_round(state, actions, attempts)
        assert len(course.rounds) <= 3 * (max_rounds + 1), "the launch does not end"
    return course
