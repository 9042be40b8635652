"""Which signature the requests of a connection carry: the second one where the peer knows it, else RocketMQ's."""

import os
from collections.abc import Callable

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


async def sign_requests(
    connection: RemotingConnection,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
    *,
    rocketmq: bool = True,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> str | None:
    """Has all further requests of a new connection signed; the server's name, None where it gives no challenge.

    They have RocketMQ's signature then, or none without `rocketmq`.
    TransportError when the connection ends or the peer does not answer: whoever asks again may get a challenge then.
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
    return lambda command: signer.sign(command, access_key, security_token)
