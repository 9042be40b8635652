"""Redelivery of failed messages: they are sent back to the broker and delivered again later."""

from __future__ import annotations

import logging
from typing import Final

from delaymq.client.core.client import Client
from delaymq.client.errors import ClientError, RefusedError
from delaymq.client.messages import ReceivedMessage
from delaymq.client.options import ProducerOptions
from delaymq.client.sending.requests import send_command, send_result
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.names import retry_topic
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import ConsumerSendMsgBackRequestHeader

FIRST_RETRY_LEVEL = 3
DEFAULT_MAX_RECONSUME_TIMES = 16
# Properties that state the number of retries to a broker that receives the retry as a new message:
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"

_OF_SCHEDULES: Final = frozenset(
    {
        *names.TIMER_PROPERTIES, names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS,
        names.TIMER_ROLL_TIMES, names.TIMER_DELETE_UNIQUE_KEY,
    }
)  # fmt: skip
"""Properties of the schedule by which a message was delivered first."""

_logger = logging.getLogger(__name__)
_options = ProducerOptions()


class Retries:
    """Sends the messages of a group back to brokers."""

    def __init__(self, client: Client, group: str, delay_level: int, max_reconsume_times: int) -> None:
        self._client = client
        self._group = group
        self._delay_level = delay_level
        self._max_reconsume_times = DEFAULT_MAX_RECONSUME_TIMES if max_reconsume_times < 0 else max_reconsume_times

    async def send_back(self, message: ReceivedMessage, *, to_dead_letters: bool = False, delay_level: int = 0) -> bool:
        """Send a message back and return whether the broker accepted it; after the last retry, it goes to the
        dead-letter topic.

        `delay_level`: level of this retry, chosen by the handler; -1: the dead-letter topic, 0: the group's default.
        """
        max_times = 0 if to_dead_letters or delay_level < 0 else self._max_reconsume_times
        level = max(delay_level, 0) or self._delay_level
        try:
            await self._send_back(message, max_times, level)
        except ClientError as error:
            _logger.info("%s could not be sent back (%s), sending a copy instead", shown(message), error)
        else:
            return True
        try:
            await self._send_copy(message, max_times, level)
        except (ClientError, IllegalMessageError) as error:
            _logger.warning("%s could not be sent back: %s", shown(message), error)
            return False
        return True

    async def _send_back(self, message: ReceivedMessage, max_times: int, level: int) -> None:
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=max_times,
        )
        address = await self._client.address_of(message.queue, to_write=True)
        await self._client.request(address, request_command(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_fields()))

    async def _send_copy(self, message: ReceivedMessage, max_times: int, level: int) -> None:
        topic = retry_topic(self._group)
        times = message.reconsume_times + 1
        # RocketMQ's client keeps the properties of a schedule. Here they are dropped: a broker with timed messages may
        # reject them next to the level of the retry, or apply them again when the retry is delivered.
        properties = {
            name: value
            for name, value in message.properties.items()
            if not name.startswith(names.OWN_PREFIX) and name not in _OF_SCHEDULES
        }
        properties.setdefault(names.RETRY_TOPIC, message.topic)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
        for name in (names.TRANSACTION_PREPARED, names.REAL_TOPIC, names.REAL_QUEUE_ID):
            properties.pop(name, None)
        properties[RECONSUME_TIME] = str(times)
        properties[MAX_RECONSUME_TIMES] = str(max_times)
        properties[names.DELAY] = str(level or FIRST_RETRY_LEVEL + message.reconsume_times)
        route = await self._client.route(topic)
        if not route.writable:
            raise ClientError(f"no broker currently accepts messages to {topic}")
        queue = route.writable[message.queue_offset % len(route.writable)]
        address = await self._client.address_of(queue, to_write=True)
        command = send_command(
            self._group,
            queue,
            message.body,
            properties,
            options=_options,
            flag=message.flag,
            reconsume_times=times,
            max_reconsume_times=max_times,
        )
        answer = await self._client.network.invoke(address, command, _options.send_timeout_ms)
        try:
            send_result(address, answer, message.message_id, queue)
        except RefusedError as error:
            raise ClientError(str(error)) from error


def shown(message: ReceivedMessage) -> str:
    """Return the description of a message in logs: its topic and ID, never its body."""
    keys = f" keys {' '.join(message.keys)}" if message.keys else ""
    return f"message {message.message_id}{keys} of {message.topic}"
