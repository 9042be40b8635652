"""Groups of delayed messages and pauses, by messages of RocketMQ's clients 4.9 and 5.3 with DELAY_ACTION."""

import asyncio
from functools import partial
from typing import Any

import pytest
from compat.timed_sends import (
    COMMIT,
    HOUR_MS,
    LATE_LIMIT_MS,
    MESSAGE_ILLEGAL,
    NOT_DONE,
    ROLLBACK,
    SUCCESS,
    TOPIC_MISSING,
    Expected,
    act,
    now_ms,
    places,
    refusal,
    stored,
)
from delaymq.client import Client, PendingList
from delaymq.client import Producer as OurProducer
from harness.clients import Workbench, message
from harness.driver import ClientError

# RocketMQ's broker has no groups of messages.
pytestmark = pytest.mark.ours_only

HOUR_LEVEL, LEVEL_1_MS = 8, 1_000
"""Levels of the shared cluster (see conftest.py)."""
CHANGES: dict[str, dict[str, Any]] = {"cancel": {}, "fire": {}, "move": {"delayTimeMs": 1}}
"""Changes of groups, and the fields of their messages."""
LONG_GROUP = "Gruppe-" + "ü" * 124
"""255 bytes, the longest name of a group."""


def in_group(group: str, **more: str) -> dict[str, Any]:
    """Return fields of a message of a group."""
    return {"properties": {"DELAY_GROUP": group, **more}}


def unknown(action: str, group: str, topic: str) -> tuple[int, str]:
    """Return code and remark of the response to a change of a group without pending messages."""
    target = f"the messages with DELAY_GROUP '{group}' in topic {topic}"
    return NOT_DONE, f"{action} of {target}: no pending message with this name is known"


def test_4_9_client_changes_each_group_by_one_message(clients: Workbench) -> None:
    topic, producer = clients.topic(queues=2), clients.producer
    consumer = clients.push(topic, group=clients.group())
    expected, sent = Expected(clients, topic), {}
    due, far = now_ms() + 3_000, now_ms() + HOUR_MS
    groups = {"cancelled": due, "later": due, "sooner": far, "by level": far, "past": far, "fired": far, "kept": due}
    for group, at in groups.items():
        for queue_id in range(2):
            body = f"{group} {queue_id}"
            sent[body] = expected.send(body, at, deliverTimeMs=at, queue_id=queue_id, **in_group(group))
    producer.send_batch([message(topic, f"batch {n}", deliverTimeMs=due, **in_group("cancelled")) for n in range(2)])
    producer.send(topic, "level", delayLevel=2, **in_group("cancelled"))
    begin = now_ms()
    changes = [
        act(producer, topic, "cancel", group="cancelled", queue_id=1),
        act(producer, topic, "move", group="later", deliverTimeMs=due + 1_000),
        act(producer, topic, "move", group="sooner", delayTimeMs=400),
        act(producer, topic, "move", group="by level", delayLevel=1),
        act(producer, topic, "move", group="past", deliverTimeMs=begin - 5_000),
        act(producer, topic, "fire", group="fired"),
    ]
    end = now_ms()
    assert end < due, "the machine is too slow for this test"
    # The response names the record of the change, whatever the queue to which its message was sent.
    assert {(each.status, each.queue_id, each.queue_offset) for each in changes} == {("SEND_OK", 0, 0)}
    records = [int(each.offset_message_id[-16:], 16) for each in changes]
    assert records == sorted(set(records))
    assert records[0] > 0

    at_once = (begin, end)
    moved = {"later": (due + 1_000, due + 1_000), "sooner": (begin + 400, end + 400), "past": at_once, "fired": at_once}
    moved["by level"] = (begin + LEVEL_1_MS, end + LEVEL_1_MS)
    for queue_id in range(2):
        del expected.due[f"cancelled {queue_id}"]
        expected.due |= {f"{group} {queue_id}": due for group, due in moved.items()}
    expected.check(consumer)
    assert stored(clients, topic, queues=2) == len(expected.due)
    for m in consumer.inbox.messages():
        body = m.body.decode()
        assert (m.message_id, m.queue_id) == (sent[body].message_id, sent[body].queue_id)
        assert m.properties["DELAY_GROUP"] == body[:-2]


