"""The real BrokerAdmin adapter for brokers in the test process, each with its own port on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from delaymq_operator.adapters.broker_admin import HttpBrokerAdmin
from delaymq_operator.reconcile.ports import Endpoint, TopicConfig

HOST = "127.0.0.1"


class LoopbackAdmin(HttpBrokerAdmin):
    """Adapter with `ports`: pod address (all of 127.0.0.0/8 is this machine) → port of its broker."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        super().__init__()
        self._ports = ports

    async def topics(self, endpoint: Endpoint) -> dict[str, TopicConfig]:
        return await super().topics(self._real(endpoint))

    async def put_topic(self, endpoint: Endpoint, config: TopicConfig) -> None:
        await super().put_topic(self._real(endpoint), config)

    async def delete_topic(self, endpoint: Endpoint, topic: str) -> None:
        await super().delete_topic(self._real(endpoint), topic)

    def _real(self, endpoint: Endpoint) -> Endpoint:
        return replace(endpoint, host=HOST, broker_port=self._ports[endpoint.host])
