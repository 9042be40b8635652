"""Repeating messages in logs that the broker's delivery wrote, compared with its own pending messages and its tools."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.delivery.changes.changes import Requester
from delaymq.broker.delivery.changes.requests import Action, ChangeRequest, perform
from delaymq.broker.delivery.timed.requests import TimeRequest
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.schedule.timeline.inspection import find_identities
from delaymq.store.tools.timed_messages import TimedMessages
from delaymq_spark.cli import run
from delaymq_spark.jobs.compaction import CompactionOptions
from delaymq_spark.store.positions import Positions
from delaymq_spark_testing.plain_rows import plain_messages
from delaymq_spark_testing.stages import MANY, ONE, Cluster, run_stages, table
from delaymq_spark_testing.store import comparable, reader_rows, source_rows
from delaymq_spark_testing.timed_log import sealed
from delaymq_testing.broker.delivery_harness import HOST, START_MS, Bench
from delaymq_testing.broker.delivery_life import Life
from delaymq_testing.broker.harness import Harness
from delaymq_testing.broker.repeating import hand_over, repeat, runs
from pyspark.sql import SparkSession

pytestmark = pytest.mark.core

EVERY_MS = 60_000
SEGMENT_BYTES = 1 << 20
STEPS = 400


@pytest.fixture(params=[ONE, MANY], ids=["one task", "many tasks"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.param
    return found


def send(bench: Bench, **more: str) -> int:
    """Send a repeating message; return its identity."""
    properties = {"UNIQ_KEY": "r", names.DELAY_EVERY_MS: str(EVERY_MS), names.DELAY_MISSED: "all", **more}
    due_ms = bench.delivery.ingress.requested_time(properties, 0)
    assert due_ms is not None
    return bench.send_timed("r", due_ms, properties=properties).physical_offset


def advance(bench: Bench, count: int = 1, late_ms: int = 0) -> None:
    for _ in range(count):
        due_ms = bench.delivery.next_wakeup_ms()
        assert due_ms is not None
        bench.now_ms = max(bench.now_ms, due_ms + late_ms)
        bench.hand_over()


def change(bench: Bench, action: Action, after_ms: int = 0, **more: str) -> None:
    more = more or {"unique_id": "r"}
    request = ChangeRequest(action=action, topic="orders", time=TimeRequest(True, after_ms), **more)
    perform(bench.delivery, request, Requester("", HOST))


def carry(bench: Bench) -> None:
    bench.store.flush()
    bench.store.expired_end = len(bench.store.log)
    carried = bench.delivery.carrier.carried_messages
    while bench.delivery.carrier.carried_messages == carried:
        bench.now_ms += 30_000
        bench.delivery.carry(bench.now_ms)
    bench.store.expired_end = 0


def write_store(bench: Bench, path: Path) -> Path:
    """Write the broker's log as a store with one segment."""
    log = bytes(bench.store.log)
    (path / "commitlog").mkdir(parents=True)
    (path / "delaymq").mkdir()
    (path / "commitlog" / f"{0:020d}").write_bytes(log.ljust(-(-len(log) // SEGMENT_BYTES) * SEGMENT_BYTES, b"\0"))
    version = bench.store.format_version
    state = {"formatVersion": version, "minimumReader": version, "epoch": 0, "role": "master", "storeId": "s"}
    (path / "delaymq/state.json").write_text(json.dumps(state))
    return path


def delayed(bench: Bench, path: Path, cluster: Cluster = ONE) -> list[dict[str, Any]]:
    """Return the rows of delay.parquet."""
    store = write_store(bench, path / "store")
    options = CompactionOptions(as_of_ms=bench.now_ms)
    run_stages(
        plain_messages(store), Positions(path=str(store)), options, cluster=cluster, sections=frozenset({"delay"}),
        out=path / "out",
    )  # fmt: skip
    return table(path / "out", "delay")


def shown(rows: list[dict[str, Any]]) -> list[tuple[int | None, str, int, int | None, int]]:
    """Return run, outcome, due time in ms after the start, lateness and number of copies of each row."""
    found = [(row["run"], row["outcome"], due_ms_of(row) - START_MS, row["lateness_ms"], row["copies"]) for row in rows]
    return sorted(found, key=lambda row: (row[2], row[0] is None))


def due_ms_of(row: dict[str, Any]) -> int:
    return round(row["due_time"].timestamp() * 1000)


def copies_of_runs(bench: Bench) -> list[Record]:
    return [record for record in bench.copies() if names.DELAY_RUN in record.properties]


def spoil_mark(bench: Bench, record: Record) -> None:
    """Damage the mark of a record beyond the correction of one bit."""
    text = record.properties[names.MARK].encode()
    at = bench.log.index(text, record.physical_offset) + len(text) - 4
    bench.log = bench.log[:at] + b"zz" + bench.log[at + 2 :]


def test_each_run_is_a_delivery_and_the_next_one_is_pending(tmp_path: Path, cluster: Cluster) -> None:
    bench = Bench()
    identity = send(bench)
    advance(bench, 2, late_ms=7)
    advance(bench)
    rows = delayed(bench, tmp_path, cluster)
    assert shown(rows) == [
        (1, "delivered", EVERY_MS, 7, 1), (2, "delivered", 2 * EVERY_MS, 7, 1), (3, "delivered", 3 * EVERY_MS, 0, 1),
        (None, "pending", 4 * EVERY_MS, None, 0),
    ]  # fmt: skip
    assert {(row["identity"], row["level"], row["topic"]) for row in rows} == {(identity, None, "orders")}
    offsets = [record.physical_offset for record in copies_of_runs(bench)]
    assert sorted(row["copy_offset"] for row in rows if row["run"] is not None) == offsets


def test_message_ends_with_its_last_run(tmp_path: Path, cluster: Cluster) -> None:
    bench = Bench()
    send(bench, **{names.DELAY_RUNS: "2"})
    advance(bench, 2)
    assert bench.delivery.pending_total() == 0
    expected = [(1, "delivered", EVERY_MS, 0, 1), (2, "delivered", 2 * EVERY_MS, 0, 1)]
    assert shown(delayed(bench, tmp_path, cluster)) == expected


def test_changed_and_skipped_runs_have_the_due_times_that_applied(tmp_path: Path, cluster: Cluster) -> None:
    bench = Bench()
    send(bench, **{names.DELAY_MISSED: "none", names.DELAY_EXPIRE_MS: "2000"})
    change(bench, Action.MOVE, 5_000)
    advance(bench, late_ms=3)
    change(bench, Action.FIRE)
    advance(bench)
    fired_ms = bench.now_ms
    bench.now_ms += 10 * EVERY_MS + 5_000
    bench.hand_over()
    assert [record.topic for record in bench.store.records()].count(names.MARKS_TOPIC) == 3
    rows = shown(delayed(bench, tmp_path, cluster))
    after_ms = fired_ms - START_MS
    assert rows == [
        (1, "delivered", 5_000, 3, 1), (2, "delivered", after_ms, 0, 1),
        (None, "pending", after_ms + 11 * EVERY_MS, None, 0),
    ]  # fmt: skip


def test_only_the_latest_of_several_missed_runs_is_delivered_and_not_late(tmp_path: Path, cluster: Cluster) -> None:
    bench = Bench()
    send(bench, **{names.DELAY_MISSED: "latest"})
    bench.now_ms += 5 * EVERY_MS + 9
    bench.hand_over()
    assert shown(delayed(bench, tmp_path, cluster)) == [
        (1, "delivered", 5 * EVERY_MS, 9, 1), (None, "pending", 6 * EVERY_MS, None, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["cancel", "group"])
def test_carried_message_keeps_its_runs_until_it_is_cancelled(tmp_path: Path, cluster: Cluster, end: str) -> None:
    bench = Bench()
    identity = send(bench, **{names.DELAY_GROUP: "g"})
    advance(bench, 2)
    carry(bench)
    advance(bench, 1)
    carry(bench)
    if end == "group":
        change(bench, Action.CANCEL, group="g")
    else:
        change(bench, Action.CANCEL)
    assert bench.delivery.pending_total() == 0
    rows = delayed(bench, tmp_path, cluster)
    found = Counter((row["run"], row["outcome"], row["copies"]) for row in rows)
    assert found == Counter([(number, "delivered", 1) for number in (1, 2, 3)] + [(None, "withdrawn", 0)])
    holder = [record for record in bench.store.records() if record.topic == names.TIMER_TOPIC][-1]
    assert {(row["identity"], row["physical_offset"]) for row in rows} == {(identity, holder.physical_offset)}


def test_moved_group_moves_the_next_run(tmp_path: Path, cluster: Cluster) -> None:
    bench = Bench()
    send(bench, **{names.DELAY_GROUP: "g"})
    advance(bench)
    change(bench, Action.MOVE, 5_000, group="g")
    advance(bench, late_ms=2)
    assert shown(delayed(bench, tmp_path, cluster)) == [
        (1, "delivered", EVERY_MS, 0, 1), (2, "delivered", EVERY_MS + 5_000, 2, 1),
        (None, "pending", 2 * EVERY_MS + 5_000, None, 0),
    ]  # fmt: skip


def test_message_that_replaces_a_repeating_one_ends_it_and_repeats(tmp_path: Path, cluster: Cluster) -> None:
    bench = Bench()
    replacing = {names.DELAY_KEY: "k", names.DELAY_ON_SAME_KEY: "replace"}
    first = send(bench, **replacing)
    advance(bench)
    second = send(bench, **replacing, UNIQ_KEY="r2")
    advance(bench)
    rows = delayed(bench, tmp_path, cluster)
    assert Counter((row["identity"], row["run"], row["outcome"]) for row in rows) == Counter(
        [(first, 1, "delivered"), (first, None, "withdrawn"), (second, 1, "delivered"), (second, None, "pending")]
    )


@pytest.mark.parametrize("is_stated_again", [True, False])
@pytest.mark.parametrize("number", range(3))
def test_copy_with_a_damaged_mark_proves_its_run(
    tmp_path: Path, cluster: Cluster, number: int, is_stated_again: bool
) -> None:
    bench = Bench()
    send(bench)
    advance(bench, 3)
    bench.kill()
    spoil_mark(bench, [record for record in bench.store.records() if names.DELAY_RUN in record.properties][number])
    bench.start()
    if is_stated_again:
        bench.hand_over()
        stated = [record for record in bench.store.records() if record.topic == names.MARKS_TOPIC]
        assert len(stated) == (number == 2)
    rows = shown(delayed(bench, tmp_path, cluster))
    # Until the broker has stated what follows the newest run, the message is due.
    due_ms = (3 if number == 2 and not is_stated_again else 4) * EVERY_MS
    assert [row for row in rows if row[0] is not None] == [
        (each, "delivered", each * EVERY_MS, 0, 1) for each in (1, 2, 3)
    ]
    assert [row for row in rows if row[0] is None] == [(None, "pending", due_ms, None, 0)]


@pytest.mark.parametrize("before", [0, 2])
def test_copy_of_rocketmq_is_a_run_and_no_end(tmp_path: Path, cluster: Cluster, before: int) -> None:
    bench = Bench()
    place = send(bench, **{names.DELAY_RUNS: "9"})
    advance(bench, before)
    bench.kill()
    bench.start()
    bench.now_ms = START_MS + (before + 1) * EVERY_MS
    bench.store.observers = []
    bench.foreign_deliver(place)
    bench.kill()
    bench.start()
    bench.hand_over()
    bench.hand_over()
    rows = delayed(bench, tmp_path, cluster)
    pending = [row for row in rows if row["outcome"] == "pending"]
    assert len(pending) == bench.delivery.pending_total() == 1
    assert due_ms_of(pending[0]) == bench.delivery.next_wakeup_ms()
    delivered = [row for row in rows if row["outcome"] == "delivered"]
    assert [row["copies"] for row in delivered] == [1] * len(delivered)
    assert len(delivered) == len(bench.copies())


def test_copy_that_is_sent_again_is_no_run(tmp_path: Path, cluster: Cluster) -> None:
    bench = Bench()
    send(bench)
    advance(bench)
    copy = copies_of_runs(bench)[0]
    bench.send("again", properties={name: text for name, text in copy.properties.items() if name != names.MARK})
    bench.append("forged", topic="orders", queue_id=0, properties=copy.properties)
    assert [row[0] for row in shown(delayed(bench, tmp_path, cluster))] == [1, None]


def test_run_that_is_delivered_twice_is_a_duplicate(tmp_path: Path, cluster: Cluster) -> None:
    bench = Bench()
    send(bench)
    advance(bench)
    copy = copies_of_runs(bench)[0]
    mark = copy.properties[names.MARK]
    place = bench.append("r", topic="orders", queue_id=0, properties=copy.properties).physical_offset
    valid_there = sealed(2, place, mark.split(":", 2)[2].rpartition(":")[0])
    bench.store.log[place:] = bytes(bench.store.log[place:]).replace(mark.encode(), valid_there.encode())
    rows = delayed(bench, tmp_path, cluster)
    assert [(row[0], row[4]) for row in shown(rows)] == [(1, 2), (None, 0)]


def random_life(seed: int) -> Bench:
    """Return a store after random sends, changes, pauses, carries, crashes and deliveries, opened again."""
    life = Life(seed)
    for step in range(STEPS):
        if step % 9 == 0:
            life.repeating.send()
            life.bench.delivery.control.resume()
            life.hand_over()
        life.step()
    life.bench.kill()
    life.bench.snapshot = None
    life.bench.start()
    return life.bench


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_have_the_pending_messages_of_the_broker(tmp_path: Path, seed: int) -> None:
    bench = random_life(seed)
    rows = delayed(bench, tmp_path, MANY)
    timed = [row for row in rows if row["identity"] is not None]
    pending = {row["identity"]: due_ms_of(row) for row in timed if row["outcome"] == "pending"}
    timeline = bench.delivery.timeline
    known = find_identities(timeline, {row["identity"] for row in timed})
    assert pending == {identity: each.due_ms for identity, each in known.items()}
    assert len([row for row in rows if row["outcome"] == "pending"]) == bench.delivery.pending_total()
    assert sum(row["outcome"] == "pending" for row in timed) > 5
    copies = copies_of_runs(bench)
    assert len(copies) > 10
    assert Counter((row["run"], row["lateness_ms"]) for row in timed if row["run"] is not None) == Counter(
        (int(copy.properties[names.DELAY_RUN]), copy.store_timestamp_ms - int(copy.properties[names.TIMER_OUT_MS]))
        for copy in copies
    )
    delivered = [row for row in timed if row["outcome"] == "delivered"]
    assert {row["copies"] for row in delivered} == {1}
    assert min(row["lateness_ms"] for row in delivered) >= 0
    check_ends(bench, timed)


def check_ends(bench: Bench, timed: list[dict[str, Any]]) -> None:
    """Compare the rows with the states that `delaymq store inspect` finds."""
    states = TimedMessages()
    for record in bench.store.records():
        states.take(record)
    ended = {state.identity: state.ended for state in states}
    by_run = {row["identity"] for row in timed if row["run"] is not None}
    outcomes = {row["identity"]: row["outcome"] for row in timed if row["run"] is None}
    assert len(outcomes) == sum(row["run"] is None for row in timed)
    expected = {None: "pending", "delivered": "delivered"}
    for identity, kind in ended.items():
        if identity in outcomes:
            assert outcomes[identity] == expected.get(kind, "withdrawn")
        else:
            assert (kind, identity in by_run) == ("delivered", True)
    assert outcomes.keys() | by_run == ended.keys()


def test_rows_of_the_data_source_equal_those_of_the_broker(tmp_path: Path) -> None:
    bench = random_life(7)
    bench.kill()
    spoil_mark(bench, copies_of_runs(bench)[-1])
    bench.start()
    store = write_store(bench, tmp_path / "store")
    rows = [comparable(row) for row in source_rows(store)]
    assert rows == list(reader_rows(store))
    copies = [row for row in rows if row["run"] and row["kind"] == "delivered"]
    assert len(copies) == len(copies_of_runs(bench))
    assert all(row["schedule_id"] is not None for row in copies)
    assert any(row["mark"] is None for row in copies)


@pytest.mark.parametrize("end", [None, "cancel"])
def test_copies_of_the_newest_run_are_kept_while_their_schedule_is(tmp_path: Path, end: str | None) -> None:
    bench = Bench()
    identity = send(bench)
    advance(bench, 3)
    copy = copies_of_runs(bench)[-1]
    if end is not None:
        change(bench, Action.CANCEL)
    store = write_store(bench, tmp_path / "store")
    rows = plain_messages(store)
    alone = rows.set_column(rows.column_names.index("segment"), "segment", rows["physical_offset"])
    options = CompactionOptions(as_of_ms=bench.now_ms + 999 * 3_600_000)
    found = run_stages(alone, Positions(path=str(store)), options).rows("proofs")
    assert [(row["segment"], row["origin_segment"], row["bytes"]) for row in found] == [
        (copy.physical_offset, identity, copy.size)
    ]


def test_carried_message_with_a_delay_level_does_not_hide_the_first_timed_message(tmp_path: Path) -> None:
    bench = Bench()
    assert bench.send_timed("first", START_MS + 999_999).physical_offset == 0
    bench.send("level", 3)
    carry(bench)
    assert {row["identity"]: row["outcome"] for row in delayed(bench, tmp_path)} == {0: "pending", None: "pending"}


def test_store_of_a_killed_broker_has_its_pending_messages(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = Harness(tmp_path)
    for number in range(5):
        repeat(harness, f"m{number}", DELAY_EVERY_MS="60000", DELAY_RUNS=str(number + 1), DELAY_GROUP="g")
    repeat(harness, "cron", DELAY_CRON="*/5 * * * *")
    for _ in range(3):
        hand_over(harness, 60_000)
    pending, now_ms = harness.broker.delivery.pending_total(), harness.clock()
    next_ms = min(harness.broker.delivery.next_due_ms().values())
    delivered = len(runs(harness))
    harness.broker.store.abandon()
    assert (pending, delivered) == (3, 13)
    as_of = ["--as-of", str(now_ms)]
    assert run(["delay", "--store", harness.config.store_path_root_dir, "--json", *as_of]) == 0
    summary = json.loads(capsys.readouterr().out)
    delay = summary["delay"]
    assert (delay["pending"], delay["delivered"], delay["duplicates"], delay["early"]) == (pending, delivered, 0, 0)
    assert delay["nextDue"] == datetime.fromtimestamp(next_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert (delay["messages"], delay["overdue"], delay["worstLatenessMs"]) == (16, 0, 20_000)


def test_report_of_a_store_of_version_4_is_complete(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench()
    send(bench)
    advance(bench, 3, late_ms=5)
    assert bench.store.format_version == 4
    store = write_store(bench, tmp_path / "store")
    assert run(["report", "--store", str(store), "--out", str(tmp_path / "out"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    delay = summary["delay"]
    assert (summary["complete"], summary["skipped"]) == (True, [])
    counts = ("messages", "delivered", "pending", "withdrawn", "duplicates", "early", "worstLatenessMs")
    assert [delay[name] for name in counts] == [4, 3, 1, 0, 0, 0, 5]
    assert delay["offenders"] == []
