"""Responses to plain sends, read by a compiled kernel (docs/kernels.md), all of a read with one call."""

from __future__ import annotations

from typing import Final, TypeAlias

from delaymq import kernels
from delaymq.client.messages import SendResult, SendStatus
from delaymq.protocol.bodies import MessageQueue
from delaymq.transport import RemotingConnection

SendAnswer: TypeAlias = tuple[int, int, int, int, str, str, bool]
"""Opaque, end of the frame among the received bytes, queue id, queue offset, offset message id, region, whether sends
are to be traced."""
_split_send_answers: Final = kernels.compiled("split_send_answers")


def take_answers(connection: RemotingConnection, data: bytes) -> int:
    """Pass the usual responses at the start of received bytes to the plain sends; return the size of these."""
    return connection.answer_in_parts(_split_send_answers(data))


on_answers: Final = None if _split_send_answers is None else take_answers
"""Function for received bytes; None without compiled kernels."""


def result_of(answer: SendAnswer, message_id: str, queue: MessageQueue) -> SendResult:
    """Return the result of a send to a queue, like `send_result` for the whole response."""
    _, _, queue_id, queue_offset, offset_message_id, region, trace_on = answer
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.broker_name, queue_id, queue.topic)
    return SendResult(SendStatus.OK, message_id, offset_message_id, queue, queue_offset, region, trace_on)
