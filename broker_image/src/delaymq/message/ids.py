"""Packed addresses, offset message ids and unique ids (docs/formats/store.md)."""

from __future__ import annotations

import ipaddress
import itertools
import os
import struct
import time
from datetime import UTC, datetime

_PORT = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_IPV4_LOOPBACK = b"\x7f"
_IPV6_LOOPBACK = bytes(15) + b"\x01"
_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"
_IPV6_NETWORK_BYTES = 8
MAX_RESERVED = 1_024
"""Maximum number of unique ids reserved together: within a millisecond, their counter must not repeat itself."""


def pack_host(address: str, port: int) -> bytes:
    """Return the address, then the port in 4 bytes: 8 bytes for IPv4, 20 for IPv6."""
    return ipaddress.ip_address(address.partition("%")[0]).packed + _PORT.pack(port)


def is_loopback(host: bytes) -> bool:
    """Return whether a packed host has a loopback address."""
    address = address_of(host)
    return address == _IPV6_LOOPBACK or (len(address) == 4 and address[:1] == _IPV4_LOOPBACK)


def address_of(host: bytes) -> bytes:
    """Return the IP address of a packed host: 4 bytes for IPv4, also if mapped to IPv6, else 16."""
    return host[: -_PORT.size].removeprefix(_IPV4_IN_IPV6)


def network_of(host: bytes) -> bytes:
    """Return the IPv4 address or IPv6 /64 network of a packed host, for limits per peer.

    One machine can use all addresses of a /64 network.
    """
    return address_of(host)[:_IPV6_NETWORK_BYTES]


def unpack_host(host: bytes) -> tuple[str, int]:
    """Return the address and port of packed `host` (8 or 20 bytes). ValueError."""
    if len(host) == 8:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}", _PORT.unpack_from(host, 4)[0]
    if len(host) != 20:
        raise ValueError(f"a packed host has 8 or 20 bytes, not {len(host)}")
    return str(ipaddress.ip_address(host[:-4])), _PORT.unpack_from(host, len(host) - 4)[0]


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id by which a broker finds a record: 32 hexadecimal digits (IPv4) or 56 (IPv6)."""
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """Return the address, port and physical offset of an offset message id. ValueError if it is invalid."""
    if len(message_id) not in (32, 56):
        raise ValueError(f"an offset message id has 32 or 56 hex digits, this one has {len(message_id)}")
    data = bytes.fromhex(message_id)
    address, port = unpack_host(data[:-8])
    return address, port, _OFFSET.unpack_from(data, len(data) - 8)[0]


def digits_of_ids(first: int, count: int) -> list[str]:
    """Return four hexadecimal digits for each of `count` numbers from `first` on, of which 16 bits are significant."""
    numbers = [number & 0xFFFF for number in range(first, first + count)]
    return struct.pack(f">{count}H", *numbers).hex("-", 2).upper().split("-")


class UniqueIds:
    """Generator of unique ids in the layout of RocketMQ's clients.

    Bytes: IP address, process id (2), hash (4), ms since the start of the month (4), counter (2).
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        packed = ipaddress.ip_address(address).packed
        self._prefix = (packed + struct.pack(">Hi", os.getpid() & 0xFFFF, hash(id(self)) & 0x7FFFFFFF)).hex().upper()
        self._counter = itertools.count()
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._start_text = ""
        """First bytes of the ids of the millisecond `_start_ms`."""
        self._start_ms = -1

    def next(self, now_ms: int | None = None) -> str:
        """Return a new id; `now_ms` is the current time in ms, if the caller knows it."""
        return f"{self._start(now_ms)}{next(self._counter) & 0xFFFF:04X}"

    def next_ones(self, count: int) -> list[str]:
        """Return `count` new ids."""
        ids: list[str] = []
        while len(ids) < count:
            some = min(count - len(ids), MAX_RESERVED)
            start, first = self.reserve(some)
            ids += [start + digits for digits in digits_of_ids(first, some)]
        return ids

    def reserve(self, count: int) -> tuple[str, int]:
        """Return the parts of 1 to MAX_RESERVED new ids: the start that all share, and the first of their numbers.

        `digits_of_ids` returns what follows the start.
        """
        start = self._start()
        first, *_ = itertools.islice(self._counter, count)  # in one call, in case other threads create ids
        return start, first & 0xFFFF

    def _start(self, now_ms: int | None = None) -> str:
        """Return the first bytes of an id: all but the counter."""
        if now_ms is None:
            now_ms = time.time_ns() // 1_000_000
        if now_ms != self._start_ms:
            if not self._month_start_ms <= now_ms < self._month_end_ms:
                self._set_month(now_ms)
            self._start_text = f"{self._prefix}{(now_ms - self._month_start_ms) & 0xFFFFFFFF:08X}"
            self._start_ms = now_ms
        return self._start_text

    def _set_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(following.timestamp() * 1000)
