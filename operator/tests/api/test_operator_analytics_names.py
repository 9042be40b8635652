"""Names of analytics objects: length limits, stability, reserved Spark properties, Spark version."""

from __future__ import annotations

import re

import pytest
from delaymq_operator.api import AnalyticsSpec, names, parse_broker
from delaymq_operator.api.analytics_names import (
    ANALYTICS_SPARK_VERSION,
    MAX_APPLICATION_NAME_CHARS,
    OWNED_SPARK_KEYS,
    analytics_application,
    demanded_token,
    driver_pod,
    scheduled_token,
    spark_key_owner,
)
from delaymq_operator_testing.crd_files import REPOSITORY_PATH

DUE_S = 1_779_264_000  # 2026-05-20T08:00:00Z
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def test_scheduled_run_is_named_after_broker_group_and_time() -> None:
    assert analytics_application("demo", 1, scheduled_token(DUE_S)) == "demo-analytics-1-29654400"
    assert scheduled_token(DUE_S + 59.9) == scheduled_token(DUE_S) != scheduled_token(DUE_S + 60)


def test_run_on_demand_is_named_after_annotation_value() -> None:
    assert demanded_token("once more") == demanded_token("once more") != demanded_token("once more ")
    assert re.fullmatch("d[0-9a-f]{7}", demanded_token("ü\n" * 10_000))


def test_application_name_leaves_room_for_suffixes_of_spark() -> None:
    for broker in ("b", "b" * 34, "b" * 35, "b" * names.MAX_BROKER_NAME_CHARS, "b" * 20 + "-" * 19 + "b"):
        for token in (scheduled_token(DUE_S), demanded_token("")):
            name = analytics_application(broker, names.MAX_SIZE - 1, token)
            assert len(name) <= MAX_APPLICATION_NAME_CHARS, name
            assert driver_pod(name) == f"{name}-driver"
            assert len(driver_pod(name)) <= 63
            assert LABEL.fullmatch(name)


def test_broker_name_is_truncated_only_when_needed_and_equally_for_all_groups() -> None:
    assert analytics_application("b" * 34, 31, "29654400").startswith("b" * 34 + "-analytics-31-")
    prefixes = {analytics_application("b" * 35, group, "29654400").partition("-analytics-")[0] for group in (0, 31)}
    assert len(prefixes) == 1


def test_brokers_with_common_prefix_have_different_run_names() -> None:
    brokers = ["b" * 36 + end for end in ("aa", "ab", "ba")]
    assert len({analytics_application(broker, 0, "29654400") for broker in brokers}) == 3


def test_spark_version_matches_requirements() -> None:
    pinned = re.search(r"^pyspark==(\S+)", (REPOSITORY_PATH / "requirements/spark.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] == ANALYTICS_SPARK_VERSION


@pytest.mark.parametrize(
    "key",
    [
        "master",
        "",
        "spark.",
        "spark.a b",
        "spark.master=local spark.x",
        "spark.submit.deployMode",
        "spark.jars.packages",
    ],
)
def test_message_about_rejected_spark_property_states_remedy(key: str) -> None:
    said = spark_key_owner(key)
    assert said is not None
    assert ": " in said


@pytest.mark.parametrize("key", ["spark.sql.shuffle.partitions", "spark.driver.extraJavaOptions", "spark.master2"])
def test_unreserved_spark_property_is_accepted(key: str) -> None:
    assert spark_key_owner(key) is None


def test_reserved_spark_property_is_recognised_by_name_or_prefix() -> None:
    for key, sentence in OWNED_SPARK_KEYS.items():
        assert spark_key_owner(key + "x" if key.endswith((".", "_")) else key) == sentence


def test_broker_has_analytics_only_if_spec_enables_it() -> None:
    metadata = {"name": "demo", "namespace": "default", "annotations": {names.ANALYZE_ANNOTATION: "once"}}
    without = parse_broker({"metadata": metadata})
    assert (without.spec.analytics, without.analyze_annotation) == (None, "once")
    assert parse_broker({"metadata": metadata, "spec": {"analytics": {}}}).spec.analytics == AnalyticsSpec()
