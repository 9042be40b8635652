"""`rocketmq_store` in Spark: totals, columns, options, filters, and a stream that follows a growing log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from delaymq.message.levels import DelayLevels
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord
from delaymq.store.options import StoreOptions
from delaymq.store.reader import StoreReader
from delaymq.store.tools.inspect import inspect
from delaymq_spark import register
from delaymq_spark.source.schema import COLUMNS, DEFAULT_COLUMNS
from delaymq_spark_testing.store import comparable, reader_rows, unpack_golden
from delaymq_spark_testing.streaming import keys_streamed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_golden("killed", tmp_path_factory.mktemp("golden"))


@pytest.fixture
def own(tmp_path: Path) -> MessageStore:
    options = StoreOptions(commit_log_file_bytes=65_536, consume_queue_file_bytes=4000, index_enable=False)
    return MessageStore.open(
        tmp_path / "store", options, now_ms=iter(range(1_700_000_000_000, 1 << 60)).__next__, levels=DelayLevels.parse()
    )


def send(store: MessageStore, first: int, count: int, topic: str = "Orders") -> None:
    for number in range(first, first + count):
        store.append(
            NewRecord(
                topic=topic, queue_id=number % 3, body=b"x" * 500, properties={"KEYS": f"k{number}"},
                flag=0, sys_flag=0, born_timestamp_ms=1_699_999_999_000, born_host=HOST, store_host=HOST,
            )
        )  # fmt: skip


def load(spark: SparkSession, path: Path | str, **options: str) -> DataFrame:
    return spark.read.format("rocketmq_store").options(path=str(path), **options).load()


def test_rows_of_a_store_of_the_real_broker_equal_those_of_the_reader(spark: SparkSession, golden: Path) -> None:
    frame = load(spark, golden, columns="*", verify="true", splitBytes="4096")
    assert frame.columns == list(COLUMNS)
    assert frame.rdd.getNumPartitions() > 4
    rows = sorted((row.asDict() for row in frame.collect()), key=lambda row: row["physical_offset"])
    expected = list(reader_rows(golden))
    shown = [comparable({**row, "body": bytes(row["body"])}) for row in rows]
    assert [{k: v for k, v in row.items() if not k.endswith("_time")} for row in shown] == [
        {k: v for k, v in row.items() if not k.endswith("_time")} for row in expected
    ]
    in_ms = frame.select(F.unix_millis("store_time"), F.unix_millis("due_time")).orderBy("physical_offset")
    assert [tuple(row) for row in in_ms.collect()] == [(row["store_time"], row["due_time"]) for row in expected]


def test_totals_by_topic_equal_those_of_delaymq_store_inspect(spark: SparkSession, golden: Path) -> None:
    counted = load(spark, golden, columns="topic").groupBy("topic").count()
    assert {row[0]: row[1] for row in counted.collect()} == {
        topic: sum(kinds.values()) for topic, kinds in inspect(golden).topics.items()
    }


def test_bodies_and_properties_are_read_only_on_request(spark: SparkSession, golden: Path) -> None:
    assert load(spark, golden).columns == list(DEFAULT_COLUMNS)
    assert load(spark, golden, columns="body,topic").columns == ["body", "topic"]
    frame = spark.read.format("rocketmq_store").schema("size int, topic string").option("path", str(golden)).load()
    [[total]] = frame.agg(F.sum("size")).collect()
    assert total == sum(record.size for record in StoreReader(golden).records())


def test_topics_and_store_times_limit_the_rows(spark: SparkSession, golden: Path) -> None:
    times = sorted(record.store_timestamp_ms for record in StoreReader(golden).records())
    begin, end = times[20], times[80]
    frame = load(spark, golden, **{"from": str(begin), "until": str(end)})
    assert frame.count() == sum(begin <= time < end for time in times)
    of_topics = load(spark, golden, topics="GoldenDelay, SCHEDULE_TOPIC_XXXX").groupBy("kind").count()
    assert {row["kind"]: row["count"] for row in of_topics.collect()} == {"delayed": 12 + 3, "delivered": 6}


def test_pushed_down_filters_select_the_same_rows_as_spark(spark: SparkSession, golden: Path) -> None:
    frame = load(spark, golden)
    [[middle]] = frame.agg(F.percentile_approx("store_time", 0.5)).collect()
    conditions = [
        (F.col("topic") == "GoldenNormal") & (F.col("queue_id") == 1),
        F.col("topic").isin("GoldenNormal", "GoldenDelay"),
        F.col("store_time") >= F.lit(middle),
        (F.col("store_time") > F.lit(middle)) | F.lit(False),
        (F.col("store_time") < F.lit(middle)) & (F.col("topic") != "GoldenNormal"),
        F.col("store_time") <= F.lit(middle),
    ]
    plain = [sorted(frame.where(condition).collect()) for condition in conditions]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = [sorted(load(spark, golden, pushdown="true").where(condition).collect()) for condition in conditions]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert pushed == plain
    assert all(plain)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": ""}, "the option `path` is missing"),
        ({"path": "/nowhere/at/all"}, "is not a store: it has no commitlog folder"),
        ({"path": "s3://bucket/store"}, "the scheme s3 is not supported"),
        ({"columns": "topic,boddy"}, "did you mean body?"),
        ({"column": "topic"}, "did you mean columns?"),
        ({"splitBytes": "lots"}, "such as 134217728 or 128m"),
        ({"from": "yesterday"}, "use a time such as"),
        ({"from": "2026-01-02", "until": "2026-01-01"}, "is not earlier than until"),
        ({"verify": "perhaps"}, "use true or false"),
        ({"delayLevels": "1s 5x"}, "delayLevels: level 2"),
    ],
)
def test_invalid_option_is_rejected_with_a_suggestion(
    spark: SparkSession, golden: Path, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=r".*") as caught:
        load(spark, **{"path": str(golden), **options}).count()
    assert said in str(caught.value)


def test_store_open_in_the_broker_is_read_to_its_last_record(spark: SparkSession, own: MessageStore) -> None:
    send(own, 0, 500)
    assert load(spark, own.path, splitBytes="16k").agg(F.countDistinct("physical_offset"), F.count("*")).first() == (
        500, 500,
    )  # fmt: skip
    own.close()


def test_empty_store_has_no_rows(spark: SparkSession, own: MessageStore) -> None:
    assert load(spark, own.path).count() == 0
    own.close()


def test_stream_follows_a_growing_log_without_losses_or_duplicates(
    spark: SparkSession, own: MessageStore, tmp_path: Path
) -> None:
    send(own, 0, 200)

    def run() -> list[str]:
        return keys_streamed(spark, str(own.path), tmp_path, split_bytes="16k")

    assert run() == [f"k{number}" for number in range(200)]
    assert run() == [f"k{number}" for number in range(200)]
    send(own, 200, 300)
    assert run() == [f"k{number}" for number in range(500)]
    own.close()


def test_format_is_available_without_registration(golden: Path) -> None:
    program = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        ".config('spark.driver.host', '127.0.0.1').config('spark.driver.memory', '512m').getOrCreate()\n"
        f"print(spark.read.format('rocketmq_store').option('path', {str(golden)!r}).load().count())\n"
    )
    # Otherwise Spark uses the python3 on the PATH.
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False, env=environment
    )
    assert done.stdout.split()[-1:] == ["107"], done.stderr[-2000:]
