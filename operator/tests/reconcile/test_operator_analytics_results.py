"""Status of a finished analytics run: figures, skipped parts, reasons for failure."""

import pytest
from delaymq_operator_testing.fakes.spark import RESULT
from delaymq_operator_testing.worlds.analysed import (
    analyse,
    analysed,
    applications,
    ended,
    events,
    group,
    made,
    ready,
    told,
)


@pytest.mark.parametrize("state", ["FAILED", "SUBMISSION_FAILED"])
def test_failed_application_is_reported_with_message_of_spark_operator(state: str) -> None:
    world = analysed()
    world.spark.last, world.spark.error, world.spark.result = state, "no such\n image", None
    analyse(world)
    assert told(world)["state"] == "Failed"
    assert (ready(world)["status"], ready(world)["reason"]) == ("False", "RunFailed")
    assert "no such image" in group(world)["message"]
    assert "kubectl logs" in group(world)["message"]
    assert len(events(world, "RunFailed")) == 1
    assert world.analysed == ["failed"]
    assert world.settled
    assert world.reason("Degraded") == "AsExpected"


def test_error_message_of_failed_driver_is_reported() -> None:
    world = analysed()
    world.spark.last, world.spark.error = "FAILED", "driver container failed with ExitCode: 3"
    world.spark.result = {"formatVersion": 1, "error": "http://demo-broker-0 refused the token: see Secret"}
    analyse(world)
    assert group(world)["message"] == "RunFailed: http://demo-broker-0 refused the token: see Secret"


def test_failed_run_keeps_figures_of_last_success() -> None:
    world = analysed()
    analyse(world, "1")
    first = group(world)
    world.spark.last = "FAILED"
    world.spark.result = {"formatVersion": 1, "error": "it broke"}
    analyse(world, "2")
    assert group(world)["state"] == "Failed"
    for figure in ("messages", "reclaimableBytes", "worstLatenessMs", "report"):
        assert group(world)[figure] == first[figure]
    assert told(world)["messages"] == 100
    assert first["report"] in applications(world)
    world.spark.last, world.spark.result = "COMPLETED", dict(RESULT, messages=1)
    analyse(world, "3")
    assert told(world)["messages"] == 1
    assert ready(world)["reason"] == "RunSucceeded"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "has no status.json"),
        ("{", "cannot be read"),
        ('{"formatVersion": 1, "messages": "many"}', "cannot be read"),
        ('{"formatVersion": 1, "messages": 1e30}', "cannot be read"),
        ('{"formatVersion": 1, "messages": -1}', "cannot be read"),
        ("[]", "cannot be read"),
        ('{"formatVersion": 2, "messages": {"new": "meaning"}}', "format version 2"),
        ('{"formatVersion": 1, "error": "disk\\nfull"}', "disk full"),
        ("x" * 70_000, "more than 65536 characters"),
    ],
)
def test_unusable_result_fails_run_with_message(result: str | None, said: str) -> None:
    world = analysed()
    world.spark.result = result
    analyse(world)
    assert told(world)["state"] == "Failed"
    assert said in group(world)["message"]
    assert "\n" not in group(world)["message"]


def test_deleted_result_fails_run() -> None:
    world = analysed()
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    world.kube.remove("AnalyticsResult", "default", applications(world)[0])
    world.spark.last = "COMPLETED"
    world.run(lambda: ended(world))
    assert "no longer exists" in group(world)["message"]


def test_skipped_parts_and_omitted_report_are_reported() -> None:
    world = analysed()
    world.spark.result = dict(RESULT, complete=False, skippedCount=3, reportOmitted="the report has 2 MB")
    world.spark.report = False
    analyse(world)
    assert told(world)["state"] == "Succeeded"
    assert told(world)["complete"] is False
    assert "report" not in group(world)
    assert group(world)["message"] == "the report has 2 MB"
    assert "3 parts of demo-0 could not be read" in ready(world)["message"]


def test_unknown_members_of_result_are_ignored() -> None:
    world = analysed()
    world.spark.result = dict(RESULT, new={"a": 1})
    analyse(world)
    assert told(world)["state"] == "Succeeded"


def test_result_is_read_after_operator_outage_beyond_deadline() -> None:
    world = analysed(analytics={"deadlineSeconds": 60})
    world.annotate(analyze="1")
    world.run(lambda: len(made(world)) == 1)
    for _ in range(300):
        world.tick()
    world.restart_operator()
    world.run(lambda: ended(world))
    assert told(world)["state"] == "Succeeded"
