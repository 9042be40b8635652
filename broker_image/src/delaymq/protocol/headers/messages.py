"""Headers of sends, pulls, queries by id and key, send-backs, transactions and replies."""

from typing import Any, Final

import msgspec

from delaymq.protocol.codes import RequestCode
from delaymq.protocol.headers.base import Header
from delaymq.protocol.integers import Int32, Int64


class SendMessageRequestHeader(Header):
    """Request 10, 324; its subclass with one-letter names is for 310, 320, 325."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = None


V2_NAMES: Final[dict[str, str]] = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
}
"""Each send repeats these names, so version 2 of the header shortens them."""


def _with_names(header: type[Header], names: dict[str, str]) -> Any:
    fields = [
        (each.name, each.type) if each.required else (each.name, each.type, each.default)
        for each in msgspec.structs.fields(header)
    ]
    return msgspec.defstruct(header.__name__ + "V2", fields, bases=(header,), module=__name__, rename=names, gc=False)


# A subclass with other names on the wire: code that accepts one accepts the other.
SendMessageRequestHeaderV2: Final[type[SendMessageRequestHeader]] = _with_names(SendMessageRequestHeader, V2_NAMES)

_SEND_V2_CODES: Final = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)


def send_request_header(code: int, fields: dict[str, str]) -> SendMessageRequestHeader:
    """Return the header of a send in the version of `code`. RequestError as in `from_fields`."""
    header = SendMessageRequestHeaderV2 if code in _SEND_V2_CODES else SendMessageRequestHeader
    return header.from_fields(fields)


class SendMessageResponseHeader(Header):
    """Response to 10, 310, 320, 324, 325. For a batch, `msg_id` contains all ids, separated by commas."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None

    def to_fields(self) -> dict[str, str]:
        # Handwritten, since each send uses it.
        fields = {"msgId": self.msg_id, "queueId": str(self.queue_id), "queueOffset": str(self.queue_offset)}
        if self.transaction_id is not None:
            fields["transactionId"] = self.transaction_id
        return fields


class PullMessageRequestHeader(Header):
    """Request 11."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None


class PullMessageResponseHeader(Header):
    """Response to 11."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64

    def to_fields(self) -> dict[str, str]:
        # Handwritten, since each pull uses it.
        return {
            "suggestWhichBrokerId": str(self.suggest_which_broker_id),
            "nextBeginOffset": str(self.next_begin_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset),
        }


class QueryMessageRequestHeader(Header):
    """Request 12."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class RecallMessageRequestHeader(Header):
    """Request 370."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class ListPendingMessagesRequestHeader(Header):
    """Request 30001."""

    topic: str
    key: str | None = None
    tag: str | None = None
    group: str | None = None
    kind: str | None = None
    level: Int32 | None = None
    held: bool | None = None
    from_ms: Int64 | None = None
    until_ms: Int64 | None = None
    after: str | None = None
    limit: Int32 | None = None


class QueryMessageResponseHeader(Header):
    """Response to 12."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequestHeader(Header):
    """Request 33."""

    offset: Int64


class ConsumerSendMsgBackRequestHeader(Header):
    """Request 36."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None


class EndTransactionRequestHeader(Header):
    """Request 37."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    """8 commit, 12 roll back, 0 unknown."""
    msg_id: str
    from_transaction_check: bool | None = None
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(Header):
    """Request 39."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header):
    """Request 323."""

    msg_id: str | None = None


class ReplyMessageRequestHeader(Header):
    """Request 326."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None


class ConsumeMessageDirectlyResultRequestHeader(Header):
    """Request 309."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