def test_change_affects_messages_with_any_delay_that_were_sent_before_it(clients: Workbench) -> None:
    topic, producer = clients.topic(queues=1), clients.producer
    consumer = clients.push(topic, group=clients.group())
    producer.send(topic, "cancelled", delayLevel=HOUR_LEVEL, **in_group("spring"))
    assert act(producer, topic, "cancel", group="spring").status == "SEND_OK"
    # A repeated cancel succeeds, and other changes have nothing to change.
    assert act(producer, topic, "cancel", group="spring").status == "SEND_OK"
    for action, fields in CHANGES.items():
        if action != "cancel":
            found = refusal(act, producer, topic, action, group="spring", **fields)
            assert found == unknown(action, "spring", topic)
    producer.send(topic, "level", delayLevel=HOUR_LEVEL, **in_group("spring"))
    producer.send(topic, "time", delayTimeMs=HOUR_MS, **in_group("spring"))
    assert act(producer, topic, "fire", group="spring").status == "SEND_OK"
    received = consumer.inbox.wait_count(2)
    assert sorted(m.body for m in received) == [b"level", b"time"]
    assert all("DELAY" not in m.properties for m in received)
    # The newest change is the fire.
    assert refusal(act, producer, topic, "cancel", group="spring") == unknown("cancel", "spring", topic)
    assert stored(clients, topic) == 2


def test_messages_of_a_paused_group_are_delivered_when_it_is_resumed(clients: Workbench) -> None:
    topic, producer = clients.topic(queues=1), clients.producer
    consumer = clients.push(topic, group=clients.group())
    others, held = Expected(clients, topic), Expected(clients, topic)
    held.send("before", delay=HOUR_MS, delayTimeMs=HOUR_MS, **in_group("spring"))
    for _ in range(2):
        assert act(producer, topic, "pause", group="spring").status == "SEND_OK"
    begin = now_ms()
    act(producer, topic, "move", group="spring", delayTimeMs=100)
    held.due["before"] = (begin + 100, now_ms() + 100)
    held.send("after", delay=300, delayTimeMs=300, **in_group("spring"))
    expiring = {"DELAY_KEY": "expired", "DELAY_EXPIRE_MS": "50"}
    producer.send(topic, "expired", delayTimeMs=200, **in_group("spring", **expiring))
    producer.send(topic, "cancelled", delayTimeMs=200, **in_group("spring", DELAY_KEY="cancelled"))
    others.send("summer", delay=500, delayTimeMs=500, **in_group("summer"))
    others.send("alone", delay=500, delayTimeMs=500)
    others.check(consumer)
    assert stored(clients, topic) == 2

    assert act(producer, topic, "cancel", "cancelled").status == "SEND_OK"
    resumed = now_ms()
    for _ in range(2):
        assert act(producer, topic, "resume", group="spring").status == "SEND_OK"
    received = sorted(consumer.inbox.wait_count(4), key=lambda m: m.queue_offset)[2:]
    assert [m.body for m in received] == [b"before", b"after"]
    for m in received:
        earliest, latest = held.due[m.body.decode()]
        assert earliest <= int(m.properties["TIMER_OUT_MS"]) <= latest
        assert resumed <= m.store_timestamp_ms <= resumed + LATE_LIMIT_MS
    code, remark = refusal(act, producer, topic, "fire", "expired")
    assert code == NOT_DONE
    assert "the message was dropped as too late at 20" in remark
    assert stored(clients, topic) == 4


def test_group_that_is_fired_or_cancelled_while_it_is_paused_waits_for_the_end_of_the_pause(clients: Workbench) -> None:
    topic, producer = clients.topic(queues=1), clients.producer
    consumer = clients.push(topic, group=clients.group())
    for group in ("fired", "cancelled"):
        producer.send(topic, group, delayTimeMs=HOUR_MS, **in_group(group))
        act(producer, topic, "pause", group=group)
        act(producer, topic, "fire", group=group)
    act(producer, topic, "cancel", group="cancelled")
    producer.send(topic, "other", delayTimeMs=300)
    consumer.inbox.wait_count(1)
    for group in ("cancelled", "fired"):
        act(producer, topic, "resume", group=group)
    assert [m.body for m in consumer.inbox.wait_count(2)] == [b"other", b"fired"]
    assert stored(clients, topic) == 2


