"""RocketMQ's reserved property names, system topics and groups, and the rules for names."""

from __future__ import annotations

import re
from typing import Final

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
UNIQUE_KEY: Final = "UNIQ_KEY"
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
# Properties of requests and their replies:
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
REPLY_ARRIVE_TIME: Final = "ARRIVE_TIME"
# Due times that clients request, with RocketMQ 5's names, and that of hosted RocketMQ:
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
TIMER_PROPERTIES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, START_DELIVER_TIME)
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""Due time of a timed message in ms. RocketMQ 5 rounds it down to a second; DelayMQ does not."""

# Further properties that brokers add to timed messages:
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_UNIQUE_KEY: Final = "TIMER_DEL_UNIQKEY"
DELAY_KEY: Final = "DELAY_KEY"
"""Name of a pending message, unique within its topic. It means something only next to a schedule or an action."""
DELAY_ON_SAME_KEY: Final = "DELAY_ON_SAME_KEY"
"""Treatment of a message whose key is that of a pending one."""
DELAY_EXPIRE_MS: Final = "DELAY_EXPIRE_MS"
"""Lateness in ms above which the message is dropped instead of delivered."""
DELAY_GROUP: Final = "DELAY_GROUP"
"""Name that messages of a topic share, by which all of them can be changed or paused. Like DELAY_KEY, it means
something only next to a schedule or an action."""
MANAGED_DELAY: Final = frozenset((DELAY_KEY, DELAY_GROUP, DELAY_EXPIRE_MS))
"""Properties that only timed messages can have: a message with one of them and a delay level is stored as such."""
DELAY_ACTION: Final = "DELAY_ACTION"
"""Makes a message a request that changes a pending one."""

# Schedules of repeating messages:
DELAY_CRON: Final = "DELAY_CRON"
DELAY_ZONE: Final = "DELAY_ZONE"
DELAY_EVERY_MS: Final = "DELAY_EVERY_MS"
DELAY_UNTIL_MS: Final = "DELAY_UNTIL_MS"
DELAY_RUNS: Final = "DELAY_RUNS"
DELAY_MISSED: Final = "DELAY_MISSED"
REPEATING: Final = frozenset((DELAY_CRON, DELAY_EVERY_MS))
"""Properties of which one makes a message repeat. The other properties of schedules mean nothing without it."""
SCHEDULE_PROPERTIES: Final = (DELAY_CRON, DELAY_ZONE, DELAY_EVERY_MS, DELAY_UNTIL_MS, DELAY_RUNS, DELAY_MISSED)
"""Properties of a repeating message that its copies do not have, so that a message sent again does not repeat."""
DELAY_SCHEDULE_ID: Final = "DELAY_SCHEDULE_ID"
"""On copies of a repeating message: its unique id. They are indexed by it."""
DELAY_RUN: Final = "DELAY_RUN"
"""On copies of a repeating message: number of the run, from 1."""

# Properties of DelayMQ; see marks.py:
OWN_PREFIX: Final = "__DMQ_"
DUE: Final = "__DMQ_DUE"
MARK: Final = "__DMQ_MARK"
ACCOUNT: Final = "__DMQ_ACCOUNT"
"""On records of TIMER_TOPIC: the account of the producer, if the broker has accounts. Copies do not have it."""
BY: Final = "__DMQ_BY"
"""On marks of changes: the account that requested the change, if the broker has accounts."""
RESENT: Final = "__DMQ_RESENT"
"""On the copy of a dead letter that was resent to its group: the offset message id of the dead letter."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Holds the messages with any due time, in queue 0, as in RocketMQ 5."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
AUTO_CREATE_TOPIC: Final = "TBW102"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
MARKS_TOPIC: Final = "rmq_sys_delaymq_marks"
"""Holds the marks of cancelled, dropped and rescheduled messages; it has no topic configuration."""
SCHEDULE_CONSUMER_GROUP: Final = "SCHEDULE_CONSUMER"
"""The scheduler is named like a consumer group, so that its dead letters are in a dead-letter topic."""
SCHEDULE_DLQ_TOPIC: Final = DLQ_PREFIX + SCHEDULE_CONSUMER_GROUP

CLOSED_TO_CLIENTS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""Topics that reject messages of producers."""
INTERNAL_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TOPIC, MARKS_TOPIC}
)
"""Topics that hold messages of all topics, so the permission to read one topic does not extend to them."""
SYSTEM_TOPICS: Final = (CLOSED_TO_CLIENTS - {TIMER_TOPIC}) | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
"""Topics that a broker always lists as system topics. RocketMQ 4.9 does not know the timer topic."""

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

MAX_TOPIC_LENGTH: Final = 127
"""A record stores the length of the topic in one signed byte."""
MAX_GROUP_LENGTH: Final = 255
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def topic_problem(topic: str) -> str | None:
    """Return a sentence that says why `topic` is an invalid topic name, or None if it is valid."""
    if not topic or topic.isspace():
        return "The specified topic is blank: specify a topic."
    if not _LEGAL.match(topic):
        shown = topic[:MAX_TOPIC_LENGTH]
        return f"The specified topic {shown!r} contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > MAX_TOPIC_LENGTH:
        return f"The specified topic is longer than topic max length {MAX_TOPIC_LENGTH}."
    return None


def group_problem(group: str) -> str | None:
    """Return a sentence that says why `group` is an invalid group name, or None if it is valid."""
    if not group or group.isspace():
        return "The specified group is blank: specify a group."
    if not _LEGAL.match(group):
        shown = group[:MAX_GROUP_LENGTH]
        return f"The specified group {shown!r} contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > MAX_GROUP_LENGTH:
        return f"The specified group is longer than group max length {MAX_GROUP_LENGTH}."
    return None


def is_system_topic(topic: str, *own: str) -> bool:
    """Return whether `topic` is a system topic; `own` are the cluster's and broker's names and the reply topic."""
    return topic in SYSTEM_TOPICS or topic in own or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether `group` is created or used by the broker itself."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """Return the retry topic of `group`."""
    return RETRY_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic that holds the replies of a cluster's brokers."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"


def dead_letter_topic(group: str) -> str:
    """Return the dead-letter topic of `group`."""
    return DLQ_PREFIX + group
