"""State of a member for administrators, in the format of RocketMQ's Java client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from delaymq import __version__
from delaymq.client.messages import ReceivedMessage
from delaymq.client.subscriptions import Subscription
from delaymq.protocol.bodies import ConsumerRunningInfo, ConsumeStatus, MessageQueue, ProcessQueueInfo

if TYPE_CHECKING:
    from delaymq.client.consumer.queues.queue_reader import QueueReader

_MIB: Final = 1024 * 1024


def running_info(
    *,
    name_servers: Sequence[str],
    consume_type: str,
    started_ms: int,
    ordered: bool,
    concurrency: int,
    options: object,
    subscriptions: Iterable[Subscription],
    queues: dict[MessageQueue, ProcessQueueInfo],
    statuses: Mapping[str, ConsumeStatus],
) -> ConsumerRunningInfo:
    """Return the complete state; every subscribed topic has a status."""
    subscriptions = sorted(subscriptions, key=lambda each: each.topic)
    properties = {_camel(name): str(value) for name, value in vars(options).items()}
    properties |= {
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in name_servers),
        "PROP_CONSUME_TYPE": consume_type,
        "PROP_CLIENT_VERSION": f"delaymq {__version__}",
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "PROP_CONSUMEORDERLY": "true" if ordered else "false",
        "PROP_THREADPOOL_CORE_SIZE": str(concurrency),
    }
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=[each.data() for each in subscriptions],
        mq_table=queues,
        status_table={each.topic: statuses.get(each.topic) or ConsumeStatus() for each in subscriptions},
    )


def queue_info(reader: QueueReader, at_work: Sequence[ReceivedMessage], *, ordered: bool) -> ProcessQueueInfo:
    """Return the state of a queue; `at_work` are its messages being handled."""
    offsets = [message.queue_offset for message in at_work] if ordered else []
    first, last = reader.cached_offsets or (0, 0)
    return ProcessQueueInfo(
        commit_offset=-1 if reader.commit_offset is None else reader.commit_offset,
        cached_msg_min_offset=first,
        cached_msg_max_offset=last,
        cached_msg_count=reader.cached_messages,
        cached_msg_size_in_mi_b=reader.cached_bytes // _MIB,
        transaction_msg_min_offset=min(offsets, default=0),
        transaction_msg_max_offset=max(offsets, default=0),
        transaction_msg_count=len(offsets),
        locked=ordered and reader.may_handle,
        last_lock_timestamp=reader.locked_ms,
        droped=reader.dropped,
        last_pull_timestamp=reader.pulled_ms,
        last_consume_timestamp=reader.consumed_ms,
    )


def _camel(name: str) -> str:
    head, *others = name.split("_")
    return head + "".join(word.capitalize() for word in others)
