"""Requests of brokers: registration (103), unregistration (104), and query of the data version (322)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from delaymq.message.ids import address_of, network_of
from delaymq.message.names import topic_problem
from delaymq.namesrv.brokers import Registration
from delaymq.namesrv.kv import ORDER_TOPIC_CONFIG
from delaymq.namesrv.ownership import Claim, OwnedError
from delaymq.namesrv.shares import SIGNED
from delaymq.protocol.bodies import DataVersion, KVTable, RegisterBody, TopicConfig, TopicTable
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)

if TYPE_CHECKING:
    from delaymq.namesrv.nameserver import NameServer
    from delaymq.namesrv.session import NamesrvSession

MAX_TOKENS: Final = 4
"""Maximum number of secrets of a group."""
_TOKEN: Final = re.compile(r"[0-9a-f]{32}")
MAX_NAME_CHARACTERS: Final = 255
"""Limit of a broker's name, cluster and address: the maximum length of a host name."""


def register_broker(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """103: register or renew a broker, with all or some of its topics."""
    header = RegisterBrokerRequestHeader.from_fields(command.fields)
    registration = _registration(header, command.body)
    vouched, tokens = server.is_vouched(command), _tokens(header)
    claim = Claim(
        place=(registration.name, registration.broker_id),
        address=registration.address,
        session_id=session.id,
        host=address_of(session.remote_host),
        signed=vouched,
        epoch=(header.epoch or 0) if vouched or tokens else 0,
        tokens=tokens,
        seen_ms=server.steady_ms(),
        payer=SIGNED if vouched else network_of(session.remote_host),
    )
    try:
        server.ownership.check(claim)
    except OwnedError as error:
        return server.refuse(session, command, "owner", error)
    problem = _room_problem(server, registration, claim)
    if problem is not None:
        # A registered broker is renewed in any case.
        known = server.routes.without_new_topics(registration)
        if known is not None:
            _take(server, known, claim)
        return server.refuse(session, command, "room", RequestError(ResponseCode.SYSTEM_ERROR, problem))
    ha_address, master_address = _take(server, registration, claim)
    order_settings = server.kv.table(ORDER_TOPIC_CONFIG)
    answer = RegisterBrokerResponseHeader(ha_address, master_address)
    return Response(
        fields=answer.to_fields(),
        body=KVTable(order_settings).encode() if order_settings is not None else b"",
    )


def _tokens(header: RegisterBrokerRequestHeader) -> frozenset[str]:
    """Return the tokens of a group; raise RequestError if they are invalid."""
    tokens = frozenset((header.group_tokens or "").split(",")) - {""}
    if len(tokens) > MAX_TOKENS or any(not _TOKEN.fullmatch(token) for token in tokens):
        remark = f"groupTokens must have at most {MAX_TOKENS} tokens of 32 hexadecimal digits"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    return tokens


def _take(server: NameServer, registration: Registration, claim: Claim) -> tuple[str | None, str | None]:
    told = server.routes.register(registration, claim.session_id, claim.payer, server.now_ms())
    server.ownership.took(claim)
    return told


def _room_problem(server: NameServer, registration: Registration, claim: Claim) -> str | None:
    problem = server.routes.room_problem(registration, claim.payer)
    if problem is None and registration.address not in server.routes.live:
        problem = server.ownership.room_problem(claim)
    return problem


def _registration(header: RegisterBrokerRequestHeader, data: bytes) -> Registration:
    """Convert the request; raise RequestError if it is invalid."""
    for name in (header.broker_name, header.cluster_name, header.broker_addr):
        if not name or len(name) > MAX_NAME_CHARACTERS:
            remark = f"brokerName, clusterName and brokerAddr must have 1 to {MAX_NAME_CHARACTERS} characters"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    if not (header.broker_name + header.cluster_name + header.broker_addr + header.ha_server_addr).isprintable():
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "names and addresses of a broker must not contain control characters"
        )
    if header.broker_id < 0 or (header.epoch or 0) < 0:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "brokerId and epoch must not be negative")
    if len(header.ha_server_addr) > MAX_NAME_CHARACTERS:
        remark = f"haServerAddr must have at most {MAX_NAME_CHARACTERS} characters"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
    table = TopicTable()
    if data:
        compressed, crc32 = bool(header.compressed), header.body_crc32 or 0
        body = RegisterBody.decode_request(data, compressed=compressed, crc32=crc32)
        table = body.topic_config_serialize_wrapper
    return Registration(
        cluster=header.cluster_name,
        name=header.broker_name,
        address=header.broker_addr,
        broker_id=header.broker_id,
        ha_address=header.ha_server_addr,
        data_version=table.data_version,
        topics=_legal_topics(table.topic_config_table),
    )


def _legal_topics(topics: dict[str, TopicConfig]) -> dict[str, TopicConfig]:
    return {topic: config for topic, config in topics.items() if topic_problem(topic) is None}


def unregister_broker(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """104: remove a broker immediately, without a grace period."""
    header = UnRegisterBrokerRequestHeader.from_fields(command.fields)
    leaving = Claim(
        place=(header.broker_name, header.broker_id),
        address=header.broker_addr,
        session_id=session.id,
        host=address_of(session.remote_host),
        signed=server.is_vouched(command),
        seen_ms=server.steady_ms(),
    )
    try:
        server.ownership.check_leave(leaving)
    except OwnedError as error:
        return server.refuse(session, command, "owner", error)
    server.ownership.left(leaving)
    server.routes.unregister(header.broker_name, header.broker_addr, header.broker_id)
    return Response()


def query_data_version(server: NameServer, session: NamesrvSession, command: Command) -> Response:
    """322: return whether a broker must register again; if not, the query renews its registration."""
    header = QueryDataVersionRequestHeader.from_fields(command.fields)
    theirs = DataVersion.decode(command.body)
    ours = server.routes.data_version_of(header.broker_addr)
    changed = ours is None or ours != theirs
    if not changed:
        place = header.broker_name, header.broker_id
        server.routes.saw(header.broker_addr, session.id, server.now_ms())
        server.ownership.saw(place, header.broker_addr, session.id, server.steady_ms())
    return Response(
        fields=QueryDataVersionResponseHeader(changed).to_fields(),
        body=ours.encode() if ours is not None else b"",
    )
