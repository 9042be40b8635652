"""Changes of pending messages by requests of clients: keys, actions, recalls, and truthful responses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from delaymq.broker.opening import open_broker
from delaymq.broker.requests.results import Deferred
from delaymq.message import names
from delaymq.message.timed_marks import parse_own_due, parse_own_mark
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.store.errors import RecordTooLargeError, StoreFullError
from delaymq.store.reader import StoreReader
from delaymq.store.tools.rocketmq_compat import prospect_for_rocketmq
from delaymq.store.tools.timed_messages import TimedMessages
from delaymq.store.tools.verify import verify
from delaymq_testing.broker.changing import (
    ILLEGAL,
    NOT_DONE,
    SUCCESS,
    Open,
    act,
    deliver,
    recall,
    recall_request,
    records,
    schedule,
    send,
)
from delaymq_testing.broker.guarded import Guarded
from delaymq_testing.broker.harness import Harness, response_of, send_fields
from delaymq_testing.broker.transactions import COMMIT, TOPIC, Transacting
from delaymq_testing.store.small_stores import snapshot

# Single changes.


def test_cancelled_message_is_not_delivered_and_its_body_is_not_stored_again(harness: Harness) -> None:
    schedule(harness, DELAY_KEY="order-1", KEYS="k")
    answer = act(harness, "cancel", DELAY_KEY="order-1")
    assert (answer.code, answer.fields["delayChanged"]) == (SUCCESS, "1")
    [mark] = records(harness, names.MARKS_TOPIC)
    assert mark.body == b""
    stated = parse_own_mark(mark.properties[names.MARK], mark.physical_offset)
    assert stated is not None
    assert (stated.kind, stated.next_due_ms) == ("cancelled", None)
    assert mark.properties["KEYS"] == str(stated.identity)
    assert answer.fields["msgId"].endswith(f"{mark.physical_offset:016X}")
    assert harness.broker.delivery.pending_total() == 0
    harness.restart()
    assert deliver(harness, 120_000) == []
    assert harness.broker.store.format_version == 3


@pytest.mark.parametrize("by", [{"DELAY_KEY": "k"}, {"TIMER_DEL_UNIQKEY": "id-m"}, {"TIMER_DEL_UNIQKEY": "Ordersid-m"}])
@pytest.mark.parametrize("schedule_of", [{"TIMER_DELAY_MS": "60000"}, {"DELAY": "2"}])
def test_every_action_by_every_name(open_harness: Open, by: dict[str, str], schedule_of: dict[str, str]) -> None:
    harness = open_harness(message_delay_level="1s 1m 2h")
    key = {"DELAY_KEY": "k"} if "DELAY_KEY" in by else {}
    schedule(harness, **key, **schedule_of)
    assert act(harness, "move", TIMER_DELAY_MS="5000", **by).code == SUCCESS
    assert deliver(harness, 4_000) == []
    touched = act(harness, "touch", **by)
    assert touched.fields["delayDueMs"] == str(harness.clock() + 60_000)
    harness.restart()
    assert deliver(harness, 59_999) == []
    assert act(harness, "fire", **by).code == SUCCESS
    assert deliver(harness) == ["m"]
    [copy] = records(harness, "Orders")
    assert copy.properties[names.TIMER_OUT_MS] == str(harness.clock())
    late = act(harness, "cancel", **by)
    assert (late.code, late.fields["delayFate"]) == (NOT_DONE, "delivered")
    assert late.fields["delayAtMs"] == str(copy.store_timestamp_ms)
    assert "the message was delivered to topic Orders at 20" in str(late.remark)


def test_action_with_a_deletion_key_alone_cancels(harness: Harness) -> None:
    schedule(harness)
    answer = send(harness, "recall", TIMER_DEL_UNIQKEY="id-m", TIMER_DELIVER_MS=str(harness.clock() + 60_000))
    assert answer.code == SUCCESS
    assert deliver(harness, 120_000) == []


def test_messages_of_a_repeated_send_are_changed_together(harness: Harness) -> None:
    schedule(harness)
    schedule(harness)
    schedule(harness, topic="Other")
    assert act(harness, "cancel", TIMER_DEL_UNIQKEY="id-m").fields["delayChanged"] == "2"
    assert harness.broker.delivery.pending_total() == 1


def test_cancel_that_a_producer_repeats_succeeds_again(harness: Harness) -> None:
    schedule(harness, DELAY_KEY="k")
    assert act(harness, "cancel", DELAY_KEY="k").fields["delayChanged"] == "1"
    repeated = act(harness, "cancel", DELAY_KEY="k")
    assert (repeated.code, repeated.fields["delayChanged"]) == (SUCCESS, "0")
    moved = act(harness, "move", DELAY_KEY="k", TIMER_DELAY_MS="1")
    assert (moved.code, moved.fields["delayFate"]) == (NOT_DONE, "cancelled")
    assert "the message was cancelled at 20" in str(moved.remark)
    assert str(moved.remark).endswith(" by 10.0.0.2"), moved.remark


def test_unknown_message_is_reported_as_unknown(harness: Harness) -> None:
    schedule(harness, DELAY_KEY="k")
    for name in ({"DELAY_KEY": "other"}, {"TIMER_DEL_UNIQKEY": "other"}):
        answer = act(harness, "fire", **name)
        assert (answer.code, answer.fields) == (NOT_DONE, {"delayFate": "unknown"})
        assert str(answer.remark).endswith("no pending message with this name is known")
    schedule(harness, topic="Other")
    assert act(harness, "fire", "Other", DELAY_KEY="k").code == NOT_DONE


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({}, "needs a message or a group: name exactly one of DELAY_KEY, the unique id"),
        (
            {"DELAY_KEY": "k", "TIMER_DEL_UNIQKEY": "u"},
            "needs a message or a group: name exactly one of DELAY_KEY, the unique id",
        ),
        ({"DELAY_KEY": "x" * 256}, "DELAY_KEY has 256 bytes: use 1 to 255 bytes"),
        ({"DELAY_KEY": "k", "DELAY_ACTION": "delete"}, "DELAY_ACTION is 'delete': use cancel, move, fire, touch"),
        ({"DELAY_KEY": "k", "DELAY_ACTION": "move"}, "DELAY_ACTION=move needs a new due time"),
        ({"DELAY_KEY": "k", "DELAY_ACTION": "move", "TIMER_DELAY_MS": "soon"}, "not a number of milliseconds"),
        ({"DELAY_KEY": "k", "DELAY_ACTION": "move", "TIMER_DELAY_SEC": str(10**9)}, "the maximum is 315360000 s"),
        ({"DELAY_KEY": "k", "TRAN_MSG": "true", "PGROUP": "g"}, "a half message cannot change a pending one"),
    ],
)
def test_wrong_request_is_rejected_and_nothing_is_stored(
    harness: Harness, properties: dict[str, str], reason: str
) -> None:
    schedule(harness, DELAY_KEY="k")
    end = harness.broker.store.end_offset
    answer = act(
        harness, **{"action": "cancel", **properties, "DELAY_ACTION": properties.get("DELAY_ACTION", "cancel")}
    )
    assert (answer.code, harness.broker.store.end_offset) == (ILLEGAL, end)
    assert reason in str(answer.remark)


def test_changes_can_be_disabled(open_harness: Open) -> None:
    harness = open_harness(recall_message_enable=False)
    schedule(harness, DELAY_KEY="k")
    answer = act(harness, "cancel", DELAY_KEY="k")
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "pending messages cannot be changed on this broker (recallMessageEnable=false)",
    )


def test_changes_need_the_index_of_keys(open_harness: Open) -> None:
    harness = open_harness(message_index_enable=False)
    send(harness)
    for answer in (act(harness, "cancel", DELAY_KEY="k"), send(harness, DELAY_KEY="k", TIMER_DELAY_MS="5")):
        assert answer.code == ILLEGAL
        assert "set messageIndexEnable=true" in str(answer.remark)


def test_message_is_moved_past_a_time_at_which_it_was_due_before(harness: Harness) -> None:
    first_ms, second_ms = (harness.clock() + minutes * 60_000 for minutes in (1, 2))
    schedule(harness, DELAY_KEY="k", TIMER_DELIVER_MS=str(first_ms))
    moves = ((second_ms, second_ms), (first_ms, first_ms + 1), (second_ms, second_ms + 1))
    for requested_ms, due_ms in moves:
        snapshot(harness.broker.store)  # the index now has an entry with the due time
        answer = act(harness, "move", DELAY_KEY="k", TIMER_DELIVER_MS=str(requested_ms))
        assert answer.fields["delayDueMs"] == str(due_ms)
    assert act(harness, "cancel", DELAY_KEY="k").code == SUCCESS
    assert deliver(harness, 180_000) == []


def test_message_is_moved_past_a_time_at_which_it_was_due_before_its_group_was_moved(harness: Harness) -> None:
    first_ms = harness.clock() + 60_000
    schedule(harness, DELAY_KEY="k", DELAY_GROUP="g", TIMER_DELIVER_MS=str(first_ms))
    snapshot(harness.broker.store)
    assert act(harness, "move", DELAY_GROUP="g", TIMER_DELIVER_MS=str(first_ms + 60_000)).code == SUCCESS
    while harness.broker.delivery.maintain():
        pass
    answer = act(harness, "move", DELAY_KEY="k", TIMER_DELIVER_MS=str(first_ms))
    assert answer.fields["delayDueMs"] == str(first_ms + 1)


# Recalls.


def test_recall_cancels_the_message_of_the_handle(harness: Harness) -> None:
    handle = schedule(harness).fields["recallHandle"]
    answer = recall(harness, handle)
    assert (answer.code, answer.fields["msgId"]) == (SUCCESS, "id-m")
    assert deliver(harness, 120_000) == []
    assert recall(harness, handle).code == SUCCESS


def test_recall_follows_a_message_that_was_moved(harness: Harness) -> None:
    handle = schedule(harness, DELAY_KEY="k").fields["recallHandle"]
    for delay_ms in ("5000", "90000", "70000"):
        act(harness, "move", DELAY_KEY="k", TIMER_DELAY_MS=delay_ms)
    harness.restart()
    assert recall(harness, handle).code == SUCCESS
    assert deliver(harness, 120_000) == []


def test_recall_of_a_delivered_message_states_the_delivery(harness: Harness) -> None:
    handle = schedule(harness, TIMER_DELAY_MS="1000").fields["recallHandle"]
    assert deliver(harness, 1_000) == ["m"]
    answer = recall(harness, handle)
    assert (answer.code, answer.fields["delayFate"]) == (NOT_DONE, "delivered")


def test_wrong_recall_is_rejected(harness: Harness) -> None:
    handle = schedule(harness).fields["recallHandle"]
    schedule(harness, "other", "Other")
    for wrong, topic, reason in (
        ("nonsense", "Orders", "is not a recall handle"),
        (handle, "Other", "the recall handle is for topic Orders"),
    ):
        answer = recall(harness, wrong, topic)
        assert answer.code == NOT_DONE
        assert reason in str(answer.remark)
    assert recall(harness, handle, "Missing").code == ResponseCode.TOPIC_NOT_EXIST


# Keys.


def test_message_with_the_key_of_a_pending_one_replaces_it(harness: Harness) -> None:
    schedule(harness, "first", DELAY_KEY="k")
    schedule(harness, "second", DELAY_KEY="k")
    schedule(harness, "other", "Other", DELAY_KEY="k")
    first, second, _ = records(harness, names.TIMER_TOPIC)
    due = parse_own_due(second.properties[names.DUE], second.physical_offset)
    assert due is not None
    assert (due.identity, due.replaced) == (second.physical_offset, first.physical_offset)
    assert harness.broker.delivery.pending_total() == 2
    gone = act(harness, "cancel", TIMER_DEL_UNIQKEY="id-first")
    assert (gone.code, gone.fields["delayFate"]) == (NOT_DONE, "replaced")
    harness.restart()
    assert harness.broker.delivery.pending_total() == 2
    assert deliver(harness, 60_000) == ["second"]


def test_kept_message_answers_for_the_new_one(harness: Harness) -> None:
    first = schedule(harness, "first", DELAY_KEY="k")
    kept = schedule(harness, "second", DELAY_KEY="k", DELAY_ON_SAME_KEY="keep")
    assert kept.fields["delayKept"] == "true"
    assert (kept.fields["msgId"], kept.fields["recallHandle"]) == (first.fields["msgId"], first.fields["recallHandle"])
    assert deliver(harness, 60_000) == ["first"]


def test_refused_message_is_not_stored(harness: Harness) -> None:
    schedule(harness, "first", DELAY_KEY="k")
    refused = send(harness, "second", DELAY_KEY="k", DELAY_ON_SAME_KEY="refuse", TIMER_DELAY_MS="5")
    assert refused.code == NOT_DONE
    assert "a message with DELAY_KEY 'k' is pending and due at" in str(refused.remark)
    assert deliver(harness, 60_000) == ["first"]
    schedule(harness, "third", DELAY_KEY="k", DELAY_ON_SAME_KEY="refuse")
    assert deliver(harness, 60_000) == ["first", "third"]


def test_key_belongs_to_the_user_without_a_schedule(harness: Harness) -> None:
    assert send(harness, "plain", DELAY_KEY="x" * 300, DELAY_ON_SAME_KEY="never", DELAY_EXPIRE_MS="?").code == SUCCESS
    [record] = records(harness, "Orders")
    assert record.properties["DELAY_KEY"] == "x" * 300


def test_past_due_time_with_a_key_replaces_and_is_delivered_at_once(harness: Harness) -> None:
    schedule(harness, "first", DELAY_KEY="k")
    schedule(harness, "second", DELAY_KEY="k", TIMER_DELIVER_MS="17", TIMER_DELAY_MS="0")
    assert deliver(harness) == ["second"]
    assert harness.broker.delivery.pending_total() == 0


def test_message_of_a_level_with_a_key_is_a_timed_one(open_harness: Open) -> None:
    harness = open_harness(message_delay_level="1s 1m")
    schedule(harness, DELAY="2", DELAY_KEY="k")
    [record] = records(harness, names.TIMER_TOPIC)
    assert (record.properties["TIMER_DELAY_MS"], "DELAY" in record.properties) == ("60000", False)
    assert deliver(harness, 59_999) == []
    assert deliver(harness, 1) == ["m"]


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"DELAY_KEY": "x" * 256}, "DELAY_KEY has 256 bytes"),
        ({"DELAY_KEY": "k", "DELAY_ON_SAME_KEY": "merge"}, "DELAY_ON_SAME_KEY is 'merge': use replace, keep, refuse"),
        ({"DELAY_EXPIRE_MS": "-1"}, "DELAY_EXPIRE_MS is '-1': use the number of milliseconds"),
    ],
)
def test_wrong_properties_of_a_schedule_are_rejected(harness: Harness, properties: dict[str, str], reason: str) -> None:
    answer = send(harness, TIMER_DELAY_MS="5", **properties)
    assert (answer.code, harness.broker.store.end_offset) == (ILLEGAL, 0)
    assert reason in str(answer.remark)


# Expiry.


@pytest.mark.parametrize("schedule_of", [{"TIMER_DELAY_MS": "1000"}, {"DELAY": "1"}])
def test_message_that_is_too_late_is_dropped_and_counted(harness: Harness, schedule_of: dict[str, str]) -> None:
    schedule(harness, "in time", DELAY_EXPIRE_MS="500", **{"TIMER_DELAY_MS": "1000", **schedule_of})
    assert deliver(harness, 1_500) == ["in time"]
    schedule(harness, "late", DELAY_EXPIRE_MS="500", DELAY_KEY="k", **{"TIMER_DELAY_MS": "1000", **schedule_of})
    assert deliver(harness, 1_501) == ["in time"]
    [mark] = records(harness, names.MARKS_TOPIC)
    assert (":expired:" in mark.properties[names.MARK], mark.body) == (True, b"")
    assert harness.broker.delivery.counters.expired == 1
    assert act(harness, "fire", DELAY_KEY="k").fields["delayFate"] == "expired"
    harness.restart()
    assert harness.broker.delivery.pending_total() == 0


# Transactions, batches, accounts.


def test_commit_replaces_the_pending_message_with_its_key(open_transacting: Callable[..., Transacting]) -> None:
    transacting = open_transacting()
    schedule(transacting, "first", TOPIC, DELAY_KEY="k")
    half = transacting.prepare(TIMER_DELAY_MS="60000", DELAY_KEY="k")
    assert transacting.broker.delivery.pending_total() == 1
    transacting.end(half, COMMIT)
    assert transacting.broker.delivery.pending_total() == 1
    transacting.clock.advance(60_000)
    transacting.broker.hand_over(transacting.clock(), 64)
    assert [record.body.decode() for record in records(transacting, TOPIC)] == [f"body of {half.key}"]


def test_transaction_that_keeps_or_refuses_is_rejected(open_harness: Open) -> None:
    harness = open_harness()
    answer = send(harness, TRAN_MSG="true", PGROUP="g", TIMER_DELAY_MS="5", DELAY_KEY="k", DELAY_ON_SAME_KEY="keep")
    assert answer.code == ILLEGAL
    assert "a transaction cannot have DELAY_ON_SAME_KEY=keep" in str(answer.remark)


@pytest.mark.parametrize("names_by", ["handle", "key"])
def test_account_that_may_publish_may_change(guarded: Guarded, names_by: str) -> None:
    properties = {"UNIQ_KEY": "u", "DELAY_KEY": "k", "TIMER_DELAY_MS": "60000"}
    sent = guarded.ask(RequestCode.SEND_MESSAGE_V2, send_fields("Orders", properties), b"m")
    assert sent.code == SUCCESS, sent.remark
    requests = [
        recall_request(topic, sent.fields["recallHandle"])
        if names_by == "handle"
        else (RequestCode.SEND_MESSAGE_V2, send_fields(topic, {"DELAY_ACTION": "cancel", "DELAY_KEY": "k"}))
        for topic in ("Read", "Orders")
    ]
    assert "Read" in guarded.refusal(*requests[0])
    request = requests[1]
    assert guarded.ask(*request).code == SUCCESS
    [mark] = records(guarded.harness, names.MARKS_TOPIC)
    assert mark.properties[names.BY] == "application"
    other = guarded.ask(RequestCode.SEND_MESSAGE_V2, send_fields("Orders", {"DELAY_ACTION": "fire", "DELAY_KEY": "k"}))
    assert str(other.remark).endswith(" by application (10.0.0.2)"), other.remark


@pytest.mark.parametrize("properties", [{"DELAY_KEY": "k", "TIMER_DELAY_MS": "5"}, {"DELAY_ACTION": "cancel"}])
def test_batch_contains_no_keys_and_no_actions(harness: Harness, properties: dict[str, str]) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    body = encode_batch([BatchMessage(0, b"m", text.encode())])
    answer = response_of(harness.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders"), body))
    assert (answer.code, harness.broker.store.end_offset) == (ILLEGAL, 0)
    assert "send it individually" in str(answer.remark)


def test_change_waits_for_the_disk_like_a_send(open_harness: Open) -> None:
    harness = open_harness(flush_disk_type="SYNC_FLUSH")
    harness.send("Orders", b"m", {"UNIQ_KEY": "id-m", "DELAY_KEY": "k", "TIMER_DELAY_MS": "60000"})
    for properties in ({"DELAY_ACTION": "cancel", "DELAY_KEY": "k"}, {"DELAY_KEY": "k", "TIMER_DELAY_MS": "5"}):
        result = harness.send("Orders", b"", properties)
        assert isinstance(result, Deferred)
        assert (result.response.code, result.until) == (SUCCESS, harness.broker.store.end_offset)


@pytest.mark.parametrize("name", [{"DELAY_KEY": "k"}, {"DELAY_GROUP": "g"}])
@pytest.mark.parametrize("actions", [["cancel"], ["pause", "resume"]])
def test_repeated_change_waits_for_the_mark_of_the_first_one(
    open_harness: Open, name: dict[str, str], actions: list[str]
) -> None:
    harness = open_harness(flush_disk_type="SYNC_FLUSH")
    harness.send("Orders", b"m", {"UNIQ_KEY": "id-m", "TIMER_DELAY_MS": "60000", "DELAY_KEY": "k", "DELAY_GROUP": "g"})
    target = name if actions == ["cancel"] or "DELAY_GROUP" in name else {}  # otherwise the topic
    for action in actions:
        harness.flush()
        results = [harness.send("Orders", b"", {"DELAY_ACTION": action, **target}) for _ in range(2)]
        store = harness.broker.store
        assert store.flushed_offset < store.end_offset
        assert [isinstance(result, Deferred) and result.until for result in results] == [store.end_offset] * 2


# Attempts, races, full disks.


def test_waiting_attempt_of_a_cancelled_message_is_not_made(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(harness, "stuck", TIMER_DELAY_MS="1000", DELAY_KEY="k")
    monkeypatch.setattr(harness.broker.store, "append_copies", failing)
    assert deliver(harness, 1_000) == []
    assert len(list(harness.broker.delivery._hand_over.retries.entries())) == 1
    monkeypatch.undo()
    assert act(harness, "cancel", DELAY_KEY="k").code == SUCCESS
    assert list(harness.broker.delivery._hand_over.retries.entries()) == []
    assert deliver(harness, 120_000) == []


def test_waiting_attempt_of_a_moved_message_is_made_once_and_at_its_new_time(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(harness, "stuck", TIMER_DELAY_MS="1000", DELAY_KEY="k")
    monkeypatch.setattr(harness.broker.store, "append_copies", failing)
    assert deliver(harness, 1_000) == []
    monkeypatch.undo()
    assert act(harness, "move", DELAY_KEY="k", TIMER_DELAY_MS="5000").code == SUCCESS
    assert deliver(harness, 4_999) == []
    assert deliver(harness, 1) == ["stuck"]
    assert deliver(harness, 120_000) == ["stuck"]


def failing(*_: object) -> None:
    raise RecordTooLargeError("too large")


def test_changes_are_made_on_a_full_disk_until_their_reserve_is_used_up(harness: Harness) -> None:
    for number in range(3):
        schedule(harness, f"m{number}", DELAY_KEY=f"k{number}", DELAY_GROUP="g")
    act(harness, "move", DELAY_KEY="k0", TIMER_DELAY_MS="120000")  # raises the format version
    store = harness.broker.store
    retention, log = store._retention, store._log
    retention.disk = retention.disk._replace(writes_refused=True)
    assert send(harness, "another").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert act(harness, "cancel", DELAY_KEY="k0").code == SUCCESS
    assert act(harness, "pause", DELAY_GROUP="g").code == SUCCESS
    ends = log.segment_end, log.open_end
    log.segment_end = log.open_end = log.end_offset + 100
    answer = act(harness, "cancel", DELAY_KEY="k1")
    assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, send(harness, "another").remark)
    log.segment_end, log.open_end = ends
    retention.disk = retention.disk._replace(writes_refused=False)
    act(harness, "resume", DELAY_GROUP="g")
    assert deliver(harness, 60_000) == ["m1", "m2"]


def test_sends_leave_the_reserve_of_changes_if_no_segment_can_be_created(
    open_harness: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = open_harness(mapped_file_size_commit_log=64 << 10)
    schedule(harness, DELAY_KEY="k")
    act(harness, "move", DELAY_KEY="k", TIMER_DELAY_MS="120000")

    def full(*_: object) -> None:
        raise StoreFullError("no space for a segment")

    log = harness.broker.store._log
    monkeypatch.setattr(log._folder, "create", full)
    sent = 0
    while (answer := send(harness, f"s{sent}" + "." * 500)).code == SUCCESS:
        sent += 1
    assert (answer.code, log.segment_of(log.segment_end)) == (ResponseCode.SERVICE_NOT_AVAILABLE, None)
    assert log.end_offset + 700 > log.open_end == log.segment_end - (64 << 10) // 32
    assert act(harness, "cancel", DELAY_KEY="k").code == SUCCESS
    changes = 0
    while act(harness, "pause" if changes % 2 == 0 else "resume", DELAY_GROUP="g").code == SUCCESS:
        changes += 1
    assert 3 < changes < 10
    monkeypatch.undo()
    assert send(harness, "after").code == SUCCESS
    assert act(harness, "pause", DELAY_GROUP="h").code == SUCCESS


def test_tools_evaluate_a_store_with_changes(open_harness: Open) -> None:
    harness = open_harness(message_delay_level="1s 1m")
    for body in ("cancelled", "moved", "replaced", "fired"):
        schedule(harness, body, DELAY_KEY=body)
    for action in ("cancel", "move"):
        send(harness, f"level {action}", DELAY="2")
        assert act(harness, action, TIMER_DEL_UNIQKEY=f"id-level {action}", TIMER_DELAY_MS="1").code == SUCCESS
    act(harness, "cancel", DELAY_KEY="cancelled")
    act(harness, "move", DELAY_KEY="moved", TIMER_DELAY_MS="90000")
    act(harness, "fire", DELAY_KEY="fired")
    schedule(harness, "replacing", DELAY_KEY="replaced")
    assert deliver(harness, 10) == ["fired", "level move"]
    path = harness.config.store_path_root_dir
    harness.broker.close()
    verification = verify(path)
    assert (verification.exit_code, verification.rebuildable, verification.damage) == (0, [], [])
    timed = TimedMessages()
    for record in StoreReader(path).records():
        timed.take(record)
    assert timed.counts() == {"pending": 2, "cancelled": 2, "delivered": 2}
    prospect = prospect_for_rocketmq(path, harness.broker.delivery.levels, harness.clock())
    assert [len(each) for each in (prospect.timed_pending, prospect.timed_ended, prospect.never)] == [2, 4, 0]
    harness.broker = open_broker(harness.config, harness.clock)
