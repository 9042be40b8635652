"""Delay support of brokers: their delay level table, and whether a commit delays a transaction's message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from delaymq.client.core.delays import table_of
from delaymq.client.core.shared_calls import SharedCalls
from delaymq.client.errors import NoSuchDelayError, reading_answer
from delaymq.clock import now_ms
from delaymq.message.levels import DelayLevels
from delaymq.protocol.bodies import decode_settings
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command

SETTING_OF_OURS: Final = "httpPort"
"""A setting that identifies DelayMQ; RocketMQ's brokers do not have it."""


class BrokerDelays:
    """Requested from a broker on demand and cached. `request` takes an address and raises ClientError."""

    def __init__(self, request: Callable[[str, Command], Awaitable[Command]], table_ms: int) -> None:
        self._ask = request
        self._table_ms = table_ms
        self._levels: dict[str, tuple[int, DelayLevels]] = {}
        self._delays_commits: set[str] = set()
        self._calls: SharedCalls[str, DelayLevels] = SharedCalls()

    async def levels(self, address: str, *, fresh: bool = False) -> DelayLevels:
        """Return the delay levels of the broker at `address`, at most `table_ms` old."""
        now = now_ms()
        known = self._levels.get(address)
        if known is not None and not fresh and now - known[0] < self._table_ms:
            return known[1]
        levels = await self._calls.call(address, lambda: self._request_levels(address))
        self._levels[address] = (now, levels)
        return levels

    async def _request_levels(self, address: str) -> DelayLevels:
        return table_of(await self._settings(address))

    async def require_delayed_commits(self, address: str) -> None:
        """Raise NoSuchDelayError unless the broker at `address` delays a transaction's message at its commit."""
        if address in self._delays_commits:
            return
        if SETTING_OF_OURS not in await self._settings(address):
            raise NoSuchDelayError(
                f"the broker at {address} is not DelayMQ and would lose the message of a delayed transaction: send "
                "it without a delay or without a transaction"
            )
        self._delays_commits.add(address)

    async def _settings(self, address: str) -> dict[str, str]:
        answer = await self._ask(address, request_command(RequestCode.GET_BROKER_CONFIG))
        with reading_answer(address):
            return decode_settings(answer.body)

    async def close(self) -> None:
        """Cancel current requests."""
        await self._calls.close()
