"""Groups of delayed messages: cancelled, moved, fired, paused and counted with one record each; paused topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.api_types.delay_settings import TopicDelaySettings
from delaymq.broker.delivery import delay_rewrite
from delaymq.broker.delivery.changes import pauses
from delaymq.broker.delivery.changes.changes import Requester
from delaymq.broker.delivery.changes.lookup import group_mark_in
from delaymq.broker.delivery.changes.requests import Action
from delaymq.broker.opening import open_broker
from delaymq.cli.commands.store.export import as_data
from delaymq.message import names
from delaymq.message.timed_marks import GroupMarkKind
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.store.layout import CHANGED_VERSION, MANAGED_VERSION, TIMED_VERSION
from delaymq.store.reader import StoreReader
from delaymq.store.tools.inspect import inspect
from delaymq.store.tools.timed_messages import TimedMessages
from delaymq.store.tools.verify import verify
from delaymq_testing.broker.changing import HOUR_MS, ILLEGAL, NOT_DONE, SUCCESS, act, deliver, records, schedule
from delaymq_testing.broker.changing import send as send_message
from delaymq_testing.broker.harness import Harness, response_of

SOMEONE = Requester("", bytes(8))


def fill(harness: Harness, count: int, group: str = "spring", **properties: str) -> None:
    for number in range(count):
        schedule(harness, f"{group}{number}", DELAY_GROUP=group, **properties)


def pending(harness: Harness, group: str = "spring", topic: str = "Orders") -> int:
    return harness.broker.delivery.timeline.partitions.totals_of_group(topic, group).messages


def marks(harness: Harness) -> list[GroupMarkKind]:
    found = (group_mark_in(each.properties, each.physical_offset) for each in records(harness, names.MARKS_TOPIC))
    return [mark.kind for mark in found if mark is not None]


def sweep(harness: Harness) -> None:
    while harness.broker.delivery.maintain():
        pass


def test_group_is_cancelled_with_one_record(harness: Harness) -> None:
    fill(harness, 5)
    schedule(harness, "other", DELAY_GROUP="summer")
    schedule(harness, "none")
    assert (pending(harness), harness.broker.store.format_version) == (5, TIMED_VERSION)
    answer = act(harness, "cancel", DELAY_GROUP="spring")
    assert (answer.code, answer.fields["delayChanged"]) == (SUCCESS, "5")
    assert pending(harness) == 0
    assert harness.broker.store.format_version == MANAGED_VERSION
    assert len(records(harness, names.MARKS_TOPIC)) == 1
    assert deliver(harness, 61_000) == ["other", "none"]
    assert harness.broker.delivery.pending_total() == 0


def test_repeated_cancel_of_a_group_is_done_and_other_changes_of_nothing_are_not(harness: Harness) -> None:
    fill(harness, 2)
    act(harness, "cancel", DELAY_GROUP="spring")
    end = harness.broker.store.end_offset
    answer = act(harness, "cancel", DELAY_GROUP="spring")
    assert (answer.code, answer.fields["delayChanged"]) == (SUCCESS, "0")
    for action, group in (("fire", "spring"), ("cancel", "unknown")):
        answer = act(harness, action, DELAY_GROUP=group)
        assert (answer.code, answer.fields["delayFate"]) == (NOT_DONE, "unknown")
        assert f"{action} of the messages with DELAY_GROUP '{group}' in topic Orders: no pending message" in (
            answer.remark or ""
        )
    assert harness.broker.store.end_offset == end


def test_group_is_moved_and_fired(harness: Harness) -> None:
    fill(harness, 3)
    due_ms = harness.clock() + HOUR_MS
    answer = act(harness, "move", DELAY_GROUP="spring", TIMER_DELIVER_MS=str(due_ms))
    assert (answer.fields["delayChanged"], answer.fields["delayDueMs"]) == ("3", str(due_ms))
    assert deliver(harness, 61_000) == []
    answer = act(harness, "fire", DELAY_GROUP="spring")
    assert answer.fields["delayChanged"] == "3"
    assert deliver(harness) == ["spring0", "spring1", "spring2"]
    copies = records(harness, "Orders")
    assert {copy.properties[names.DELAY_GROUP] for copy in copies} == {"spring"}
    assert {copy.properties[names.TIMER_OUT_MS] for copy in copies} == {answer.fields["delayDueMs"]}


def test_messages_sent_after_a_change_are_not_affected(harness: Harness) -> None:
    fill(harness, 2)
    act(harness, "cancel", DELAY_GROUP="spring")
    schedule(harness, "later", DELAY_GROUP="spring")
    assert pending(harness) == 1
    assert deliver(harness, 61_000) == ["later"]


def test_paused_group_is_held_while_others_are_delivered(harness: Harness) -> None:
    fill(harness, 2)
    schedule(harness, "other", DELAY_GROUP="summer")
    assert act(harness, "pause", DELAY_GROUP="spring").fields["delayChanged"] == "2"
    schedule(harness, "late", DELAY_GROUP="spring")
    assert deliver(harness, 61_000) == ["other"]
    assert pending(harness) == 3
    assert harness.broker.delivery.next_wakeup_ms() is None
    assert act(harness, "resume", DELAY_GROUP="spring").code == SUCCESS
    assert deliver(harness) == ["other", "spring0", "spring1", "late"]
    assert marks(harness) == [GroupMarkKind.PAUSED, GroupMarkKind.RESUMED]


def test_held_messages_can_be_cancelled_and_moved(harness: Harness) -> None:
    fill(harness, 3)
    schedule(harness, "k", DELAY_GROUP="spring", DELAY_KEY="k")
    act(harness, "pause", DELAY_GROUP="spring")
    assert deliver(harness, 61_000) == []
    assert act(harness, "cancel", DELAY_KEY="k").code == SUCCESS
    assert act(harness, "move", TIMER_DEL_UNIQKEY="id-spring0", TIMER_DELAY_MS="1000").code == SUCCESS
    assert act(harness, "fire", DELAY_GROUP="spring").fields["delayChanged"] == "3"
    assert deliver(harness) == []
    act(harness, "resume", DELAY_GROUP="spring")
    sweep(harness)
    assert sorted(deliver(harness, 1_000)) == ["spring0", "spring1", "spring2"]


def test_paused_topic_holds_all_its_delayed_messages(harness: Harness) -> None:
    fill(harness, 1)
    schedule(harness, "timed")
    send_message(harness, "level", DELAY="1")
    schedule(harness, "elsewhere", topic="Invoices")
    assert act(harness, "pause").fields["delayChanged"] == "3"
    send_message(harness, "immediately")
    assert deliver(harness, 61_000) == ["immediately"]
    assert [each.body for each in records(harness, "Invoices")] == [b"elsewhere"]
    act(harness, "resume")
    assert sorted(deliver(harness)) == ["immediately", "level", "spring0", "timed"]


def test_pause_is_idempotent(harness: Harness) -> None:
    fill(harness, 1)
    for action in ("resume", "pause", "pause", "resume", "resume"):
        assert act(harness, action, DELAY_GROUP="spring").code == SUCCESS
    assert marks(harness) == [GroupMarkKind.PAUSED, GroupMarkKind.RESUMED]


@pytest.mark.parametrize("group", [{"DELAY_GROUP": "spring"}, {}])
def test_response_names_the_record_of_a_pause_and_of_its_end(harness: Harness, group: dict[str, str]) -> None:
    fill(harness, 1)
    named = [int(act(harness, action, **group).fields["msgId"][-16:], 16) for action in ("pause", "resume")]
    assert named == [each.physical_offset for each in records(harness, names.MARKS_TOPIC)]


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_changes_and_pauses_survive_restarts(harness: Harness, has_snapshot: bool) -> None:
    def restart() -> None:
        harness.broker.close()
        if not has_snapshot:
            (Path(harness.config.store_path_root_dir) / "delaymq" / "snapshot.json").unlink()
        harness.broker = open_broker(harness.config, harness.clock)

    fill(harness, 3)
    fill(harness, 2, "summer")
    fill(harness, 2, "autumn")
    schedule(harness, "topic", topic="Invoices")
    act(harness, "cancel", DELAY_GROUP="spring")
    act(harness, "move", DELAY_GROUP="summer", TIMER_DELAY_MS="120000")
    act(harness, "pause", DELAY_GROUP="autumn")
    act(harness, "pause", topic="Invoices")
    harness.broker.delivery.control.pause(SOMEONE)
    restart()
    assert [pending(harness, group) for group in ("spring", "summer", "autumn")] == [0, 2, 2]
    assert deliver(harness, 61_000) == []
    harness.broker.delivery.control.resume(SOMEONE)
    assert deliver(harness) == []
    restart()
    assert deliver(harness, 60_000) == ["summer0", "summer1"]
    act(harness, "resume", DELAY_GROUP="autumn")
    assert deliver(harness) == ["summer0", "summer1", "autumn0", "autumn1"]
    assert records(harness, "Invoices") == []
    restart()
    act(harness, "resume", topic="Invoices")
    assert len(deliver(harness)) == 4
    assert len(records(harness, "Invoices")) == 1


def test_fate_of_a_message_cancelled_with_its_group_is_known(harness: Harness) -> None:
    schedule(harness, "m", DELAY_GROUP="spring", DELAY_KEY="k")
    act(harness, "cancel", DELAY_GROUP="spring")
    answer = act(harness, "fire", DELAY_KEY="k")
    assert (answer.code, answer.fields["delayFate"]) == (NOT_DONE, "cancelled")
    assert act(harness, "cancel", DELAY_KEY="k").code == SUCCESS


def test_group_means_nothing_without_a_schedule(harness: Harness) -> None:
    send_message(harness, "m", DELAY_GROUP="x" * 1_000)
    assert deliver(harness) == ["m"]


def test_message_with_a_level_and_a_group_is_timed(harness: Harness) -> None:
    send_message(harness, "m", DELAY="1", DELAY_GROUP="spring")
    assert pending(harness) == 1
    assert deliver(harness, 1_000) == ["m"]
    assert names.DELAY not in records(harness, "Orders")[0].properties


@pytest.mark.parametrize(
    ("action", "properties", "reason"),
    [
        ("touch", {"DELAY_GROUP": "spring"}, "touch applies to single messages"),
        ("cancel", {"DELAY_GROUP": "spring", "DELAY_KEY": "k"}, "name exactly one of DELAY_KEY, the unique id"),
        ("cancel", {}, "cancel needs a message or a group"),
        ("pause", {"DELAY_KEY": "k"}, "pause applies to a group or to a topic"),
        ("cancel", {"DELAY_GROUP": "x" * 256}, "DELAY_GROUP has 256 bytes: use 1 to 255 bytes"),
        ("move", {"DELAY_GROUP": "spring", "TIMER_DELAY_SEC": str(10**9)}, "the maximum is 315360000 s"),
    ],
)
def test_wrong_request_is_rejected_and_nothing_is_stored(
    harness: Harness, action: str, properties: dict[str, str], reason: str
) -> None:
    fill(harness, 1)
    end = harness.broker.store.end_offset
    answer = act(harness, action, **properties)
    assert (answer.code, harness.broker.store.end_offset) == (ILLEGAL, end)
    assert reason in (answer.remark or "")


# What happened to messages of a cancelled group.


def without_id(harness: Harness, **properties: str) -> None:
    properties = {"TIMER_DELAY_MS": "1000", "DELAY_KEY": "k", "DELAY_GROUP": "spring", **properties}
    assert response_of(harness.send("Orders", b"m", properties)).code == SUCCESS


@pytest.mark.parametrize(("unique_id", "fate"), [({}, "unknown"), ({"UNIQ_KEY": "id"}, "delivered")])
def test_message_delivered_before_its_group_was_cancelled_was_not_cancelled(
    harness: Harness, unique_id: dict[str, str], fate: str
) -> None:
    without_id(harness, **unique_id)
    fill(harness, 1)
    assert deliver(harness, 1_000) == ["m"]
    assert act(harness, "cancel", DELAY_GROUP="spring").fields["delayChanged"] == "1"
    answer = act(harness, "cancel", DELAY_KEY="k")
    assert (answer.code, answer.fields["delayFate"]) == (NOT_DONE, fate)
    assert "cancelled" not in str(answer.remark)


@pytest.mark.parametrize("changes", [[], [{"DELAY_GROUP": "spring"}], [{"DELAY_KEY": "k"}, {"DELAY_GROUP": "spring"}]])
@pytest.mark.parametrize("is_due", [False, True])
def test_message_without_a_unique_id_was_surely_cancelled_only_if_it_was_due_later(
    harness: Harness, changes: list[dict[str, str]], is_due: bool
) -> None:
    without_id(harness)
    for change in changes:
        assert act(harness, "move", TIMER_DELAY_MS="5000", **change).code == SUCCESS
    harness.clock.advance((5_000 if changes else 1_000) if is_due else 999)
    for _ in range(2):
        assert act(harness, "cancel", DELAY_GROUP="spring").code == SUCCESS
    answer = act(harness, "cancel", DELAY_KEY="k")
    assert answer.code == (NOT_DONE if is_due else SUCCESS)
    assert answer.fields.get("delayFate") == ("unknown" if is_due else None)


def test_dead_letter_of_a_cancelled_group_was_dropped(harness: Harness) -> None:
    harness.broker.delay_settings.put_topic("Orders", TopicDelaySettings(when_topic_is_gone="deadLetter"))
    fill(harness, 1)
    schedule(harness, "later", DELAY_GROUP="spring", TIMER_DELAY_MS="120000")
    harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
    assert deliver(harness, 60_000) == []
    assert act(harness, "cancel", DELAY_GROUP="spring").fields["delayChanged"] == "1"
    answer = act(harness, "cancel", TIMER_DEL_UNIQKEY="id-spring0")
    assert (answer.code, answer.fields["delayFate"]) == (NOT_DONE, "dropped")
    assert f"was dropped and stored in topic {names.SCHEDULE_DLQ_TOPIC} at 20" in str(answer.remark)


def test_message_with_a_long_group_is_rejected(harness: Harness) -> None:
    answer = send_message(harness, "m", TIMER_DELAY_MS="1000", DELAY_GROUP="x" * 256)
    assert (answer.code, "use 1 to 255 bytes" in (answer.remark or "")) == (ILLEGAL, True)


def test_number_of_groups_is_limited(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_rewrite, "MAX_GROUPS", 2)
    for group in ("a", "b", "a"):
        schedule(harness, group, DELAY_GROUP=group)
    answer = send_message(harness, "m", TIMER_DELAY_MS="1000", DELAY_GROUP="c")
    assert (answer.code, "2 groups have pending messages" in (answer.remark or "")) == (ILLEGAL, True)
    act(harness, "cancel", DELAY_GROUP="b")
    schedule(harness, "m", DELAY_GROUP="c")


@pytest.mark.parametrize(
    ("limit", "remark"),
    [("MAX_GROUPS_OF_TOPIC", "2 groups of topic Orders are paused"), ("MAX_GROUPS", "2 groups are paused")],
)
def test_paused_groups_are_limited_but_topics_and_all_deliveries_can_be_paused(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, limit: str, remark: str
) -> None:
    fill(harness, 1)
    monkeypatch.setattr(pauses, limit, 2)
    for group in ("a", "b", "a"):
        assert act(harness, "pause", DELAY_GROUP=group).code == SUCCESS
    harness.restart()
    answer = act(harness, "pause", DELAY_GROUP="c")
    assert (answer.code, remark in (answer.remark or "")) == (ILLEGAL, True)
    assert act(harness, "pause").code == SUCCESS
    harness.broker.delivery.control.pause()
    assert deliver(harness, HOUR_MS) == []
    harness.broker.delivery.control.resume()
    for properties in ({}, {"DELAY_GROUP": "a"}, {"DELAY_GROUP": "a"}):
        assert act(harness, "resume", **properties).code == SUCCESS
    assert act(harness, "pause", DELAY_GROUP="c").code == SUCCESS
    assert deliver(harness) == ["spring0"]


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("name", [{"DELAY_GROUP": "g"}, {}, {"TIMER_DEL_UNIQKEY": "id"}])
def test_change_of_an_unknown_topic_does_not_create_it(harness: Harness, action: str, name: dict[str, str]) -> None:
    answer = act(harness, action, "Nowhere", **name)
    assert (answer.code, "Nowhere" in harness.broker.topics.table) == (ResponseCode.TOPIC_NOT_EXIST, False)
    assert harness.broker.store.end_offset == 0


def test_pending_messages_of_a_deleted_topic_can_be_changed(harness: Harness) -> None:
    fill(harness, 1)
    act(harness, "pause")
    assert harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"}).code == SUCCESS
    assert act(harness, "resume").code == SUCCESS
    assert act(harness, "pause", DELAY_GROUP="g").code == SUCCESS
    assert act(harness, "cancel", TIMER_DEL_UNIQKEY="id-spring0").code == SUCCESS
    harness.restart()
    assert act(harness, "resume", DELAY_GROUP="g").code == SUCCESS
    assert ("Orders" in harness.broker.topics.table, harness.broker.delivery.pending_total()) == (False, 0)


def test_store_without_group_statements_keeps_its_version(harness: Harness) -> None:
    fill(harness, 1)
    act(harness, "cancel", TIMER_DEL_UNIQKEY="id-spring0")
    assert harness.broker.store.format_version == CHANGED_VERSION


def test_tools_evaluate_a_store_with_changed_groups(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness()
    schedule(harness, "single", DELAY_GROUP="moved", DELAY_KEY="single")
    for group in ("moved", "moved", "cancelled", "fired", "untouched"):
        schedule(harness, group, DELAY_GROUP=group)
    act(harness, "move", DELAY_GROUP="moved", TIMER_DELAY_MS="70000")
    act(harness, "move", DELAY_KEY="single", TIMER_DELAY_MS="80000")
    act(harness, "cancel", DELAY_GROUP="cancelled")
    act(harness, "fire", DELAY_GROUP="fired")
    act(harness, "pause", DELAY_GROUP="untouched")
    assert deliver(harness, 10) == ["fired"]
    act(harness, "cancel", DELAY_GROUP="fired")  # nothing is pending any more
    schedule(harness, "later", DELAY_GROUP="cancelled")
    now_ms, path = harness.clock(), harness.config.store_path_root_dir
    harness.broker.close()
    verification = verify(path)
    assert (verification.exit_code, verification.rebuildable, verification.damage) == (0, [], [])
    result = inspect(path)
    assert result.timed == {"pending": 5, "cancelled": 1, "delivered": 1}
    assert result.topics[names.MARKS_TOPIC] == {"group mark": 4, "timed mark": 1}
    timed, exported = TimedMessages(), []
    for record in StoreReader(path).records():
        timed.take(record)
        exported.append(as_data(record))
    moved = [each.due_ms - now_ms for each in timed if each.ended is None]
    assert [round(ms, -4) for ms in moved] == [80_000, 70_000, 70_000, 60_000, 60_000]
    [mark] = [each["mark"] for each in exported if "groupMoved" in str(each["mark"])]
    assert isinstance(mark, dict)
    assert (mark["kind"], mark["topic"], mark["group"]) == ("groupMoved", "Orders", "moved")
    assert mark["nextDueMs"] - mark["decidedMs"] == 70_000
    harness.broker = open_broker(harness.config, harness.clock)
