"""The second signature: covers all of a request, and counts on one connection only (docs/formats/wire.md).

A client asks a server for a challenge (request 101), and signs each further request of the connection with a key that
is derived from the account's secret, the challenge, a nonce of its own, and the server's name. A counter in each
request rises. So nothing that was captured counts on another connection, at another server, after a restart, or twice.
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
"""Of a challenge, and of a nonce."""
MAX_COUNTER: Final = 2**63 - 1
MAX_SERVER_CHARACTERS: Final = 1_000
SERVER_PREFIXES: Final = ("broker/", "namesrv")
"""How the names of servers begin, of which each says more about itself."""
MAX_SILENCE_S: Final = 300.0
"""After this long without a request that counts, a challenge ends: somebody in between may have held one back."""
NOT_SERVED: Final = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.QUERY_NOT_FOUND})
"""How RocketMQ's servers, and brokers without access control, answer the question for a challenge."""
RULES_REFUSAL: Final = "org.apache.rocketmq.acl"
"""How others with access control begin their answer: the question is not signed."""

Verdict = Literal["", "second", "replay", "silence"]
"""Of a request: it counts, it is not signed for this connection, its counter was used, or its challenge ended."""

_COUNTER: Final = re.compile(r"[1-9][0-9]{0,18}")
_CONTEXT: Final = ("DelayMQ connection", 1)
_encode = msgspec.msgpack.Encoder().encode


