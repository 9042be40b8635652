"""Consumers of the broker's last run, kept in clients.json, and believed for a while after a start.

A restarted broker knows nobody, and clients send heartbeats only every 30 s: until then their pulls and their question
for the group's members would fail. So the last run's answers hold until each client had time to say them again.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from delaymq.protocol.bodies import SubscriptionData

FILE_NAME: Final = "clients.json"
# Heartbeats come every 30 s; the rest is for slow starts.
REMEMBER_MS: Final = 40_000
# The file is written anew this often while there are consumers, so that it says when the last run ended.
REFRESH_MS: Final = 30_000
# The file is only read this far; more than that is not worth remembering.
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
# What is encoded before other threads get their turn.
_ENCODED_AT_ONCE_BYTES: Final = 256 * 1024
_END: Final = b"}}"
# After a longer pause nobody is believed: clients that are gone would keep queues from those that are there.
BELIEVED_MS: Final = 120_000


class RememberedGroup(msgspec.Struct, rename="camel"):
    """One consumer group as it was."""

    consume_type: str
    message_model: str
    consume_from_where: str
    client_ids: list[str]
    subscriptions: list[SubscriptionData]


class RememberedClients(msgspec.Struct, rename="camel"):
    """clients.json."""

    format_version: int = 1
    saved_at_ms: int = 0
    groups: dict[str, RememberedGroup] = {}

    @classmethod
    def parse(cls, data: bytes) -> RememberedClients:
        """ValueError when the file cannot be read."""
        read = msgspec.json.decode(data, type=cls)
        if read.format_version != 1:
            raise ValueError(f"clients.json has format version {read.format_version}, this one reads 1")
        return read

    def encode(self) -> bytes:
        """The file's bytes: of more groups than MAX_FILE_BYTES hold the first ones. In any thread."""
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
