"""NameServer and broker in one process, for development, tests and single-node installations."""

import dataclasses

from delaymq.config import BrokerConfig, NamesrvConfig
from delaymq.config.running import RunningSettings
from delaymq.server.broker_server import BrokerServer
from delaymq.server.namesrv_server import NamesrvServer
from delaymq.transport.addresses import host_and_port

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Standalone:
    """Both servers; the broker registers with this NameServer and with others from its configuration."""

    def __init__(
        self,
        broker_config: BrokerConfig,
        namesrv_config: NamesrvConfig,
        settings: RunningSettings[BrokerConfig] | None = None,
        namesrv_settings: RunningSettings[NamesrvConfig] | None = None,
    ) -> None:
        self._broker_config = broker_config
        self._settings = settings
        self.namesrv = NamesrvServer(namesrv_config, namesrv_settings)
        self.broker: BrokerServer
        """Set by `start`."""

    async def start(self, *, http: bool = True) -> None:
        """Start both servers; on an error of either, close everything and raise it."""
        await self.namesrv.start(http=http)
        try:
            name_servers = with_own_name_server(self._broker_config.namesrv_addr, self.namesrv)
            config = dataclasses.replace(self._broker_config, namesrv_addr=name_servers)
            self.broker = BrokerServer.open(config, self._settings, http=http)
            await self.broker.start()
            # Both share the descriptors, and only now are the store's open.
            self.namesrv.sessions.descriptor_end = self.broker.sessions.descriptor_end
        except BaseException:
            await self.namesrv.stop()
            raise

    async def stop(self) -> None:
        """Stop the broker, then the NameServer."""
        await self.broker.stop()
        await self.namesrv.stop()


def with_own_name_server(addresses: str, namesrv: NamesrvServer) -> str:
    """Return the value of `namesrvAddr` for brokers that register with a started NameServer and with `addresses`."""
    host = namesrv.config.listen_host
    own = host_and_port(_ANY_ADDRESS.get(host, host), namesrv.port)
    return ";".join([own, *(word for word in addresses.split(";") if word.strip() not in ("", own))])
