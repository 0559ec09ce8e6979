"""What befalls launches of a chaos run follows from seed and number alone."""

from __future__ import annotations

from tests.support.chaos_plan import OF_NODES, OF_OWN, STAGES, Fault, Plan, Strike, allowed, plan_of

MANY = range(400)


def test_same_seed_and_number_are_the_same_plan_whatever_came_before() -> None:
    forwards = [plan_of(7, number, with_nodes=True) for number in MANY]
    backwards = [plan_of(7, number, with_nodes=True) for number in reversed(MANY)]
    assert forwards == backwards[::-1]


def test_every_fault_befalls_every_stage_sooner_or_later() -> None:
    found = {(strike.fault, strike.stage) for number in range(8_000) for strike in strikes(number)}
    assert found == {(fault, stage) for fault in {*OF_OWN, *OF_NODES} for stage in STAGES}


def strikes(number: int) -> tuple[Strike, ...]:
    return plan_of(0, number, with_nodes=True).strikes


def plan(*faults: Fault) -> Plan:
    found = tuple(Strike(fault=fault, stage="build", delay_s=0, victim=0) for fault in faults)
    return Plan(number=0, place="own", start="cold", strikes=found)


def test_single_fault_that_a_further_attempt_makes_good_must_end_warm() -> None:
    for fault in (Fault.KILL_RANK, Fault.STOP_RANK, Fault.CUT_LINK, Fault.STORE_GONE):
        assert allowed(plan(fault)).exit_codes == frozenset()


def test_two_such_faults_may_spend_the_budgets_and_are_named_then() -> None:
    found = allowed(plan(Fault.KILL_RANK, Fault.STOP_RANK))
    assert found.exit_codes == {5}
    assert {"died", "stopped"} <= found.causes
