"""The requests of sends and what their answers mean."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from delaymq.client.errors import RefusedError, reading_answer
from delaymq.client.messages import Message, SendResult, SendStatus, outgoing_properties
from delaymq.client.options import ProducerOptions
from delaymq.clock import now_ms
from delaymq.message import flags, names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.properties import encode_properties, format_properties
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader

COMPRESSION_LEVEL = 5

# What another attempt, best on another broker, may cure.
RETRIED = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID, ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)  # fmt: skip


def send_command(
    group: str,
    queue: MessageQueue,
    body: bytes,
    properties: dict[str, str],
    *,
    options: ProducerOptions,
    flag: int = 0,
    batch: bool = False,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
) -> Command:
    """The request that sends one message or one batch to `queue`. IllegalMessageError when it is too large."""
    if len(body) > options.max_message_bytes:
        hint = "send smaller batches" if batch else "send less, or raise maxMessageSize here and on the broker"
        raise IllegalMessageError(f"a body of {len(body)} bytes, at most {options.max_message_bytes} are sent: {hint}")
    sys_flag = 0
    if not batch and len(body) > options.compress_above_bytes:
        body = zlib.compress(body, COMPRESSION_LEVEL)
        sys_flag = flags.COMPRESSED
    header = SendMessageRequestHeaderV2(
        producer_group=group,
        topic=queue.topic,
        default_topic=names.AUTO_CREATE_TOPIC,
        default_topic_queue_nums=options.new_topic_queues,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_timestamp=now_ms(),
        flag=flag,
        properties=format_properties(properties),
        reconsume_times=reconsume_times,
        unit_mode=False,
        batch=batch,
        max_reconsume_times=max_reconsume_times,
        broker_name=queue.broker_name,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return request_command(code, header.to_fields(), body)


def batch_body(messages: Sequence[Message], unique_ids: Sequence[str]) -> bytes:
    """The body of a batch send. IllegalMessageError for what cannot be in one batch."""
    if not messages:
        raise IllegalMessageError("a batch has at least one message")
    topic, wait = messages[0].topic, messages[0].wait_stored
    if topic.startswith(names.RETRY_PREFIX):
        raise IllegalMessageError("messages to a retry topic cannot be in a batch: send them one by one")
    entries = []
    for message, unique_id in zip(messages, unique_ids, strict=True):
        if message.topic != topic or message.wait_stored != wait:
            raise IllegalMessageError("messages of one batch have one topic and one wait_stored")
        if message.delay_level or names.DELAY in message.properties:
            raise IllegalMessageError("delayed messages cannot be in a batch: send them one by one")
        properties = encode_properties(outgoing_properties(message, unique_id))
        entries.append(BatchMessage(message.flag, message.body, properties))
    return encode_batch(entries)


def send_result(address: str, answer: Command, unique_id: str, queue: MessageQueue) -> SendResult:
    """What the broker's answer says. RefusedError when the message is not in its log."""
    try:
        status = SendStatus(answer.code)
    except ValueError:
        raise RefusedError(address, answer.code, answer.remark or "") from None
    with reading_answer(address):
        header = SendMessageResponseHeader.from_fields(answer.fields)
    return SendResult(
        status=status,
        message_id=unique_id,
        offset_message_id=header.msg_id,
        queue=MessageQueue(queue.broker_name, header.queue_id, queue.topic),
        queue_offset=header.queue_offset,
    )
