"""Listening sockets, with errors that say what to do."""

import errno
import ipaddress
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delaymq.server.errors import ServerError
from delaymq.transport.addresses import host_and_port
from delaymq.transport.tcp_socket import LINGER_RESET

if TYPE_CHECKING:
    from delaymq.config import BrokerConfig

BACKLOG: Final = 1_024
"""Listen backlog; after a restart, all clients connect at the same time."""
FAST_PORT_DISTANCE: Final = 2
"""Clients with `vipChannelEnabled` use the fast port this far below the listen port."""
PASSED_ON: Final = "DELAYMQ_PASSED_ON"
"""Environment variable of a process that executed itself again: host, port and descriptor of each listening socket."""
LOOPBACK: Final = "127.0.0.1"
MAX_TRIES: Final = 50
"""Attempts to find a free port whose fast port is free, too."""


def bind(host: str, port: int, what: str, *, beside: Iterable[socket.socket | None] = ()) -> socket.socket:
    """Return a socket bound to an address; it does not listen yet, so that early connections are refused.

    Accepted connections have a linger time of 0, so that peers receive a reset when the process is killed. With
    SO_REUSEADDR, Linux allows two sockets on one address until the first one listens, so the sockets ``beside`` this
    one are compared. Raises ServerError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        bound.setblocking(False)
        bound.bind((host, port))
        if any(other is not None and _share_address(bound, other) for other in beside):
            raise OSError(errno.EADDRINUSE, "another port of this process")
    except OSError as error:
        bound.close()
        raise ServerError(_problem(host, port, what, error)) from error
    return bound


def _share_address(one: socket.socket, other: socket.socket) -> bool:
    (host, port, *_), (other_host, other_port, *_) = one.getsockname(), other.getsockname()
    if port != other_port:
        return False
    hosts = {ipaddress.ip_address(host), ipaddress.ip_address(other_host)}
    # :: covers the addresses of both families, 0.0.0.0 only IPv4.
    newest = max(each.version for each in hosts)
    return len(hosts) == 1 or any(each.is_unspecified and each.version == newest for each in hosts)


def _problem(host: str, port: int, what: str, error: OSError) -> str:
    address = host_and_port(host, port)
    if error.errno == errno.EADDRINUSE:
        return f"{what} {address} is in use: stop the other program or choose another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{what} {address}: this machine does not have this address: use one of its addresses, or 0.0.0.0"
    if error.errno == errno.EACCES:
        return f"{what} {address}: not permitted: choose a port above 1023"
    return f"cannot open {what} {address}: {error.strerror or error}"


def bind_broker_ports(host: str, port: int, *, fast: bool) -> tuple[socket.socket, socket.socket | None]:
    """Bind the broker's port and its fast port (None if disabled); port 0 selects free ones."""
    if port != 0:
        has_fast = fast and port > FAST_PORT_DISTANCE
        passed_on = _take_passed_on(host, (port, port - FAST_PORT_DISTANCE) if has_fast else (port,))
        main = passed_on.get(port) or bind(host, port, "the broker's port")
        if not has_fast:
            return main, None
        fast_port = port - FAST_PORT_DISTANCE
        try:
            return main, passed_on.get(fast_port) or bind(host, fast_port, "the broker's fast port (listenPort - 2)")
        except ServerError as error:
            main.close()
            raise ServerError(f"{error}, or set fastPortEnable=false") from error
    for _ in range(MAX_TRIES):
        main = bind(host, 0, "the broker's port")
        if not fast:
            return main, None
        try:
            return main, bind(host, port_of(main) - FAST_PORT_DISTANCE, "the broker's fast port")
        except ServerError:
            main.close()
    raise ServerError(f"cannot find two free ports on {host}: set listenPort")


def _take_passed_on(host: str, ports: Iterable[int]) -> dict[int, socket.socket]:
    """Return the sockets of the former program of this process on these ports; its others are closed."""
    taken: dict[int, socket.socket] = {}
    for each in os.environ.pop(PASSED_ON, "").split():
        with suppress(OSError, ValueError):  # the variable was set by someone else
            of_host, port, descriptor = each.rsplit(",", 2)
            passed_on = socket.socket(fileno=int(descriptor))
            if of_host == host and int(port) in ports:
                passed_on.set_inheritable(False)
                passed_on.setblocking(False)
                taken[int(port)] = passed_on
            else:
                passed_on.close()
    return taken


@dataclass(frozen=True, slots=True)
class Ports:
    """Bound sockets of one broker; `fast`, `http` and `ha` are None if disabled."""

    main: socket.socket
    fast: socket.socket | None
    http: socket.socket | None
    ha: socket.socket | None = None
    """For plain slaves."""

    @classmethod
    def bind(cls, config: "BrokerConfig", *, http: bool, inner: bool = False) -> "Ports":
        """Bind all ports; on ServerError, none is left open. `inner`: HTTP on any free port of loopback."""
        main, fast = bind_broker_ports(config.listen_host, config.listen_port, fast=config.fast_port_enable)
        bound = [main, fast]
        ha = http_socket = None
        try:
            if config.ha_plain_slaves:
                ha = bind(config.listen_host, config.ha_listen_port, "the port for slaves (haListenPort)", beside=bound)
                bound.append(ha)
            if http:
                address = (LOOPBACK, 0) if inner else (config.http_host, config.http_port)
                http_socket = bind(*address, "the HTTP port", beside=bound)
        except BaseException:
            for each in bound:
                if each is not None:
                    each.close()
            raise
        return cls(main, fast, http_socket, ha)

    def pass_on(self, host: str) -> None:
        """Let the broker's ports, bound to `host`, stay open while this process executes itself again.

        Connections are accepted by the kernel meanwhile, instead of being refused.
        """
        words = []
        for each in (self.main, self.fast):
            if each is not None:
                kept = each.dup()
                kept.set_inheritable(True)
                words.append(f"{host},{port_of(kept)},{kept.detach()}")
        os.environ[PASSED_ON] = " ".join(words)

    def close(self) -> None:
        """Close the sockets."""
        for each in (self.main, self.fast, self.http, self.ha):
            if each is not None:
                each.close()


def port_of(bound: socket.socket) -> int:
    """Return the port of a bound socket."""
    return int(bound.getsockname()[1])
