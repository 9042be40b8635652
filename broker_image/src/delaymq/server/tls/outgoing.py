"""TLS of a broker's connections to NameServers and to other members of its group."""

import asyncio
import ssl

from delaymq.config import BrokerConfig
from delaymq.server.errors import ServerError
from delaymq.transport import ConnectError


async def outgoing_tls(config: BrokerConfig, address: str) -> ssl.SSLContext | None:
    """Return the context for a connection to `address`, from the current files; None for one without TLS.

    ConnectError if the files are unusable.
    """
    if not config.dials_tls:
        return None
    from delaymq.server.tls.contexts import client_context

    try:
        # Created for each connection, from the current files; loading all CAs of a system takes a while.
        return await asyncio.get_running_loop().run_in_executor(None, client_context, config)
    except ServerError as error:
        raise ConnectError(address, str(error)) from error
