"""Acknowledged messages can be delivered, whatever their size and later changes of limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.broker.sending.dead_letter_resend import resend
from delaymq.message.marks import MarkKind
from delaymq.message.properties import decode_properties
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq.schedule.retries import MAX_OBJECTS
from delaymq.store.consume_queue import ENTRY
from delaymq_testing.broker.delivery_harness import Bench
from delaymq_testing.broker.harness import Harness
from delaymq_testing.broker.transactions import GROUP, Half, Transacting

SEGMENT_BYTES = 4_096
LEVEL_MS = 1_000
TRANSACTION = 4


def lowered(harness: Harness) -> None:
    harness.broker.apply(replace(harness.config, max_message_size=1_024))


def commit(harness: Transacting, sent: Response) -> None:
    half = Half("u", int(sent.fields["queueOffset"]), int(sent.fields["msgId"][16:], 16))
    assert harness.commit(half).code == 0


def hand_over_all(harness: Harness) -> None:
    harness.clock.now_ms += LEVEL_MS
    while harness.broker.hand_over(harness.clock(), 64):
        pass


def delivered(harness: Harness, topic: str) -> list[bytes]:
    found: list[bytes] = []
    while records := harness.pulled(topic, offset=len(found)):
        found += [record.body for record in records]
    return found


def test_pending_messages_above_a_lowered_limit_are_delivered(tmp_path: Path) -> None:
    harness = Transacting(tmp_path, message_delay_level="1s")
    body = bytes(200_000)
    assert harness.send("Orders", body, {"DELAY": "1"}).code == 0
    lowered(harness)
    assert harness.send("Orders", body).code == ResponseCode.MESSAGE_ILLEGAL
    hand_over_all(harness)
    assert delivered(harness, "Orders") == [body]
    harness.broker.close()


@pytest.mark.parametrize("delayed", [False, True])
def test_a_transaction_above_a_lowered_limit_is_committed(delayed: bool, tmp_path: Path) -> None:
    harness = Transacting(tmp_path, message_delay_level="1s")
    body = bytes(200_000)
    properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "u"} | ({"DELAY": "1"} if delayed else {})
    sent = harness.send("Orders", body, properties, f=TRANSACTION)
    assert sent.code == 0, sent.remark
    lowered(harness)
    commit(harness, sent)
    hand_over_all(harness)
    assert delivered(harness, "Orders") == [body]
    harness.broker.close()


def test_message_above_a_lowered_limit_is_sent_back_and_retried(tmp_path: Path) -> None:
    harness = Transacting(tmp_path, message_delay_level="1s")
    body = bytes(200_000)
    sent = harness.send("Orders", body)
    lowered(harness)
    fields = {"group": "readers", "offset": int(sent.fields["msgId"][-16:], 16), "delayLevel": 1}
    back = harness.answer(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert back.code == 0, back.remark
    hand_over_all(harness)
    assert delivered(harness, "%RETRY%readers") == [body]
    harness.broker.close()


def test_a_dead_letter_above_a_lowered_limit_is_resent(tmp_path: Path) -> None:
    harness = Transacting(tmp_path)
    body = bytes(200_000)
    sent = harness.send("Orders", body)
    lowered(harness)
    fields = {"group": "readers", "offset": int(sent.fields["msgId"][-16:], 16), "delayLevel": -1}
    assert harness.answer(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 0
    place, size, _ = ENTRY.unpack(harness.broker.store.read_entries("%DLQ%readers", 0, 0, 1))
    resend(harness.broker, "readers", harness.broker.store.record_from(place, size))
    assert delivered(harness, "%RETRY%readers") == [body]
    harness.broker.close()


@pytest.mark.parametrize("topic", ["T", "Orders-" + "x" * 110])
@pytest.mark.parametrize("transaction", [False, True])
def test_acknowledged_message_fits_a_segment_when_due(topic: str, transaction: bool, tmp_path: Path) -> None:
    harness = Transacting(tmp_path, message_delay_level="1s", mapped_file_size_commit_log=SEGMENT_BYTES)
    acknowledged: list[bytes] = []
    refused = 0
    properties = {"DELAY": "1", "UNIQ_KEY": "u"} | ({"TRAN_MSG": "true", "PGROUP": GROUP} if transaction else {})
    for number, size in enumerate(range(SEGMENT_BYTES - 700, SEGMENT_BYTES - 200, 3)):
        body = number.to_bytes(2, "big") * (size // 2)
        sent = harness.send(topic, body, properties, f=TRANSACTION if transaction else 0)
        if sent.code == ResponseCode.MESSAGE_ILLEGAL:
            assert "(mappedFileSizeCommitLog): send a smaller message" in str(sent.remark)
            refused += 1
            continue
        assert sent.code == 0, sent.remark
        acknowledged.append(body)
        if transaction:
            commit(harness, sent)
    assert refused
    assert acknowledged
    hand_over_all(harness)
    assert harness.broker.delivery.counters.failed == 0
    found = harness.pulled(topic)
    while more := harness.pulled(topic, offset=len(found)):
        found += more
    assert [record.body for record in found] == acknowledged
    for record in found:
        assert decode_properties(record.raw_properties)["__DMQ_MARK"].startswith(MarkKind.DELIVERED)
    harness.broker.close()


def test_individually_failing_messages_do_not_block_others() -> None:
    bench = Bench("1s 5s")
    count = MAX_OBJECTS + 100
    for number in range(count):
        bench.send(f"bad{number}", 1, topic="bad")
    bench.send("behind them", 1)
    bench.send("next to them", 2)
    bench.store.refuse = lambda message: RuntimeError("this one cannot be") if message.topic == "bad" else None
    bench.now_ms += 1_000
    assert bench.hand_over(2 * count) == ["behind them"]
    bench.now_ms += 4_000
    assert bench.hand_over(64) == ["next to them"]
    bench.store.refuse = lambda message: None
    bench.now_ms += 60_000
    assert sorted(bench.hand_over(2 * count)) == sorted(f"bad{number}" for number in range(count))
    assert bench.delivery.next_wakeup_ms() is None
