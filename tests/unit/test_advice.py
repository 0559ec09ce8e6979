"""What to do after a launch follows from its report."""

from __future__ import annotations

from dataclasses import replace

from tests.support.made_reports import course_of, failing, made_report
from warmrank.cache_store.backends.tier import TierState
from warmrank.orchestrator.causes import Cause
from warmrank.orchestrator.show.advice import next_steps
from warmrank.orchestrator.show.advice_failed import Step
from warmrank.orchestrator.show.course import StageSpan
from warmrank.orchestrator.show.report import Report
from warmrank.orchestrator.show.store_report import Nondeterministic


def calm(**changes: object) -> Report:
    """A warm launch of two ranks that compiled nothing, about which there is nothing to say."""
    report = made_report(2)
    ranks = tuple(
        replace(rank, functions=tuple(replace(each, outcome="loaded") for each in rank.functions))
        for rank in report.ranks
    )
    loaded = replace(report.totals, num_compiled=0, num_loaded=4)
    return replace(report, ranks=ranks, totals=loaded, **changes)  # type: ignore[arg-type]


def step_of(report: Report, part: str) -> Step:
    (found,) = [step for step in next_steps(report) if part in step.title]
    return found


def test_launch_that_compiled_nothing_leaves_nothing_to_do() -> None:
    (step,) = next_steps(calm())
    assert (step.level, step.title) == ("good", "Nothing was compiled")


def test_launch_that_compiled_says_why_and_that_the_next_one_loads() -> None:
    step = step_of(made_report(8), "The next launch loads what was compiled now (8 functions)")
    assert "Llama.prefill, Llama.decode: torch 2.13.0 -> 2.13.1" in step.text


def test_launch_without_a_store_says_that_others_will_not_load() -> None:
    step = step_of(replace(made_report(8), store="", record=""), "kept on these nodes only")
    assert "`store:` in the config" in step.text


def test_launch_with_a_store_but_no_record_only_says_why_it_compiled() -> None:
    assert step_of(replace(made_report(8), record=""), "Why 8 functions had to be compiled").level == "look"


def test_what_waits_is_to_be_published_in_order() -> None:
    waiting = calm(queued_on=("b", "a"), cache_dir="/my cache")
    step = step_of(replace(waiting, totals=replace(waiting.totals, num_queued=3)), "3 partitions wait")
    assert step.level == "do"
    assert step.text.endswith("run this on b, and then on a.")
    assert step.command == "warmrank publish CONFIG --set 'cache_dir=/my cache'"


def test_commands_name_the_config_as_the_launch_did():
    report = calm(config=("my configs/a.yaml", "--set", "ranks=4"))
    (step,) = next_steps(report)
    assert step.command == "warmrank launch 'my configs/a.yaml' --set ranks=4 --no-compile"


def test_place_that_was_away_is_named() -> None:
    tier = TierState(location="s3://bucket", mode="rw", state="away", reason="no answer in 5 s")
    assert "no answer in 5 s" in step_of(calm(tiers=(tier,)), "place s3://bucket was away").text


def test_differing_environments_are_named() -> None:
    problem = "ranks 8-15: another environment than rank 0: torch 2.12.0 -> 2.13.0"
    assert problem in step_of(calm(problems=(problem,)), "Nodes differ").text


def test_unsigned_artifacts_are_something_to_do() -> None:
    assert step_of(calm(problems=("store: 3 manifests are unsigned",)), "not signed").level == "do"


def test_nondeterministic_functions_are_named() -> None:
    found = calm(nondeterministic=(Nondeterministic(function="f", ranks=(0, 1)),))
    assert step_of(found, "not deterministic").text.startswith("f (ranks 0-1)")


def test_warm_launch_of_several_attempts_tells_what_failed() -> None:
    attempts = course_of(failing(8)).attempts
    warm_at_last = (attempts[0], replace(attempts[1], error="", failed_stage=""))
    step = step_of(calm(course=replace(made_report(2).course, attempts=warm_at_last)), "It took 2 attempts")
    assert (
        step.text
        == "Attempt 1 failed in compile: stage compile failed on 1 of 8 ranks; all ranks were stopped"
    )


def test_failed_launch_begins_with_its_remedy() -> None:
    first = next_steps(made_report(8, failed=True))[0]
    assert first == Step(
        level="do",
        title="node lost on ranks 0-7",
        text="look whether node-0 is up and reachable, and launch again",
    )


