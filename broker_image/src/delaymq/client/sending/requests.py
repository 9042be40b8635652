"""Requests of sends, and the interpretation of their responses."""

from __future__ import annotations

import asyncio
import re
import zlib
from functools import lru_cache
from typing import Final

from delaymq.client.due_times import unique_id_of_handle
from delaymq.client.errors import BadAnswerError, refusal
from delaymq.client.messages import SendResult, SendStatus
from delaymq.client.options import ProducerOptions
from delaymq.clock import now_ms
from delaymq.message import flags, names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.properties import format_properties
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from delaymq.protocol.headers.messages import V2_NAMES

COMPRESSION_LEVEL = 5
COMPRESSED_IN_THREAD_BYTES = 64 * 1024
"""Size above which bodies are compressed in a thread, since they would block the event loop for more than a
millisecond.
"""

RECALL_HANDLE = "recallHandle"
"""Field of the response to a send that stored a timed message, as in RocketMQ 5."""
KEPT = "delayKept"
"""Field of the response to a send that stored nothing, because a message with the same key is pending."""
RETRIED = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID, ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)  # fmt: skip
"""Response codes after which another attempt may succeed, preferably on another broker."""


def send_command(
    group: str,
    queue: MessageQueue,
    body: bytes,
    properties: dict[str, str],
    *,
    options: ProducerOptions,
    flag: int = 0,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
) -> Command:
    """Return the request that sends a message to `queue`, compressed if necessary. IllegalMessageError if it is too
    large.
    """
    check_size(body, options)
    body, sys_flag = compressed(body, options)
    return request_of(
        group, queue, body, format_properties(properties), sys_flag=sys_flag, flag=flag,
        new_topic_queues=options.new_topic_queues,
        reconsume_times=reconsume_times, max_reconsume_times=max_reconsume_times,
    )  # fmt: skip


def check_size(body: bytes, options: ProducerOptions, *, is_batch: bool = False) -> None:
    """Raise IllegalMessageError for a body that no broker would accept."""
    if len(body) > options.max_message_bytes:
        hint = (
            "send smaller batches, such as those of split_batches"
            if is_batch
            else "send less, or raise maxMessageSize on the broker and max_message_bytes here"
        )
        raise IllegalMessageError(
            f"the body has {len(body)} bytes, and the maximum is {options.max_message_bytes}: {hint}"
        )


def compressed(body: bytes, options: ProducerOptions) -> tuple[bytes, int]:
    """Return the body to send, and its system flag. A body that does not become smaller is sent uncompressed."""
    if len(body) > options.compress_above_bytes:
        packed = zlib.compress(body, COMPRESSION_LEVEL)
        if len(packed) < len(body):
            return packed, flags.COMPRESSED
    return body, 0


async def compressed_in_thread(body: bytes, options: ProducerOptions) -> tuple[bytes, int]:
    """Return `compressed(...)` without blocking the event loop for long."""
    if len(body) > max(options.compress_above_bytes, COMPRESSED_IN_THREAD_BYTES):
        return await asyncio.to_thread(compressed, body, options)
    return compressed(body, options)


def request_of(
    group: str,
    queue: MessageQueue,
    body: bytes,
    properties: str,
    *,
    sys_flag: int,
    flag: int,
    new_topic_queues: int,
    is_batch: bool = False,
    is_reply: bool = False,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
) -> Command:
    """Return the request for encoded data; `properties` in wire format."""
    fields = _repeated_fields(group, queue, new_topic_queues, is_batch).copy()
    fields[BORN_TIMESTAMP] = str(now_ms())
    fields[_PROPERTIES] = properties
    if sys_flag:
        fields[_SYS_FLAG] = str(sys_flag)
    if flag:
        fields[_FLAG] = str(flag)
    if reconsume_times:
        fields[_RECONSUME_TIMES] = str(reconsume_times)
    if max_reconsume_times is not None:
        fields[_MAX_RECONSUME_TIMES] = str(max_reconsume_times)
    code = RequestCode.SEND_MESSAGE_V2
    if is_batch:
        code = RequestCode.SEND_BATCH_MESSAGE
    elif is_reply:
        code = RequestCode.SEND_REPLY_MESSAGE_V2
    return request_command(code, fields, body)


BORN_TIMESTAMP: Final = V2_NAMES["born_timestamp"]
"""Name of the field with the time of birth."""
_PROPERTIES: Final = V2_NAMES["properties"]
_SYS_FLAG: Final = V2_NAMES["sys_flag"]
_FLAG: Final = V2_NAMES["flag"]
_RECONSUME_TIMES: Final = V2_NAMES["reconsume_times"]
_MAX_RECONSUME_TIMES: Final = V2_NAMES["max_reconsume_times"]


@lru_cache(maxsize=4_096)
def _repeated_fields(group: str, queue: MessageQueue, new_topic_queues: int, is_batch: bool) -> dict[str, str]:
    """Return the fields of a send that are the same for all sends to a queue, and defaults of the others."""
    return SendMessageRequestHeaderV2(
        producer_group=group,
        topic=queue.topic,
        default_topic=names.AUTO_CREATE_TOPIC,
        default_topic_queue_nums=new_topic_queues,
        queue_id=queue.queue_id,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
        properties="",
        reconsume_times=0,
        unit_mode=False,
        batch=is_batch,
        max_reconsume_times=None,
        broker_name=queue.broker_name,
    ).to_fields()


_STATUSES = {status.value: status for status in SendStatus}


def send_result(address: str, answer: Command, unique_id: str, queue: MessageQueue) -> SendResult:
    """Return the result in the broker's response. RefusedError if the message is not in its log."""
    fields = answer.fields
    if answer.code == 0 and (result := _plain_result(fields, unique_id, queue)):
        return result
    status = _STATUSES.get(answer.code)
    if status is None:
        raise refusal(address, answer)
    try:
        header = SendMessageResponseHeader.from_fields(answer.fields)
    except RequestError as error:
        raise BadAnswerError(address, error.remark) from error
    if header.queue_id != queue.queue_id:
        queue = MessageQueue(queue.broker_name, header.queue_id, queue.topic)
    handle, is_kept = fields.get(RECALL_HANDLE) or None, fields.get(KEPT) == "true"
    if is_kept:
        unique_id = unique_id_of_handle(handle) or unique_id
    return SendResult(
        status, unique_id, header.msg_id, queue, header.queue_offset, fields.get(names.MSG_REGION, ""),
        fields.get(names.TRACE_ON) != "false", handle, is_kept,
    )  # fmt: skip


_PLAIN_FIELDS: Final = 5
"""Number of fields of the usual response."""
_is_usual_offset: Final = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII).fullmatch


def _plain_result(fields: dict[str, str], unique_id: str, queue: MessageQueue) -> SendResult | None:
    """Return the result in the usual response to a send to this queue, converted without a header; None otherwise."""
    if len(fields) != _PLAIN_FIELDS or fields.get("queueId") != str(queue.queue_id):
        return None
    try:
        offset, message_id = fields["queueOffset"], fields["msgId"]
        region, trace_on = fields[names.MSG_REGION], fields[names.TRACE_ON]
    except KeyError:
        return None
    if _is_usual_offset(offset) is None:
        return None
    return SendResult(SendStatus.OK, unique_id, message_id, queue, int(offset), region, trace_on != "false")
