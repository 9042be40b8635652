"""Second signature: covers a whole request, and is valid on one connection only (docs/formats/wire.md).

A client requests a challenge (request 101), and signs each further request of the connection with a key derived from
the secret key, the challenge, the client's nonce and the server's name. Each request has a higher counter. A captured
request is therefore invalid on another connection, at another server, after a restart, and when repeated.
"""

from __future__ import annotations

import hmac
import os
import re
import time
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, request_command
from delaymq.protocol.credential_fields import ACCESS_KEY, SECOND_COUNTER, SECOND_SIGNATURE, SECURITY_TOKEN, SIGNATURE
from delaymq.protocol.errors import RequestError

NAMESPACE: Final = "DELAYMQ"
CHALLENGE_KEY: Final = "challenge"
NONCE: Final = "nonce"
VALUE: Final = "value"
SERVER: Final = "server"
RANDOM_BYTES: Final = 16
"""Size of a challenge and of a nonce."""
MAX_COUNTER: Final = 2**63 - 1
MAX_SERVER_CHARACTERS: Final = 1_000
SERVER_PREFIXES: Final = ("broker/", "namesrv")
"""Prefixes of the names of servers."""
MAX_SILENCE_S: Final = 300.0
"""Time without a valid request after which a challenge expires, since an intermediary may delay requests."""
NOT_SERVED: Final = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.QUERY_NOT_FOUND})
"""Response codes of RocketMQ's servers, and of brokers without access control, to the request for a challenge."""
RULES_REFUSAL: Final = "org.apache.rocketmq.acl"
"""Prefix of the remark of other servers with access control, which reject the unsigned request."""

Verdict = Literal["", "second", "replay", "silence"]
"""Result for a request: valid, not signed for this connection, counter already used, or challenge expired."""

_COUNTER: Final = re.compile(r"[1-9][0-9]{0,18}")
_CONTEXT: Final = ("DelayMQ connection", 1)
_encode = msgspec.msgpack.Encoder().encode


class ConnectionKey:
    """Key of one account on one connection."""

    __slots__ = ("_keyed",)

    def __init__(self, access_key: str, secret_key: str, challenge: bytes, nonce: bytes, server: str) -> None:
        context = _encode((*_CONTEXT, challenge, nonce, server, access_key))
        derived = hmac.digest(secret_key.encode(errors="replace"), context, "sha256")
        self._keyed = hmac.new(derived, digestmod="sha256")

    def signature(self, counter: int, command: Command, fields: Mapping[str, str]) -> bytes:
        """Return the signature in base64 of a request with these fields, which exclude `DmqSignature`.

        UnicodeEncodeError for lone surrogates, which cannot be encoded.
        """
        named = [text for item in sorted(fields.items()) for text in item]
        body = command.body
        head = _encode(
            (
                counter,
                int(command.code),
                command.flag,
                command.opaque,
                command.version,
                command.language,
                command.remark,
                named,
                len(body),
            )
        )
        keyed = self._keyed.copy()
        keyed.update(head)
        if body:
            keyed.update(body)
        return b2a_base64(keyed.digest(), newline=False)


# Client side.


def challenge_request(nonce: bytes) -> Command:
    """Return the request for the challenge of a connection."""
    fields = {"namespace": NAMESPACE, "key": CHALLENGE_KEY, NONCE: b2a_base64(nonce, newline=False).decode()}
    return request_command(RequestCode.GET_KV_CONFIG, fields)


def challenge_in(answer: Command) -> tuple[bytes, str] | None:
    """Return the challenge and server name in a response to `challenge_request`; None if it is unsupported.

    RequestError if the server may support it but is unavailable: RocketMQ's signature must not be used instead.
    """
    if answer.code == ResponseCode.SUCCESS:
        challenge, server = _random(answer.fields.get(VALUE)), answer.fields.get(SERVER, "")
        if challenge is not None and server.startswith(SERVER_PREFIXES) and len(server) <= MAX_SERVER_CHARACTERS:
            return challenge, server
        return None  # an unrelated value that a NameServer stores under this key
    remark = answer.remark or ""
    if answer.code in NOT_SERVED or (answer.code == ResponseCode.SYSTEM_ERROR and remark.startswith(RULES_REFUSAL)):
        return None
    raise RequestError(answer.code, f"cannot obtain a challenge for the second signature: {remark or answer.code}")


