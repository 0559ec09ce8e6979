"""The tools of development: make, the tests' environment, plans of chaos."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chaos_plan import OF_NODES, OF_OWN, STAGES, Fault, Plan, Strike, allowed, plan_of
from tests.support.stored import REPOSITORY

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(60)
def test_phase_of_an_install_is_shown_when_it_begins() -> None:
    command = ["make", "-s", "--eval", "show: ; @$(PIP_PROGRESS)", "show"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as shown:
        assert shown.stdin is not None
        assert shown.stdout is not None
        for said, expected in [
            (
                "  Downloading https://host/torch-2.13.0-cp311.whl (915.2 MB)",
                "  torch-2.13.0-cp311.whl (915.2 MB)",
            ),
            ("Using cached ray.whl (72.1 MB)", "  ray.whl (72.1 MB)"),
            (
                "Using cached a.whl (1.1 MB)\nInstalling collected packages: a",
                "  unpacking all packages",
            ),
            ("Successfully installed a b", "  installed"),
        ]:
            shown.stdin.write(f"{said}\n")  # it stays open: nothing more may come for minutes
            assert shown.stdout.readline().startswith(expected)


FOREIGN = {
    "AWS_PROFILE": "nope",
    "AWS_SKIP_SIGNATURE": "true",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "http_proxy": "http://127.0.0.1:1",
    "ALL_PROXY": "http://127.0.0.1:1",
    "XDG_CONFIG_HOME": "/nonexistent",
}


@pytest.mark.slow
def test_tests_of_object_stores_ignore_the_environment_of_who_runs_them():
    pytest.importorskip("obstore", reason="object stores are an extra: pip install 'warmrank[s3]'")
    pytest.importorskip("moto", reason="the local S3 server comes with pip install 'warmrank[test]'")
    test = "tests/unit/test_object_store.py::test_new_store_has_a_format_and_a_probe"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=REPOSITORY,
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")},
            **FOREIGN,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


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
