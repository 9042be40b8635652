"""Parsing and validation of structured values."""

from __future__ import annotations

import ipaddress

from delaymq.config.errors import ConfigError


def ip_address(address: str) -> None:
    """Raise ConfigError unless `address` is an IP address."""
    try:
        ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        raise ConfigError(
            f"{address[:100]!r} is not an IP address: a host name cannot be used, because offset message ids contain"
            " the address"
        ) from None


def parse_hours(text: str) -> tuple[int, ...]:
    """Parse hours of the day, such as `04;16`."""
    words = [word.strip() for word in text.split(";") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 2 and int(word) < 24):
            raise ConfigError(f"{word[:100]!r} is not an hour of the day: use 00 to 23, separated by ;")
    return tuple(int(word) for word in words)


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Parse the addresses of NameServers as (host, port)."""
    return tuple(parse_address(word) for word in text.split(";") if word.strip())


def parse_address(text: str) -> tuple[str, int]:
    """Parse `host:port`; an IPv6 host must be in brackets."""
    host, _, port = text.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ConfigError(f"{text.strip()[:100]!r} is not an address: use host:port, such as 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Parse IP addresses and networks, such as `10.0.0.7;10.244.0.0/16`."""
    networks = []
    for word in (each.strip() for each in text.split(";")):
        try:
            networks += [ipaddress.ip_network(word)] if word else []
        except ValueError:
            raise ConfigError(f"{word[:100]!r} is not an address or a network: use one such as 10.244.0.0/16") from None
    return tuple(networks)


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
