"""End of a damaged log: recovery and the reader agree."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import LogEnd, StoreReader
from delaymq.store.tools.verify import SOUND, verify

Open = Callable[..., MessageStore]
SEGMENT_BYTES = 16_384
STORE_TIME_BYTE = 57
"""Second byte of a record's store time."""
FIRST_BODY_BYTE = 88


def damage(path: Path, offset: int, data: bytes) -> None:
    with (path / f"commitlog/{offset // SEGMENT_BYTES * SEGMENT_BYTES:020d}").open("r+b") as file:
        file.seek(offset % SEGMENT_BYTES)
        file.write(data)


def recovered_end(path: Path, open_store: Open) -> int:
    """Returns the end of the log that recovery finds without a snapshot."""
    shutil.rmtree(path / "delaymq")
    (path / "abort").touch()
    store = open_store()
    end = store.end_offset
    store.close()
    assert verify(path).exit_code == SOUND
    return end


@pytest.mark.parametrize("has_sound", [False, True])
def test_log_ends_at_damage_that_only_damaged_records_follow(stopped: Path, open_store: Open, has_sound: bool) -> None:
    """The reader does not verify the checksums of other records."""
    reader = StoreReader(stopped)
    second = reader.segments()[1].base
    records = list(reader.records())
    end = max(record.physical_offset for record in records if record.physical_offset < second)
    damage(stopped, end, bytes(second - end))
    followers = [record for record in records if record.physical_offset > end]
    for record in followers[: len(followers) - has_sound]:
        damage(stopped, record.physical_offset + FIRST_BODY_BYTE, bytes([record.body[0] ^ 1]))
    *_, last = reader.walk(check_crc=False)
    expected = records[-1].physical_offset + records[-1].size if has_sound else end
    assert isinstance(last, LogEnd)
    assert last.offset == expected
    assert recovered_end(stopped, open_store) == expected


def test_damaged_store_time_before_a_hole_does_not_end_the_log(stopped: Path, open_store: Open) -> None:
    records = list(StoreReader(stopped).records())
    late, lost = records[50:52]
    damage(stopped, late.physical_offset + STORE_TIME_BYTE, bytes([1]))
    damage(stopped, lost.physical_offset + FIRST_BODY_BYTE, bytes([lost.body[0] ^ 1]))
    kept = [record.physical_offset for record in StoreReader(stopped).records()]
    assert kept == [record.physical_offset for record in records if record is not lost]
    assert recovered_end(stopped, open_store) == records[-1].physical_offset + records[-1].size
