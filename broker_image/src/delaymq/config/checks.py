"""Values that are more than a number or a word: what they mean, and what is wrong with them."""

from __future__ import annotations

import ipaddress

from delaymq.config.errors import ConfigError


def ip_address(address: str) -> None:
    """Nothing, or ConfigError."""
    try:
        ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        raise ConfigError(f"{address[:100]!r} is no IP address: message ids carry one, so write it") from None


def parse_hours(text: str) -> tuple[int, ...]:
    """Hours of the day of `04;16`."""
    words = [word.strip() for word in text.split(";") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 2 and int(word) < 24):
            raise ConfigError(f"{word[:100]!r} is no hour of the day: write 00 to 23, joined by ;")
    return tuple(int(word) for word in words)


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """NameServers as (host, port)."""
    return tuple(parse_address(word) for word in text.split(";") if word.strip())


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, the host an IPv6 address in brackets if need be."""
    host, _, port = text.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ConfigError(f"{text.strip()[:100]!r} is not an address: write host:port, such as 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)
