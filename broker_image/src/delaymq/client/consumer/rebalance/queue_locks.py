"""Queue locks at brokers: only one member of an ordered group handles a queue, even while members change."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from delaymq.client.core.client import Client
from delaymq.client.errors import ClientError, reading_answer
from delaymq.protocol.bodies import LockRequest, LockResponse, MessageQueue
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command

LOCK_VALID_MS = 30_000
"""Time after which a lock that was not renewed is no longer trusted: half of the broker's expiry."""

_logger = logging.getLogger(__name__)


class QueueLocks:
    """Queue locks. They expire at the broker after 60 s, are renewed more often, and are trusted for a shorter time."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._told: set[str] = set()
        """Brokers that were unreachable the last time, so that a failure is logged once."""

    async def lock(self, queues: Iterable[MessageQueue]) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Lock `queues`; return those that this client has locked, and those that another one has."""
        ours: set[MessageQueue] = set()
        others: set[MessageQueue] = set()
        for wanted in _by_broker(queues):
            try:
                address = await self._client.address_of(wanted[0], to_write=True)
                body = self._request(wanted)
                answer = await self._client.request(address, request_command(RequestCode.LOCK_BATCH_MQ, body=body))
                with reading_answer(address):
                    locked = set(LockResponse.decode(answer.body).lock_ok_mq_set) & set(wanted)
            except ClientError as error:
                # Neither ours nor another's: until it expires a lock that was held is still held.
                level = logging.DEBUG if wanted[0].broker_name in self._told else logging.WARNING
                _logger.log(
                    level,
                    "the queues of %s at %s could not be locked, retrying: %s",
                    self._group,
                    wanted[0].broker_name,
                    error,
                )
                self._told.add(wanted[0].broker_name)
                continue
            self._told.discard(wanted[0].broker_name)
            ours |= locked
            others |= set(wanted) - locked
        return ours, others

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock `queues`; locks that cannot be released expire."""
        for held in _by_broker(queues):
            try:
                address = await self._client.address_of(held[0], to_write=True)
                body = self._request(held)
                await self._client.request(address, request_command(RequestCode.UNLOCK_BATCH_MQ, body=body))
            except ClientError as error:
                _logger.info(
                    "locks of %s at %s could not be released and will expire: %s",
                    self._group,
                    held[0].broker_name,
                    error,
                )

    def _request(self, queues: list[MessageQueue]) -> bytes:
        request = LockRequest(consumer_group=self._group, client_id=self._client.client_id, mq_set=queues)
        return request.encode()


def _by_broker(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    groups: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        groups.setdefault(queue.broker_name, []).append(queue)
    return list(groups.values())
