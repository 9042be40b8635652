"""Timed messages in /api/v1 and the metrics: counts, messages due next, search, history."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delaymq.api_types.delay import Delay
from delaymq.message import names
from delaymq.message.timed_marks import carried_due
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.schedule.timeline import Timeline, TimelineDamagedError
from delaymq.store.model import NewRecord
from delaymq.store.retention import ExpiredLog, Retention
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.running_server import HOST, run, until
from msgspec import convert
from prometheus_client.parser import text_string_to_metric_families

KEY = "7F00000100002A9F18B4AAC2D1F2{:04X}"
TIMED = 300
HOUR_MS = 3_600_000
SEGMENT_BYTES = 64 * 1024


async def send_many(api: Asked) -> int:
    """Sends 300 timed messages to three topics, one due each minute from ten minutes from now on, and three with
    levels; returns the due time of the first one."""
    first_ms = api.broker.now_ms() + 600_000
    for number in range(TIMED):
        due_ms = first_ms + number * 60_000
        await api.peer.send(
            f"T{number % 3}", b"x", KEYS="all", UNIQ_KEY=KEY.format(number), TIMER_DELIVER_MS=str(due_ms)
        )
    for topic, level in (("T0", 1), ("T0", 2), ("Orders", 2)):
        await api.peer.send(topic, DELAY=str(level), KEYS="all")
    return first_ms


def test_status_shows_timed_messages_and_their_index(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1h 2h") as api:
            none = await api.get("delay")
            assert (none["timed"]["pending"], none["timed"]["nextDueMs"]) == (0, None)
            first_ms = await send_many(api)
            delay = await api.get("delay")
            timed = delay["timed"]
            assert [(level["level"], level["pending"]) for level in delay["levels"]] == [(1, 1), (2, 2)]
            assert (timed["pending"], timed["nextDueMs"], timed["delivered"]) == (TIMED, first_ms, 0)
            assert TIMED * 100 < timed["pendingBytes"] < TIMED * 1_000
            assert timed["index"] == {"runs": 0, "fileBytes": 0, "mergingEntries": 0}
            api.broker.delivery.timeline.freeze()
            assert (await api.get("delay"))["timed"]["index"]["runs"] == 1
            totals = await api.get("totals")
            assert (totals["pending"], totals["nextDueMs"]) == (TIMED + 3, first_ms)
            assert (await api.get("remaining"))["pendingDelays"] == TIMED + 3
            assert (await api.get("topics/T0"))["pending"] == TIMED // 3 + 2
            # Readers accept the response of an older broker.
            del delay["timed"]
            assert convert(delay, Delay).timed is None

    run(scenario)


def test_pending_timed_messages_are_counted_next_to_levels_by_topic_and_due_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1h 2h") as api:
            first_ms = await send_many(api)
            api.broker.delivery.timeline.freeze()
            await api.peer.send("T1", TIMER_DELIVER_MS=str(first_ms - 1))
            by_level = await api.get("delay/pending")
            rows = [(row.get("level"), row.get("timed", False), row["pending"]) for row in by_level["rows"]]
            assert rows == [(1, False, 1), (2, False, 2), (None, True, TIMED + 1)]
            assert by_level["rows"][2]["nextDueMs"] == first_ms - 1
            assert by_level["total"] == TIMED + 4
            [of_topic] = (await api.get("delay/pending?topic=T2"))["rows"]
            assert (of_topic["timed"], of_topic["pending"], of_topic["nextDueMs"]) == (True, 100, first_ms + 120_000)
            by_topic = await api.get("delay/pending?by=topic")
            assert [(row["topic"], row["pending"], row["nextDueMs"] - first_ms) for row in by_topic["rows"][:3]] == [
                ("T0", 102, 0),
                ("T1", 101, -1),
                ("T2", 100, 120_000),
            ]
            assert by_topic["total"] == TIMED + 4
            by_due = await api.get(f"delay/pending?by=due&bucketMs={HOUR_MS}")
            assert by_due["total"] == sum(row["pending"] for row in by_due["rows"]) == TIMED + 4
            assert all(row["fromMs"] <= row["nextDueMs"] < row["toMs"] for row in by_due["rows"])
            of_topic = await api.get(f"delay/pending?by=due&topic=T2&bucketMs={HOUR_MS}&kind=timed")
            for row in of_topic["rows"]:
                due = [first_ms + number * 60_000 for number in range(2, TIMED, 3)]
                assert row["pending"] == sum(row["fromMs"] <= each < row["toMs"] for each in due)
            chosen = await api.get("delay/pending?by=due")
            assert (chosen["total"], chosen["bucketMs"]) == (TIMED + 4, 300_000)
            soon = await api.get(f"delay/pending?by=due&untilMs={first_ms}")
            assert soon["total"] == 1

    run(scenario)


def test_filters_select_messages_with_a_level_or_timed_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1h 2h") as api:
            await send_many(api)
            for by in ("level", "topic", "due"):
                counts = {
                    which: (await api.get(f"delay/pending?by={by}&{which}"))["total"]
                    for which in ("level=2", "kind=level", "kind=timed", "kind=level&topic=T0", "kind=timed&topic=T0")
                }
                assert list(counts.values()) == [2, 3, TIMED, 2, 100], by
                error = (await api.get(f"delay/pending?by={by}&level=2&kind=timed", 400))["error"]
                assert error["code"] == "bad_request"
            assert (await api.get("delay/pending/messages?kind=timed&level=1", 400))["error"]["code"] == "bad_request"
            assert (await api.get("delay/pending?kind=some", 400))["error"]["code"] == "bad_request"

    run(scenario)


def test_messages_due_next_include_timed_ones_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="12m 2h") as api:
            first_ms = await send_many(api)
            coming = await api.get("delay/pending/messages?limit=5")
            assert (coming["total"], coming["truncated"]) == (TIMED + 3, True)
            assert {row["state"] for row in coming["messages"]} == {"pending"}
            # Level 1 is due between the timed messages.
            assert [row["delayLevel"] for row in coming["messages"]].count(1) == 1
            assert [row["dueMs"] for row in coming["messages"]] == sorted(row["dueMs"] for row in coming["messages"])
            of_topic = await api.get("delay/pending/messages?topic=T2&limit=3")
            assert (of_topic["total"], of_topic["complete"]) == (100, True)
            assert [row["dueMs"] - first_ms for row in of_topic["messages"]] == [120_000, 300_000, 480_000]
            row = of_topic["messages"][0]
            assert (row["messageId"], row["queueOffset"], row["keys"]) == (KEY.format(2), None, ["all"])
            timed = await api.get("delay/pending/messages?kind=timed")
            assert (len(timed["messages"]), timed["total"]) == (100, TIMED)
            levels = await api.get("delay/pending/messages?kind=level")
            assert ([row["delayLevel"] for row in levels["messages"]], levels["total"]) == ([1, 2, 2], 3)

    run(scenario)


def test_message_is_found_once_by_its_key_and_ids_before_and_after_its_delivery(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await api.post("delay/pause", {}, 202)
            due_ms = api.broker.now_ms() + 1_000
            await api.peer.send("Orders", b"now", KEYS="k", UNIQ_KEY=KEY.format(1))
            await api.peer.send("Orders", b"x", KEYS="k", UNIQ_KEY=KEY.format(2), TIMER_DELIVER_MS=str(due_ms))
            await api.peer.send("Bills", b"x", KEYS="k", UNIQ_KEY=KEY.format(3), TIMER_DELIVER_MS=str(due_ms))
            [waiting, stored] = (await api.get("messages?topic=Orders&key=k"))["messages"]
            assert (waiting["messageId"], waiting["state"], waiting["dueMs"]) == (KEY.format(2), "pending", due_ms)
            assert (waiting["topic"], waiting["queueOffset"], waiting["delayLevel"]) == ("Orders", None, 0)
            assert stored["state"] == "stored"
            for path in (f"messages/{KEY.format(2)}?topic=Orders", f"messages/{waiting['offsetMessageId']}"):
                found = await api.get(path)
                assert (found["state"], found["dueMs"], found["body"]["text"]) == ("pending", due_ms, "x")
                assert [event["event"] for event in found["life"]] == ["stored", "due", "pending"]
                assert [event["atMs"] for event in found["life"]] == [waiting["storedMs"], due_ms, None]
            await api.get(f"messages/{KEY.format(2)}?topic=Bills", 404)
            await api.post("delay/resume", {"overdue": "deliver"}, 202)
            await until(lambda: not api.broker.delivery.pending_total())
            [row] = (await api.get(f"messages?topic=Orders&key={KEY.format(2)}"))["messages"]
            assert (row["state"], row["dueMs"], row["queueOffset"]) == ("delivered", due_ms, 1)
            for path in (f"messages/{KEY.format(2)}?topic=Orders", f"messages/{waiting['offsetMessageId']}"):
                found = await api.get(path)
                assert found["state"] == "delivered"
                assert [event["event"] for event in found["life"]] == ["stored", "due", "delivered"]
                late_ms = row["storedMs"] - due_ms
                assert f"{late_ms} ms after its due time" in found["life"][2]["detail"]
                assert late_ms >= 0
            timed = (await api.get("delay"))["timed"]
            assert (timed["delivered"], timed["pending"]) == (2, 0)
            assert timed["lateness"]["maxMs"] >= late_ms

    run(scenario)


def test_message_that_was_stored_again_is_shown_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            due_ms = api.broker.now_ms() + HOUR_MS
            await api.peer.send("Orders", b"x", KEYS="k", UNIQ_KEY=KEY.format(1), TIMER_DELIVER_MS=str(due_ms))
            [first] = (await api.get("messages?topic=Orders&key=k"))["messages"]
            newest = carry_forward(api, first["physicalOffset"], due_ms)
            assert newest > first["physicalOffset"]
            [row] = (await api.get("messages?topic=Orders&key=k"))["messages"]
            assert (row["physicalOffset"], row["state"], row["dueMs"]) == (newest, "pending", due_ms)
            coming = await api.get("delay/pending/messages")
            assert ([row["physicalOffset"] for row in coming["messages"]], coming["total"]) == ([newest], 1)
            assert (await api.get("delay/pending?by=due"))["total"] == 1
            for path in (f"messages/{KEY.format(1)}?topic=Orders", f"messages/{first['offsetMessageId']}"):
                found = await api.get(path)
                assert found["state"] == "pending"
                life = [(event["event"], event["atMs"]) for event in found["life"]]
                assert life == [("stored", first["storedMs"]), ("due", due_ms), ("pending", None)]

    run(scenario)


def carry_forward(api: Asked, place: int, due_ms: int) -> int:
    """Stores a pending message again, as the broker does before it deletes a segment; returns the new place."""
    record = api.broker.store.record_at(place)
    assert record is not None
    properties = record.properties
    del properties[names.DUE]
    stored = api.broker.store.append(
        NewRecord(
            *(names.TIMER_TOPIC, 0, record.body, properties, 0, 0),
            *(record.born_timestamp_ms, record.born_host, record.store_host),
            is_copy=True,
            statement=carried_due(due_ms, place),
        )
    )
    return stored.physical_offset


@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "5"}])
def test_dropped_message_is_shown_as_dropped(tmp_path: Path, properties: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1s 1h") as api:
            await api.post("delay/pause", {}, 202)
            await api.peer.send("Orders", b"x", KEYS="k", UNIQ_KEY=KEY.format(1), **properties)
            [waiting] = (await api.get("messages?topic=Orders&key=k"))["messages"]
            await until(lambda: api.broker.now_ms() > waiting["dueMs"])
            up_to_ms = api.broker.now_ms()
            await api.post("delay/resume", {"overdue": "drop", "upToMs": up_to_ms}, 202)
            await until(lambda: not api.broker.delivery.pending_total())
            [row] = (await api.get("messages?topic=Orders&key=k"))["messages"]
            assert (row["state"], row["topic"], row["queueOffset"]) == ("dropped", "Orders", None)
            assert row["dueMs"] == waiting["dueMs"]
            life = (await api.get(f"messages/{KEY.format(1)}?topic=Orders"))["life"]
            assert [event["event"] for event in life] == ["stored", "due", "dropped"]
            assert life[2]["atMs"] == row["storedMs"]

    run(scenario)


def test_unreadable_index_is_reported_and_not_taken_for_a_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await api.peer.send("Orders", KEYS="k", TIMER_DELAY_SEC="3600")

            def fail(timeline: Timeline, *arguments: Any) -> None:
                raise TimelineDamagedError("block 7 does not match its checksum")

            monkeypatch.setattr(Timeline, "find", fail)
            monkeypatch.setattr(Timeline, "ranges", fail)
            for path in ("messages?topic=Orders&key=k", "delay/pending?by=due", "delay/pending/messages"):
                error = (await api.get(path, 503))["error"]
                assert error["code"] == "timeline_unreadable"
                assert "block 7" in error["message"]
            assert (await api.get("delay"))["timed"]["pending"] == 1

    run(scenario)


def test_metrics_count_timed_messages_under_a_level_of_their_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1h 2h") as api:
            await send_many(api)
            await api.peer.send("T0", TIMER_DELAY_MS="20")
            await until(lambda: api.broker.delivery.pending_total() == TIMED + 3)
            found = await metrics(api)
            assert found["delaymq_delay_pending"] == {"1": 1, "2": 2, "timed": TIMED}
            lateness = found["delaymq_delay_lateness_seconds_count"]
            assert lateness == {"1": 0, "2": 0, "timed": 1}
            assert found["delaymq_topic_delay_pending"] == {"T0": 102, "T1": 100, "T2": 100, "Orders": 1}
            timeline = api.broker.delivery.timeline
            assert found["delaymq_timeline_pending_bytes"] == {"": timeline.partitions.bytes}
            assert found["delaymq_timeline_runs"] == {"": len(timeline.runs)}
            assert found["delaymq_timeline_bytes"] == {"": 0}
            assert found["delaymq_timeline_merged_entries_total"] == {"": timeline.compaction.merged_entries}
            assert found["delaymq_timeline_merging_entries"] == {"": 0}
            assert found["delaymq_timeline_carried_messages_total"] == {"": 0}

    run(scenario)


def test_metrics_and_status_count_carried_messages_and_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [0]
    monkeypatch.setattr(Retention, "expired_log", lambda self, now_ms: ExpiredLog(ends[0], 0, is_urgent=False))

    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1h 2h", mapped_file_size_commit_log=SEGMENT_BYTES) as api:
            await send_many(api)
            carrier, first_carried = api.broker.delivery.carrier, api.broker.store.end_offset
            held = api.broker.delivery.timeline.holders.below(SEGMENT_BYTES)
            assert 100 < held < TIMED
            # Of the first segment, only the message that is due within ten minutes is not carried.
            ends[0] = SEGMENT_BYTES
            await until(lambda: carrier.backlog == 1)
            found = await metrics(api)
            carried_bytes = api.broker.store.end_offset - first_carried
            assert found["delaymq_timeline_carried_messages_total"] == {"": held - 1}
            assert found["delaymq_timeline_carry_backlog"] == {"": 1}
            # The end of a segment is not part of a record.
            assert carried_bytes - SEGMENT_BYTES < carrier.carried_bytes <= carried_bytes
            assert found["delaymq_timeline_carried_bytes_total"] == {"": carrier.carried_bytes}
            shown = (await api.get("delay"))["timed"]["carried"]
            assert shown == {"messages": held - 1, "bytes": carrier.carried_bytes, "backlog": 1}

    run(scenario)


def test_offset_message_id_of_a_record_that_was_carried_and_deleted_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [0]
    monkeypatch.setattr(Retention, "expired_log", lambda self, now_ms: ExpiredLog(ends[0], 0, is_urgent=True))

    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1h 2h", mapped_file_size_commit_log=SEGMENT_BYTES) as api:
            await send_many(api)
            store, later_ms = api.broker.store, api.broker.now_ms() + 100 * HOUR_MS
            before = await api.get(f"messages/{KEY.format(0)}?topic=T0")
            assert (before["physicalOffset"], before["state"]) == (0, "pending")
            ends[0] = SEGMENT_BYTES

            def is_deleted() -> bool:
                store.clean(later_ms, at_any_hour=True)
                return store.min_offset >= SEGMENT_BYTES

            await until(is_deleted)
            old_id = before["offsetMessageId"]
            for path in (f"messages/{old_id}", f"messages/{old_id.lower()}?topic=T0"):
                error = (await api.get(path, 404))["error"]
                assert error["code"] == "no_such_message"
                assert "it was deleted. A timed message that is still pending was stored again" in error["message"]
            view = request_command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"})
            remark = (await api.peer.connection.request(view)).remark
            assert (
                remark
                == f"can not find message by the offset, 0: records before offset {store.min_offset} were deleted"
            )
            after = await api.get(f"messages/{KEY.format(0)}?topic=T0")
            assert after["physicalOffset"] > SEGMENT_BYTES
            assert (after["dueMs"], after["state"]) == (before["dueMs"], "pending")
            assert (await api.get(f"messages/{after['offsetMessageId']}"))["messageId"] == before["messageId"]
            # The id of another broker's record, and an offset that the log has not reached.
            for other in ("7F000002" + old_id[8:], old_id[:16] + "7" * 16):
                message = (await api.get(f"messages/{other}", 404))["error"]["message"]
                assert "this broker has no message" in message

    run(scenario)


async def metrics(api: Asked) -> dict[str, dict[str, float]]:
    """Values by the only label; those of histograms without their buckets."""
    url = f"http://{HOST}:{api.http_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "le" not in sample.labels:
                found.setdefault(sample.name, {})["".join(sample.labels.values())] = sample.value
    return found
