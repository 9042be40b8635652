"""A running broker's store over HTTP: rows equal those of the folder despite writes, deletions and restarts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq.client import Client, Message, Producer
from delaymq.store.reader import StoreReader
from delaymq_spark import StorePathError, read_positions, register
from delaymq_spark.cli import run
from delaymq_spark.planning.parts import plan
from delaymq_spark.source.options import parse_options
from delaymq_spark.source.read import batches
from delaymq_spark.store import remote
from delaymq_spark.store.remote import describe_store
from delaymq_spark.store.segments import Skipped, list_segments
from delaymq_spark_testing.running_broker import SEGMENT_BYTES, RunningBroker, running_broker, write_store
from delaymq_spark_testing.store import source_rows, unpack_golden
from delaymq_spark_testing.streaming import keys_streamed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

COUNT = 3_000
EVERYTHING = [f"k{number}" for number in range(COUNT)]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningBroker]:
    monkeypatch.delenv("DELAYMQ_HTTP_TOKEN", raising=False)
    write_store(tmp_path / "store", COUNT)
    with running_broker(tmp_path / "store") as running:
        yield running


def send(broker: RunningBroker, first: int, count: int, *, level: int = 0, delay: str | None = None) -> None:
    async def sending() -> None:
        async with Client(f"127.0.0.1:{broker.namesrv_port}") as client, Producer(client) as producer:
            for number in range(first, first + count):
                message = Message(topic="Orders", body=b"y" * 1_000, keys=(f"k{number}",), delay_level=level)
                await producer.send(message, delay=delay)

    asyncio.run(sending())


def read(broker: RunningBroker, **options: str) -> tuple[list[str], list[Skipped]]:
    told: list[Skipped] = []
    return [row["keys"] for row in source_rows(broker.url, told=told, split_bytes=300_000, **options)], told


def test_rows_over_http_equal_those_of_the_folder(broker: RunningBroker) -> None:
    told: list[Skipped] = []
    over_http = source_rows(broker.url, told=told, split_bytes=300_000)
    assert told == []
    assert over_http == source_rows(broker.store)
    assert len(over_http) == COUNT
    found = plan(broker.url, 300_000)
    assert len(found.parts) > 15
    starts = {record.physical_offset for record in StoreReader(broker.store).records()}
    assert {part.start for part in found.parts} <= starts
    assert (found.start, found.end) == (0, plan(str(broker.store), 1 << 27).end)


def test_store_of_the_real_broker_has_the_same_rows_and_positions_over_http(tmp_path: Path) -> None:
    golden = unpack_golden("clean", tmp_path)
    positions = read_positions(golden)
    with running_broker(golden) as broker:
        over_http = source_rows(broker.url, split_bytes=4_096)
        folder = source_rows(golden)
        found = read_positions(broker.url)
    common = min(over_http[-1]["physical_offset"], folder[-1]["physical_offset"])
    assert [row for row in over_http if row["physical_offset"] <= common] == [
        row for row in folder if row["physical_offset"] <= common
    ]
    assert len(over_http) >= 100
    assert found.consumer_offsets == positions.consumer_offsets
    assert set(found.delay_offsets) >= set(positions.delay_offsets)
    assert {key: each for key, each in found.queues.items() if key[0] == "GoldenNormal"} == {
        key: each for key, each in positions.queues.items() if key[0] == "GoldenNormal"
    }
    assert found.store_id is not None
    assert found.open_or_killed
    assert found.path == broker.url


def test_broker_describes_its_store(broker: RunningBroker) -> None:
    found = describe_store(f"{broker.url}/")
    assert found is not None
    assert found.broker_name == "broker-a"
    assert found.store_id == read_positions(broker.store).store_id
    assert found.message_delay_level.startswith("1s 5s")
    assert found.file_reserved_time_hours == 72
    assert describe_store(str(broker.store)) is None


def test_growing_log_is_read_to_a_consistent_end(broker: RunningBroker) -> None:
    sender = threading.Thread(target=send, args=(broker, COUNT, 1_500))
    sender.start()
    lengths = []
    try:
        while sender.is_alive():
            keys, told = read(broker)
            assert told == []
            assert keys == [f"k{number}" for number in range(len(keys))]
            lengths.append(len(keys))
    finally:
        sender.join(60)
    assert lengths == sorted(lengths)
    assert read(broker) == ([f"k{number}" for number in range(COUNT + 1_500)], [])


def test_delayed_messages_and_their_levels_appear_in_the_positions(broker: RunningBroker) -> None:
    send(broker, COUNT, 3, level=17)
    assert read_positions(broker.url).delay_offsets == {17: 0}
    rows = source_rows(broker.url, topics="SCHEDULE_TOPIC_XXXX")
    assert [(row["kind"], row["delay_level"]) for row in rows] == [("delayed", 17)] * 3


def test_timed_messages_of_a_running_broker_are_settled_by_their_marks(
    spark: SparkSession, broker: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    due = [f"k{number}" for number in range(COUNT, COUNT + 20)]
    send(broker, COUNT, len(due), delay="300ms")
    send(broker, COUNT + len(due), 3, delay="3650d")
    send(broker, COUNT + len(due) + 3, 2, level=18)
    deadline = time.monotonic() + 30
    while (copies := source_rows(broker.url, topics="Orders", columns="*"))[-1]["keys"] != due[-1]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    copies = [row for row in copies if row["keys"] in due]
    holders = source_rows(broker.url, topics="rmq_sys_wheel_timer")
    assert [(row["kind"], row["mark"]) for row in copies] == [("delivered", "delivered")] * len(due)
    assert [row["timer_record"] for row in holders] == ["stated"] * (len(due) + 3)
    assert {row["mark_identity"]: row["mark_due_time"] for row in copies} == {
        row["identity"]: row["due_time"] for row in holders if row["keys"] in due
    }
    assert all(row["store_time"] >= row["mark_due_time"] for row in copies)
    assert run(["delay", "--store", broker.url, "--json"]) == 0
    delay = json.loads(capsys.readouterr().out)["delay"]
    assert {name: delay[name] for name in ("delivered", "pending", "overdue", "early", "duplicates", "lost")} == {
        "delivered": len(due), "pending": 5, "overdue": 0, "early": 0, "duplicates": 0, "lost": 0
    }  # fmt: skip
    assert [(each["level"], each["due"], each["messages"]) for each in delay["pendingByDue"]] == (
        [(18, "next day", 2), (None, "later", 3)]
    )


def test_segment_deleted_during_the_read_is_reported_and_the_rest_is_read(broker: RunningBroker) -> None:
    options = parse_options({"path": broker.url, "columns": "keys"})
    told: list[Skipped] = []
    keys: list[str] = []
    parts = plan(options.path, 300_000).parts
    deleted = broker.store / "commitlog" / f"{SEGMENT_BYTES:020d}"
    for number, part in enumerate(parts):
        if number == 1:
            deleted.unlink()
        for batch in batches(part, options, told.append):
            keys += [row["keys"] for row in batch.to_pylist()]
    lost = [part for part in parts if part.segment.base == SEGMENT_BYTES]
    assert [(each.offset, each.lost_bytes, each.reason) for each in told] == [
        (part.start, part.bytes_count, "the file was deleted in the meantime") for part in lost
    ]
    assert {each.file for each in told} == {f"{broker.url}/api/v1/store/segments/{SEGMENT_BYTES:020d}"}
    assert len(keys) + len(lost) * 100 < COUNT
    assert keys == sorted(keys, key=lambda key: int(key[1:]))
    assert {"k0", EVERYTHING[-1]} <= set(keys)


@pytest.mark.parametrize("pause_s", [0.0, 2.0])
def test_broker_killed_and_restarted_during_the_read_loses_no_row(broker: RunningBroker, pause_s: float) -> None:
    options = parse_options({"path": broker.url, "columns": "keys"})
    told: list[Skipped] = []
    keys: list[str] = []
    starter = threading.Timer(pause_s, broker.start)
    for number, part in enumerate(plan(options.path, 300_000).parts):
        if number == 7:
            broker.kill()
            starter.start()
        for batch in batches(part, options, told.append):
            keys += [row["keys"] for row in batch.to_pylist()]
    starter.join(60)
    assert told == []
    assert keys == EVERYTHING


def test_broker_that_stays_down_is_reported(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_options({"path": broker.url, "columns": "keys"})
    first, *others = plan(options.path, 1 << 27).parts
    assert sum(batch.num_rows for batch in batches(first, options)) > 400
    monkeypatch.setattr(remote, "READ_PATIENCE_S", 0.5)
    broker.stop()
    told: list[Skipped] = []
    assert list(batches(others[0], options, told.append)) == []
    assert [(each.offset, each.lost_bytes) for each in told] == [(others[0].start, others[0].bytes_count)]
    assert "Connection refused" in told[0].reason


def test_token_of_the_broker_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELAYMQ_HTTP_TOKEN", raising=False)
    write_store(tmp_path / "store", 10)
    with running_broker(tmp_path / "store", DELAYMQ_HTTP_TOKEN="hush") as broker:
        with pytest.raises(StorePathError, match=r"requires a token \(401\)"):
            list_segments(broker.url)
        with pytest.raises(StorePathError, match=r"rejects the token \(401\)"):
            read(broker, token="wrong")
        assert read(broker, token="hush")[0] == EVERYTHING[:10]
        monkeypatch.setenv("DELAYMQ_HTTP_TOKEN", "hush")
        assert read(broker)[0] == EVERYTHING[:10]
        assert describe_store(broker.url) is not None


def load(spark: SparkSession, broker: RunningBroker, **options: str) -> DataFrame:
    return spark.read.format("rocketmq_store").options(path=broker.url, **options).load()


def test_spark_reads_a_broker_and_does_not_reveal_its_token(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELAYMQ_HTTP_TOKEN", raising=False)
    register(spark)
    write_store(tmp_path / "store", COUNT)
    with running_broker(tmp_path / "store", DELAYMQ_HTTP_TOKEN="hush-hush") as broker:
        frame = load(spark, broker, token="hush-hush", splitBytes="1m")
        totals = frame.agg(F.count("*"), F.sum("size"), F.countDistinct("physical_offset"))
        records = list(StoreReader(broker.store).records())
        assert totals.first() == (COUNT, sum(record.size for record in records), COUNT)
        assert frame.rdd.getNumPartitions() > 4
        frame.explain("extended")
        totals.explain("formatted")
        with pytest.raises(Exception, match=r"rejects the token \(401\)") as caught:
            load(spark, broker, token="hush-wrong").count()
    shown = capfd.readouterr()
    assert "hush" not in shown.out + shown.err + str(caught.value) + repr(frame)
    assert "hush" not in frame._jdf.queryExecution().toString()


def test_stream_follows_a_running_broker(spark: SparkSession, broker: RunningBroker, tmp_path: Path) -> None:
    register(spark)

    def run() -> list[str]:
        return keys_streamed(spark, broker.url, tmp_path, split_bytes="512k")

    assert run() == EVERYTHING
    send(broker, COUNT, 300)
    assert run() == [f"k{number}" for number in range(COUNT + 300)]
    assert run() == [f"k{number}" for number in range(COUNT + 300)]
