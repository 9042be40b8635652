"""Streams that follow a log which grows, is truncated, or loses its beginning: no message is read twice."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from delaymq.message.levels import DelayLevels
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord
from delaymq.store.options import StoreOptions
from delaymq_spark import register
from delaymq_spark.source.data_source import RocketMqStoreSource
from delaymq_spark.source.stream import DataLossError, StoreStreamReader
from delaymq_spark_testing.fake_broker import fake_broker
from delaymq_spark_testing.streaming import begun
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
SEGMENT_BYTES = 65_536


class Broker:
    """A store that accepts numbered messages, and can lose power."""

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
        """Keep only the first `kept` messages, as if only they had reached the disk, and restart the broker."""
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
    """Return a reader like the one that Spark creates at each start of a stream."""
    source = RocketMqStoreSource({"path": str(broker.path), "columns": columns, "splitBytes": "16k", **options})
    return source.streamReader(source.schema())


def offsets_between(reader: StoreStreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    parts = reader.partitions(start, end)
    found = [value for part in parts for batch in reader.read(part) for value in batch["physical_offset"].to_pylist()]
    return [value for value in found if value is not None]


def follow(reader: StoreStreamReader, at: dict[str, int]) -> tuple[list[list[int]], dict[str, int]]:
    """Return the contents of the batches up to the end of the log, requested as Spark does, and the last offset."""
    found, limit = [], reader.getDefaultReadLimit()
    while (end := reader.latestOffset(at, limit)) != at:
        found.append(offsets_between(reader, at, end))
        at = end
    return found, at


def test_batch_size_is_close_to_max_bytes_per_trigger(broker: Broker) -> None:
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


def test_record_larger_than_max_bytes_per_trigger_is_read_in_one_batch(broker: Broker) -> None:
    broker.send(30)
    reader = reader_of(broker, maxBytesPerTrigger="4096")
    batches, _ = follow(reader, reader.initialOffset())
    assert [offset for batch in batches for offset in batch] == broker.offsets


def test_reader_resumes_at_its_checkpoint(broker: Broker) -> None:
    broker.send(100)
    first = reader_of(broker, maxBytesPerTrigger="16k")
    _, at = follow(first, first.initialOffset())
    broker.send(150)
    again = reader_of(broker, maxBytesPerTrigger="16k")
    batches, _ = follow(again, at)
    assert [offset for batch in batches for offset in batch] == broker.offsets[100:]
    assert max(batch[-1] - batch[0] for batch in batches) < 26 << 10, "the first batch has a limit too"


def test_limit_larger_than_a_segment_spans_several_segments(broker: Broker) -> None:
    broker.send(600)
    reader = reader_of(broker, maxBytesPerTrigger="150k")
    batches, _ = follow(reader, reader.initialOffset())
    assert [offset for batch in batches for offset in batch] == broker.offsets
    sizes = [batch[-1] - batch[0] for batch in batches]
    assert min(sizes[:-1]) > SEGMENT_BYTES
    assert max(sizes) < 170 << 10


def test_read_all_available_ignores_the_limit(broker: Broker) -> None:
    broker.send(300)
    reader = reader_of(broker, maxBytesPerTrigger="16k")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert offsets_between(reader, start, end) == broker.offsets
    assert reader.reportLatestOffset() == end


def test_available_now_ends_at_the_log_end_of_its_start(broker: Broker) -> None:
    broker.send(300)
    reader = reader_of(broker, maxBytesPerTrigger="32k")
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    broker.send(100)
    batches, at = follow(reader, at)
    assert [offset for batch in batches for offset in batch] == broker.offsets[:300]
    assert len(batches) > 4
    again = reader_of(broker)
    again.prepareForTriggerAvailableNow()
    assert follow(again, at)[0] == [broker.offsets[300:]]


def test_log_over_http_is_read_in_batches(broker: Broker) -> None:
    broker.send(600)
    broker.store.close()
    with fake_broker(broker.path) as server:
        source = RocketMqStoreSource({"path": server.url, "columns": "physical_offset", "maxBytesPerTrigger": "100k"})
        reader = source.streamReader(source.schema())
        batches, _ = follow(reader, reader.initialOffset())
    assert [offset for batch in batches for offset in batch] == broker.offsets
    assert len(batches) > 3


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kept", [40, 140, 299])
def test_log_truncated_by_a_crash_does_not_block_the_stream(
    broker: Broker, caplog: pytest.LogCaptureFixture, kept: int, restarted: bool
) -> None:
    broker.send(300)
    reader = reader_of(broker, failOnDataLoss="false")
    _, at = follow(reader, reader.initialOffset())
    broker.lose_power(kept)
    if restarted:
        reader = reader_of(broker, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        lost, at = follow(reader, at)
    assert [offset for batch in lost for offset in batch] == []
    assert "as after a crash that truncated it" in caplog.text
    broker.send(200)
    batches, _ = follow(reader, at)
    assert [offset for batch in batches for offset in batch] == broker.offsets[kept:]


def test_data_deleted_before_it_was_read_is_reported(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.send(300)
    reader = reader_of(broker, columns="physical_offset,skipped", failOnDataLoss="false")
    start = reader.initialOffset()
    os.remove(sorted((broker.path / "commitlog").iterdir())[0])
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    with caplog.at_level(logging.WARNING):
        parts = reader.partitions(start, end)
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["physical_offset"] for row in rows if row["skipped"] is None] == [
        offset for offset in broker.offsets if offset >= SEGMENT_BYTES
    ]
    (told,) = [json.loads(row["skipped"]) for row in rows if row["skipped"] is not None]
    assert (told["offset"], told["lostBytes"], told["reason"]) == (0, SEGMENT_BYTES, "deleted before it was read")
    assert "deleted before it was read" in caplog.text


def remove_first(broker: Broker) -> None:
    os.remove(sorted((broker.path / "commitlog").iterdir())[0])


def damage_first(broker: Broker) -> None:
    file = sorted((broker.path / "commitlog").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[20_000:21_000] = bytes(1_000)
    file.write_bytes(data)


def make_unreadable(broker: Broker) -> None:
    """Replace a file by a folder."""
    file = sorted((broker.path / "commitlog").iterdir())[1]
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (remove_first, f"{SEGMENT_BYTES} bytes skipped: deleted before it was read"),
        (damage_first, "bytes skipped: "),
        (make_unreadable, f"{SEGMENT_BYTES} bytes skipped: cannot be read"),
        (lambda broker: broker.lose_power(100), "bytes skipped: the log was truncated before it was read"),
    ],
)
def test_unreadable_data_fails_the_stream_unless_losses_are_allowed(
    broker: Broker, happens: Callable[[Broker], None], said: str
) -> None:
    broker.send(300)
    strict, lax = reader_of(broker), reader_of(broker, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    happens(broker)
    with pytest.raises(DataLossError) as caught:
        offsets_between(strict, start, end)
    assert said in str(caught.value)
    assert str(caught.value).endswith(": set the option failOnDataLoss to false to continue without it")
    kept = offsets_between(lax, start, end)
    assert 0 < len(kept) < 300
    assert set(kept) < set(broker.offsets) | {*range(end["offset"])}


def test_log_truncated_below_the_stream_position_fails_the_stream(broker: Broker) -> None:
    broker.send(300)
    reader = reader_of(broker)
    _, at = follow(reader, reader.initialOffset())
    broker.lose_power(100)
    for each in (reader, reader_of(broker)):
        with pytest.raises(DataLossError, match=rf"the log ended at offset {at['offset']} and now ends at \d+"):
            each.latestOffset(at, each.getDefaultReadLimit())


def test_missing_starting_offset_fails_the_stream(broker: Broker) -> None:
    broker.send(300)
    remove_first(broker)
    assert reader_of(broker).initialOffset() == {"offset": SEGMENT_BYTES}
    with pytest.raises(DataLossError, match="startingOffset 7 no longer exists: set the option failOnDataLoss"):
        reader_of(broker, startingOffset="7").initialOffset()
    lax = reader_of(broker, startingOffset="7", failOnDataLoss="false")
    assert lax.initialOffset() == {"offset": SEGMENT_BYTES}


def test_file_that_is_not_a_segment_is_not_a_loss(broker: Broker) -> None:
    broker.send(300)
    (broker.path / "commitlog" / "notes.txt").write_bytes(bytes(1 << 20))
    reader = reader_of(broker)
    batches, _ = follow(reader, reader.initialOffset())
    assert [offset for batch in batches for offset in batch] == broker.offsets


def test_time_range_limits_the_stream_and_is_not_a_loss(broker: Broker) -> None:
    broker.send(300)
    reader = reader_of(broker, until="1")
    batches, at = follow(reader, reader.initialOffset())
    assert [offset for batch in batches for offset in batch] == []
    assert at["offset"] > broker.offsets[-1]


def test_spark_stops_and_resumes_with_a_limit_and_reads_each_message_once(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    register(spark)

    def start(**trigger: Any) -> StreamingQuery:
        return (
            spark.readStream.format("rocketmq_store")
            .options(path=str(broker.path), columns="physical_offset", splitBytes="32k", maxBytesPerTrigger="64k")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger or {"processingTime": "0 seconds"})
            .start()
        )

    def run(*counts: int) -> list[int]:
        """Return the number of batches with rows after each of these sends."""
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
    broker.send(500)
    query = begun(lambda: start(availableNow=True))
    assert query.awaitTermination(240)
    assert len([each for each in query.recentProgress if each["numInputRows"]]) > 3, "the first batch has a limit too"
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("physical_offset").collect()
    assert [row[0] for row in found] == broker.offsets
