"""Human-readable socket addresses."""

import asyncio


def host_and_port(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def end_of(transport: asyncio.BaseTransport, end: str) -> tuple[str, int]:
    """Return host and port of one end, `peername` or `sockname`; zeros if the socket is closed."""
    name = transport.get_extra_info(end) or ("0.0.0.0", 0)
    return str(name[0]).removeprefix("::ffff:"), name[1]  # IPv4 over a dual-stack socket
