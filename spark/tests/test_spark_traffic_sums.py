"""What came in, against stores whose messages were counted while they were written."""

from __future__ import annotations

from pathlib import Path

from delaymq_spark.jobs import traffic
from pyspark.sql import SparkSession
from spark_plain_rows import plain_messages
from spark_workload import HOUR_MS, Workload


def test_rates_sizes_keys_skew_and_failures_are_those_that_were_written(spark: SparkSession, tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    for _ in range(9):
        work.send("Skewed", 0, "retained", b"", keys="hot")
    work.send("Skewed", 1, "retained", bytes(1), keys="rare")
    work.now_ms += HOUR_MS
    for body_bytes in (2, 3, 4, 1000, 1024):
        work.send("Even", 0, "retained", bytes(body_bytes))
    for _ in range(2):
        work.append("%RETRY%shop", 0, "retained", body=bytes(8), reconsume_times=1)
    work.append("%DLQ%shop", 0, "retained", body=bytes(8), reconsume_times=16)
    work.close()
    messages = plain_messages(spark, work.path)
    rows = traffic.transform(messages).persist()

    assert rows.selectExpr("sum(messages)", "sum(bytes)").collect()[0] == (18, sum(r.size for r in work.records))
    assert rows.select("hour").distinct().count() == 2
    topics = {row.topic: row for row in traffic.topics(rows).collect()}
    assert (topics["Skewed"].messages, topics["Skewed"].queues, topics["Skewed"].fullest_queue) == (10, 2, 0)
    assert topics["Skewed"].skew == 1.8
    assert topics["Even"].bytes == sum(r.size for r in work.records if r.topic == "Even")
    assert topics["Even"].peak_hour_messages == 5
    sizes = {row.from_bytes: row.messages for row in traffic.sizes(messages).collect()}
    assert sizes == {0: 9, 1: 1, 2: 2, 4: 1, 8: 3, 512: 1, 1024: 1}
    assert [tuple(row)[:3] for row in traffic.hot_keys(messages, 5).collect()] == [("Skewed", "hot", 9)]
    failed = traffic.failures(rows).collect()[0]
    assert (failed.group, failed.retries, failed.dead_letters) == ("shop", 2, 1)
    assert {row.topic: row.again for row in rows.groupBy("topic").sum("again").toDF("topic", "again").collect()} == {
        "Skewed": 0, "Even": 0, "%RETRY%shop": 2, "%DLQ%shop": 1
    }  # fmt: skip
    rows.unpersist()
