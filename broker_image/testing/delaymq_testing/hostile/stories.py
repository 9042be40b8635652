"""Requests that succeed only after others: in the order in which a client would send them, and with its values.

Single requests drawn at random hardly ever meet such a state. Hostile requests (`requests.py`) tell a story now
and then, with mistakes in its steps as everywhere.
"""

from __future__ import annotations

import json
from typing import Final

from delaymq_testing.broker.harness import START_MS, send_fields
from delaymq_testing.hostile.frames import text_of
from delaymq_testing.hostile.words import TREES

Step = tuple[int, dict[str, str], bytes]
"""Code, fields and body. `{offset}`, `{number}` and `{id}` in a value stand for the last message that was stored: its
offset in the log, its offset in its queue, its offset message id, and `{handle}` for the newest recall handle."""

_QUEUES: Final = 2
_LONG_NAMES: Final = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "m": "batch",
}  # fmt: skip


def _send(code: int, **properties: str) -> Step:
    """A message to queue 0 of `Orders`; 10 and 324 have the long names."""
    letters = {name: text_of(value) or "" for name, value in send_fields("Orders", properties).items()}
    fields = {_LONG_NAMES[name]: value for name, value in letters.items()} if code in (10, 324) else letters
    return code, fields, b"m"


def _topic(name: str) -> Step:
    queues = str(_QUEUES)
    fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": "6"}
    return 17, fields | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}, b""


_ORDERS: Final = _topic("Orders")
_JOIN: Final[Step] = (34, {}, json.dumps(TREES[34][0]).encode())
_COMMITS: Final[list[Step]] = [
    (15, {"consumerGroup": "readers", "topic": "Orders", "queueId": str(queue_id), "commitOffset": "0"}, b"")
    for queue_id in range(_QUEUES)
]
_HALF: Final = _send(310, TRAN_MSG="true", PGROUP="readers")
_END: Final = {
    "producerGroup": "readers", "tranStateTableOffset": "{number}", "commitLogOffset": "{offset}", "msgId": "{id}",
}  # fmt: skip
_COMMIT: Final[Step] = (37, _END | {"commitOrRollback": "8"}, b"")
_ROLL_BACK: Final[Step] = (37, _END | {"commitOrRollback": "12"}, b"")
_ASK_AGAIN: Final[Step] = (323, {"msgId": "{id}"}, b"")
_BACK: Final[Step] = (36, {"offset": "{offset}", "group": "readers", "delayLevel": "0"}, b"")
_BY_KEY: Final[Step] = (
    12,
    {"topic": "Orders", "key": "k", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": str(2 * START_MS)},
    b"",
)
_MEMBER: Final = {"consumerGroup": "readers", "clientId": "c"}
_REPLY: Final = {"REPLY_TO_CLIENT": "c"}
_PULL: Final = {
    "consumerGroup": "readers", "topic": "Orders", "queueId": "0", "queueOffset": "{number}", "maxMsgNums": "3",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "1",
    "expressionType": "TAG",
}  # fmt: skip
_RESET: Final[Step] = (222, {"topic": "Orders", "group": "readers", "timestamp": "-1", "isForce": "true"}, b"")
_ACCOUNT: Final[Step] = (50, {"accessKey": "new-account", "secretKey": "hostile-secret", "topicPerms": "New=SUB"}, b"")
_NO_ACCOUNT: Final[Step] = (51, {"accessKey": "new-account"}, b"")
_RULES: Final[Step] = (52, {}, b"")
_WHITE: Final[Step] = (53, {"globalWhiteAddrs": "10.7.7.*"}, b"")
_CHALLENGE: Final = {"namespace": "DELAYMQ", "key": "challenge", "nonce": "AAECAwQFBgcICQoLDA0ODw=="}

_TIMED: Final = _send(310, UNIQ_KEY="k", DELAY_KEY="k", TIMER_DELAY_MS="60000")
_RECALL: Final[Step] = (370, {"producerGroup": "readers", "topic": "Orders", "recallHandle": "{handle}"}, b"")

STORIES: Final[list[list[Step]]] = [
    [_ORDERS, _TIMED, _RECALL, _RECALL],
    [_ORDERS, _TIMED, _TIMED, *(_send(310, DELAY_KEY="k", DELAY_ACTION=each) for each in ("touch", "fire", "cancel"))],
    [_ORDERS, _send(310, UNIQ_KEY="k", DELAY="5"), _send(310, TIMER_DEL_UNIQKEY="Ordersk"), _send(310, DELAY="5")],
    [_ORDERS, _HALF, _COMMIT, _COMMIT, _ROLL_BACK],
    [_ORDERS, _HALF, _ROLL_BACK, _ROLL_BACK, _ASK_AGAIN],
    [_ORDERS, _HALF, _ASK_AGAIN, _ASK_AGAIN, _COMMIT],
    [_ORDERS, _send(310, KEYS="k"), _JOIN, _BACK, _BACK, _BY_KEY],
    [_ORDERS, _send(310), (11, _PULL, b""), (361, _PULL, b"")],
    [_ORDERS, _JOIN, *_COMMITS, (223, {"topic": "Orders", "group": "readers"}, b""), _RESET],
    [_ORDERS, _JOIN, (307, _MEMBER, b""), _send(10, KEYS="k"), (309, _MEMBER | {"msgId": "{id}"}, b"")],
    [_ORDERS, _JOIN, _send(324, **_REPLY), _send(325, **_REPLY)],
    [_ORDERS, *_COMMITS, (314, {"srcGroup": "readers", "destGroup": "others", "topic": "Orders"}, b"")],
    [_ORDERS, _send(310), (315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Orders"}, b""), _topic("New")],
    [_topic("New"), (202, {"topic": "New"}, b""), (215, {"topic": "New"}, b"")],
    [_ACCOUNT, _RULES, _ACCOUNT, _NO_ACCOUNT, _NO_ACCOUNT, _ACCOUNT, _NO_ACCOUNT],
    [_WHITE, (101, _CHALLENGE, b""), _RULES, _WHITE],
]
