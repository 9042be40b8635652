"""Messages in requests to POST /api/v1/topics/{topic}/messages: every one is stored as sent, or rejected."""

import random
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from delaymq.api_types import sends
from delaymq.broker import topics
from delaymq.protocol.command import Response
from delaymq.server.api.messages.send import body_of, parse_message, properties_of, sent
from delaymq.server.api.routing import ApiError
from delaymq_testing.http_sender import sender
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.running_server import run

_json = msgspec.json.encode
ID = "7F00000100002A9F18B4AAC2D1F20001"
JSON = {"Content-Type": "application/json"}
BROKERS_OWN = {"CLUSTER", "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "__DMQ_DUE"}
"""Properties that the broker adds."""


def parts_of(message: object) -> tuple[dict[str, str], bytes]:
    """Properties and body of a message."""
    return parts_of_data(_json(message))


def parts_of_data(data: bytes) -> tuple[dict[str, str], bytes]:
    """Properties and body of a message in JSON."""
    parsed = parse_message(data)
    return properties_of(parsed, ID), body_of(parsed)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"delayLevel": 3}, {"DELAY": "3"}),
        ({"delayMs": 1_500}, {"TIMER_DELAY_MS": "1500"}),
        ({"deliverAtMs": 1_700_000_000_001}, {"TIMER_DELIVER_MS": "1700000000001"}),
        ({"deliverAt": "2023-11-14T22:13:20Z"}, {"TIMER_DELIVER_MS": "1700000000000"}),
        ({"deliverAt": "2023-11-15T00:13:20.001+02:00"}, {"TIMER_DELIVER_MS": "1700000000001"}),
        # Between two milliseconds, the later one: a message is never early.
        ({"deliverAt": "2023-11-14T22:13:20.000001Z"}, {"TIMER_DELIVER_MS": "1700000000001"}),
        ({"deliverAt": "0001-01-01T00:00:00+23:00"}, {"TIMER_DELIVER_MS": "0"}),
        ({"deliverAt": "9999-12-31T23:59:59.999999-12:00"}, {"TIMER_DELIVER_MS": "253402344000000"}),
        ({}, {}),
    ],
)
def test_schedule_becomes_one_property(schedule: dict[str, object], expected: dict[str, str]) -> None:
    assert parts_of({"body": "x", **schedule}) == ({"UNIQ_KEY": ID, **expected}, b"x")


def test_due_time_is_returned_with_the_recall_handle() -> None:
    handle = urlsafe_b64encode(f"v1 Orders broker a 1700000000123 {ID}".encode()).decode()
    fields = {"msgId": "0" * 32, "queueId": "2", "queueOffset": "7", "recallHandle": handle}
    answer = sent(ID, Response(0, None, fields))
    assert (answer.message_id, answer.due_ms, answer.recall_handle) == (ID, 1_700_000_000_123, handle)
    assert (answer.queue_id, answer.queue_offset) == (2, 7)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({}, "either body or bodyBase64"),
        ({"body": "x", "bodyBase64": "eA=="}, "either body or bodyBase64"),
        ({"body": None}, "Expected `str`"),
        ({"body": "x", "size": 1}, "unknown field `size`"),
        ({"bodyBase64": "?"}, "base64"),
        ({"body": "x", "delayMs": 1, "delayLevel": 1}, "only one of delayLevel, delayMs"),
        ({"body": "x", "deliverAt": "2023-11-14T22:13:20Z", "deliverAtMs": 1}, "only one of delayLevel, delayMs"),
        ({"body": "x", "deliverAt": "2023-11-14T22:13:20"}, "timezone"),
        ({"body": "x", "deliverAt": "tomorrow"}, "RFC3339"),
        ({"body": "x", "delayMs": -1}, ">= 0"),
        ({"body": "x", "delayMs": 1 << 53}, "$.delayMs"),
        ({"body": "x", "delayLevel": 0}, ">= 1"),
        ({"body": "x", "queueId": -1}, ">= 0"),
        ({"body": "x", "tags": ""}, "$.tags"),
        ({"body": "x", "tags": "a\x02b"}, "tags must not be empty or contain the characters 0, 1 or 2"),
        ({"body": "x", "keys": ["a b"]}, "send two keys"),
        ({"body": "x", "keys": ["a\0"]}, "a key must not"),
        ({"body": "x", "keys": ["k"] * (sends.MAX_KEYS + 1)}, "length <= 64"),
        ({"body": "x", "properties": {"": "v"}}, "length >= 1"),
        ({"body": "x", "properties": {"n": ""}}, "length >= 1"),
        ({"body": "x", "properties": {"n": 1}}, "Expected `str`"),
        ({"body": "x", "properties": {"n\x01": "v"}}, "the name of a property must not"),
        ({"body": "x", "properties": {"n": "v\x02m\x01w"}}, "property 'n' must not"),
        ({"body": "x", "properties": {"n": "\0"}}, "property 'n' must not"),
        ({"body": "x", "properties": {f"n{each}": "v" for each in range(sends.MAX_PROPERTIES + 1)}}, "length <= 128"),
        *(
            ({"body": "x", "properties": {name: "1"}}, f"property {name!r} is reserved")
            for name in ("DELAY", "KEYS", "TRAN_MSG", "UNIQ_KEY", "TIMER_OUT_MS", "__STARTDELIVERTIME", "__DMQ_MARK")
        ),
    ],
)
def test_invalid_body_is_rejected_with_a_reason(body: dict[str, object], hint: str) -> None:
    with pytest.raises(ApiError) as rejected:
        parts_of(body)
    assert (rejected.value.status, rejected.value.code) == (400, "bad_request")
    assert hint in rejected.value.message
    assert len(rejected.value.message) < 300


