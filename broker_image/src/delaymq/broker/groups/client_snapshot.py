"""Consumers of the broker's last run (clients.json), which remain valid for a while after a start.

A restarted broker has no clients, and clients send heartbeats only every 30 s. Until then, their pulls and their
queries for the group's members would fail. The state of the last run is therefore used until each client had time to
send a heartbeat.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from delaymq.protocol.bodies import SubscriptionData

FILE_NAME: Final = "clients.json"
REMEMBER_MS: Final = 40_000
"""Heartbeats arrive every 30 s. The rest allows for slow starts."""
REFRESH_MS: Final = 30_000
"""While there are consumers, the file is rewritten at this interval, so that it shows when the last run ended."""
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Limit for reading and writing. A larger file is not worth restoring."""
_ENCODED_AT_ONCE_BYTES: Final = 256 * 1024
"""Bytes that are encoded before other threads may run."""
_END: Final = b"}}"
BELIEVED_MS: Final = 120_000
"""After a longer pause the file is ignored: clients that have left would keep queues from those that are connected."""


class RememberedGroup(msgspec.Struct, rename="camel"):
    """Stored state of one consumer group."""

    consume_type: str
    message_model: str
    consume_from_where: str
    client_ids: list[str]
    subscriptions: list[SubscriptionData]


class RememberedClients(msgspec.Struct, rename="camel"):
    """Contents of clients.json."""

    format_version: int = 1
    saved_at_ms: int = 0
    groups: dict[str, RememberedGroup] = {}

    @classmethod
    def parse(cls, data: bytes) -> RememberedClients:
        """Decode the file. Raises ValueError if it is unreadable."""
        read = msgspec.json.decode(data, type=cls)
        if read.format_version != 1:
            raise ValueError(f"clients.json has format version {read.format_version}; supported: 1")
        return read

    def encode(self) -> bytes:
        """Return the file's bytes: as many groups as fit into MAX_FILE_BYTES. Callable from any thread."""
        head = b'{"formatVersion":%d,"savedAtMs":%d,"groups":{' % (self.format_version, self.saved_at_ms)
        pieces: list[bytes] = []
        size, encoded = len(head) + len(_END), 0
        for name, group in self.groups.items():
            piece = b"%b:%b" % (msgspec.json.encode(name), msgspec.json.encode(group))
            size += len(piece) + 1
            if size > MAX_FILE_BYTES:
                break
            pieces.append(piece)
            encoded += len(piece)
            if encoded >= _ENCODED_AT_ONCE_BYTES:
                encoded = 0
                time.sleep(0)
        return head + b",".join(pieces) + _END
