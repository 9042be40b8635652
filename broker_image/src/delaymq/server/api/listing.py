"""Pages of pending messages over the remoting protocol, for clients that have an account and not the token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Response
from delaymq.server.api.messages.pending_list import ListQuery, pending_messages, without_own_properties
from delaymq.server.api.routing import Api, ApiError, parsed_query

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer

_UNAVAILABLE: Final = 503


class PendingPages:
    """Pages of one server, which are read in threads of their own."""

    def __init__(self, server: BrokerServer) -> None:
        self._api = Api(server)

    async def page(self, fields: dict[str, str]) -> Response:
        """Return the response to LIST_PENDING_MESSAGES, with the body of GET /api/v1/delay/pending/messages.

        Properties that only the broker uses are removed.
        """
        try:
            found = await pending_messages(self._api, parsed_query(fields, ListQuery))
        except ApiError as error:
            code = ResponseCode.SYSTEM_BUSY if error.status == _UNAVAILABLE else ResponseCode.SYSTEM_ERROR
            return Response(code, error.message)
        for row in found.messages:
            without_own_properties(row)
        return Response(ResponseCode.SUCCESS, None, {}, msgspec.json.encode(found))

    async def close(self) -> None:
        """Shut down the threads."""
        await self._api.close()
