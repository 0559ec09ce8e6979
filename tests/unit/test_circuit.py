from __future__ import annotations

import threading

import pytest

from warmrank.cache_store.backends.circuit import TICK_S, Answer, Circuit, Circuits, Ticks, Watch


class Place:
    """Counts the pings, and keeps what each would be answered with."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def ask(self, answer: Answer) -> None:
        self.answers.append(answer)


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def watch(place: Place) -> Watch:
    return Watch(place.ask, answer_s=4.0, interval_s=1.0)


def test_circuit_opens_once_with_its_first_reason():
    circuit = Circuit()
    assert not circuit.is_open
    circuit.open("no answer within 4 s", where="/mnt")
    circuit.open("another", where="/mnt")
    assert (circuit.is_open, circuit.reason) == (True, "no answer within 4 s")


def test_circuit_says_in_the_log_that_its_place_is_left_alone(caplog):
    Circuit().open("no answer within 4 s", where="/mnt/shared")
    assert "/mnt/shared is left alone for the rest of this process: no answer within 4 s" in caplog.text


def test_circuits_are_one_for_each_place():
    circuits = Circuits()
    there = circuits.of("s3://bucket", {"endpoint": "http://a"})
    assert circuits.of("s3://bucket", {"endpoint": "http://a"}) is there
    assert circuits.of("s3://bucket", {"endpoint": "http://b"}) is not there
    assert circuits.of("/mnt", {}) is not there


def test_place_is_not_asked_in_its_first_second(place, watch):
    assert [watch.pass_time(0.5), len(place.answers)] == ["", 0]


def test_place_is_asked_once_while_it_does_not_answer(place, watch):
    assert [watch.pass_time(1.0) for _ in range(4)] == ["", "", "", ""]
    assert len(place.answers) == 1


def test_silent_place_is_given_up_after_its_patience(watch):
    assert [watch.pass_time(1.0) for _ in range(5)] == ["", "", "", "", "no answer within 4 s"]


def test_answer_in_the_last_moment_counts(place, watch):
    for _ in range(4):
        watch.pass_time(1.0)
    place.answers[0]("")
    assert watch.pass_time(0.9) == ""
    assert len(place.answers) == 1


def test_place_that_answered_is_asked_again_a_second_later(place, watch):
    watch.pass_time(1.0)
    place.answers[0]("")
    watch.pass_time(0.5)
    assert len(place.answers) == 1
    watch.pass_time(0.5)
    assert len(place.answers) == 2


def test_place_that_falls_silent_later_is_given_up(place, watch):
    watch.pass_time(1.0)
    place.answers[0]("")
    assert [watch.pass_time(1.0) for _ in range(5)][-1] == "no answer within 4 s"


def test_fault_of_transport_is_the_reason_at_once(place, watch):
    watch.pass_time(1.0)
    place.answers[0]("connection refused")
    assert watch.pass_time(0.1) == "connection refused"


def test_any_call_that_returned_is_a_sign_of_life(place, watch):
    watch.pass_time(1.0)
    watch.hear(1)
    assert [watch.pass_time(1.0) for _ in range(4)] == ["", "", "", ""]


def test_ticks_count_what_passed_while_the_process_ran():
    now = iter([0.0, 0.1, 0.2, 10.2, 10.3])
    waits = iter([False, False, False, False, True])
    ticks = Ticks(clock=lambda: next(now), wait=lambda event, timeout_s: next(waits))
    assert list(ticks.until(threading.Event())) == pytest.approx([TICK_S] * 4)


def test_ticks_count_no_more_than_what_passed():
    now = iter([0.0, 0.03])
    waits = iter([False, True])
    ticks = Ticks(clock=lambda: next(now), wait=lambda event, timeout_s: next(waits))
    assert list(ticks.until(threading.Event())) == pytest.approx([0.03])


def test_ticks_end_with_the_event():
    event = threading.Event()
    event.set()
    assert list(Ticks().until(event)) == []
