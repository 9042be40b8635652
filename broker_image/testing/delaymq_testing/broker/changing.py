"""Requests that schedule and change messages, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable

from delaymq.message.record import Record
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response

from delaymq_testing.broker.harness import Harness, response_of

Open = Callable[..., Harness]
SUCCESS, ILLEGAL = ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL
NOT_DONE = ResponseCode.ILLEGAL_OPERATION
HOUR_MS = 3_600_000


def send(harness: Harness, body: str = "m", topic: str = "Orders", **properties: str) -> Response:
    return response_of(harness.send(topic, body.encode(), {"UNIQ_KEY": f"id-{body}", **properties}))


def schedule(harness: Harness, body: str = "m", topic: str = "Orders", **properties: str) -> Response:
    answer = send(harness, body, topic, **{"TIMER_DELAY_MS": "60000", **properties})
    assert answer.code == SUCCESS, answer.remark
    return answer


def act(harness: Harness, action: str, topic: str = "Orders", **properties: str) -> Response:
    properties = {"UNIQ_KEY": "action", "DELAY_ACTION": action, **properties}
    return response_of(harness.send(topic, b"ignored", properties))


def recall_request(topic: str, handle: str) -> tuple[int, dict[str, str]]:
    return RequestCode.RECALL_MESSAGE, {"producerGroup": "g", "topic": topic, "recallHandle": handle}


def recall(harness: Harness, handle: str, topic: str = "Orders") -> Response:
    return response_of(harness.ask(*recall_request(topic, handle)))


def records(harness: Harness, topic: str, queue_id: int = 0) -> list[Record]:
    store = harness.broker.store
    found = []
    for offset in range(store.next_queue_offset(topic, queue_id)):
        record = store.record_at(int.from_bytes(store.read_entries(topic, queue_id, offset, 1)[:8], "big"))
        assert record is not None
        found.append(record)
    return found


def deliver(harness: Harness, after_ms: int = 0) -> list[str]:
    """Hands over what is due after a time; bodies in topic Orders, queue 0."""
    harness.clock.advance(after_ms)
    harness.flush()
    while harness.broker.hand_over(harness.clock(), 64):
        harness.flush()
    return [record.body.decode() for record in records(harness, "Orders")]
