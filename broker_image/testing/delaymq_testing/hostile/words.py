"""What hostile requests are made of: the header of each request code, texts and numbers near the limits, bodies."""

from __future__ import annotations

import zlib
from typing import Any, Final

from delaymq.message.record import encode_record
from delaymq.protocol import headers

from delaymq_testing.broker.harness import START_MS
from delaymq_testing.hostile.frames import batch_entry

HEADERS: Final[dict[int, type[headers.Header]]] = {
    10: headers.SendMessageRequestHeader,
    11: headers.PullMessageRequestHeader,
    12: headers.QueryMessageRequestHeader,
    14: headers.QueryConsumerOffsetRequestHeader,
    370: headers.RecallMessageRequestHeader,
    30_001: headers.ListPendingMessagesRequestHeader,
    30_002: headers.LinkReplicaRequestHeader,
    30_003: headers.ProveReplicaRequestHeader,
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
    50: headers.CreateAccessConfigRequestHeader,
    51: headers.DeleteAccessConfigRequestHeader,
    53: headers.UpdateGlobalWhiteAddrsConfigRequestHeader,
    100: headers.PutKVConfigRequestHeader,
    101: headers.GetKVConfigRequestHeader,
    102: headers.DeleteKVConfigRequestHeader,
    103: headers.RegisterBrokerRequestHeader,
    104: headers.UnRegisterBrokerRequestHeader,
    105: headers.GetRouteInfoRequestHeader,
    202: headers.GetTopicStatsInfoRequestHeader,
    203: headers.GetConsumerConnectionListRequestHeader,
    204: headers.GetProducerConnectionListRequestHeader,
    205: headers.WipeWritePermOfBrokerRequestHeader,
    207: headers.DeleteSubscriptionGroupRequestHeader,
    208: headers.GetConsumeStatsRequestHeader,
    215: headers.DeleteTopicRequestHeader,
    216: headers.DeleteTopicFromNamesrvRequestHeader,
    219: headers.GetKVListByNamespaceRequestHeader,
    222: headers.ResetOffsetRequestHeader,
    223: headers.GetConsumerStatusRequestHeader,
    224: headers.GetTopicsByClusterRequestHeader,
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
    322: headers.QueryDataVersionRequestHeader,
    323: headers.ResumeCheckHalfMessageRequestHeader,
    324: headers.SendMessageRequestHeader,
    325: headers.SendMessageRequestHeaderV2,
    327: headers.AddWritePermOfBrokerRequestHeader,
    351: headers.GetTopicConfigRequestHeader,
    361: headers.PullMessageRequestHeader,
}
TOPICS: Final = ["Orders"] * 6 + [
    *("BenchmarkTest", "TBW102", "%RETRY%readers", "%DLQ%readers", "SCHEDULE_TOPIC_XXXX", "OFFSET_MOVED_EVENT"),
    *("RMQ_SYS_TRANS_HALF_TOPIC", "DefaultCluster_REPLY_TOPIC", "%RETRY%", "%RETRY%%RETRY%readers", "../../etc"),
    *("", "é", "a b", "x" * 127, "x" * 300, "New"),
]
GROUPS: Final = ["readers"] * 4 + ["", "a b", "g" * 125, "x" * 300, "DEFAULT_PRODUCER", "a@b", "%RETRY%readers"]
PROPERTIES: Final = [
    *("", "DELAY\x013", "DELAY\x0199", "DELAY\x01x", "TAGS\x01A\x02KEYS\x01k", "KEYS\x01a a  b"),
    *("TRAN_MSG\x01true\x02PGROUP\x01readers", "TRAN_MSG\x01true\x02DELAY\x011", "TRAN_MSG\x01true\x02WAIT\x01false"),
    *("__DMQ_MARK\x01delivered:0:0:0:0", "UNIQ_KEY\x01U\x02WAIT\x01false", "\x02\x01\x02", "P\x01" + "x" * 32_700),
    *["REPLY_TO_CLIENT\x01c"] * 4,
    *("REPLY_TO_CLIENT\x01nobody\x02TTL\x013000", "RETRY_TOPIC\x01Other", "TAGS\x01\ud800"),
    *("REAL_TOPIC\x01Other\x02REAL_QID\x010", "__DMQ_DUE\x011", "KEYS\x01" + "k " * 300, "TIMER_DELAY_MS\x015"),
]
PROPERTY_NAMES: Final = [
    *("KEYS", "TAGS", "DELAY", "WAIT", "TRAN_MSG", "PGROUP", "UNIQ_KEY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID"),
    *("ORIGIN_MESSAGE_ID", "REPLY_TO_CLIENT", "CORRELATION_ID", "TTL", "INNER_NUM", "MSG_TYPE", "CLUSTER", "BUYER_ID"),
    *("__DMQ_DUE", "__DMQ_MARK", "__DMQ_COPIED", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"),
    *("MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "RECONSUME_TIME", "TIMER_DELIVER_MS", "", "own"),
    *("TIMER_DELAY_MS", "TIMER_DEL_UNIQKEY", "DELAY_KEY", "DELAY_ACTION", "DELAY_ON_SAME_KEY", "DELAY_EXPIRE_MS"),
]
NUMBERS: Final = [4, 5, -1, 1_999, 2**31 - 1, -(2**31), START_MS, 2**63 - 1, -(2**63), 2**63]
OTHERS: Final = ["", "*", "A || B", "||", "TAG", "SQL92", "SINGLE_TAG", "k", "c", "a > 5 AND b IS NOT NULL", "((a"]
TEXTS: Final[dict[str, list[str]]] = {
    **dict.fromkeys(("topic", "b", "originTopic"), TOPICS),
    **dict.fromkeys(("consumerGroup", "producerGroup", "group", "groupName", "a", "srcGroup", "destGroup"), GROUPS),
    **{name: ["c", "c", "", "nobody"] for name in ("clientId", "clientAddr")},
    "statsName": ["TOPIC_PUT_NUMS", "GROUP_GET_SIZE", "QUEUE_PUT_NUMS", "GROUP_GET_LATENCY", "GROUP_GET_FALL_SIZE"],
    "statsKey": ["Orders"] * 3 + ["Orders@readers", "SCHEDULE_TOPIC_XXXX@2", "1@Orders@readers", "@", "x@@"],
    "msgId": ["0" * 32] * 3 + ["", "0" * 56, "f" * 32, "x" * 32],
    **dict.fromkeys(("properties", "i"), PROPERTIES),
    **{name: ["TBW102"] * 5 + ["BenchmarkTest", "Nothing"] for name in ("defaultTopic", "c")},
    "topicFilterType": [*["SINGLE_TAG"] * 5, "MULTI_TAG", "x"],
    "subscription": [*["*"] * 8, "A || B", "", "a > 5 AND b IS NOT NULL", "((a", "a IN ('x','y')", "||"],
    "expressionType": [*["TAG"] * 8, "SQL92", "sql92", "", "OTHER"],
    "brokerName": ["b", "broker-a", "", "x" * 300],
    "brokerAddr": ["10.0.0.1:10911", "10.0.0.2:10911", "", "nonsense"],
    "clusterName": ["C", "DefaultCluster", ""],
    "cluster": ["C", "DefaultCluster"],
    "haServerAddr": ["10.0.0.1:10912", ""],
    "groupTokens": ["", "0123456789abcdef" * 2, "f" * 32 + "," + "0" * 32],
    "namespace": ["N", "ORDER_TOPIC_CONFIG", "", "x" * 300],
    "key": ["k", "Orders", "", "x" * 300],
    "value": ["v", "b:4", "", "x" * 5_000],
    "accessKey": ["hostile-key", "x", "", "a=b", "new-account"],
    "secretKey": ["hostile-secret", "x", ""],
    "topicPerms": ["Orders=PUB", "a=b", "=", ",,", "Orders=PUB|SUB,New=SUB"],
    "globalWhiteAddrs": ["*", "10.0.0.*", "x", ""],
    "sysFlag": ["4", "4", "6", "0", "1", "2", "8", "12", "255"],
    "perm": ["6", "4", "2", "0", "7", "99"],
}
_SUBSCRIPTION: Final[dict[str, Any]] = {
    "topic": "Orders", "subString": "A || B", "tagsSet": ["A"], "codeSet": [65], "subVersion": 1,
    "expressionType": "TAG", "classFilterMode": False,
}  # fmt: skip
_QUEUE: Final[dict[str, Any]] = {"brokerName": "b", "queueId": 0, "topic": "Orders"}
_LOCK: Final[dict[str, Any]] = {"clientId": "c", "consumerGroup": "readers", "mqSet": [_QUEUE, _QUEUE]}
TREES: Final[dict[int, list[Any]]] = {
    34: [
        {
            "clientID": "c",
            "producerDataSet": [{"groupName": "readers"}],
            "consumerDataSet": [
                {
                    "groupName": "readers", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [_SUBSCRIPTION],
                    "unitMode": False,
                }
            ],
        }
    ],
    41: [_LOCK],
    42: [_LOCK],
    46: [{"clientId": "c", "group": "g", "subscriptionData": _SUBSCRIPTION}],
    103: [
        {
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": 1, "timestamp": START_MS},
                "topicConfigTable": {
                    "Orders": {"topicName": "Orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
                },
            },
            "filterServerList": [],
        }
    ],
    200: [{"groupName": "readers", "retryQueueNums": 2, "retryMaxTimes": 3, "consumeEnable": True}],
    322: [{"counter": 1, "timestamp": START_MS}],
}  # fmt: skip
"""Bodies in JSON, by request code, as trees that are changed before they are written."""


def forged_record(topic: str) -> bytes:
    """A message that looks like a record of the log, to be stored as the body of another one."""
    host = bytes((10, 0, 0, 1)) + (10911).to_bytes(4, "big")
    return encode_record(
        topic=topic.encode(), queue_id=0, queue_offset=0, physical_offset=0, flag=0, sys_flag=0,
        born_timestamp_ms=START_MS, born_host=host, store_timestamp_ms=START_MS, store_host=host, reconsume_times=0,
        prepared_transaction_offset=0, body=b"forged", properties=b"TAGS\x01A",
    )  # fmt: skip


def _compressed_registration() -> bytes:
    version = b'{"counter":1,"timestamp":5}'
    topic = b"Orders 4 4 6 SINGLE_TAG"
    one = (1).to_bytes(4, "big")
    parts = [len(part).to_bytes(4, "big") + part for part in (version, topic, b"[]")]
    return zlib.compress(parts[0] + one + parts[1] + parts[2])


_MESSAGES: Final = [b"x", b"", b"m" * 2_000, forged_record("Orders"), forged_record("%RETRY%readers") * 5]
BODIES: Final[dict[int, list[bytes]]] = {
    **dict.fromkeys((10, 310, 324, 325), _MESSAGES),
    25: [b"maxMessageSize=65536\n", b"defaultTopicQueueNums=4\n", b"brokerName=other\n", b"flushInterval=\n=\n"],
    103: [_compressed_registration()],
    318: [b"orderMessageEnable=true\n", b"listenPort=1\n", b"x\n"],
    320: [
        batch_entry(b"x"),
        batch_entry(b"x", b"TAGS\x01A") + batch_entry(b"", b"KEYS\x01k"),
        batch_entry(b"") * 40,
        batch_entry(forged_record("Orders"), b"DELAY\x011"),
    ],
}
"""Bodies that are no JSON."""
