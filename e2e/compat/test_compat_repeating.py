"""Repeating messages of RocketMQ's clients 4.9 and 5.3: their copies, their end, and schedules that are rejected."""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from compat.timed_sends import (
    LATE_LIMIT_MS,
    MESSAGE_ILLEGAL,
    NOT_DONE,
    act,
    now_ms,
    places,
    refusal,
    stored,
)
from harness.clients import Sent, Workbench, message
from harness.driver import Received
from harness.waiting import until

# RocketMQ 4.9's broker has no repeating messages, and that of 5.3 delivers them once.
pytestmark = pytest.mark.ours_only

SECOND_MS = 1_000
EVERY_SECOND = {"DELAY_EVERY_MS": "1000"}
OF_SCHEDULES = {"DELAY_CRON", "DELAY_ZONE", "DELAY_EVERY_MS", "DELAY_UNTIL_MS", "DELAY_RUNS", "DELAY_MISSED"}
"""Properties that copies do not have."""


def run_times(messages: list[Received], sent: Sent, body: str) -> list[int]:
    """Check the copies of a message, and return the times of its runs in ms."""
    copies = sorted((m for m in messages if m.body == body.encode()), key=lambda m: int(m.properties["DELAY_RUN"]))
    assert [m.properties["DELAY_RUN"] for m in copies] == [str(number) for number in range(1, len(copies) + 1)]
    assert {m.properties["DELAY_SCHEDULE_ID"] for m in copies} == {sent.message_id}
    assert len({sent.message_id, *(m.message_id for m in copies)}) == len(copies) + 1
    for m in copies:
        assert OF_SCHEDULES.isdisjoint(m.properties)
        assert (m.queue_id, m.tags, m.properties["colour"], m.reconsume_times) == (sent.queue_id, "Repeated", "blue", 0)
        assert int(m.properties["TIMER_OUT_MS"]) <= min(m.store_timestamp_ms, m.arrival_timestamp_ms)
    return [int(m.properties["TIMER_OUT_MS"]) for m in copies]


