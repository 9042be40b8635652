"""Stores written by the real broker: they open, are consistent, and are rebuilt byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.message.hashing import tags_code
from delaymq.message.ids import offset_message_id
from delaymq.message.names import KEYS, REAL_QUEUE_ID, SCHEDULE_TOPIC, TAGS, UNIQUE_KEY
from delaymq.message.record import Record
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import StoreReader
from delaymq.store.tools.inspect import inspect
from delaymq.store.tools.verify import DAMAGED, SOUND, verify
from delaymq_testing.store.small_stores import GOLDEN, SMALL, entries_of, expected_queues, message, snapshot

RECORDS = 107
LOG_END = 31_699


def sends(path: Path) -> list[dict[str, object]]:
    lines = (GOLDEN / f"store-{path.name}.sent.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][:-1]


def test_golden_store_is_consistent(golden: Path) -> None:
    result = verify(golden)
    assert result.exit_code == SOUND
    assert (result.records, result.queue_entries, result.index_entries) == (RECORDS, RECORDS, 246)
    assert result.log_end == LOG_END
    assert [finding.what for finding in result.rebuildable] == (["not-stopped"] if golden.name == "killed" else [])


def test_every_record_encodes_to_its_own_bytes(golden: Path) -> None:
    reader = StoreReader(golden)
    data = b"".join(Path(segment.path).read_bytes() for segment in reader.segments())
    for record in reader.records():
        assert record.encoded() == data[record.physical_offset : record.physical_offset + record.size]


def test_opening_keeps_every_queue_entry_and_key(golden: Path, open_store: Callable[..., MessageStore]) -> None:
    before = {key: list(StoreReader(golden).entries(*key)) for key in StoreReader(golden).queues()}
    store = open_store(golden)
    assert (store.min_offset, store.end_offset) == (0, LOG_END)
    assert store.recovery.clean == (golden.name == "clean")
    assert store.recovery.replayed_records == RECORDS
    for (topic, queue_id), entries in before.items():
        assert store.queue_bounds(topic, queue_id) == (0, len(entries))
        assert [(e.physical_offset, e.size, e.tags_code) for e in entries] == entries_of(store, topic, queue_id)
    for record in StoreReader(golden).records():
        properties = record.properties
        for key in [properties[UNIQUE_KEY], *properties.get(KEYS, "").split()] if UNIQUE_KEY in properties else []:
            assert record.physical_offset in store.query_index(record.topic, key, 64, 0, 1 << 62)


def test_all_acknowledged_sends_are_in_the_store(golden: Path, open_store: Callable[..., MessageStore]) -> None:
    store = open_store(golden)
    by_id = {
        offset_message_id(record.store_host, record.physical_offset): record for record in StoreReader(golden).records()
    }
    checked = 0
    for send in sends(golden):
        ids = str(send["offsetMsgId"]).split(",")
        for number, offset_id in enumerate(ids):
            if offset_id == "null":
                continue
            record = store.record_at(by_id[offset_id].physical_offset)
            assert record is not None
            assert int(record.properties.get(REAL_QUEUE_ID, record.queue_id)) == send["queueId"]
            assert record.queue_offset == int(str(send["queueOffset"])) + number
            assert record.properties[UNIQUE_KEY] == str(send["msgId"]).split(",")[number]
            checked += 1
    assert checked > 60


def test_rebuild_from_the_log_reproduces_the_real_brokers_files(
    golden: Path, open_store: Callable[..., MessageStore]
) -> None:
    queue_files = {path: path.read_bytes() for path in (golden / "consumequeue").rglob("0" * 20)}
    [index_file] = (golden / "index").iterdir()
    index = index_file.read_bytes()
    (golden / "abort").touch()
    store = open_store(golden)
    snapshot(store)
    store.close()
    assert {path: path.read_bytes() for path in (golden / "consumequeue").rglob("0" * 20)} == queue_files
    [rebuilt] = (golden / "index").iterdir()
    assert rebuilt.read_bytes() == index


def test_new_records_follow_those_of_the_real_broker(golden: Path, open_store: Callable[..., MessageStore]) -> None:
    store = open_store(golden)
    before = store.queue_bounds("GoldenNormal", 1)
    appended = store.append(message("later", topic="GoldenNormal", queue_id=1, TAGS="TagA"))
    assert appended.physical_offset == LOG_END
    assert appended.queue_offset == before[1]
    store.close()
    assert verify(golden).exit_code == SOUND
    assert verify(golden).rebuildable == []
    assert expected_queues(golden)[("GoldenNormal", 1)][-1] == (before[1], LOG_END, appended.size)


def test_pending_delayed_messages_keep_the_real_brokers_due_times(golden: Path) -> None:
    reader = StoreReader(golden)
    records: dict[tuple[str, int, int], Record] = {(r.topic, r.queue_id, r.queue_offset): r for r in reader.records()}
    delayed = 0
    for topic, queue_id in reader.queues():
        for entry in reader.entries(topic, queue_id):
            record = records[(topic, queue_id, entry.number)]
            if topic == SCHEDULE_TOPIC:
                delayed += 1
                assert entry.tags_code > record.store_timestamp_ms
            else:
                assert entry.tags_code == tags_code(record.properties.get(TAGS, ""))
    assert delayed == 15


def test_counts_equal_the_sent_messages(golden: Path) -> None:
    inspection = inspect(golden)
    assert inspection.records == RECORDS
    assert inspection.kinds["delayed"] == 15
    assert inspection.kinds["delivered copy"] == 6
    assert inspection.kinds["dead letter"] == 3
    assert inspection.kinds["half"] == 10
    assert inspection.kinds["op"] == 4
    assert sum(segment.records for segment in inspection.segments) == RECORDS
    assert inspection.as_json()["end_offset"] == LOG_END


@pytest.mark.parametrize("configured_bytes", [1 << 30, 8_192])
def test_existing_file_sizes_override_the_configuration(
    golden: Path, open_store: Callable[..., MessageStore], configured_bytes: int
) -> None:
    options = replace(SMALL, commit_log_file_bytes=configured_bytes, consume_queue_file_bytes=6_000_000)
    store = open_store(golden, options=options)
    assert store.options.commit_log_file_bytes == 16_384
    assert store.options.consume_queue_file_bytes == 400
    assert store.end_offset == LOG_END


def test_flipped_bit_in_a_body_damages_one_message(golden: Path, open_store: Callable[..., MessageStore]) -> None:
    victim = list(StoreReader(golden).records())[20]
    with (golden / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.seek(victim.physical_offset + 90)
        file.write(b"\xff")
    result = verify(golden)
    assert result.exit_code == DAMAGED
    assert [(finding.file, finding.offset) for finding in result.damage] == [
        ("commitlog/00000000000000000000", victim.physical_offset)
    ]
    (golden / "abort").touch()
    store = open_store(golden)
    assert [c.what for c in store.recovery.corrections if c.what.startswith("log")] == ["log-hole"]
    assert store.end_offset == LOG_END
    assert len(list(StoreReader(golden).records())) == RECORDS  # the filler replaces it
    assert [p.stat().st_size for p in (golden / "delaymq" / "aside").glob("0*")] == [victim.size]
    store.close()
    assert verify(golden).exit_code == SOUND