def random_part(chance: random.Random) -> Any:
    """A value that may or may not be valid somewhere."""
    pieces = ["a", "k 1", "é", "𝕏", "\x01", "\x02", "\0", "\n", " ", "__DMQ_DUE", "DELAY", "TIMER_", "x" * 900, "QUI="]
    number = chance.choice((0, 1, -1, 2.0, 2.5, 3, 4, 18, 1 << 31, 1 << 53, 10**30))
    text = "".join(chance.choices(pieces, k=chance.randrange(3)))
    times = ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20", "9999-12-31T23:59:59-12:00", "2023-11-14T22:13:20+99:00")
    plain = (number, text, text, chance.choice(times), None, True)
    listed = [chance.choice((text, number, "k")) for _ in range(chance.choice((0, 1, 2, 70)))]
    mapped = {chance.choice((text, "n", f"n{each}")): text for each in range(chance.choice((0, 1, 2, 140)))}
    return chance.choice((*plain, listed, mapped))


def random_message(chance: random.Random) -> dict[str, Any]:
    """A valid message with a few random members."""
    valid: dict[str, Any] = {"tags": "t", "keys": ["k1"], "properties": {"n": "v\n"}, "queueId": 0, "delayLevel": 1}
    members = ("body", "bodyBase64", "tags", "keys", "properties", "queueId", "delayLevel", "delayMs", "deliverAt")
    message = {"body": "x"} | {name: valid[name] for name in valid if chance.randrange(2)}
    return message | {
        chance.choice((*members, "deliverAtMs", "other")): random_part(chance) for _ in range(chance.randrange(3))
    }


def test_random_messages_are_stored_as_sent_or_rejected_with_a_reason(tmp_path: Path) -> None:
    chance = random.Random(SEED)

    async def scenario() -> None:
        accepted = rejected = 0
        async with sender(tmp_path, message_delay_level="1h") as http:
            store = http.broker.store
            http.broker.delivery.control.pause()  # a delivery would also change the end of the log
            for _ in range(FUZZ_INPUTS // 20):
                end = store.end_offset
                message = random_message(chance)
                data = _json(message)
                if not chance.randrange(10):
                    data = damaged(chance, data)
                async with http.session.post(f"{http.url}topics/Orders/messages", data=data, headers=JSON) as response:
                    answer = await response.json()
                    if response.status == 200:
                        accepted += 1
                        record = http.record(answer["offsetMessageId"])
                        properties, body = parts_of_data(data)
                        properties["UNIQ_KEY"] = answer["messageId"]
                        stored = record.properties
                        if "DELAY" in properties:  # the table has one level
                            properties["DELAY"] = "1"
                        assert {name: stored[name] for name in properties} == properties
                        assert set(stored) - set(properties) <= BROKERS_OWN
                        assert record.body == body
                    else:
                        rejected += 1
                        assert response.status in (400, 404), answer
                        assert 0 < len(answer["error"]["message"]) < 1_000
                        assert store.end_offset == end
        assert min(accepted, rejected) > FUZZ_INPUTS // 200

    run(scenario, bound_s=60 + FUZZ_INPUTS / 100)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The text with a byte replaced, or without its end."""
    at = chance.randrange(len(data))
    return data[:at] + (bytes([chance.randrange(256)]) + data[at + 1 :] if chance.randrange(2) else b"")


def test_described_queues_equal_the_brokers() -> None:
    assert sends.MAX_QUEUES == topics.MAX_QUEUES
