"""Comparison with `delaymq store inspect` and with the responses of the real broker to its producers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.message.names import is_system_topic
from delaymq.store.tools.inspect import Inspection, inspect
from delaymq_spark.cli import run
from delaymq_spark.source.data_source import register
from delaymq_spark.store.positions import read_positions
from delaymq_spark_testing.aged_workload import aged_workload
from delaymq_spark_testing.store import GOLDEN, unpack_golden
from delaymq_spark_testing.workload import mixed_workload
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

pytestmark = pytest.mark.core

# Documented in broker_image/tests/golden/README.md.
GOLDEN_RECORDS, GOLDEN_LOG_END, GOLDEN_BLANK = 107, 31_699, 1_843
GOLDEN_LEVELS = {1: 6, 5: 2, 18: 4}
MAKERS: dict[str, Callable[[Path], Path]] = {
    "clean": lambda folder: unpack_golden("clean", folder),
    "killed": lambda folder: unpack_golden("killed", folder),
    "mixed": lambda folder: mixed_workload(folder / "store", seed=3).path,
    "aged": lambda folder: aged_workload(folder / "store", seed=3).path,
}


@pytest.fixture(scope="module", params=list(MAKERS))
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp("counted"))


@pytest.fixture(params=["clean", "killed"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    lines = (GOLDEN / f"store-{request.param}.sent.jsonl").read_text().splitlines()
    sent = [parsed for line in lines if "kind" in (parsed := json.loads(line))]
    return unpack_golden(request.param, tmp_path), sent


def messages(spark: SparkSession, store: Path, *columns: str) -> DataFrame:
    register(spark)
    return spark.read.format("rocketmq_store").option("path", str(store)).option("columns", ",".join(columns)).load()


def counts_of_inspect(counted: Inspection) -> Counter[tuple[str, str]]:
    """Return the number of records by topic and by the data source's kind."""
    ours = {
        "delivered copy": "delivered", "dead letter": "dead_letter", "mark": "system", "filler": "system",
        "timed": "delayed", "timed copy": "delivered", "timed mark": "system",
        "group mark": "system",
    }  # fmt: skip
    found: Counter[tuple[str, str]] = Counter()
    for topic, kinds in counted.topics.items():
        for kind, records in kinds.items():
            of_system = kind in ("normal", "delivered copy") and is_system_topic(topic)
            found[topic, "system" if of_system else ours.get(kind, kind)] += records
    return found


def test_messages_by_topic_kind_and_segment_equal_those_of_inspect(spark: SparkSession, store: Path) -> None:
    counted = inspect(store)
    rows = (
        messages(spark, store, "topic", "kind", "segment", "size")
        .groupBy("topic", "kind", "segment")
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
        .collect()
    )
    by_topic: Counter[tuple[str, str]] = Counter()
    by_segment: Counter[int] = Counter()
    bytes_of: Counter[int] = Counter()
    for row in rows:
        by_topic[row.topic, row.kind] += row.messages
        by_segment[row.segment] += row.messages
        bytes_of[row.segment] += row.bytes
    assert by_topic == counts_of_inspect(counted)
    assert by_segment == {each.first_offset: each.records for each in counted.segments if each.records}
    assert bytes_of == {each.first_offset: each.record_bytes for each in counted.segments if each.records}


def test_totals_of_the_summary_equal_those_of_inspect(
    spark: SparkSession, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = inspect(store)
    assert run(["traffic", "--store", str(store), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    totals = summary["totals"]
    assert (totals["messages"], totals["topics"]) == (counted.records, len(counted.topics))
    assert totals["bytes"] == sum(each.record_bytes for each in counted.segments)
    assert totals["segments"] == sum(each.records > 0 for each in counted.segments)
    assert (summary["complete"], summary["skippedBytes"]) == (True, 0)


def test_states_of_timed_messages_equal_those_of_inspect(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    counted = Counter(inspect(store).timed)
    assert run(["delay", "--store", str(store), "--out", str(tmp_path)]) == 0
    rows = spark.read.parquet(str(tmp_path / "delay.parquet")).where("identity is not null").collect()
    found = Counter(row.outcome for row in rows)
    delivered, pending = counted.pop("delivered", 0), counted.pop("pending", 0)
    assert found == +Counter(delivered=delivered, pending=pending, withdrawn=counted.total())
    assert {row.level for row in rows} <= {None}
    assert len({row.identity for row in rows}) == len(rows)


def test_store_of_the_real_broker_matches_its_description(
    spark: SparkSession, golden: tuple[Path, list[dict[str, Any]]]
) -> None:
    store, _ = golden
    columns = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "delay_level", "kind")
    rows = messages(spark, store, *columns).collect()
    assert len(rows) == GOLDEN_RECORDS
    assert sum(row["size"] for row in rows) == GOLDEN_LOG_END - GOLDEN_BLANK
    assert max(row.physical_offset + row["size"] for row in rows) == GOLDEN_LOG_END
    delayed = [row for row in rows if row.kind == "delayed"]
    levels = Counter(row.delay_level for row in delayed)
    # Rejected messages also pass through the schedule topic, in levels 3 and above; producers did not send those.
    assert {level: levels[level] for level in GOLDEN_LEVELS} == GOLDEN_LEVELS
    assert all(row.queue_id == row.delay_level - 1 for row in delayed)
    ends: Counter[tuple[str, int]] = Counter()
    for row in rows:
        ends[row.topic, row.queue_id] = max(ends[row.topic, row.queue_id], row.queue_offset + 1)
    queues = {queue: found.max_number for queue, found in read_positions(store).queues.items() if found.max_number}
    assert {queue: end for queue, end in ends.items() if queue in queues} == queues


def test_each_message_confirmed_by_the_real_broker_is_at_the_confirmed_offset(
    spark: SparkSession, golden: tuple[Path, list[dict[str, Any]]]
) -> None:
    store, sent = golden
    columns = ("topic", "queue_id", "queue_offset", "physical_offset", "unique_key", "kind", "real_queue_id")
    at: dict[int, Row] = {row.physical_offset: row for row in messages(spark, store, *columns).collect()}
    confirmed: Counter[str] = Counter()
    for line in sent:
        if line["status"] != "SEND_OK" or line["offsetMsgId"] == "null":
            continue
        for number, (message_id, place) in enumerate(
            zip(line["msgId"].split(","), line["offsetMsgId"].split(","), strict=True)
        ):
            row = at[int(place[-16:], 16)]
            assert row.unique_key == message_id
            # For a delayed message, the broker confirms the real topic's queue, and the delayed record's offset.
            queue_id = row.real_queue_id if row.kind == "delayed" else row.queue_id
            assert (queue_id, row.queue_offset) == (line["queueId"], line["queueOffset"] + number)
            confirmed[row.topic] += 1
    assert confirmed.total() >= 65
    rows = Counter(row.topic for row in at.values())
    for topic, count in confirmed.items():
        assert rows[topic] >= count
