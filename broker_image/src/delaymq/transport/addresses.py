"""Addresses of sockets as people read them."""

import asyncio


def host_and_port(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def end_of(transport: asyncio.BaseTransport, end: str) -> tuple[str, int]:
    """Host and port of one end of a connection, `peername` or `sockname`; zeros when the socket is gone."""
    name = transport.get_extra_info(end) or ("0.0.0.0", 0)
    return str(name[0]).removeprefix("::ffff:"), name[1]  # IPv4 over a socket that takes both
