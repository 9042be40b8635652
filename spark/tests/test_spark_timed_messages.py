"""Outcome, lateness and records of timed messages in workloads with known results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from delaymq.message import names
from delaymq.message.timed_marks import GroupMarkKind, TimedDue, TimedMark, TimedMarkKind
from delaymq_spark.jobs import summary
from delaymq_spark.jobs.claims import places_of
from delaymq_spark.jobs.compaction import CompactionOptions
from delaymq_spark.report.plots import plots
from delaymq_spark.store.positions import Positions, read_positions
from delaymq_spark_testing.plain_rows import plain_messages
from delaymq_spark_testing.stages import MANY, ONE, Cluster, reasons, run_stages, table
from delaymq_spark_testing.timed_log import write_timed_log
from delaymq_spark_testing.workload import HOUR_MS, RETENTION_HOURS, START_MS, Workload, Written

pytestmark = pytest.mark.core

DAY_MS = 24 * HOUR_MS
OPTIONS = CompactionOptions(as_of_ms=START_MS)


def delayed(work: Workload, cluster: Cluster) -> dict[int, dict[str, Any]]:
    """Return the rows of delay.parquet by physical offset."""
    positions = Positions(path=str(work.path), delay_offsets=work.delay_offsets)
    out = work.path.parent / f"out-{cluster.settles}"
    run_stages(plain_messages(work.path), positions, OPTIONS, cluster=cluster, sections=frozenset({"delay"}), out=out)
    return {row["physical_offset"]: row for row in table(out, "delay")}


def classified(work: Workload, cluster: Cluster = ONE) -> dict[int, str]:
    options = CompactionOptions(as_of_ms=work.now_ms, retention_hours=RETENTION_HOURS)
    return reasons(plain_messages(work.path), read_positions(work.path), options, cluster=cluster)


def due_ms_of(row: dict[str, Any]) -> int:
    return round(row["due_time"].timestamp() * 1000)


def deliver_late(work: Workload, entry: Written, late_ms: int, copies: int = 1) -> Written:
    work.now_ms = entry.due_ms + late_ms
    for _ in range(copies):
        work.deliver(entry)
    return entry


@pytest.fixture(params=[True, False], ids=["marked", "unmarked"])
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Workload:
    return Workload(tmp_path / "store", marks=request.param)


@pytest.fixture
def marked(tmp_path: Path) -> Workload:
    return Workload(tmp_path / "store")


@pytest.fixture(params=[ONE, MANY], ids=["one task", "many tasks"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.param
    return found


def test_outcomes_and_lateness_of_timed_messages_are_recognised(work: Workload, cluster: Cluster) -> None:
    lates = (0, 3, 250, 60_001, -40)
    entries = [deliver_late(work, work.schedule(work.now_ms + 5_000, "Later", 2), late) for late in lates]
    twice = deliver_late(work, work.schedule(work.now_ms + 1, "Later", 2), 0, copies=2)
    far = work.schedule(work.now_ms + 3_650 * DAY_MS, "Later", 2)
    work.close()
    found = delayed(work, cluster)
    assert len(found) == len(lates) + 2
    for entry, late_ms in zip(entries, lates, strict=True):
        row = found[entry.physical_offset]
        assert (row["outcome"], row["lateness_ms"], row["copies"]) == ("delivered", late_ms, 1)
        assert (row["topic"], row["level"], row["identity"]) == ("Later", None, entry.physical_offset)
        assert due_ms_of(row) == entry.due_ms
    assert found[twice.physical_offset]["copies"] == 2
    assert found[far.physical_offset]["outcome"] == "pending"
    assert due_ms_of(found[far.physical_offset]) == far.due_ms


def test_timed_messages_and_level_1_share_queue_0_without_confusion(work: Workload, cluster: Cluster) -> None:
    entries = []
    for number in range(6):
        level, timed = work.delay(1, "Later", 0), work.schedule(work.now_ms + 1_000, "Later", 0)
        assert (level.queue_id, level.queue_offset) == (timed.queue_id, timed.queue_offset)
        entries.append((level, timed, number % 2 == 0))
    work.now_ms += 1_000
    for level, timed, delivers_level in entries:
        work.deliver(level if delivers_level else timed)
    work.delay_offsets[1] = 1
    work.close()
    found = delayed(work, cluster)
    for level, timed, delivers_level in entries:
        ours, theirs = found[timed.physical_offset], found[level.physical_offset]
        assert (theirs["outcome"], ours["outcome"]) == (
            ("delivered", "pending") if delivers_level else ("pending", "delivered")
        )
        assert (theirs["level"], theirs["identity"], ours["level"]) == (1, None, None)


def test_changes_of_groups_concern_their_earlier_pending_messages(marked: Workload, cluster: Cluster) -> None:
    def schedule(group: str | None, topic: str = "Later") -> Written:
        return marked.schedule(marked.now_ms + DAY_MS, topic, 0, group=group)

    def change(kind: GroupMarkKind, *entries: Written, days: int | None = None, group: str = "spring") -> None:
        due_ms = None if days is None else marked.now_ms + days * DAY_MS
        marked.change_group(entries, kind, "Later", group, due_ms)

    delivered, carried, single, cancelled, moved = (schedule("spring") for _ in range(5))
    others = schedule("summer"), schedule(None), schedule("spring", "Other")
    marked.deliver(delivered)
    change(GroupMarkKind.MOVED, carried, single, cancelled, moved, days=2)
    marked.state(cancelled, TimedMarkKind.CANCELLED)
    marked.state(single, TimedMarkKind.MOVED, next_due_ms=marked.now_ms + 9 * DAY_MS)
    carried_due_ms = carried.due_ms
    holder = marked.carry(carried)
    change(GroupMarkKind.PAUSED)
    change(GroupMarkKind.RESUMED)
    fired = schedule("fired")
    change(GroupMarkKind.FIRED, fired, days=0, group="fired")
    gone = schedule("gone")
    change(GroupMarkKind.CANCELLED, gone, group="gone")
    change(GroupMarkKind.MOVED, days=7, group="gone")  # an end is final
    later = schedule("gone")
    marked.close()
    found = delayed(marked, cluster)
    expected = {
        **{each.physical_offset: ("pending", each.due_ms) for each in (single, moved, fired, later, *others)},
        holder.physical_offset: ("pending", carried_due_ms),
        delivered.physical_offset: ("delivered", delivered.due_ms),
        cancelled.physical_offset: ("withdrawn", cancelled.due_ms),
        gone.physical_offset: ("withdrawn", gone.due_ms),
    }
    assert {offset: (row["outcome"], due_ms_of(row)) for offset, row in found.items()} == expected
    assert set(classified(marked, cluster).values()) >= {"mark_needed", "withdrawn", "pending"}


def test_offset_of_level_1_does_not_make_timed_messages_lost(work: Workload, cluster: Cluster) -> None:
    entry = work.schedule(work.now_ms + 1, "Later", 0)
    half = work.schedule(work.now_ms + 1, names.HALF_TOPIC, 0)
    work.delay_offsets[1] = 99
    work.close()
    found = delayed(work, cluster)
    assert [found[each.physical_offset]["outcome"] for each in (entry, half)] == ["pending", "pending"]


def test_marks_alone_and_dead_letters_withdraw_messages(marked: Workload, cluster: Cluster) -> None:
    dropped, dead, cancelled = (marked.schedule(marked.now_ms + 1, "Later", 0) for _ in range(3))
    marked.drop(dropped)
    marked.dead_letter(dead)
    assert names.UNIQUE_KEY not in marked.state(cancelled, TimedMarkKind.CANCELLED).message.properties
    marked.close()
    found = delayed(marked, cluster)
    assert [found[each.physical_offset]["outcome"] for each in (dropped, dead, cancelled)] == ["withdrawn"] * 3
    assert {each.physical_offset: each.reason for each in marked.records} == classified(marked, cluster)


def test_newest_statement_decides_and_an_end_is_final(marked: Workload, cluster: Cluster) -> None:
    moved, ended = (marked.schedule(START_MS + DAY_MS, "Later", 0) for _ in range(2))
    for due_ms in (START_MS + 9 * DAY_MS, START_MS + 2 * DAY_MS):
        marked.state(moved, TimedMarkKind.MOVED, next_due_ms=due_ms)
    marked.state(ended, TimedMarkKind.CANCELLED)
    marked.state(ended, TimedMarkKind.MOVED, next_due_ms=START_MS + 3 * DAY_MS)
    marked.close()
    found = delayed(marked, cluster)
    assert found[moved.physical_offset]["outcome"] == "pending"
    assert due_ms_of(found[moved.physical_offset]) == START_MS + 2 * DAY_MS
    assert found[ended.physical_offset]["outcome"] == "withdrawn"


def test_message_has_one_row_however_often_it_is_carried(marked: Workload, cluster: Cluster) -> None:
    pending, delivered = (marked.schedule(START_MS + DAY_MS, "Later", 0) for _ in range(2))
    first = pending.physical_offset
    marked.state(pending, TimedMarkKind.MOVED, next_due_ms=START_MS + 5 * DAY_MS)
    pending = marked.carry(marked.carry(pending), START_MS + 4 * DAY_MS)
    delivered = deliver_late(marked, marked.carry(delivered), 7)
    marked.close()
    found = delayed(marked, cluster)
    assert found.keys() == {pending.physical_offset, delivered.physical_offset}
    assert found[pending.physical_offset]["identity"] == first
    assert due_ms_of(found[pending.physical_offset]) == START_MS + 4 * DAY_MS
    assert found[delivered.physical_offset]["lateness_ms"] == 7
    assert {each.physical_offset: each.reason for each in marked.records} == classified(marked, cluster)


def test_carried_message_with_a_delay_level_is_held_by_its_newest_record(marked: Workload, cluster: Cluster) -> None:
    first, second, third = (marked.delay(18, "Later", 0) for _ in range(3))
    pending, delivered = marked.carry_level(first), marked.carry_level(marked.carry_level(second))
    marked.now_ms = delivered.due_ms + 3
    marked.deliver(delivered)
    marked.close()
    found = delayed(marked, cluster)
    assert {offset: row["outcome"] for offset, row in found.items()} == {
        third.physical_offset: "pending", pending.physical_offset: "pending", delivered.physical_offset: "delivered"
    }  # fmt: skip
    assert (found[delivered.physical_offset]["lateness_ms"], found[delivered.physical_offset]["copies"]) == (3, 1)
    assert {each.physical_offset: each.reason for each in marked.records} == classified(marked, cluster)


def test_changed_messages_with_a_delay_level(marked: Workload, cluster: Cluster) -> None:
    cancelled, first, second = (marked.delay(18, "Later", 0) for _ in range(3))
    marked.cancel_level(cancelled)
    pending, delivered = marked.move_level(first, START_MS + 9 * DAY_MS), marked.move_level(second, START_MS + DAY_MS)
    deliver_late(marked, delivered, 5)
    marked.close()
    found = delayed(marked, cluster)
    assert {offset: row["outcome"] for offset, row in found.items()} == {
        cancelled.physical_offset: "withdrawn", pending.physical_offset: "pending",
        delivered.physical_offset: "delivered",
    }  # fmt: skip
    assert due_ms_of(found[pending.physical_offset]) == START_MS + 9 * DAY_MS
    assert found[delivered.physical_offset]["lateness_ms"] == 5
    assert {each.physical_offset: each.reason for each in marked.records} == classified(marked, cluster)


def test_message_that_replaces_another_one_ends_it(marked: Workload, cluster: Cluster) -> None:
    first = marked.schedule(START_MS + DAY_MS, "Later", 0)
    second = marked.replace(first, START_MS + 2 * DAY_MS)
    third = marked.replace(second, START_MS + 3 * DAY_MS)
    marked.close()
    found = delayed(marked, cluster)
    assert [found[each.physical_offset]["outcome"] for each in (first, second, third)] == [
        "withdrawn", "withdrawn", "pending"
    ]  # fmt: skip
    assert {each.physical_offset: each.reason for each in marked.records} == classified(marked, cluster)


def test_record_that_rocketmq_stored_again_is_no_further_message(work: Workload, cluster: Cluster) -> None:
    pending = work.roll(work.roll(work.schedule(START_MS + 9 * DAY_MS, "Later", 0)))
    delivered = deliver_late(work, work.roll(work.schedule(START_MS + 5 * DAY_MS, "Later", 0)), 4)
    work.close()
    found = delayed(work, cluster)
    assert found.keys() == {pending.physical_offset, delivered.physical_offset}
    assert found[pending.physical_offset]["outcome"] == "pending"
    assert (found[delivered.physical_offset]["lateness_ms"], found[delivered.physical_offset]["copies"]) == (4, 1)
    assert {each.physical_offset: each.reason for each in work.records} == classified(work, cluster)


def test_equal_messages_of_rocketmq_are_paired_in_order(tmp_path: Path, cluster: Cluster) -> None:
    work = Workload(tmp_path / "store", marks=False)
    first = work.schedule(START_MS + 1_000, "Later", 0)
    same = {**first.message.properties}
    second = work.append(names.TIMER_TOPIC, 0, "pending", body=first.message.body, properties=same)
    other = work.append(names.TIMER_TOPIC, 0, "pending", body=b"other", properties=same)
    deliver_late(work, first, 5)
    work.close()
    found = delayed(work, cluster)
    assert [found[each.physical_offset]["outcome"] for each in (first, second, other)] == (
        ["delivered", "pending", "pending"]
    )


def test_copy_of_rocketmq_belongs_to_the_message_with_the_same_body(tmp_path: Path, cluster: Cluster) -> None:
    work = Workload(tmp_path / "store", marks=False)
    first = work.schedule(START_MS + 1_000, "Later", 0)
    other = work.append(names.TIMER_TOPIC, 0, "pending", body=b"other", properties={**first.message.properties})
    work.now_ms = START_MS + 1_000
    work.append("Later", 0, "retained", body=b"other", properties={**first.message.properties})
    work.close()
    found = delayed(work, cluster)
    assert [found[each.physical_offset]["outcome"] for each in (first, other)] == ["pending", "delivered"]


def test_copy_of_rocketmq_need_not_name_the_real_topic(tmp_path: Path, cluster: Cluster) -> None:
    work = Workload(tmp_path / "store", marks=False)
    entry, other = (work.schedule(START_MS + 1_000, "Later", queue_id) for queue_id in (3, 4))
    copied = {name: text for name, text in entry.message.properties.items() if not name.startswith("REAL_")}
    work.now_ms = START_MS + 1_250
    work.append("Later", 3, "retained", body=entry.message.body, properties=copied)
    work.append("Later", 9, "retained", body=other.message.body, properties={**other.message.properties})
    work.close()
    found = delayed(work, cluster)
    assert (found[entry.physical_offset]["outcome"], found[entry.physical_offset]["lateness_ms"]) == ("delivered", 250)
    assert found[other.physical_offset]["outcome"] == "pending"


def test_delivery_stated_by_a_mark_alone_is_not_a_copy(marked: Workload, cluster: Cluster) -> None:
    entry = marked.schedule(START_MS + 1_000, "Later", 3)
    marked.state(entry, TimedMarkKind.DELIVERED)
    marked.close()
    (row,) = delayed(marked, cluster).values()
    assert (row["outcome"], row["copies"], row["lateness_ms"]) == ("delivered", 0, None)


def test_mark_before_the_message_settles_nothing(tmp_path: Path, cluster: Cluster) -> None:
    def mark(place: int) -> dict[str, str | bytes]:
        return {names.MARK: str(TimedMark(
            place=place, kind=TimedMarkKind.CANCELLED, decided_ms=0, identity=later, record=later, due_ms=START_MS
        ))}  # fmt: skip

    def due(place: int) -> dict[str, str | bytes]:
        return {names.DUE: str(TimedDue(place, START_MS, place))}

    later = 0
    for _ in range(3):
        # The size of the mark depends on the number of digits of the identity.
        (_, later) = write_timed_log(tmp_path, [(names.MARKS_TOPIC, mark), (names.TIMER_TOPIC, due)])
    out = tmp_path / "out"
    sections = frozenset({"delay"})
    run_stages(plain_messages(tmp_path), Positions(path=""), OPTIONS, cluster=cluster, sections=sections, out=out)
    assert [(row["identity"], row["outcome"]) for row in table(out, "delay")] == [(later, "pending")]


def test_copy_of_rocketmq_does_not_belong_to_a_message_that_a_mark_has_settled(
    tmp_path: Path, cluster: Cluster
) -> None:
    work = Workload(tmp_path / "store", marks=False)
    first = work.schedule(START_MS + 1_000, "Later", 0)
    body, same = first.message.body, {**first.message.properties}
    second = work.append(names.TIMER_TOPIC, 0, "pending", body=body, properties=same)
    work.append("Later", 0, "retained", body=body, properties=same)
    work.take_over()
    deliver_late(work, first, 3)
    work.close()
    found = delayed(work, cluster)
    assert [(found[each.physical_offset]["outcome"], found[each.physical_offset]["copies"]) for each in
            (first, second)] == [("delivered", 1)] * 2  # fmt: skip


def test_lateness_is_measured_from_the_due_time_in_the_mark(marked: Workload, cluster: Cluster) -> None:
    entry = marked.schedule(START_MS + 9_000, "Later", 0)
    # As if the statement that moved it was in a part of the log that is no longer readable.
    entry.due_ms = START_MS + 5_000
    deliver_late(marked, entry, 6)
    marked.close()
    (row,) = delayed(marked, cluster).values()
    assert (row["lateness_ms"], due_ms_of(row)) == (6, START_MS + 5_000)


def test_copy_that_rocketmq_made_of_our_record_is_a_delivery(marked: Workload, cluster: Cluster) -> None:
    """RocketMQ 5 keeps the due time that the record states, and may remove the real topic."""
    entry, sent_back, other = (marked.schedule(START_MS + 1_000, "Later", 3) for _ in range(3))
    copied = {name: text for name, text in entry.message.properties.items() if not name.startswith("REAL_")}
    marked.now_ms = START_MS + 1_250
    marked.append("Later", 3, "retained", body=entry.message.body, properties=copied)
    body, properties = sent_back.message.body, sent_back.message.properties
    marked.append("%RETRY%g", 0, "retained", body=body, properties=properties, reconsume_times=1)
    marked.append("Later", 3, "retained", body=b"other", properties=other.message.properties)
    marked.close()
    found = delayed(marked, cluster)
    assert (found[entry.physical_offset]["outcome"], found[entry.physical_offset]["lateness_ms"]) == ("delivered", 250)
    assert found[sent_back.physical_offset]["outcome"] == "pending"
    assert found[other.physical_offset]["outcome"] == "pending"


@pytest.mark.parametrize("is_same", [True, False], ids=["equal", "different"])
def test_copy_with_a_damaged_mark_is_compared_with_the_message(
    marked: Workload, cluster: Cluster, is_same: bool
) -> None:
    entry = marked.schedule(START_MS + 1_000, "Later", 3)
    marked.now_ms = entry.due_ms
    copy = marked.deliver(entry)
    marked.close()
    file = marked.path / "commitlog" / f"{copy.segment:020d}"
    at = copy.physical_offset - copy.segment
    data = file.read_bytes()
    record = data[at : at + copy.size].replace(b"delivered:", b"zzlivered:")
    if not is_same:
        record = record.replace(b"TIMER_OUT_MS", b"XIMER_OUT_MS").replace(b"UNIQ_KEY", b"XNIQ_KEY")
    file.write_bytes(data[:at] + record + data[at + copy.size :])
    (row,) = delayed(marked, cluster).values()
    assert row["outcome"] == ("delivered" if is_same else "pending")


def test_marks_settle_messages_that_rocketmq_wrote(tmp_path: Path, cluster: Cluster) -> None:
    work = Workload(tmp_path / "store", marks=False)
    entries = [work.schedule(START_MS + 1_000 + number, "Later", 0) for number in range(8)]
    work.take_over()
    for entry in entries[:3]:
        deliver_late(work, entry, 2, copies=2)
    for entry in entries[3:5]:
        work.drop(entry)
    work.close()
    found = delayed(work, cluster)
    outcomes = [found[each.physical_offset]["outcome"] for each in entries]
    assert outcomes == ["delivered"] * 3 + ["withdrawn"] * 2 + ["pending"] * 3
    assert [found[each.physical_offset]["copies"] for each in entries] == [2] * 3 + [0] * 5


def test_message_that_delaymq_took_over_from_rocketmq_counts_once(tmp_path: Path, cluster: Cluster) -> None:
    work = Workload(tmp_path / "store", marks=False)
    entries = [work.schedule(START_MS + 1_000 + number, "Later", 0) for number in range(8)]
    entries[6:] = [work.roll(entry) for entry in entries[6:]]
    work.take_over()
    carried = [work.carry(entry, START_MS + 2_000 + number) for number, entry in enumerate(entries)]
    for entry in (*carried[:3], carried[7]):
        deliver_late(work, entry, 2)
    work.drop(carried[4])
    work.close()
    found = delayed(work, cluster)
    assert found.keys() == {each.physical_offset for each in carried}
    outcomes = [found[each.physical_offset]["outcome"] for each in carried]
    assert outcomes == ["delivered"] * 3 + ["pending", "withdrawn", "pending", "pending", "delivered"]
    assert [found[each.physical_offset]["lateness_ms"] for each in carried[:3]] == [2, 2, 2]
    assert {each.physical_offset: each.reason for each in work.records} == classified(work, cluster)


def test_copy_of_rocketmq_does_not_belong_to_a_message_that_delaymq_took_over(tmp_path: Path, cluster: Cluster) -> None:
    work = Workload(tmp_path / "store", marks=False)
    first = work.schedule(START_MS + 1_000, "Later", 0)
    body, same = first.message.body, {**first.message.properties}
    second = work.append(names.TIMER_TOPIC, 0, "pending", body=body, properties=same)
    work.take_over()
    carried = work.carry(first)
    work.append("Later", 0, "retained", body=body, properties=same)
    work.close()
    outcomes = {offset: row["outcome"] for offset, row in delayed(work, cluster).items()}
    assert outcomes == {carried.physical_offset: "pending", second.physical_offset: "delivered"}


@pytest.mark.parametrize("with_topic", [True, False])
def test_message_that_rocketmq_recalled_is_withdrawn(tmp_path: Path, cluster: Cluster, with_topic: bool) -> None:
    work = Workload(tmp_path / "store", marks=False)
    recalled, other = (work.schedule(START_MS + DAY_MS, "Later", 0) for _ in range(2))
    elsewhere = work.append(
        names.TIMER_TOPIC, 0, "pending", body=b"e",
        properties={**recalled.message.properties, names.REAL_TOPIC: "Elsewhere"},
    )  # fmt: skip
    work.recall(recalled, with_topic=with_topic)
    again = work.append(names.TIMER_TOPIC, 0, "pending", body=b"a", properties={**recalled.message.properties})
    work.close()
    found = delayed(work, cluster)
    assert {offset: row["outcome"] for offset, row in found.items()} == {
        recalled.physical_offset: "withdrawn", other.physical_offset: "pending", elsewhere.physical_offset: "pending",
        again.physical_offset: "pending",
    }  # fmt: skip
    assert {each.physical_offset: each.reason for each in work.records} == classified(work, cluster)


def test_copy_is_kept_while_a_record_of_its_message_is_kept(marked: Workload, cluster: Cluster) -> None:
    entry = marked.schedule(START_MS + HOUR_MS, "Later", 0)
    marked.schedule(START_MS + 3_650 * DAY_MS, "Later", 0)
    fill(marked)
    carried = marked.carry(entry)
    fill(marked)
    copy = deliver_late(marked, carried, 0).copies[0]
    marked.now_ms += 200 * HOUR_MS
    fill(marked)
    marked.close()
    options = CompactionOptions(as_of_ms=marked.now_ms)
    found = run_stages(plain_messages(marked.path), read_positions(marked.path), options, cluster=cluster)
    assert {(row["segment"], row["origin_segment"], row["bytes"]) for row in found.rows("proofs")} == {
        (copy.segment, entry.segment, copy.size), (copy.segment, carried.segment, copy.size)
    }  # fmt: skip


def fill(work: Workload) -> None:
    """Append messages up to the next segment."""
    segment = work.records[-1].segment
    while work.records[-1].segment == segment:
        work.send("Noise", 0, "expired", bytes(1_000))


def test_messages_of_equal_size_are_spread_over_all_partitions() -> None:
    offsets = pa.array(range(0, 512 * 16_000, 512), pa.int64())
    rows = pa.table({"route": offsets, "match_key": pa.repeat("k", len(offsets))})
    places = np.bincount(places_of(rows, 16), minlength=16)
    assert places.min() > 900
    assert places.max() < 1_100


def test_summary_and_plots_show_timed_messages_without_a_level(marked: Workload) -> None:
    deliver_late(marked, marked.schedule(START_MS + 1_000, "Later", 0), 9)
    deliver_late(marked, marked.delay(5, "Later", 0), 1)
    early = deliver_late(marked, marked.schedule(marked.now_ms + 1_000, "Later", 0), -1)
    for ahead_ms in (-1, 50_000, 3 * DAY_MS, 20 * DAY_MS, 300 * DAY_MS, 3_650 * DAY_MS):
        marked.schedule(marked.now_ms + ahead_ms, "Later", 0)
    marked.delay(18, "Later", 0)
    marked.close()
    options = CompactionOptions(as_of_ms=marked.now_ms)
    found = run_stages(plain_messages(marked.path), read_positions(marked.path), options)
    delay = summary.of_delay(found, marked.now_ms, 100, complete=True)
    assert [(each["level"], each["messages"], each["maxMs"]) for each in delay["byLevel"]] == (
        [(5, 1, 1), (18, 1, None), (None, 8, 9)]
    )
    assert [(each["level"], each["due"], each["messages"]) for each in delay["pendingByDue"]] == [
        (18, "next day", 1), (None, "overdue", 1), (None, "next minute", 1), (None, "next week", 1),
        (None, "next 30 days", 1), (None, "next 365 days", 1), (None, "later", 1),
    ]  # fmt: skip
    [row] = delay["pendingByTopic"]
    assert (row["topic"], row["pending"]) == ("Later", 7)
    assert row["due"] == {"1m": 2, "10m": 0, "1h": 0, "1d": 1, "more": 4}
    assert (delay["pending"], delay["overdue"], delay["delivered"], delay["early"]) == (7, 1, 3, 1)
    assert [(each["broken"], each["level"], each["physicalOffset"]) for each in delay["offenders"]] == (
        [("early", None, early.physical_offset)]
    )
    assert [each["topic"] for each in delay["byTopic"]] == ["Later"]
    drawn = plots({"delay": delay})
    assert all(">timed<" in drawn[name] for name in ("levels", "pending"))
    assert ">next 30 days<" in drawn["pending"]
    topics = {each["topic"]: each["messages"] for each in summary.of_traffic(found)["topTopics"]}
    assert topics == {"Later": 3, names.TIMER_TOPIC: 8, names.SCHEDULE_TOPIC: 2}
