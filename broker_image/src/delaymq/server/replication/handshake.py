"""Handshake of a link: both sides prove that they know the group's secret (decision 67, docs/formats/wire.md).

This module has no sockets. A proof covers the names and the processes of both sides, their roles, nonces of both sides,
all versions that were offered, and the certificate of a TLS connection. It is therefore worthless on another
connection, in the other direction, for another member or group, and through a peer in the middle of TLS.
"""

from __future__ import annotations

import hmac
import os
import re
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable, Collection
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, request_command
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    Header,
    LinkReplicaRequestHeader,
    LinkReplicaResponseHeader,
    ProveReplicaRequestHeader,
    ProveReplicaResponseHeader,
)
from delaymq.server.replication.message_codec import NEWEST_VERSION, OLDEST_VERSION

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
SHOWN_CHARACTERS: Final = 200

Role = Literal["connecting", "accepting"]
Reason = Literal["form", "group", "name", "member", "version", "proof", "unsupported", "rejected"]
"""Kinds of failures. Their number is small, so that each can have its own log line and counter."""

_PROCESS: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CONTEXT: Final = "DelayMQ link between replicas"
_encode = msgspec.msgpack.Encoder().encode
_Header = TypeVar("_Header", bound=Header)


class LinkError(Exception):
    """The handshake failed; the text says why and what to do."""

    def __init__(self, reason: Reason, text: str, code: int = ResponseCode.NO_PERMISSION) -> None:
        super().__init__(text)
        self.reason = reason
        self.code = code
        """Response code for the other side."""


class Identity(NamedTuple):
    """One process of a member."""

    cluster: str
    group: str
    """Name of the broker, which all members of the group share."""
    member: str
    process: str
    """Random name of this process."""


class Exchange(NamedTuple):
    """Content of one handshake, which both proofs cover."""

    version: int
    oldest_version: int
    newest_version: int
    cluster: str
    group: str
    connecting: str
    connecting_process: str
    accepting: str
    accepting_process: str
    connecting_nonce: bytes
    accepting_nonce: bytes
    certificate: bytes
    """SHA-256 of the accepting side's certificate; empty without TLS."""

    def proof(self, secret: bytes, role: Role) -> bytes:
        """Return the proof of the side with this role."""
        return hmac.digest(secret, _encode((_CONTEXT, role, *self)), "sha256")


class Peer(NamedTuple):
    """Other side of a link after the handshake."""

    member: str
    process: str
    version: int


class Connecting:
    """Handshake of the side that connects: send `hello`, then `answered(…)`, then check with `proven(…)`."""

    def __init__(self, identity: Identity, member: str, secret: bytes) -> None:
        self._identity = identity
        self._member = member
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)
        self._exchange: Exchange | None = None

    def hello(self) -> Command:
        """Return the first request."""
        own = self._identity
        header = LinkReplicaRequestHeader(
            own.cluster,
            own.group,
            own.member,
            self._member,
            own.process,
            OLDEST_VERSION,
            NEWEST_VERSION,
            _text(self._nonce),
        )
        return request_command(RequestCode.LINK_REPLICA, header.to_fields())

    def answered(self, answer: Command, certificate: bytes) -> Command:
        """Return the second request. LinkError if the peer rejects the first one, or is not the expected member."""
        header = _parsed(LinkReplicaResponseHeader, self._checked(answer))
        if header.member != self._member:
            raise LinkError(
                "name",
                f"the address of member {self._member} leads to {_named(header.member)}: correct haMembers",
            )
        if not OLDEST_VERSION <= header.version <= NEWEST_VERSION:
            raise LinkError("version", f"member {self._member} chose the unknown version {header.version}")
        own = self._identity
        exchange = Exchange(
            header.version,
            OLDEST_VERSION,
            NEWEST_VERSION,
            own.cluster,
            own.group,
            own.member,
            own.process,
            header.member,
            _process(header.process),
            self._nonce,
            _bytes(header.nonce, NONCE_BYTES, "nonce"),
            certificate,
        )
        self._exchange = exchange
        proof = exchange.proof(self._secret, "connecting")
        return request_command(RequestCode.PROVE_REPLICA, ProveReplicaRequestHeader(_text(proof)).to_fields())

    def proven(self, answer: Command) -> Peer:
        """Return the peer, whose proof is in the second response. LinkError if it has none."""
        header = _parsed(ProveReplicaResponseHeader, self._checked(answer))
        exchange = self._exchange
        assert exchange is not None
        proof = _bytes(header.proof, PROOF_BYTES, "proof")
        if not hmac.compare_digest(proof, exchange.proof(self._secret, "accepting")):
            raise LinkError(
                "proof", f"member {self._member} could not prove that it has the group's secret: do not trust it"
            )
        return Peer(exchange.accepting, exchange.accepting_process, exchange.version)

    def _checked(self, answer: Command) -> Command:
        remark = shown(answer.remark or "no reason given")
        if answer.code == ResponseCode.SUCCESS:
            return answer
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            text = f"member {self._member} runs without replication, or an older program: {remark}"
            raise LinkError("unsupported", text)
        raise LinkError("rejected", f"member {self._member} rejected this member: {remark}")