def test_copies_arrive_at_the_times_of_their_runs_until_the_schedule_ends(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    consumer = clients.push(topic, group=clients.group(), expression="Repeated")
    begin = now_ms()
    three = {"DELAY_RUNS": "3", "DELAY_MISSED": "all"}
    schedules = {
        "every": {**EVERY_SECOND, **three},
        "cron": {"DELAY_CRON": "* * * * * *", "DELAY_ZONE": "Europe/Berlin", **three},
        "once": {"DELAY_CRON": "*/2 * * * * SUN-SAT", "DELAY_RUNS": "1"},
        "until": {**EVERY_SECOND, "DELAY_UNTIL_MS": str(begin + 2_900)},
    }
    sent = {
        body: clients.producer.send(topic, body, tags="Repeated", queue_id=1, properties={"colour": "blue", **schedule})
        for body, schedule in schedules.items()
    }
    end = now_ms()
    consumer.inbox.wait_for(
        lambda found: [[m.body for m in found].count(body) for body in (b"every", b"cron", b"once")] == [3, 3, 1],
        timeout_s=60,
    )
    time.sleep(1.2)  # longer than the interval
    times = {body: run_times(consumer.inbox.messages(), each, body) for body, each in sent.items()}
    for body in ("every", "cron"):
        first, second, third = times[body]
        assert (second - first, third - second) == (SECOND_MS, SECOND_MS)
    assert begin + SECOND_MS <= times["every"][0] <= end + SECOND_MS
    assert begin < times["cron"][0] <= end + SECOND_MS
    assert times["cron"][0] % SECOND_MS == 0
    assert [time_ms % (2 * SECOND_MS) for time_ms in times["once"]] == [0]
    assert times["until"][-1] <= begin + 2_900 < times["until"][-1] + SECOND_MS
    assert {sum(map(len, times.values())), stored(clients, topic, queues=2)} == {len(consumer.inbox.messages())}
    for m in consumer.inbox.messages():
        assert m.store_timestamp_ms <= int(m.properties["TIMER_OUT_MS"]) + LATE_LIMIT_MS


def test_schedule_ends_when_its_message_or_group_is_cancelled_and_pauses_with_its_group(clients: Workbench) -> None:
    single, grouped, producer = clients.topic(queues=1), clients.topic(queues=1), clients.producer
    inbox = clients.push(grouped, group=clients.group()).inbox
    common = {"colour": "blue", **EVERY_SECOND}
    keyed = producer.send(single, "keyed", tags="Repeated", properties={"DELAY_KEY": "key", **common})
    named = producer.send(single, "named", tags="Repeated", properties=common)
    in_group = {
        body: producer.send(grouped, body, tags="Repeated", properties={"DELAY_GROUP": "reports", **common})
        for body in ("a", "b")
    }
    until(lambda: stored(clients, single) >= 2 and stored(clients, grouped) >= 2, "the first copies")

    assert act(producer, single, "cancel", "key").status == "SEND_OK"
    cancel = {"TIMER_DEL_UNIQKEY": named.message_id, "DELAY_ACTION": "cancel"}
    assert producer.send(single, "ignored", reservedProperties=cancel).status == "SEND_OK"
    assert act(producer, grouped, "pause", group="reports").status == "SEND_OK"
    ended, held = stored(clients, single), stored(clients, grouped)
    time.sleep(2.2)  # two runs
    assert (stored(clients, single), stored(clients, grouped)) == (ended, held)
    changes = {"fire": {"DELAY_KEY": "key"}, "touch": {"TIMER_DEL_UNIQKEY": keyed.message_id}}
    for action, target in changes.items():
        change = {"DELAY_ACTION": action, **target}
        code, remark = refusal(producer.send, single, "ignored", reservedProperties=change)
        assert code == NOT_DONE
        assert f" in topic {single}: the message was cancelled at 20" in remark

    assert act(producer, grouped, "resume", group="reports").status == "SEND_OK"
    until(lambda: stored(clients, grouped) >= held + 2, "the latest of the runs during the pause")
    assert act(producer, grouped, "cancel", group="reports").status == "SEND_OK"
    last = stored(clients, grouped)
    time.sleep(1.2)
    assert (stored(clients, single), stored(clients, grouped)) == (ended, last)
    messages = inbox.wait_count(last)
    for body, sent in in_group.items():
        times = run_times(messages, sent, body)
        distances = [later - earlier for earlier, later in pairwise(times)]
        assert {distance % SECOND_MS for distance in distances} == {0}
        assert max(distances) >= 2 * SECOND_MS


def test_5_3_client_ends_a_schedule_by_its_recall_handle(clients5: Workbench) -> None:
    topic, producer = clients5.topic(queues=1), clients5.producer
    sent = producer.send(topic, "recalled", properties=EVERY_SECOND)
    assert sent.recall_handle
    until(lambda: stored(clients5, topic), "the first copy")
    assert producer.recall(topic, sent.recall_handle) == sent.message_id
    ended = stored(clients5, topic)
    time.sleep(1.2)
    assert stored(clients5, topic) == ended


FIELD = "or lists, ranges and steps of them"
ILLEGAL: list[tuple[dict[str, str], str]] = [
    ({"DELAY_CRON": "60 * * * * *"}, f"field 1 (second) of DELAY_CRON is '60': use 0 to 59, {FIELD}"),
    ({"DELAY_CRON": "0 25 * * *"}, f"field 2 (hour) of DELAY_CRON is '25': use 0 to 23, {FIELD}"),
    (
        {"DELAY_CRON": "* * * *"},
        "DELAY_CRON is '* * * *', which has 4 fields: use 5 fields (minute, hour, day-of-month, month, day-of-week),"
        " or 6 with seconds first",
    ),
    (
        {"DELAY_CRON": "@daily"},
        "DELAY_CRON is '@daily': use letters, digits and the characters * , - / # between spaces",
    ),
    (
        {"DELAY_CRON": "0 0 30 2 *"},
        "DELAY_CRON is '0 0 30 2 *', which never occurs: check day-of-month, month and day-of-week",
    ),
    ({"DELAY_CRON": "1" * 129}, "DELAY_CRON has 129 characters: use at most 128 characters"),
    (
        {"DELAY_CRON": "* * * * *", "DELAY_ZONE": "Mars/Olympus"},
        "DELAY_ZONE is 'Mars/Olympus', which is not a known time zone: use a name of the IANA database, such as"
        " Europe/Berlin",
    ),
    ({"DELAY_ZONE": "UTC", **EVERY_SECOND}, "DELAY_ZONE needs DELAY_CRON: an interval has no time zone"),
    (
        {"DELAY_CRON": "* * * * *", **EVERY_SECOND},
        "the message has both DELAY_CRON and DELAY_EVERY_MS: send one of them",
    ),
    ({"DELAY_EVERY_MS": "999"}, "DELAY_EVERY_MS is '999': use a number of milliseconds, at least 1000"),
    ({"DELAY_RUNS": "0", **EVERY_SECOND}, "DELAY_RUNS is '0': use a number of runs, at least 1"),
    ({"DELAY_MISSED": "some", **EVERY_SECOND}, "DELAY_MISSED is 'some': use latest, all, none"),
    (
        {"DELAY_UNTIL_MS": "1", **EVERY_SECOND},
        "DELAY_UNTIL_MS is 1, which is before the first run: choose a later time, in ms since the epoch",
    ),
    ({"DELAY": "1", **EVERY_SECOND}, "the message has DELAY_EVERY_MS next to DELAY: send only one schedule"),
    (
        {"TIMER_DELAY_MS": "1", "DELAY_CRON": "* * * * *"},
        "the message has DELAY_CRON next to TIMER_DELAY_MS: send only one schedule",
    ),
]
"""Properties of messages, and the remark of the response with which a broker rejects them."""


def test_invalid_schedule_is_rejected_with_its_reason_and_nothing_is_stored(either: Workbench) -> None:
    topic, producer, transactions = either.topic(queues=1), either.producer, either.transactions()
    before = places(either, topic)
    for properties, remark in ILLEGAL:
        fields: dict[str, Any] = {"reservedProperties": properties}
        sends: list[Callable[[], Sent]] = [
            partial(producer.send, topic, "x", **fields),
            partial(producer.send_batch, [message(topic, "valid"), message(topic, "x", **fields)]),
            partial(transactions.prepare, topic, "x", **fields),
        ]
        # The client itself rejects a batch with a delay level.
        for send in sends[:1] if "DELAY" in properties else sends:
            assert refusal(send) == (MESSAGE_ILLEGAL, remark), properties
    assert places(either, topic) == before
