"""Reads by store time: segments outside the range are omitted."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from delaymq.message.levels import DelayLevels
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord
from delaymq.store.options import StoreOptions
from delaymq.store.reader import SegmentInfo, StoreReader
from delaymq_spark.planning import time_range
from delaymq_spark.planning.parts import plan
from delaymq_spark.planning.time_range import CLOCK_MARGIN_MS, FirstTimes, excluded_segments
from delaymq_spark.source.data_source import RocketMqStoreSource
from delaymq_spark.store import remote
from delaymq_spark.store.broker_client import NoAnswerError
from delaymq_spark_testing.fake_broker import fake_broker, reset
from pyspark.sql.datasource import Filter, GreaterThanOrEqual, LessThan

pytestmark = pytest.mark.core

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000
SEGMENT_BYTES = 65_536


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store with half an hour between two messages and about forty hours in each segment; no clock is set back."""
    path = tmp_path_factory.mktemp("times") / "store"
    options = StoreOptions(commit_log_file_bytes=SEGMENT_BYTES, consume_queue_file_bytes=4000, index_enable=False)
    clock = itertools.count(BEGIN_MS, HOUR_MS // 2)
    written = MessageStore.open(path, options, now_ms=clock.__next__, levels=DelayLevels.parse())
    for number in range(400):
        written.append(
            NewRecord(
                topic="Orders", queue_id=0, body=b"x" * 1_000, properties={"KEYS": f"k{number}"}, flag=0, sys_flag=0,
                born_timestamp_ms=1, born_host=HOST, store_host=HOST,
            )
        )  # fmt: skip
    written.close()
    return path


def times_of(store: Path) -> list[int]:
    return [record.store_timestamp_ms for record in StoreReader(store).records()]


def read_times(source: RocketMqStoreSource, *filters: Filter) -> tuple[list[int], list[int]]:
    """Return the store times of the rows in ms, and the segments that were read for them."""
    reader = source.reader(source.schema())
    if filters:
        assert list(reader.pushFilters(list(filters))) == []
    parts: Sequence[Any] = reader.partitions()
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return [round(row["store_time"].timestamp() * 1000) for row in rows], sorted(
        {part.part.segment.base for part in parts}
    )


def bound(kind: type[GreaterThanOrEqual | LessThan], at_ms: int) -> Filter:
    return kind(("store_time",), datetime.fromtimestamp(at_ms / 1000, UTC))


@pytest.mark.parametrize("where", ["folder", "broker"])
@pytest.mark.parametrize("first", [0, 90, 399])
@pytest.mark.parametrize("count", [1, 60, 400])
def test_all_rows_of_the_time_range_and_few_segments_are_read(store: Path, where: str, first: int, count: int) -> None:
    times = times_of(store)
    wanted = times[first : first + count]
    with fake_broker(store) as broker:
        path = str(store) if where == "folder" else broker.url
        options = {"path": path, "columns": "store_time", "from": str(wanted[0]), "until": str(wanted[-1] + 1)}
        found, segments = read_times(RocketMqStoreSource(options))
        asked = {path.rpartition("/")[2] for path, headers in broker.requests if "/segments/" in path}
    assert found == wanted
    per_segment = len(times) // len(StoreReader(store).segments())
    assert len(segments) <= len(wanted) // per_segment + 3
    assert where == "folder" or len(asked) >= len(segments)


def test_pushed_down_time_filters_exclude_segments(store: Path) -> None:
    times = times_of(store)
    source = RocketMqStoreSource({"path": str(store), "columns": "store_time", "pushdown": "true"})
    found, segments = read_times(source, bound(GreaterThanOrEqual, times[150]), bound(LessThan, times[170]))
    assert found == times[150:170]
    assert len(segments) < len(StoreReader(store).segments()) - 1


def test_damage_behind_the_time_range_does_not_count_as_the_log_end(store: Path, tmp_path: Path) -> None:
    """The last segment to be read ends with damage, and the segments after it are omitted."""
    copy = shutil.copytree(store, tmp_path / "copy")
    segments = sorted((copy / "commitlog").iterdir())
    data = bytearray(segments[1].read_bytes())
    data[-30_000:-20_000] = bytes(10_000)
    segments[1].write_bytes(data)
    told = plan(str(copy), 1 << 27, until_ms=times_of(copy)[10])
    assert [part.segment.base for part in told.parts] == [0]
    assert [each for each in told.skipped if each.at_end] == []
    at_ms = first_times(copy)[1] + 3 * HOUR_MS
    found = plan(str(copy), 1 << 27, from_ms=at_ms, until_ms=at_ms + 1)
    assert [part.segment.base for part in found.parts] == [SEGMENT_BYTES]
    assert found.parts[0].end == 2 * SEGMENT_BYTES


def first_times(store: Path) -> list[int]:
    seen: dict[int, int] = {}
    for record in StoreReader(store).records():
        seen.setdefault(record.physical_offset // SEGMENT_BYTES, record.store_timestamp_ms)
    return list(seen.values())


class Times(FirstTimes):
    """Store times that are known without files."""

    def __init__(self, *times: int | None) -> None:
        super().__init__()
        self.known = times

    def of(self, info: SegmentInfo) -> int | None:
        return self.known[info.base]


def out(*times: int | None, from_ms: int | None = None, until_ms: int | None = None) -> list[int]:
    segments = [SegmentInfo(number, "", 1) for number in range(len(times))]
    return sorted(excluded_segments(segments, Times(*times), from_ms, until_ms))


M = CLOCK_MARGIN_MS


def test_margin_of_one_hour_applies_to_both_ends() -> None:
    assert out(0, 10, 20, from_ms=10 + M) == []
    assert out(0, 10, 20, from_ms=11 + M) == [0]
    assert out(0, 10, 20, from_ms=10**15) == [0, 1]
    assert out(M, M + 10, M + 20, until_ms=10) == [1, 2]
    assert out(M, M + 10, M + 20, until_ms=9) == [1, 2]
    assert out(M, M + 10, M + 20, until_ms=0) == [0, 1, 2]


def test_segments_are_kept_when_a_clock_was_set_back() -> None:
    day = 24 * M
    # The second segment starts a day late: the clock was wrong at its beginning, and correct at its end.
    assert out(0, day + 5 * M, 6 * M, from_ms=day) == []
    assert out(0, day + 5 * M, 6 * M, until_ms=7 * M) == []


def test_segment_without_a_valid_first_record_is_read() -> None:
    assert out(0, None, 10**9, from_ms=10**12) == []
    assert out(10**12, None, 10**12, until_ms=0) == [0, 2]


def test_read_without_a_time_range_opens_no_segment_for_its_times(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_range, "open_segment", None)
    assert len(plan(str(store), 1 << 27).parts) == len(StoreReader(store).segments())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Positions at which a reader of segments gave up."""
    gave_up: list[int] = []
    monkeypatch.setattr(remote, "READ_PATIENCE_S", 0.2)
    look = remote.RemoteSegmentFile.read_into

    def counted(file: remote.RemoteSegmentFile, position: int, buffer: memoryview) -> int:
        try:
            return look(file, position, buffer)
        except NoAnswerError:
            gave_up.append(position)
            raise

    monkeypatch.setattr(remote.RemoteSegmentFile, "read_into", counted)
    return gave_up


def test_silent_broker_is_waited_for_once_and_no_segment_is_excluded(store: Path, impatient: list[int]) -> None:
    with fake_broker(store) as broker:
        broker.script = [reset] * 100
        parts = plan(broker.url, 1 << 27, from_ms=times_of(store)[-1]).parts
    assert len(impatient) == 1
    assert len(parts) == len(StoreReader(store).segments())
