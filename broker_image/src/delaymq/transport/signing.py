"""Signatures of a connection's requests: DelayMQ's second signature if the peer supports it, else RocketMQ's."""

import os
from collections.abc import Callable
from typing import Final

from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command
from delaymq.protocol.errors import RequestError
from delaymq.protocol.second_signature import (
    RANDOM_BYTES,
    ConnectionKey,
    ConnectionSigner,
    challenge_in,
    challenge_request,
)
from delaymq.protocol.signatures import Signer
from delaymq.transport.connection import DEFAULT_TIMEOUT_MS, RemotingConnection
from delaymq.transport.errors import TransportError

OPEN_CODES: Final = frozenset(
    {
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    }
)
"""Requests that NameServers accept from everyone; sent unsigned, because RocketMQ's signature would also fit others."""


async def sign_requests(
    connection: RemotingConnection,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
    *,
    rocketmq: bool = True,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> str | None:
    """Sign all further requests of a new connection; return the server's name, or None if it gives no challenge.

    Without a challenge, requests get RocketMQ's signature, or none without `rocketmq`.
    TransportError if the connection ends or the peer does not respond; a later attempt may get a challenge.
    """
    nonce = os.urandom(RANDOM_BYTES)
    answer = await connection.request(challenge_request(nonce), timeout_ms)
    try:
        told = challenge_in(answer)
    except RequestError as error:
        raise TransportError(connection.remote_address, str(error)) from error
    if told is None:
        if rocketmq:
            connection.sign = _rocketmq(access_key, secret_key, security_token)
        return None
    challenge, server = told
    key = ConnectionKey(access_key, secret_key, challenge, nonce, server)
    connection.sign = ConnectionSigner(key, access_key, security_token).sign
    return server


def _rocketmq(access_key: str, secret_key: str, security_token: str | None) -> Callable[[Command], None]:
    signer = Signer(secret_key)

    def sign(command: Command) -> None:
        if command.code not in OPEN_CODES:
            signer.sign(command, access_key, security_token)

    return sign
