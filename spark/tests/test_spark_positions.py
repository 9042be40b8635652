"""Files next to the log: tables of the real broker, damaged tables, queue ranges, deleted topics, lag."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.store.reader import StoreReader
from delaymq_spark import StorePathError, read_positions
from delaymq_spark.jobs.compaction import CompactionOptions
from delaymq_spark.jobs.group_progress import lags
from delaymq_spark.store.positions import Positions, QueueRange, parse_table
from delaymq_spark_testing.plain_rows import plain_messages
from delaymq_spark_testing.stages import reasons
from delaymq_spark_testing.store import unpack_golden
from delaymq_spark_testing.workload import Workload

pytestmark = pytest.mark.core


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return unpack_golden("clean", tmp_path)


def test_table_is_read_with_and_without_quotes_around_its_numbers() -> None:
    assert parse_table(b'{"offsetTable":{1:6, 3:3}}') == parse_table(b'{"offsetTable":{"1":6,"3":3}}')
    assert parse_table(b'{"a{1:2@g":{0:5},"\\"{2:3":{"0":1}}') == {"a{1:2@g": {"0": 5}, '"{2:3': {"0": 1}}


def test_positions_of_the_real_broker_are_read(golden: Path) -> None:
    found = read_positions(golden)
    assert found.delay_offsets == {1: 6, 3: 3}
    assert found.consumer_offsets["GoldenNormal", "golden_consumer"] == {0: 10, 1: 11, 2: 10, 3: 10}
    assert found.store_id is None
    assert not found.open_or_killed
    assert found.skipped == ()


def test_queue_ranges_match_the_entries(golden: Path) -> None:
    reader = StoreReader(golden)
    ranges = {key: (each.min_number, each.max_number) for key, each in read_positions(golden).queues.items()}
    assert ranges == {
        queue: (entries[0].number, entries[-1].number + 1)
        for queue in reader.queues()
        if (entries := list(reader.entries(*queue)))
    }


def test_entries_of_deleted_segments_are_below_the_range_of_their_queue(golden: Path) -> None:
    (golden / "commitlog" / f"{0:020d}").unlink()
    reader = StoreReader(golden)
    for queue, found in read_positions(golden).queues.items():
        entries = list(reader.entries(*queue))
        live = [entry.number for entry in entries if entry.physical_offset >= 16_384]
        assert found.min_number == (live[0] if live else found.max_number)


def test_damaged_table_is_replaced_by_its_backup_and_reported(golden: Path) -> None:
    table = golden / "config" / "delayOffset.json"
    shutil.copy(table, f"{table}.bak")
    table.write_bytes(b'{"offsetTable":{1:')
    found = read_positions(golden)
    assert found.delay_offsets == {1: 6, 3: 3}
    assert [each.file for each in found.skipped] == [str(table)]


def test_folder_without_a_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StorePathError, match="is not a store: it has no commitlog folder"):
        read_positions(tmp_path)


def records_of(store: Path, topic: str) -> list[int]:
    """Return the physical offsets of a topic's records."""
    return [each.physical_offset for each in StoreReader(store).records() if each.topic == topic]


def delete_as_rocketmq_does(store: Path, topic: str) -> None:
    """Delete the topic's configuration and queues, but not its records."""
    table = store / "config" / "topics.json"
    content = parse_table(table.read_bytes())
    del content["topicConfigTable"][topic]
    table.write_text(json.dumps(content))
    shutil.rmtree(store / "consumequeue" / topic)


def reasons_of(store: Path) -> dict[int, str]:
    return reasons(plain_messages(store), read_positions(store), CompactionOptions(as_of_ms=0))


def test_all_topics_in_a_store_of_the_real_broker_are_known(golden: Path) -> None:
    assert "topic_deleted" not in reasons_of(golden).values()
    found = read_positions(golden)
    assert found.known_topics is not None
    assert "GoldenNormal" in found.known_topics
    assert found.known_to == max(each.physical_offset + each.size for each in StoreReader(golden).records())


def test_records_of_a_topic_deleted_by_the_real_broker_are_dead(golden: Path) -> None:
    offsets = records_of(golden, "GoldenNormal")
    assert offsets
    delete_as_rocketmq_does(golden, "GoldenNormal")
    found = reasons_of(golden)
    assert {offset for offset, reason in found.items() if reason == "topic_deleted"} == set(offsets)


@pytest.mark.parametrize("missing", ["queues stay", "configuration stays", "no table", "damaged table", "empty table"])
def test_topic_that_may_exist_is_not_considered_deleted(golden: Path, missing: str) -> None:
    delete_as_rocketmq_does(golden, "GoldenNormal")
    table = golden / "config" / "topics.json"
    table.with_name("topics.json.bak").unlink(missing_ok=True)
    if missing == "queues stay":
        (golden / "consumequeue" / "GoldenNormal" / "0").mkdir(parents=True)
        (golden / "consumequeue" / "GoldenNormal" / "0" / f"{0:020d}").write_bytes(bytes(2_000))
    elif missing == "configuration stays":
        content = json.loads(table.read_text())
        content["topicConfigTable"]["GoldenNormal"] = {}
        table.write_text(json.dumps(content))
    elif missing == "no table":
        table.unlink()
    else:
        table.write_text("{" if missing == "damaged table" else '{"topicConfigTable":{}}')
    assert "topic_deleted" not in reasons_of(golden).values()
    assert any(each.file == str(table) for each in read_positions(golden).skipped) == (missing == "damaged table")


def test_topic_created_after_its_table_was_read_is_not_considered_deleted(golden: Path) -> None:
    offsets = records_of(golden, "GoldenNormal")
    delete_as_rocketmq_does(golden, "GoldenNormal")
    positions = replace(read_positions(golden), known_to=offsets[-1])
    found = reasons(plain_messages(golden), positions, CompactionOptions(as_of_ms=0))
    assert found[offsets[-2]] == "topic_deleted"
    assert found[offsets[-1]] == "consumed"


def test_delaymq_store_in_use_yields_no_list_of_known_topics(tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    work.send("Orders", 0, "retained")
    work.close()
    (work.path / "config").mkdir(exist_ok=True)
    (work.path / "config" / "topics.json").write_text('{"topicConfigTable":{"TBW102":{}}}')
    assert read_positions(work.path).known_topics == frozenset({"TBW102", "Orders"})
    (work.path / "abort").touch()
    assert read_positions(work.path).known_topics is None


def test_group_lag_covers_the_log_and_queues_without_an_offset() -> None:
    positions = Positions(
        path="",
        consumer_offsets={
            ("Orders", "slow"): {0: 2}, ("Orders", "fast"): {0: 9, 1: 10}, ("Orders", "TOOLS_CONSUMER"): {},
            ("Gone", "slow"): {0: 5},
        },
        queues={
            ("Orders", 0): QueueRange(min_number=4, max_number=9),
            ("Orders", 1): QueueRange(min_number=0, max_number=10),
        },
    )  # fmt: skip
    found = [(each.topic, each.group, each.lag, each.queues, each.unread_queues) for each in lags(positions)]
    assert found == [("Orders", "slow", 15, 2, 1), ("Gone", "slow", 0, 0, 0), ("Orders", "fast", 0, 2, 0)]
