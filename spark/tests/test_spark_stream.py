"""A stream behind a log that grows, is cut, or loses its beginning: every message that stays comes once."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq.message.levels import DelayLevels
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord
from delaymq.store.options import StoreOptions
from delaymq_spark import register
from delaymq_spark.source import RocketMqStoreSource
from delaymq_spark.source_stream import StoreStreamReader
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_streaming import begun

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
SEGMENT_BYTES = 65_536


class Broker:
    """A store that takes numbered messages, and may be killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clock = iter(range(1_700_000_000_000, 1 << 60))
        self.offsets: list[int] = []
        self.start()

    def start(self) -> None:
        options = StoreOptions(
            commit_log_file_bytes=SEGMENT_BYTES, consume_queue_file_bytes=4000, index_enable=False,
            disk_max_used_ratio=0.999, disk_clean_ratio=0.999, disk_write_refused_ratio=0.999,
        )  # fmt: skip
        now_ms = self._clock.__next__
        self.store = MessageStore.open(self.path, options, now_ms=now_ms, levels=DelayLevels.parse())

    def send(self, count: int) -> None:
        for number in range(len(self.offsets), len(self.offsets) + count):
            sent = self.store.append(
                NewRecord(
                    topic="Orders", queue_id=number % 3, body=b"x" * 500, properties={"KEYS": f"k{number}"},
                    flag=0, sys_flag=0, born_timestamp_ms=1, born_host=HOST, store_host=HOST,
                )
            )  # fmt: skip
            self.offsets.append(sent.physical_offset)
        while self.store.write_behind():
            pass

    def lose_power(self, kept: int) -> None:
        """Only the first `kept` messages reached the disk; the broker starts again."""
        self.store.abandon()
        for file in sorted((self.path / "commitlog").iterdir()):
            cut = min(max(self.offsets[kept] - int(file.name), 0), SEGMENT_BYTES)
            file.write_bytes(file.read_bytes()[:cut].ljust(SEGMENT_BYTES, b"\0"))
        del self.offsets[kept:]
        self.start()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "store")
    yield broker
    broker.store.abandon()


def reader_of(broker: Broker, columns: str = "physical_offset", **options: str) -> StoreStreamReader:
    source = RocketMqStoreSource({"path": str(broker.path), "columns": columns, "splitBytes": "16k", **options})
    return source.streamReader(source.schema())


def offsets_between(reader: StoreStreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    parts = reader.partitions(start, end)
    found = [value for part in parts for batch in reader.read(part) for value in batch["physical_offset"].to_pylist()]
    return [value for value in found if value is not None]


def follow(reader: StoreStreamReader, at: dict[str, int]) -> tuple[list[list[int]], dict[str, int]]:
    """What the batches up to the log's end have, as Spark would ask for them."""
    found = []
    while (end := reader.latestOffset()) != at:
        found.append(offsets_between(reader, at, end))
        at = end
    return found, at


def test_a_batch_has_about_as_many_bytes_as_the_option_allows(broker: Broker) -> None:
    broker.send(600)
    reader = reader_of(broker, maxBytesPerTrigger="32k")
    batches, at = follow(reader, reader.initialOffset())
    assert [offset for batch in batches for offset in batch] == broker.offsets
    assert len(batches) >= 600 * 600 // (48 << 10)
    assert max(batch[-1] - batch[0] for batch in batches) < 50 << 10
    broker.send(300)
    more, _ = follow(reader, at)
    assert [offset for batch in more for offset in batch] == broker.offsets[600:]
    assert len(more) > 2


def test_a_record_larger_than_the_option_is_a_batch_all_the_same(broker: Broker) -> None:
    broker.send(30)
    reader = reader_of(broker, maxBytesPerTrigger="4096")
    batches, _ = follow(reader, reader.initialOffset())
    assert [offset for batch in batches for offset in batch] == broker.offsets


def test_a_reader_that_starts_at_a_checkpoint_goes_on_where_it_stood(broker: Broker) -> None:
    broker.send(100)
    first = reader_of(broker, maxBytesPerTrigger="16k")
    _, at = follow(first, first.initialOffset())
    broker.send(150)
    again = reader_of(broker, maxBytesPerTrigger="16k")
    batches, _ = follow(again, at)
    assert [offset for batch in batches for offset in batch] == broker.offsets[100:]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kept", [40, 140, 299])
def test_a_log_that_a_crash_cut_does_not_hold_the_stream_up(
    broker: Broker, caplog: pytest.LogCaptureFixture, kept: int, restarted: bool
) -> None:
    broker.send(300)
    reader = reader_of(broker)
    _, at = follow(reader, reader.initialOffset())
    broker.lose_power(kept)
    if restarted:
        reader = reader_of(broker)
    with caplog.at_level(logging.WARNING):
        lost, at = follow(reader, at)
    assert [offset for batch in lost for offset in batch] == []
    assert "a crash has cut it" in caplog.text
    broker.send(200)
    batches, _ = follow(reader, at)
    assert [offset for batch in batches for offset in batch] == broker.offsets[kept:]


def test_what_was_deleted_before_it_was_read_is_told(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.send(300)
    reader = reader_of(broker, columns="physical_offset,skipped")
    start = reader.initialOffset()
    os.remove(sorted((broker.path / "commitlog").iterdir())[0])
    end = reader.latestOffset()
    with caplog.at_level(logging.WARNING):
        parts = reader.partitions(start, end)
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["physical_offset"] for row in rows if row["skipped"] is None] == [
        offset for offset in broker.offsets if offset >= SEGMENT_BYTES
    ]
    (told,) = [json.loads(row["skipped"]) for row in rows if row["skipped"] is not None]
    assert (told["offset"], told["lostBytes"], told["reason"]) == (0, SEGMENT_BYTES, "deleted before it was read")
    assert "deleted before it was read" in caplog.text


def test_spark_stops_and_goes_on_with_a_limit_and_each_message_comes_once(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    register(spark)

    def start() -> StreamingQuery:
        return (
            spark.readStream.format("rocketmq_store")
            .options(path=str(broker.path), columns="physical_offset", splitBytes="32k", maxBytesPerTrigger="64k")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )

    def run(*counts: int) -> list[int]:
        """Batches with rows after each of these sends."""
        query, batches = begun(start), []
        try:
            for count in counts:
                broker.send(count)
                query.processAllAvailable()
                batches.append(len([each for each in query.recentProgress if each["numInputRows"]]))
        finally:
            query.stop()
        return batches

    first, second = run(20, 700)
    assert first == 1
    assert second > 5
    (third,) = run(300)
    assert third >= 1
    assert run(0) == [0]
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("physical_offset").collect()
    assert [row[0] for row in found] == broker.offsets
