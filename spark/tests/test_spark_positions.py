"""What stands beside the log: the real broker's tables, damaged ones, and the ranges of queues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from delaymq.store.reader import StoreReader
from delaymq_spark import StorePathError, read_positions
from delaymq_spark.positions import parse_table
from spark_store import unpack_golden

pytestmark = pytest.mark.core


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return unpack_golden("clean", tmp_path)


def test_a_table_is_read_with_and_without_quotes_around_its_numbers() -> None:
    assert parse_table(b'{"offsetTable":{1:6, 3:3}}') == parse_table(b'{"offsetTable":{"1":6,"3":3}}')
    assert parse_table(b'{"a{1:2@g":{0:5},"\\"{2:3":{"0":1}}') == {"a{1:2@g": {"0": 5}, '"{2:3': {"0": 1}}


def test_the_real_brokers_positions_are_read(golden: Path) -> None:
    found = read_positions(golden)
    assert found.delay_offsets == {1: 6, 3: 3}
    assert found.consumer_offsets["GoldenNormal", "golden_consumer"] == {0: 10, 1: 11, 2: 10, 3: 10}
    assert found.store_id is None
    assert not found.open_or_killed
    assert found.skipped == ()


def test_the_ranges_of_queues_are_what_their_entries_say(golden: Path) -> None:
    reader = StoreReader(golden)
    ranges = {key: (each.min_number, each.max_number) for key, each in read_positions(golden).queues.items()}
    assert ranges == {
        queue: (entries[0].number, entries[-1].number + 1)
        for queue in reader.queues()
        if (entries := list(reader.entries(*queue)))
    }


def test_entries_of_deleted_segments_are_below_a_queues_range(golden: Path) -> None:
    (golden / "commitlog" / f"{0:020d}").unlink()
    reader = StoreReader(golden)
    for queue, found in read_positions(golden).queues.items():
        entries = list(reader.entries(*queue))
        live = [entry.number for entry in entries if entry.physical_offset >= 16_384]
        assert found.min_number == (live[0] if live else found.max_number)


def test_a_damaged_table_is_read_from_its_backup_and_told(golden: Path) -> None:
    table = golden / "config" / "delayOffset.json"
    shutil.copy(table, f"{table}.bak")
    table.write_bytes(b'{"offsetTable":{1:')
    found = read_positions(golden)
    assert found.delay_offsets == {1: 6, 3: 3}
    assert [each.file for each in found.skipped] == [str(table)]


def test_a_folder_that_is_no_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorePathError, match="is not a store: it has no folder commitlog"):
        read_positions(tmp_path)
