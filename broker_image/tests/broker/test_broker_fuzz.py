"""Whatever a client sends in fields and bodies, the broker has an answer in mind: nothing surprises it."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from broker_harness import START_MS, FakeSession, Harness, made
from delaymq.broker.processors.table import PROCESSORS
from delaymq.broker.results import Asked, Deferred, Held
from delaymq.protocol import headers
from delaymq.protocol.command import Command, Response, encode_response

REQUESTS = 12_000

HEADERS: dict[int, type[headers.Header]] = {
    10: headers.SendMessageRequestHeader,
    11: headers.PullMessageRequestHeader,
    12: headers.QueryMessageRequestHeader,
    14: headers.QueryConsumerOffsetRequestHeader,
    15: headers.UpdateConsumerOffsetRequestHeader,
    17: headers.CreateTopicRequestHeader,
    29: headers.SearchOffsetRequestHeader,
    30: headers.GetMaxOffsetRequestHeader,
    31: headers.GetMinOffsetRequestHeader,
    32: headers.GetEarliestMsgStoretimeRequestHeader,
    33: headers.ViewMessageRequestHeader,
    35: headers.UnregisterClientRequestHeader,
    36: headers.ConsumerSendMsgBackRequestHeader,
    37: headers.EndTransactionRequestHeader,
    38: headers.GetConsumerListByGroupRequestHeader,
    202: headers.GetTopicStatsInfoRequestHeader,
    203: headers.GetConsumerConnectionListRequestHeader,
    204: headers.GetProducerConnectionListRequestHeader,
    207: headers.DeleteSubscriptionGroupRequestHeader,
    208: headers.GetConsumeStatsRequestHeader,
    215: headers.DeleteTopicRequestHeader,
    222: headers.ResetOffsetRequestHeader,
    223: headers.GetConsumerStatusRequestHeader,
    300: headers.QueryTopicConsumeByWhoRequestHeader,
    303: headers.QueryConsumeTimeSpanRequestHeader,
    307: headers.GetConsumerRunningInfoRequestHeader,
    308: headers.QueryCorrectionOffsetHeader,
    309: headers.ConsumeMessageDirectlyResultRequestHeader,
    310: headers.SendMessageRequestHeaderV2,
    314: headers.CloneGroupOffsetRequestHeader,
    315: headers.ViewBrokerStatsDataRequestHeader,
    317: headers.GetConsumeStatsInBrokerHeader,
    320: headers.SendMessageRequestHeaderV2,
    321: headers.QueryConsumeQueueRequestHeader,
    323: headers.ResumeCheckHalfMessageRequestHeader,
    324: headers.SendMessageRequestHeader,
    325: headers.SendMessageRequestHeaderV2,
}
TOPICS = ["Orders"] * 6 + [
    *("BenchmarkTest", "TBW102", "%RETRY%readers", "%DLQ%readers", "SCHEDULE_TOPIC_XXXX", "OFFSET_MOVED_EVENT"),
    *("", "é", "a b", "x" * 127, "x" * 300, "New"),
]
GROUPS = ["readers"] * 4 + ["", "a b", "g" * 125, "x" * 300, "DEFAULT_PRODUCER"]
PROPERTIES = [
    *("", "DELAY\x013", "DELAY\x0199", "DELAY\x01x", "TAGS\x01A\x02KEYS\x01k", "KEYS\x01a a  b"),
    "TRAN_MSG\x01true\x02PGROUP\x01readers",
    *("__DMQ_MARK\x01delivered:0:0:0:0", "UNIQ_KEY\x01U\x02WAIT\x01false", "\x02\x01\x02", "P\x01" + "x" * 32_700),
    *("REPLY_TO_CLIENT\x01c", "REPLY_TO_CLIENT\x01nobody\x02TTL\x013000"),
]
OTHERS = ["", "*", "A || B", "||", "TAG", "SQL92", "SINGLE_TAG", "k", "c"]
TEXTS = {
    **dict.fromkeys(("topic", "b", "originTopic"), TOPICS),
    **dict.fromkeys(("consumerGroup", "producerGroup", "group", "groupName", "a", "srcGroup", "destGroup"), GROUPS),
    **{name: ["c", "c", "", "nobody"] for name in ("clientId", "clientAddr")},
    "statsName": ["TOPIC_PUT_NUMS", "GROUP_GET_SIZE", "QUEUE_PUT_NUMS", "GROUP_GET_LATENCY", "GROUP_GET_FALL_SIZE"],
    "statsKey": ["Orders"] * 3 + ["Orders@readers", "SCHEDULE_TOPIC_XXXX@2", "1@Orders@readers", "@", "x@@"],
    "msgId": ["0" * 32] * 3 + ["", "0" * 56, "f" * 32, "x" * 32],
    **dict.fromkeys(("properties", "i"), PROPERTIES),
    **{name: ["TBW102"] * 5 + ["BenchmarkTest", "Nothing"] for name in ("defaultTopic", "c")},
}
NUMBERS = [4, 5, -1, 1_999, 2**31 - 1, -(2**31), START_MS, 2**63 - 1, -(2**63), 2**63]
BODIES: dict[int, bytes] = {
    25: b"maxMessageSize=4096\n",
    34: b'{"clientID":"c","consumerDataSet":[{"groupName":"readers","subscriptionDataSet":[{"topic":"Orders"}]}],'
    b'"producerDataSet":[{"groupName":"readers"}]}',
    41: b'{"clientId":"c","consumerGroup":"readers","mqSet":[{"brokerName":"b","queueId":0,"topic":"Orders"}]}',
    42: b'{"clientId":"c","consumerGroup":"readers","mqSet":[{"brokerName":"b","queueId":0,"topic":"Orders"}]}',
    46: b'{"clientId":"c","group":"g","subscriptionData":{"topic":"Orders","subString":"A || B"}}',
    200: b'{"groupName":"readers","retryQueueNums":2}',
    320: b"\0\0\0\x17\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1x\0\0",
}


def fields_of(chance: random.Random, code: int) -> dict[str, str]:
    """Mostly whole headers, so that what lies behind the header is reached."""
    header = HEADERS.get(code)
    fields: dict[str, str] = {}
    for field in msgspec.structs.fields(header) if header is not None else ():
        name, kind = field.encode_name, str(field.type)
        surprise = chance.randrange(60)
        if surprise == 0:
            continue
        if surprise == 1:
            fields[name] = "".join(chr(chance.choice((1, 2, 48, 65, 233, 0x20AC, 0x1F600))) for _ in range(9))
        elif "bool" in kind:
            fields[name] = chance.choice(("true", "false", "false", "false", "", "1"))
        elif "str" in kind:
            fields[name] = chance.choice(TEXTS.get(name, OTHERS))
        elif name == "endTimestamp":
            fields[name] = str(2 * START_MS)
        else:
            fields[name] = str(chance.choice(NUMBERS) if surprise < 5 else chance.randrange(4))
    return fields


def body_of(chance: random.Random, code: int) -> bytes:
    """The body that belongs to the code, sometimes with a byte changed or its end cut off."""
    body = BODIES.get(code, b"x")
    surprise = chance.randrange(10)
    if surprise == 0:
        at = chance.randrange(len(body))
        return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
    if surprise == 1:
        return body[: chance.randrange(len(body))]
    return body


def answers_of(result: Any) -> list[Response]:
    if result is None:
        return []  # the end of a transaction that says nothing
    if isinstance(result, Deferred):
        return [result.response, result.late]
    if isinstance(result, Held):
        answer = result.resume(True)
        assert isinstance(answer, Response)
        return [answer]
    if isinstance(result, Asked):
        count = len(result.questions)
        heard = Command(0, flag=1)
        heard_or_not = (heard, Command(1, flag=1), None)
        return [each for told in heard_or_not for each in answers_of(result.answer([told] * count))]
    assert isinstance(result, Response)
    return [result]


@pytest.fixture(autouse=True)
def surprises_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker would log as unexpected fails the test."""

    def fail(self: Any, text: str, *args: object, error: BaseException | None = None, **about: object) -> None:
        if error is not None:
            raise AssertionError(text % args) from error

    monkeypatch.setattr("delaymq.quiet_log.QuietLog.warning", fail)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_request_has_an_answer_that_somebody_wrote(open_harness: Callable[..., Harness], flush: str) -> None:
    harness = open_harness(flush_disk_type=flush, mapped_file_size_commit_log=32 * 1024 * 1024)
    chance = random.Random(17)
    codes = [int(code) for code in PROCESSORS]
    # Mostly what moves messages; a topic is deleted rarely, so that there is something to find.
    weights = [
        8 if code in (10, 11, 310, 320) else 4 if code in (324, 325) else 0.2 if code == 215 else 1 for code in codes
    ]
    served = Counter[int]()
    sessions = [FakeSession(port) for port in range(1, 6)]
    for number in range(REQUESTS):
        (code,) = chance.choices(codes, weights)
        fields = fields_of(chance, code)
        command = Command(code, 1, 0, "JAVA", chance.choice((0, 121, 407)), None, fields, body_of(chance, code))
        result = harness.broker.handle(chance.choice(sessions), command)
        for answer in answers_of(made(harness.broker, code, result)):
            assert encode_response(command, answer)
            served[code] += answer.code == 0
        if number % 30 == 0:
            harness.clock.advance(1_000)
            harness.flush()
            harness.broker.hand_over(harness.clock(), 10)
            harness.broker.expire_clients(harness.clock())
    # 222 needs an offset in each queue, transactions a half message, which takes more luck than this; access control
    # (50 to 53) is off.
    out_of_reach = (37, 50, 51, 52, 53, 222, 323)
    assert [code for code in codes if not served[code] and code not in out_of_reach] == []


def test_a_request_without_any_field_has_an_answer_too(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness()
    for code in PROCESSORS:
        for answer in answers_of(made(harness.broker, int(code), harness.ask(int(code)))):
            assert encode_response(Command(int(code)), answer)