class ConnectionSigner:
    """Signs the requests of one connection in the order in which they are sent."""

    __slots__ = ("_access_key", "_counter", "_key", "_security_token")

    def __init__(self, key: ConnectionKey, access_key: str, security_token: str | None = None) -> None:
        self._key = key
        self._access_key = access_key
        self._security_token = security_token
        self._counter = 0

    def sign(self, command: Command) -> None:
        """Replace the fields by a signed copy; an earlier signature is replaced, too."""
        self._counter += 1
        fields = {**command.fields, ACCESS_KEY: self._access_key, SECOND_COUNTER: str(self._counter)}
        fields.pop(SIGNATURE, None)
        fields.pop(SECOND_SIGNATURE, None)
        if self._security_token is not None:
            fields[SECURITY_TOKEN] = self._security_token
        if command.binary:
            fields = {name: value for name, value in fields.items() if value}  # an empty value means absent there
        try:
            signature = self._key.signature(self._counter, command, fields)
        except UnicodeEncodeError:
            # The request is sent with a question mark in its place.
            fields = {_sendable(name): _sendable(value) for name, value in fields.items()}
            if command.remark is not None:
                command.remark = _sendable(command.remark)
            signature = self._key.signature(self._counter, command, fields)
        fields[SECOND_SIGNATURE] = signature.decode()
        command.fields = fields


# Server side.


class _Channel:
    """A server's state of a connection that requested a challenge."""

    __slots__ = ("access_key", "challenge", "counter", "key", "nonce", "secret_key", "server", "used_at")

    def __init__(self, challenge: bytes, nonce: bytes, server: str, now: float) -> None:
        self.used_at = now
        self.challenge = challenge
        self.nonce = nonce
        self.server = server
        """Server name stated to the client; the current name may differ."""
        self.counter = 0
        self.access_key = ""
        self.secret_key = ""
        self.key: ConnectionKey | None = None


class Channels:
    """Challenges and counters of a server's connections, by connection id."""

    __slots__ = ("_channels", "_clock", "_max_silence_s")

    def __init__(self, max_silence_s: float = MAX_SILENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._channels: dict[int, _Channel] = {}
        self._max_silence_s = max_silence_s
        self._clock = clock

    def __len__(self) -> int:
        return len(self._channels)

    def challenge(self, connection_id: int, server: str, command: Command) -> Response:
        """Return the response to a request for a challenge. RequestError if it has no nonce."""
        nonce = _random(command.fields.get(NONCE))
        if nonce is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"field {NONCE} of the request is not {RANDOM_BYTES} bytes in base64"
            )
        challenge = os.urandom(RANDOM_BYTES)
        self._channels[connection_id] = _Channel(challenge, nonce, server, self._clock())
        return Response(fields={VALUE: b2a_base64(challenge, newline=False).decode(), SERVER: server})

    def verdict(self, connection_id: int, access_key: str, secret_keys: tuple[str, ...], command: Command) -> Verdict:
        """Verify a request with `DmqSignature`, signed with one of the keys; a valid one is accepted only once."""
        channel = self._channels.get(connection_id)
        if channel is None:
            return "second"
        now = self._clock()
        if now - channel.used_at > self._max_silence_s:
            return "silence"
        fields = dict(command.fields)
        stated = fields.pop(SECOND_SIGNATURE, "")
        text = fields.get(SECOND_COUNTER, "")
        # Cheap checks come first. A request with both signatures is rejected, since one of them could be removed.
        if SIGNATURE in fields or not _COUNTER.fullmatch(text):
            return "second"
        counter = int(text)
        if counter <= channel.counter:
            return "replay"
        if counter > MAX_COUNTER:
            return "second"
        # The key of the last request comes first: it is derived already, and the next request is likely to use it.
        for secret_key in sorted(secret_keys, key=lambda each: each != channel.secret_key):
            key = channel.key
            if key is None or channel.access_key != access_key or channel.secret_key != secret_key:
                key = ConnectionKey(access_key, secret_key, channel.challenge, channel.nonce, channel.server)
            try:
                matches = hmac.compare_digest(stated.encode(), key.signature(counter, command, fields))
            except UnicodeEncodeError:
                return "second"
            if matches:
                channel.key, channel.access_key, channel.secret_key = key, access_key, secret_key
                channel.counter, channel.used_at = counter, now
                return ""
        return "second"

    def secret_key_of(self, connection_id: int, access_key: str) -> str | None:
        """Return the secret key of the last valid request of a connection; None if another account signed it."""
        channel = self._channels.get(connection_id)
        return channel.secret_key if channel is not None and channel.access_key == access_key else None

    def closed(self, connection_id: int) -> None:
        """Forget a connection that has ended."""
        self._channels.pop(connection_id, None)


def requests_challenge(command: Command) -> bool:
    """Return whether a request is that of `challenge_request`, which needs no signature."""
    fields = command.fields
    return (
        command.code == RequestCode.GET_KV_CONFIG
        and fields.get("namespace") == NAMESPACE
        and fields.get("key") == CHALLENGE_KEY
    )


def _random(text: str | None) -> bytes | None:
    try:
        found = a2b_base64((text or "").encode("ascii"), strict_mode=True)
    except (Error, UnicodeEncodeError):
        return None
    return found if len(found) == RANDOM_BYTES else None


def _sendable(text: str) -> str:
    return text.encode(errors="replace").decode()