def test_pause_of_a_topic_holds_its_delayed_messages_but_neither_others_nor_retries(clients: Workbench) -> None:
    topic, other, producer = clients.topic(queues=1), clients.topic(queues=1), clients.producer
    # Each message fails once, and is retried after a second.
    inbox = clients.push(topic, group=clients.group(retry_topic=True), failTimes=1).inbox
    for group in ("", "spring"):
        assert act(producer, topic, "pause", group=group).status == "SEND_OK"
    producer.send(topic, "timed", delayTimeMs=100)
    producer.send(topic, "level", delayLevel=1)
    producer.send(topic, "grouped", delayTimeMs=100, **in_group("spring"))
    producer.send(other, "elsewhere", delayTimeMs=100, **in_group("spring"))
    producer.send(topic, "immediately")
    assert [(m.body, m.reconsume_times) for m in inbox.wait_count(2)] == [(b"immediately", 0), (b"immediately", 1)]
    assert (stored(clients, topic), stored(clients, other)) == (1, 1)

    assert act(producer, topic, "resume").status == "SEND_OK"
    received = {(m.body, m.reconsume_times) for m in inbox.wait_count(6)[2:]}
    assert received == {(body, times) for body in (b"timed", b"level") for times in (0, 1)}
    assert stored(clients, topic) == 3

    assert act(producer, topic, "resume", group="spring").status == "SEND_OK"
    inbox.wait_count(7)
    # The retry is a message of the consumer group, and not of the group of delayed messages.
    assert act(producer, topic, "pause", group="spring").status == "SEND_OK"
    assert act(producer, topic, "pause").status == "SEND_OK"
    assert refusal(act, producer, topic, "cancel", group="spring") == unknown("cancel", "spring", topic)
    assert [(m.body, m.reconsume_times) for m in inbox.wait_count(8)[6:]] == [(b"grouped", 0), (b"grouped", 1)]


def test_group_has_a_long_name_and_a_message_leaves_it_when_it_is_replaced(
    clients: Workbench, either: Workbench
) -> None:
    topic, producer = either.topic(queues=1), either.producer
    consumer = clients.push(topic, group=clients.group())
    for group in ("former", LONG_GROUP):
        producer.send(topic, group, delayTimeMs=HOUR_MS, **in_group(group, DELAY_KEY="key"))
    assert refusal(act, producer, topic, "fire", group="former") == unknown("fire", "former", topic)
    assert stored(either, topic) == 0
    # A one-way send has no response, but the same effect.
    change = {"DELAY_ACTION": "fire", "DELAY_GROUP": LONG_GROUP}
    producer.send_oneway(topic, "ignored", properties=change)
    (m,) = consumer.inbox.wait_count(1)
    assert (m.body.decode(), m.properties["DELAY_GROUP"], m.properties["DELAY_KEY"]) == (LONG_GROUP, LONG_GROUP, "key")
    assert refusal(producer.send_async, topic, "ignored", properties=change) == unknown("fire", LONG_GROUP, topic)
    assert stored(either, topic) == 1