def test_failed_launch_without_causes_begins_with_its_error() -> None:
    report = made_report(8, failed=True)
    assert report.failure is not None
    bare = replace(report.failure, causes=(), kind="CannotStart", message="no NPU is free")
    first = next_steps(replace(report, failure=bare))[0]
    assert (first.title, first.text) == ("Cannot start", "no NPU is free")


def test_failed_launch_without_causes_begins_with_the_remedy_that_its_error_names() -> None:
    report = made_report(8, failed=True)
    assert report.failure is not None
    message = "2 functions missed:\n  f on rank 0: nothing there\n  remedy: preseed"
    bare = replace(report.failure, causes=(), kind="CompileForbidden", message=message)
    first = next_steps(replace(report, failure=bare))[0]
    assert (first.title, first.text) == ("Compile forbidden", "preseed")


def raised_on(rank: int) -> Report:
    """A launch of two ranks, of which one raised in build, so that nothing was compiled."""
    report = made_report(2, failed=True)
    assert report.failure is not None
    cause = Cause(ranks=(rank,), kind="RuntimeError", function="", message="no weights", remedy="")
    built = [span for span in report.course.timeline if span.stage in {"start", "fetch", "build"}]
    return replace(
        report,
        failure=replace(report.failure, stage="build", causes=(cause,), silent=()),
        course=replace(report.course, timeline=tuple(built)),
    )


def test_failure_without_a_remedy_says_what_to_do_and_names_the_log_of_the_rank_that_failed() -> None:
    report = raised_on(1)
    first = next_steps(report)[0]
    log = f"{report.ranks[1].log} of rank 1 on node-0"
    assert first.title == "Correct RuntimeError on rank 1"
    assert first.text == (f"no weights\nRead {log}. Correct what raised it, and launch again.")
    assert "rank-0.log" not in "".join(step.text for step in next_steps(report))


def test_log_beside_remedies_is_that_of_a_rank_that_failed() -> None:
    report = raised_on(1)
    assert report.failure is not None
    (cause,) = report.failure.causes
    died = replace(report.failure, causes=(replace(cause, kind="died", remedy="look for the killer"),))
    step = step_of(replace(report, failure=died), "Read the log")
    assert step.text == f"Each rank writes a log on its node: {report.ranks[1].log} of rank 1 on node-0."


def test_what_was_compiled_is_told_to_stay_only_where_something_was() -> None:
    assert step_of(raised_on(1), "Nothing was committed").text == (
        "There is no record of this launch in the store."
    )
    report = made_report(2, failed=True)
    assert "What was compiled" not in step_of(report, "Nothing was committed").text
    last = report.course.timeline[-1]
    compiled = replace(last, stage="compile", ok=True)
    course = replace(report.course, timeline=(*report.course.timeline[:-1], compiled))
    assert "What was compiled" not in step_of(replace(report, course=course), "Nothing was committed").text
    assert report.failure is not None
    later = replace(report, course=course, failure=replace(report.failure, stage="first_call"))
    assert "What was compiled stays" in step_of(later, "Nothing was committed").text


def test_what_one_rank_had_compiled_stays_though_another_failed() -> None:
    report = raised_on(1)
    assert report.failure is not None
    report = replace(report, failure=replace(report.failure, stage="compile"))
    cut = StageSpan(
        attempt=2, stage="compile", start_s=1.0, end_s=4.0, ok=False, ranks=(0, 1), rank_end_s=(2.0, 3.9)
    )
    both = replace(report, course=replace(report.course, timeline=(cut,)))
    assert "What was compiled stays" in step_of(both, "Nothing was committed").text
    only_the_failed = replace(cut, rank_end_s=(4.0, 3.9))
    failed = replace(report, course=replace(report.course, timeline=(only_the_failed,)))
    assert "What was compiled" not in step_of(failed, "Nothing was committed").text


def test_launch_that_was_stopped_asks_for_nothing() -> None:
    report = made_report(2, failed=True)
    assert report.failure is not None
    stopped = replace(report.failure, kind="Terminated", message="stopped (SIGTERM)", causes=())
    (step,) = next_steps(replace(report, failure=stopped, exit_code=143))
    assert (step.level, step.title) == ("look", "The launch was stopped")


def test_urgent_steps_come_first() -> None:
    levels = [step.level for step in next_steps(made_report(1024, failed=True))]
    assert levels == sorted(levels, key=("do", "look", "good").index)
