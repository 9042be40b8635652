"""Delay support of brokers: their delay level table, timed messages, and delayed transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

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
TIMER_SETTING: Final = "timerMaxDelaySec"
"""A setting of brokers with timed messages.

RocketMQ 5 has it too, but its first versions ignore TIMER_DELAY_MS, and all of them ignore the times of messages in
batches: such a message would be delivered immediately. The client therefore uses timed messages only with DelayMQ.
"""


CHANGE_SETTING: Final = "recallMessageEnable"
"""A setting of brokers on which pending messages can be changed. Others would store and deliver the request."""


class _Support(NamedTuple):
    levels: DelayLevels
    has_timers: bool
    has_changes: bool


class BrokerDelays:
    """Requested from a broker on demand and cached. `request` takes an address and raises ClientError."""

    def __init__(self, request: Callable[[str, Command], Awaitable[Command]], table_ms: int) -> None:
        self._ask = request
        self._table_ms = table_ms
        self._known: dict[str, tuple[int, _Support]] = {}
        self._delays_commits: set[str] = set()
        self._calls: SharedCalls[str, _Support] = SharedCalls()

    async def levels(self, address: str, *, fresh: bool = False) -> DelayLevels:
        """Return the delay levels of the broker at `address`, at most `table_ms` old."""
        return (await self._support(address, fresh=fresh)).levels

    async def has_timers(self, address: str, *, fresh: bool = False) -> bool:
        """Return whether the broker at `address` supports timed messages, also in batches and transactions.

        The result is at most `table_ms` old.
        """
        return (await self._support(address, fresh=fresh)).has_timers

    async def require_timers(self, address: str) -> None:
        """Raise NoSuchDelayError unless the broker at `address` supports timed messages."""
        # It may just have been upgraded.
        if not (await self.has_timers(address) or await self.has_timers(address, fresh=True)):
            raise NoSuchDelayError(
                f"the broker at {address} does not support timed messages, which due times and delays in batches "
                f"require: use a delay level, or upgrade it to a version of DelayMQ with the setting {TIMER_SETTING}"
            )

    async def require_changes(self, address: str) -> None:
        """Raise NoSuchDelayError unless the broker at `address` can change pending messages."""
        # It may just have been upgraded.
        if not ((await self._support(address)).has_changes or (await self._support(address, fresh=True)).has_changes):
            raise NoSuchDelayError(
                f"the broker at {address} does not know keys and changes of pending messages: upgrade it to a version"
                f" of DelayMQ with the setting {CHANGE_SETTING}"
            )

    async def _support(self, address: str, *, fresh: bool = False) -> _Support:
        now = now_ms()
        known = self._known.get(address)
        if known is not None and not fresh and now - known[0] < self._table_ms:
            return known[1]
        support = await self._calls.call(address, lambda: self._request_support(address))
        self._known[address] = (now, support)
        return support

    async def _request_support(self, address: str) -> _Support:
        settings = await self._settings(address)
        has_timers, has_changes = (
            SETTING_OF_OURS in settings and name in settings for name in (TIMER_SETTING, CHANGE_SETTING)
        )
        return _Support(table_of(settings), has_timers, has_changes)

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