def test_half_message_joins_its_group_with_the_commit(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    producer = either.transactions()
    halves = {
        state: producer.prepare(topic, str(state), delayTimeMs=HOUR_MS, **in_group("paid"))
        for state in (COMMIT, ROLLBACK)
    }
    fire = partial(act, either.producer, topic, "fire", group="paid")
    assert refusal(fire) == unknown("fire", "paid", topic)
    for state, half in halves.items():
        assert producer.end(half, state, broker=either.broker_address) == (SUCCESS, None)
    assert fire().status == "SEND_OK"
    assert [m.body for m in consumer.inbox.wait_count(1)] == [str(COMMIT).encode()]
    assert refusal(fire) == unknown("fire", "paid", topic)
    assert stored(either, topic) == 1


# Errors.

NAMES_NEEDED = (
    "needs a message or a group: name exactly one of DELAY_KEY, the unique id (TIMER_DEL_UNIQKEY) and DELAY_GROUP"
)
PAUSES_NEED = "applies to a group or to a topic: name DELAY_GROUP, or neither a message nor a group"
TIME_NEEDED = "DELAY_ACTION=move needs a new due time: send TIMER_DELIVER_MS, TIMER_DELAY_MS or DELAY"
LIMIT = (
    "the message would be due in 315360001 s, and the maximum is 315360000 s (3650 days, timerMaxDelaySec): choose an"
    " earlier time, in ms since the epoch for a time and in the stated unit for a delay"
)
ILLEGAL: list[tuple[dict[str, Any], str]] = [
    ({"DELAY_ACTION": "stop"}, "DELAY_ACTION is 'stop': use cancel, move, fire, touch, pause, resume"),
    (
        {"DELAY_ACTION": "stop", "DELAY_GROUP": "g"},
        "DELAY_ACTION is 'stop': use cancel, move, fire, touch, pause, resume",
    ),
    ({"DELAY_ACTION": "cancel"}, f"cancel {NAMES_NEEDED}"),
    ({"DELAY_ACTION": "fire"}, f"fire {NAMES_NEEDED}"),
    ({"DELAY_ACTION": "move", "TIMER_DELAY_MS": "1"}, f"move {NAMES_NEEDED}"),
    ({"DELAY_ACTION": "cancel", "DELAY_KEY": "k", "DELAY_GROUP": "g"}, f"cancel {NAMES_NEEDED}"),
    ({"DELAY_ACTION": "cancel", "TIMER_DEL_UNIQKEY": "id", "DELAY_GROUP": "g"}, f"cancel {NAMES_NEEDED}"),
    (
        {"DELAY_ACTION": "touch", "DELAY_GROUP": "g"},
        "touch applies to single messages: use move for those of a DELAY_GROUP",
    ),
    ({"DELAY_ACTION": "pause", "DELAY_KEY": "k"}, f"pause {PAUSES_NEED}"),
    ({"DELAY_ACTION": "resume", "TIMER_DEL_UNIQKEY": "id"}, f"resume {PAUSES_NEED}"),
    ({"DELAY_ACTION": "move", "DELAY_GROUP": "g"}, TIME_NEEDED),
    (
        {"DELAY_ACTION": "move", "DELAY_GROUP": "g", "TIMER_DELIVER_MS": "soon"},
        "TIMER_DELIVER_MS is 'soon', which is not a number of milliseconds since the epoch",
    ),
    ({"DELAY_ACTION": "move", "DELAY_GROUP": "g", "TIMER_DELAY_SEC": "315360001"}, LIMIT),
    ({"DELAY_ACTION": "cancel", "DELAY_GROUP": f"{LONG_GROUP}x"}, "DELAY_GROUP has 256 bytes: use 1 to 255 bytes"),
    ({"DELAY_ACTION": "pause", "DELAY_GROUP": f"{LONG_GROUP}x"}, "DELAY_GROUP has 256 bytes: use 1 to 255 bytes"),
    ({"DELAY_GROUP": f"{LONG_GROUP}x", "TIMER_DELAY_MS": "1"}, "DELAY_GROUP has 256 bytes: use 1 to 255 bytes"),
    (
        {"DELAY_ACTION": "fire", "DELAY_GROUP": "g", "DELAY_EVERY_MS": "1000"},
        "the message has DELAY_ACTION=fire next to DELAY_EVERY_MS: change the pending message, or send a schedule",
    ),
]
"""Properties of messages, and the remark of the response with which a broker rejects them."""


def test_wrong_change_is_rejected_with_its_reason_and_nothing_is_stored(clients: Workbench, either: Workbench) -> None:
    topic, other, producer = either.topic(queues=1), either.topic(queues=1), either.producer
    consumer = clients.push(topic, group=clients.group())
    producer.send(topic, "pending", delayTimeMs=HOUR_MS, **in_group("g", DELAY_KEY="k"))
    producer.send(other, "elsewhere", delayTimeMs=HOUR_MS, **in_group("far"))
    before = places(either, topic, other)
    for properties, remark in ILLEGAL:
        found = refusal(producer.send, topic, "x", reservedProperties=properties)
        assert found == (MESSAGE_ILLEGAL, remark), properties
    change = {"properties": {"DELAY_ACTION": "cancel", "DELAY_GROUP": "g"}}
    assert refusal(either.transactions().prepare, topic, "x", **change) == (
        MESSAGE_ILLEGAL,
        "a half message cannot change a pending one: send an ordinary message",
    )
    batch = [message(topic, "valid"), message(topic, "x", **change)]
    assert refusal(producer.send_batch, batch) == (
        MESSAGE_ILLEGAL,
        "a message of a batch cannot change a pending one: send it individually",
    )
    for action, fields in CHANGES.items():
        for group in ("far", "never"):
            assert refusal(act, producer, topic, action, group=group, **fields) == unknown(action, group, topic)
    assert places(either, topic, other) == before
    # The group is neither changed nor paused.
    act(producer, topic, "fire", group="g")
    assert [m.body for m in consumer.inbox.wait_count(1)] == [b"pending"]
    assert act(producer, other, "cancel", group="far").status == "SEND_OK"
    assert places(either, topic, other) == [1, 0, before[2], before[3] + 2]


def test_change_in_an_unknown_topic_does_not_create_it(either: Workbench) -> None:
    topic = either.name("Unknown")
    for action, group in (("cancel", "g"), ("pause", "g"), ("pause", "")):
        with pytest.raises(ClientError) as caught:
            act(either.producer, topic, action, group=group)
        assert caught.value.code == TOPIC_MISSING
        assert f"topic[{topic}] not exist" in caught.value.remark
    with pytest.raises(ClientError) as caught:
        either.admin.route(topic)
    assert caught.value.code == TOPIC_MISSING


# The client of 5.3, which also changes single messages by recall handles.


def test_5_3_client_cancels_and_pauses_groups_and_recalls_messages_of_them(
    clients: Workbench, clients5: Workbench
) -> None:
    topic, producer = clients5.topic(queues=1), clients5.producer
    consumer = clients.push(topic, group=clients.group())
    expected, handles, sent = Expected(clients5, topic), {}, {}

    def schedule(body: str, group: str, delay: int) -> None:
        sent[body] = expected.send(body, delay=delay, delayTimeMs=delay, **in_group(group, DELAY_KEY=body))
        handle = sent[body].recall_handle
        assert handle
        handles[body] = handle

    def recall(body: str) -> None:
        assert producer.recall(topic, handles[body]) == sent[body].message_id
        expected.due.pop(body, None)

    schedule("cancelled", "cancelled", 3_000)
    for body in ("recalled before", "recalled after", "moved"):
        schedule(body, "moved", HOUR_MS)
    assert act(producer, topic, "cancel", group="cancelled").status == "SEND_OK"
    recall("recalled before")
    begin = now_ms()
    assert act(producer, topic, "move", group="moved", delayTimeMs=2_000).status == "SEND_OK"
    expected.due["moved"] = (begin + 2_000, now_ms() + 2_000)
    recall("recalled after")
    assert act(producer, topic, "pause", group="paused").status == "SEND_OK"
    for body in ("held", "recalled while held"):
        schedule(body, "paused", 100)
    del expected.due["held"]
    # A recall of a cancelled message succeeds again, and other changes state what happened to it.
    recall("cancelled")
    for action, body in (("fire", "cancelled"), ("touch", "recalled after")):
        code, remark = refusal(act, producer, topic, action, body)
        assert code == NOT_DONE
        target = f"{action} of the message with DELAY_KEY '{body}' in topic {topic}"
        assert remark.startswith(f"{target}: the message was cancelled at 20")
        assert remark.endswith(" by 127.0.0.1")
    schedule("alone", "other", 3_000)
    expected.due.pop("recalled while held")
    expected.check(consumer)
    recall("recalled while held")
    assert act(producer, topic, "resume", group="paused").status == "SEND_OK"
    assert consumer.inbox.wait_count(3)[2].body == b"held"
    for body in ("moved", "held"):
        code, remark = refusal(producer.recall, topic, handles[body])
        assert code == NOT_DONE
        assert f": the message was delivered to topic {topic} at 20" in remark
    assert stored(clients5, topic) == 3


def test_our_client_lists_what_java_clients_have_scheduled(clients: Workbench) -> None:
    topic, producer = clients.topic(queues=1), clients.producer
    due = now_ms() + HOUR_MS
    keyed = producer.send(topic, "keyed", deliverTimeMs=due + 1_000, **in_group("spring", DELAY_KEY="order-1"))
    level = producer.send(topic, "level", delayLevel=HOUR_LEVEL, keys="customer-1")
    producer.send(topic, "other", deliverTimeMs=due + 2 * HOUR_MS)

    async def listed(**filters: Any) -> PendingList:
        async with Client(clients.namesrv_address) as client, OurProducer(client) as ours:
            return await ours.pending(topic, **filters)

    everything = asyncio.run(listed())
    assert (everything.total, len(everything.messages)) == (3, 3)
    [found] = asyncio.run(listed(group="spring")).messages
    assert (found.message_id, found.key, found.due_ms) == (keyed.message_id, "order-1", due + 1_000)
    [found] = asyncio.run(listed(key="customer-1")).messages
    assert (found.message_id, found.delay_level) == (level.message_id, HOUR_LEVEL)
    assert act(producer, topic, "cancel", group="spring").status == "SEND_OK"
    assert asyncio.run(listed()).total == 2
