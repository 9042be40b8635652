"""The audit log: its lines, rotation, limits, full disks, restarts."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from delaymq.audit.files import file_name, file_numbers
from delaymq.audit.log import SUMMARY_S, SUPPRESSED, AuditLog
from delaymq.audit.refusals import BURST, INTERVAL_S, MAX_KEYS, TOTAL_BURST, Refusals
from delaymq_testing.audit_lines import NOW_MS, Clock, attempt, lines_of, opened, text_of

SMALL = 65_536


def test_line_states_who_changed_what_with_which_result(tmp_path: Path) -> None:
    log = opened(tmp_path / "a" / "b")
    log.record(attempt(account="operators", topic="Orders"), "done", 0, "not shown for changes that were made")
    log.record(attempt("topic.delete", topic="Orders"), "refused", 16, "no")
    first, second = lines_of(tmp_path / "a" / "b")
    assert first.pop("time").startswith("2023-11-")
    assert first == {
        "timeMs": NOW_MS,
        "server": "b",
        "via": "remoting",
        "action": "topic.put",
        "result": "done",
        "status": 0,
        "peer": "10.0.0.9:1",
        "code": 17,
        "account": "operators",
        "target": {"topic": "Orders"},
    }
    assert (second["result"], second["status"], second["remark"]) == ("refused", 16, "no")


def test_nothing_is_written_before_the_first_line_or_without_a_folder(tmp_path: Path) -> None:
    log = opened(tmp_path / "audit")
    assert log.task() is None
    log.close()
    assert not (tmp_path / "audit").exists()
    without = AuditLog(None, "b", max_bytes=1, max_files=1, now_ms=lambda: 0)
    without.record(attempt(), "done", 0)
    assert without.task() is None
    without.close()
    assert (without.is_on, sum(without.lines.values())) == (False, 0)


def test_files_and_folder_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    opened(tmp_path / "audit").record(attempt(), "done", 0)
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "audit" / file_name(1)).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "é\u2028\u202e", "\ud83d", "\x7f", '"\\', "x" * 100_000])
def test_texts_of_peers_stay_on_one_line_of_ascii(tmp_path: Path, text: str) -> None:
    log = opened(tmp_path)
    log.record(attempt(account=text, topic=text), "refused", 1, text)
    log.record(attempt(), "done", 0)
    line, _ = lines_of(tmp_path)
    assert all(" " <= each <= "~" for each in text_of(tmp_path).replace("\n", ""))
    assert len(line["target"]["topic"]) <= 255
    assert line["target"]["topic"][:1] == text.encode(errors="replace").decode()[:1]
    assert log.dropped == 0


def test_user_info_of_addresses_is_hidden(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.record(attempt(broker="http://user:pa55word@10.0.0.1:10911"), "refused", 1, "no: amqp://u:pa55word@h/x")
    assert "pa55word" not in text_of(tmp_path)
    assert lines_of(tmp_path)[0]["target"]["broker"] == "http://***@10.0.0.1:10911"


def test_full_file_is_followed_by_the_next_one_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    log = opened(tmp_path, max_bytes=SMALL, max_files=3)
    for number in range(3_000):
        log.record(attempt(topic=f"T{number}"), "done", 0)
    numbers = file_numbers(tmp_path)
    assert len(numbers) == 3
    assert numbers[0] > 1
    assert all((tmp_path / file_name(each)).stat().st_size <= SMALL for each in numbers)
    topics = [int(line["target"]["topic"][1:]) for line in lines_of(tmp_path)]
    assert topics == list(range(topics[0], 3_000))
    assert log.lines["done"] == 3_000


def test_restarted_log_continues_its_last_file(tmp_path: Path) -> None:
    for number in range(5):
        log = opened(tmp_path, max_bytes=SMALL)
        log.record(attempt(topic=f"T{number}"), "done", 0)
        log.close()
    assert file_numbers(tmp_path) == [1]
    assert [line["target"]["topic"] for line in lines_of(tmp_path)] == ["T0", "T1", "T2", "T3", "T4"]


def test_restart_after_a_full_file_starts_the_next_one(tmp_path: Path) -> None:
    (tmp_path / file_name(7)).write_text("x" * SMALL + "\n")
    opened(tmp_path, max_bytes=SMALL).record(attempt(), "done", 0)
    assert file_numbers(tmp_path) == [7, 8]


def test_incomplete_line_of_a_crash_is_ended(tmp_path: Path) -> None:
    (tmp_path / file_name(1)).write_text('{"time": "20')
    opened(tmp_path).record(attempt(topic="T"), "done", 0)
    first, second = text_of(tmp_path).splitlines()
    assert first == '{"time": "20'
    assert json.loads(second)["target"] == {"topic": "T"}


def test_deleted_file_is_replaced_by_the_next_sync(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.record(attempt(topic="A"), "done", 0)
    (tmp_path / file_name(1)).unlink()
    assert log.task() is None
    log.record(attempt(topic="B"), "done", 0)
    assert [line["target"]["topic"] for line in lines_of(tmp_path)] == ["B"]


class Disk:
    """os.write on a disk that may be full: it takes `room` bytes more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write = os.write
        monkeypatch.setattr("delaymq.audit.files.os.write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.room is None:
            return self._write(descriptor, data)
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(descriptor, data[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 100])
def test_full_disk_drops_lines_which_the_next_line_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    disk, log = Disk(monkeypatch), opened(tmp_path)
    log.record(attempt(topic="before"), "done", 0)
    disk.room = room
    for _ in range(3):
        log.record(attempt(topic="lost"), "done", 0)
    assert log.dropped == 3
    disk.room = None
    log.record(attempt(topic="after"), "done", 0)
    log.record(attempt(topic="later"), "done", 0)
    found: list[Any] = [(line["target"]["topic"], line.get("dropped")) for line in lines_of(tmp_path)]
    assert found == [("before", None), ("after", 3), ("later", None)]
    assert [record.message for record in caplog.records] == [
        f"cannot write to the audit log ({tmp_path}): [Errno 28] No space left on device: changes continue without"
        " their lines, which are counted"
    ]


def test_folder_that_cannot_be_written_drops_lines(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = opened(tmp_path / "file" / "audit")
    log.record(attempt(), "done", 0)
    log.close()
    assert log.dropped == 1


def test_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("kept")
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / file_name(1)).symlink_to(target)
    log = opened(tmp_path / "audit")
    log.record(attempt(), "done", 0)
    assert (log.dropped, target.read_text()) == (1, "kept")


def test_sync_writes_to_the_disk_and_reports_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("delaymq.audit.log.os.fdatasync", synced.append)
    log = opened(tmp_path)
    log.record(attempt(), "done", 0)
    task = log.task()
    assert task is not None
    assert log.task() is None
    task.run()
    task.finish()
    assert len(synced) == 1

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("delaymq.audit.log.os.fdatasync", broken)
    log.record(attempt(), "done", 0)
    task = log.task()
    assert task is not None
    task.run()
    task.finish()
    assert "cannot sync the audit log" in caplog.text


# Refused attempts


def test_refused_attempts_are_limited_by_network_and_account(tmp_path: Path) -> None:
    clock = Clock()
    log = opened(tmp_path, clock)
    for _ in range(BURST + 5):
        log.record(attempt(account="a"), "refused", 16)
    log.record(attempt(account="other"), "refused", 16)
    log.record(attempt(account="a"), "done", 0)
    assert len(lines_of(tmp_path)) == BURST + 2
    clock.s += INTERVAL_S
    log.record(attempt(account="a"), "refused", 16)
    assert lines_of(tmp_path)[-1]["suppressed"] == 5
    assert log.suppressed == 5


def test_refused_attempts_of_many_networks_are_limited_together_and_bounded_in_memory() -> None:
    refusals = Refusals(0.0)
    admitted = sum(refusals.admit((number.to_bytes(4), ""), 0.0) is not None for number in range(5_000))
    assert admitted == TOTAL_BURST
    assert len(refusals._buckets) == MAX_KEYS
    assert refusals.unreported() == refusals.suppressed == 5_000 - TOTAL_BURST
    assert refusals.unreported() == 0


def test_network_beyond_its_share_takes_nothing_from_others() -> None:
    refusals = Refusals(0.0)
    for _ in range(100_000):
        refusals.admit((b"hostile", ""), 0.0)
    assert refusals.admit((b"honest", ""), 0.0) == 0


def test_suppressed_attempts_are_stated_without_another_attempt(tmp_path: Path) -> None:
    clock = Clock()
    log = opened(tmp_path, clock)
    for _ in range(BURST + 7):
        log.record(attempt(), "refused", 16)
    clock.s += SUMMARY_S
    log.task()
    line = lines_of(tmp_path)[-1]
    assert (line["action"], line["suppressed"]) == (SUPPRESSED, 7)
    clock.s += SUMMARY_S
    log.close()
    assert len(lines_of(tmp_path)) == BURST + 1


def test_hundred_thousand_refused_attempts_fill_no_file(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.record(attempt(topic="honest"), "done", 0)
    for _ in range(100_000):
        log.record(attempt(topic="x" * 10_000), "refused", 16, "y" * 10_000)
    assert len(text_of(tmp_path)) < 32_000
    assert lines_of(tmp_path)[0]["target"] == {"topic": "honest"}
