"""Requests of a plain slave to its master: settings, ends of its log, tables, and the first record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from delaymq.message.errors import LevelTableError
from delaymq.message.levels import DelayLevels
from delaymq.protocol.bodies import KVTable, decode_settings
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import ViewMessageRequestHeader
from delaymq.server.ha.errors import FollowError
from delaymq.server.tls.outgoing import outgoing_tls
from delaymq.transport import RemotingConnection, connect
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.config import BrokerConfig
    from delaymq.store.message_store import MessageStore

TIMEOUT_MS: Final = 5_000
"""Timeout of a request. RocketMQ's slave waits for 3 s."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Begin and end of the master's log, as of one moment."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class MasterTables:
    """Tables of the master, as in its responses 21, 201, 43 and 45. `end`: a later end of its log."""

    topics: bytes
    groups: bytes
    consumer_offsets: bytes
    delay_offsets: bytes
    end: int


class MasterRequests:
    """Connection to the broker port of the master."""

    def __init__(self, connection: RemotingConnection, address: str) -> None:
        self._connection = connection
        self.address = address

    @classmethod
    async def connect(cls, config: BrokerConfig) -> Self:
        """Connect. TransportError."""
        host, port = config.master_broker_address
        address = host_and_port(host, port)
        connection = await connect(host, port, timeout_ms=TIMEOUT_MS, tls=await outgoing_tls(config, address))
        return cls(connection, address)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _body(self, code: RequestCode, fields: dict[str, str] | None = None) -> bytes:
        """Return the body of a successful response. FollowError, TransportError."""
        answer = await self._connection.request(request_command(code, fields or {}), TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise FollowError(
                f"the master {self.address} responded to request {code.value} with {answer.code}:"
                f" {(answer.remark or '')[:200]}"
            )
        return answer.body

    async def check_settings(self, store: MessageStore) -> None:
        """Raise FollowError if a log of the master would have another meaning here."""
        settings = decode_settings(await self._body(RequestCode.GET_BROKER_CONFIG))
        own_bytes = str(store.options.commit_log_file_bytes)
        segment_bytes = settings.get("mappedFileSizeCommitLog", own_bytes)
        if segment_bytes != own_bytes:
            raise FollowError(
                f"the master has mappedFileSizeCommitLog={segment_bytes[:30]}, and this broker {own_bytes}: set it to"
                " the master's value, with an empty store"
            )
        levels = settings.get("messageDelayLevel")
        try:
            is_same = levels is None or DelayLevels.parse(levels).delays_ms == store.levels.delays_ms
        except LevelTableError:
            is_same = False
        if not is_same:
            raise FollowError(
                f"the master has messageDelayLevel={(levels or '')[:200]}: set it to the same delays here, because"
                " messages are due after the delay of their level"
            )

    async def bounds(self) -> LogBounds:
        """Return where the master's log begins and ends. FollowError, TransportError, RequestError."""
        table = KVTable.decode(await self._body(RequestCode.GET_BROKER_RUNTIME_INFO)).table
        try:
            begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        except (KeyError, ValueError):
            raise FollowError(f"the master {self.address} does not state where its log begins and ends") from None
        return LogBounds(max(begin, 0), end)

    async def first_record(self) -> bytes:
        """Return the bytes of the record at offset 0."""
        fields = ViewMessageRequestHeader(0).to_fields()
        return await self._body(RequestCode.VIEW_MESSAGE_BY_ID, fields)

    async def tables(self) -> MasterTables:
        """Return all tables. Errors as in `bounds`."""
        topics = await self._body(RequestCode.GET_ALL_TOPIC_CONFIG)
        groups = await self._body(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        consumer_offsets = await self._body(RequestCode.GET_ALL_CONSUMER_OFFSET)
        delay_offsets = await self._body(RequestCode.GET_ALL_DELAY_OFFSET)
        return MasterTables(topics, groups, consumer_offsets, delay_offsets, (await self.bounds()).end)
