"""Requests of RocketMQ 5's tools that those of 4.9 do not send."""

from delaymq.broker.requests.results import Held
from delaymq.protocol.bodies import KVTable, TopicConfig
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.broker.harness import Harness, records_of


def test_single_topic_configuration_is_returned(harness: Harness) -> None:
    """As mqadmin 5.3 asks for it: `lo` is a field of static topics."""
    harness.send()
    answer = harness.answer(RequestCode.GET_TOPIC_CONFIG, {"topic": "Orders", "lo": "true"})
    told = TopicConfig.decode(answer.body)
    assert told == harness.broker.topics.table["Orders"]
    unknown = harness.answer(RequestCode.GET_TOPIC_CONFIG, {"topic": "Nothing"})
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


def test_lite_pull_equals_pull(harness: Harness) -> None:
    """Also one that waits: it gets the message that comes meanwhile."""
    harness.send(body=b"first")
    fields = {
        "consumerGroup": "readers", "topic": "Orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "22", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG", "lo": "", "bname": "broker-a",
    }  # fmt: skip
    answer = harness.answer(RequestCode.LITE_PULL_MESSAGE, fields)
    assert [record.body for record in records_of(answer.body)] == [b"first"]
    waiting = harness.ask(RequestCode.LITE_PULL_MESSAGE, fields | {"queueOffset": "1"})
    assert isinstance(waiting, Held)
    harness.send(body=b"second")
    resumed = waiting.resume(False)
    assert isinstance(resumed, Response)
    assert [record.body for record in records_of(resumed.body)] == [b"second"]


def test_delivery_rate_has_both_spellings(harness: Harness) -> None:
    harness.send()
    assert len(harness.pulled()) == 1
    harness.clock.advance(10_000)
    harness.broker.stats.sample(harness.clock())
    table = KVTable.decode(harness.answer(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert table["getTransferredTps"] == table["getTransferedTps"]
    assert table["getTransferredTps"].split()[0] == "0.1"
