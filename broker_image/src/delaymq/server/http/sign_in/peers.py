"""Client of a request: the peer of the connection, or what a trusted proxy states."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiohttp import web

from delaymq.message.ids import network_of, pack_host
from delaymq.transport.addresses import end_of

FORWARDED_FOR: Final = "X-Forwarded-For"
FORWARDED_PROTO: Final = "X-Forwarded-Proto"
_OF_PROXIES: Final = (FORWARDED_FOR, FORWARDED_PROTO, "Forwarded", "X-Real-IP")
PEER_HEADER: Final = "DelayMQ-Peer"
"""Address of the client in requests that a supervisor forwards. Nobody else can send it: it needs the inner token."""
_PORT_DIGITS: Final = 5
NOWHERE: Final = ("0.0.0.0", 0)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peer(NamedTuple):
    """Sender of a request."""

    host: str
    port: int
    """0: unknown, because a proxy stated the address."""
    is_secure: bool
    """Whether the client used TLS."""
    is_local: bool
    """Whether it is a program on this machine, as far as the request shows."""


PEER: Final = web.RequestKey("delaymq.peer", Peer)
"""Key of a request: its sender."""


class Peers:
    """Determines the senders of requests."""

    def __init__(self, proxies: Sequence[Network] = ()) -> None:
        """`proxies` are trusted."""
        self._proxies = proxies

    def peer(self, request: web.Request) -> Peer:
        """Return the sender of a request."""
        transport = request.transport
        host, port = NOWHERE if transport is None else end_of(transport, "peername")
        is_secure = request.secure or (transport is not None and transport.get_extra_info("ssl_object") is not None)
        if self._is_proxy(host):
            stated = _last(request, FORWARDED_PROTO)
            client = self._client(request) or host
            return Peer(client, port if client == host else 0, is_secure or stated.lower() == "https", False)
        # A proxy on this machine that is not listed forwards requests from anywhere.
        is_forwarded = any(name in request.headers for name in _OF_PROXIES)
        return Peer(host, port, is_secure, _is_loopback(host) and not is_forwarded)

    def _client(self, request: web.Request) -> str:
        """Return the last address of X-Forwarded-For that is not a proxy's, which only a proxy can have added."""
        stated = ",".join(request.headers.getall(FORWARDED_FOR, ())).split(",")
        found = ""
        for word in reversed(stated):
            address = _address(word)
            if address is None:
                break
            found = str(address)
            if not self._is_proxy(found):
                break
        return found

    def _is_proxy(self, host: str) -> bool:
        address = _address(host)
        return address is not None and any(address in network for network in self._proxies)


def forwarded_peer(stated: str) -> Peer:
    """Return the sender that a supervisor states."""
    host, _, port = stated.rpartition(":")
    address = _address(host)
    if address is None or not (port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS):
        return Peer(*NOWHERE, is_secure=False, is_local=False)
    return Peer(str(address), int(port), is_secure=False, is_local=False)


def peer_of(request: web.Request) -> tuple[str, int]:
    """Return the address and port of a request's sender."""
    known = request.get(PEER)
    if known is not None:
        return known.host, known.port
    return NOWHERE if request.transport is None else end_of(request.transport, "peername")


def network_of_host(host: str) -> bytes:
    """Return the network by which clients are limited; b"" if `host` is no address."""
    try:
        return network_of(pack_host(host, 0))
    except ValueError:
        return b""


def _last(request: web.Request, name: str) -> str:
    return ",".join(request.headers.getall(name, ())).rpartition(",")[2].strip()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_loopback