class ConnectionKey:
    """One account's key on one connection."""

    __slots__ = ("_keyed",)

    def __init__(self, access_key: str, secret_key: str, challenge: bytes, nonce: bytes, server: str) -> None:
        context = _encode((*_CONTEXT, challenge, nonce, server, access_key))
        derived = hmac.digest(secret_key.encode(errors="replace"), context, "sha256")
        self._keyed = hmac.new(derived, digestmod="sha256")

    def signature(self, counter: int, command: Command, fields: Mapping[str, str]) -> bytes:
        """The base64 of the signature of a request with these fields, which are without `DmqSignature`.

        UnicodeEncodeError for lone surrogates, which have no form on the wire.
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


# The client's side.


def challenge_request(nonce: bytes) -> Command:
    """Asks a server for the challenge of this connection."""
    fields = {"namespace": NAMESPACE, "key": CHALLENGE_KEY, NONCE: b2a_base64(nonce, newline=False).decode()}
    return request_command(RequestCode.GET_KV_CONFIG, fields)


def challenge_in(answer: Command) -> tuple[bytes, str] | None:
    """Challenge and server's name in an answer to `challenge_request`; None: the server does not know it.

    RequestError for a server that may know it and does not answer now: RocketMQ's signature must not stand in.
    """
    if answer.code == ResponseCode.SUCCESS:
        challenge, server = _random(answer.fields.get(VALUE)), answer.fields.get(SERVER, "")
        if challenge is not None and server.startswith(SERVER_PREFIXES) and len(server) <= MAX_SERVER_CHARACTERS:
            return challenge, server
        return None  # what somebody stored in a NameServer under this key
    remark = answer.remark or ""
    if answer.code in NOT_SERVED or (answer.code == ResponseCode.SYSTEM_ERROR and remark.startswith(RULES_REFUSAL)):
        return None
    raise RequestError(answer.code, f"no challenge to sign for: {remark or answer.code}")


class ConnectionSigner:
    """Signs the requests of one connection, in the order in which they are sent."""

    __slots__ = ("_access_key", "_counter", "_key", "_security_token")

    def __init__(self, key: ConnectionKey, access_key: str, security_token: str | None = None) -> None:
        self._key = key
        self._access_key = access_key
        self._security_token = security_token
        self._counter = 0

    def sign(self, command: Command) -> None:
        """Adds the fields; a command that was signed before is signed anew. Its dictionary of fields is not touched."""
        self._counter += 1
        fields = {**command.fields, ACCESS_KEY: self._access_key, SECOND_COUNTER: str(self._counter)}
        fields.pop(SIGNATURE, None)
        fields.pop(SECOND_SIGNATURE, None)
        if self._security_token is not None:
            fields[SECURITY_TOKEN] = self._security_token
        if command.binary:
            fields = {name: value for name, value in fields.items() if value}  # an empty one is none in that form
        try:
            signature = self._key.signature(self._counter, command, fields)
        except UnicodeEncodeError:
            # What is sent has a question mark there.
            fields = {_sendable(name): _sendable(value) for name, value in fields.items()}
            if command.remark is not None:
                command.remark = _sendable(command.remark)
            signature = self._key.signature(self._counter, command, fields)
        fields[SECOND_SIGNATURE] = signature.decode()
        command.fields = fields


# The server's side.


class _Channel:
    """What a server keeps of a connection that asked for a challenge."""

    __slots__ = ("access_key", "challenge", "counter", "key", "nonce", "secret_key", "server", "used_at")

    def __init__(self, challenge: bytes, nonce: bytes, server: str, now: float) -> None:
        self.used_at = now
        self.challenge = challenge
        self.nonce = nonce
        self.server = server
        """As it was told, which may change while the connection lasts."""
        self.counter = 0
        self.access_key = ""
        self.secret_key = ""
        self.key: ConnectionKey | None = None


class Channels:
    """Challenges and counters of a server's connections, by the connection's id."""

    __slots__ = ("_channels", "_clock", "_max_silence_s")

    def __init__(self, max_silence_s: float = MAX_SILENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._channels: dict[int, _Channel] = {}
        self._max_silence_s = max_silence_s
        self._clock = clock

    def __len__(self) -> int:
        return len(self._channels)

    def challenge(self, connection_id: int, server: str, command: Command) -> Response:
        """Answers a request for which `requests_challenge` holds. RequestError for one without a nonce."""
        nonce = _random(command.fields.get(NONCE))
        if nonce is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"field {NONCE} of the request is not {RANDOM_BYTES} bytes in base64"
            )
        challenge = os.urandom(RANDOM_BYTES)
        self._channels[connection_id] = _Channel(challenge, nonce, server, self._clock())
        return Response(fields={VALUE: b2a_base64(challenge, newline=False).decode(), SERVER: server})

    def verdict(self, connection_id: int, access_key: str, secret_key: str, command: Command) -> Verdict:
        """Whether a request with `DmqSignature` counts; one that does is never accepted again."""
        channel = self._channels.get(connection_id)
        if channel is None:
            return "second"
        now = self._clock()
        if now - channel.used_at > self._max_silence_s:
            return "silence"
        fields = dict(command.fields)
        stated = fields.pop(SECOND_SIGNATURE, "")
        text = fields.get(SECOND_COUNTER, "")
        # What costs little comes first; with both signatures one could be taken off.
        if SIGNATURE in fields or not _COUNTER.fullmatch(text):
            return "second"
        counter = int(text)
        if counter <= channel.counter:
            return "replay"
        if counter > MAX_COUNTER:
            return "second"
        key = channel.key
        if key is None or channel.access_key != access_key or channel.secret_key != secret_key:
            key = ConnectionKey(access_key, secret_key, channel.challenge, channel.nonce, channel.server)
        try:
            expected = key.signature(counter, command, fields)
            matches = hmac.compare_digest(stated.encode(), expected)
        except UnicodeEncodeError:
            return "second"
        if not matches:
            return "second"
        channel.key, channel.access_key, channel.secret_key = key, access_key, secret_key
        channel.counter, channel.used_at = counter, now
        return ""

    def closed(self, connection_id: int) -> None:
        """The connection ended."""
        self._channels.pop(connection_id, None)


def requests_challenge(command: Command) -> bool:
    """Whether a request is one that `challenge_request` makes; it needs no signature."""
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
