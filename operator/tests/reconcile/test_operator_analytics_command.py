"""The interface between the operator and the analytics command: arguments, result, keys of the result."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from delaymq_operator.api import analytics_names
from delaymq_operator.api.broker import parse_broker
from delaymq_operator.manifests import AnalyticsRun, analytics_application
from delaymq_operator.reconcile.broker.analytics.results import FORMAT_VERSION, ResultError, result_of
from delaymq_operator_testing.fakes.spark import RESULT

SPARK_PATH = Path(__file__).parents[3] / "spark" / "src"
NOW_MS = 1_790_000_000_000
Command = Callable[[str], ModuleType]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that imports a module of the command that does not require Spark."""
    monkeypatch.syspath_prepend(str(SPARK_PATH))
    return lambda name: importlib.import_module(f"delaymq_spark.command.{name}")


def arguments(
    read: Literal["HTTP", "Volume"] = "HTTP", settings: dict[str, str] | None = None, **analytics: Any
) -> list[str]:
    broker = parse_broker({"metadata": {"name": "demo", "namespace": "ns"}, "spec": {"analytics": analytics}})
    run = AnalyticsRun(group=0, token="29654400", image="i", read=read, settings=settings or {})
    assert broker.spec.analytics is not None
    found: list[str] = analytics_application(broker, broker.spec.analytics, run)["spec"]["arguments"]
    return found


def test_command_parses_default_arguments(command: Command) -> None:
    wanted = command("arguments").parse(arguments(), NOW_MS)
    assert (wanted.job, wanted.store) == ("report", "http://demo-broker-0.ns.svc:8080")
    assert str(wanted.publish) == "configmap/ns/demo-analytics-0-29654400"
    assert wanted.skipped_ok
    assert wanted.out is None
    assert wanted.keep_runs is None
    assert (wanted.min_dead_ratio, wanted.promise_p99_ms) == (0.25, 100)
    assert wanted.levels is None
    assert wanted.retention_hours is None


def test_command_parses_all_arguments_of_spec(command: Command) -> None:
    found = arguments(keyedTopics=["-a", "b"], minDeadPercent=100, promiseP99Milliseconds=0, resultsClaim="results")
    wanted = command("arguments").parse(found, NOW_MS)
    assert wanted.keyed_topics == {"-a", "b"}
    assert (wanted.min_dead_ratio, wanted.promise_p99_ms) == (1.0, 0)
    assert wanted.out == Path("/results/demo-analytics-0-29654400")
    assert wanted.keep_runs == 30
    assert command("arguments").parse(arguments(resultsClaim="r", resultsHistoryLimit=7), NOW_MS).keep_runs == 7


@pytest.mark.parametrize(("hours", "expected"), [("72", 72), ("0", None), ("-1", None), ("", None), ("1e3", None)])
def test_command_gets_broker_settings_for_volume(command: Command, hours: str, expected: int | None) -> None:
    found = arguments("Volume", {"messageDelayLevel": "1s 5s 1d", "fileReservedTime": hours})
    wanted = command("arguments").parse(found, NOW_MS)
    assert wanted.store == "/mnt/delaymq/store"
    assert wanted.levels == "1s 5s 1d"
    assert wanted.retention_hours == expected


def test_operator_parses_result_of_command(command: Command) -> None:
    status = command("status")
    assert status.FORMAT_VERSION == FORMAT_VERSION
    failure = status.of_failure(
        "it broke", as_of_ms=1, completed_at_ms=2, duration_ms=1, store_id=None, broker_name=None
    )
    assert failure.keys() == RESULT.keys()
    with pytest.raises(ResultError, match="it broke"):
        result_of({"data": {"status.json": status.as_text(failure)}}, "x")
    success = result_of({"data": {"status.json": status.as_text(dict(RESULT, p99LatenessMs=9.5))}}, "x")
    assert success.messages == RESULT["messages"]


def test_result_keys_match_those_of_command(command: Command) -> None:
    publish = command("publish")
    ours = (analytics_names.RESULT_STATUS_KEY, analytics_names.RESULT_SUMMARY_KEY, analytics_names.RESULT_REPORT_KEY)
    assert ours == (publish.STATUS, publish.SUMMARY, publish.REPORT)
