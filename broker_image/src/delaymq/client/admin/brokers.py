"""Settings and statistics of brokers."""

from __future__ import annotations

from delaymq.client.admin.base import AdminCalls
from delaymq.client.errors import reading_answer
from delaymq.protocol.bodies import KVTable, decode_settings, encode_settings
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command


class BrokerCalls(AdminCalls):
    """Requests to the broker at an address."""

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return a broker's settings by RocketMQ's keys."""
        answer = await self._client.request(address, request_command(RequestCode.GET_BROKER_CONFIG))
        with reading_answer(address):
            return decode_settings(answer.body)

    async def update_broker_config(self, address: str, settings: dict[str, str]) -> None:
        """Change settings of a running broker."""
        await self._client.request(
            address, request_command(RequestCode.UPDATE_BROKER_CONFIG, body=encode_settings(settings))
        )

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return a broker's statistics by RocketMQ's names."""
        answer = await self._client.request(address, request_command(RequestCode.GET_BROKER_RUNTIME_INFO))
        with reading_answer(address):
            return KVTable.decode(answer.body).table
