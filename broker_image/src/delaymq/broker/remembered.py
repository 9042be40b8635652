"""Consumers of the broker's last run, kept in clients.json, and believed for a while after a start.

A restarted broker knows nobody, and clients send heartbeats only every 30 s: until then their pulls and their question
for the group's members would fail. So the last run's answers hold until each client had time to say them again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from delaymq.protocol.bodies import SubscriptionData

FILE_NAME: Final = "clients.json"
# Heartbeats come every 30 s; the rest is for slow starts.
REMEMBER_MS: Final = 40_000
# The file is written anew this often while there are consumers, so that it says when the last run ended.
REFRESH_MS: Final = 30_000
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
        """The file's bytes."""
        return msgspec.json.encode(self)