class Accepting:
    """Handshakes of the side that accepts connections: at most one for each connection, about 400 bytes."""

    def __init__(
        self, identity: Identity, is_member: Callable[[str], bool], secrets: Callable[[], Collection[bytes]]
    ) -> None:
        self._identity = identity
        self._is_member = is_member
        self._secrets = secrets
        self._exchanges: dict[int, Exchange] = {}

    def __len__(self) -> int:
        return len(self._exchanges)

    def linked(self, connection_id: int, command: Command, certificate: bytes) -> Response:
        """Return the response to the first request. LinkError if there must be no link."""
        header = _parsed(LinkReplicaRequestHeader, command)
        own = self._identity
        if (header.cluster_name, header.broker_name) != (own.cluster, own.group):
            text = (
                f"this is member {own.member} of the group {own.group} in the cluster {own.cluster}, not of"
                f" {shown(header.broker_name)} in {shown(header.cluster_name)}: correct haMembers"
            )
            raise LinkError("group", text)
        if header.member == own.member:
            text = f"both members have the name {own.member}: give each member of the group its own haMemberName"
            raise LinkError("name", text)
        if not self._is_member(header.member):
            text = f"{_named(header.member)} is not in the haMembers of member {own.member}: add it"
            raise LinkError("member", text)
        if header.peer != own.member:
            text = f"this is member {own.member}, not {_named(header.peer)}: correct haMembers"
            raise LinkError("name", text)
        version = min(header.newest_version, NEWEST_VERSION)
        if version < max(header.oldest_version, OLDEST_VERSION):
            text = (
                f"member {own.member} has the versions {OLDEST_VERSION} to {NEWEST_VERSION} of replication, and member"
                f" {header.member} has {header.oldest_version} to {header.newest_version}: upgrade the older one"
            )
            raise LinkError("version", text, ResponseCode.VERSION_NOT_SUPPORTED)
        if connection_id in self._exchanges:
            raise LinkError("form", "this connection has already begun a handshake: use another connection")
        nonce = os.urandom(NONCE_BYTES)
        self._exchanges[connection_id] = Exchange(
            version,
            header.oldest_version,
            header.newest_version,
            own.cluster,
            own.group,
            header.member,
            _process(header.process),
            own.member,
            own.process,
            _bytes(header.nonce, NONCE_BYTES, "nonce"),
            nonce,
            certificate,
        )
        return Response(fields=LinkReplicaResponseHeader(own.member, own.process, version, _text(nonce)).to_fields())

    def proven(self, connection_id: int, command: Command) -> tuple[Response, Peer]:
        """Return the response to the second request, and the member that the peer is proven to be. LinkError.

        Each exchange admits one attempt.
        """
        exchange = self._exchanges.pop(connection_id, None)
        header = _parsed(ProveReplicaRequestHeader, command)
        proof = _bytes(header.proof, PROOF_BYTES, "proof")
        if exchange is None:
            raise LinkError("form", f"request {command.code} needs a handshake that begins with 30002")
        if not self._is_member(exchange.connecting):  # removed in the meantime
            raise LinkError("member", f"{exchange.connecting} is not a member any more")
        # Every secret is tried, so that the time does not show which one is right.
        fitting = [
            secret for secret in self._secrets() if hmac.compare_digest(proof, exchange.proof(secret, "connecting"))
        ]
        if not fitting:
            text = (
                f"the proof of member {exchange.connecting} is wrong: compare the secrets of both members; with TLS, it"
                " must end at the brokers"
            )
            raise LinkError("proof", text)
        own = _text(exchange.proof(fitting[0], "accepting"))
        peer = Peer(exchange.connecting, exchange.connecting_process, exchange.version)
        return Response(fields=ProveReplicaResponseHeader(own).to_fields()), peer

    def closed(self, connection_id: int) -> None:
        """Forget a connection that has ended."""
        self._exchanges.pop(connection_id, None)


def shown(text: str) -> str:
    """Return text of the other side for a log line: printable, and not too long."""
    return "".join(each if each.isprintable() else "?" for each in text[:SHOWN_CHARACTERS])


def _named(member: str) -> str:
    return f"member {shown(member)!r}"


def _parsed(kind: type[_Header], message: Command) -> _Header:
    try:
        return kind.from_fields(message.fields)
    except RequestError as error:
        raise LinkError("form", error.remark) from error


def _process(text: str) -> str:
    if not _PROCESS.fullmatch(text):
        raise LinkError("form", "the name of the process is not 1 to 64 characters A-Z, a-z, 0-9, ., _ and -")
    return text


def _text(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def _bytes(text: str, size: int, what: str) -> bytes:
    try:
        data = a2b_base64(text.encode("ascii"), strict_mode=True)
    except (Error, UnicodeEncodeError):
        data = b""
    if len(data) != size:
        raise LinkError("form", f"the {what} is not {size} bytes in base64")
    return data
