"""Settings of delayed messages by topic and account: delaymq/delay_settings.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from delaymq.api_types.delay_settings import AccountDelaySettings, TopicDelaySettings
from delaymq.broker.requests.errors import system_error

FILE_NAME: Final = "delay_settings.json"
MAX_TOPICS: Final = 20_000
"""Maximum topics with settings: as many as a broker can have."""
MAX_ACCOUNTS: Final = 1_000
"""Maximum accounts with settings."""
_VERSION: Final = 1
_NONE: Final = TopicDelaySettings()
_NONE_OF_ACCOUNT: Final = AccountDelaySettings()
_Settings = TypeVar("_Settings", TopicDelaySettings, AccountDelaySettings)


class DelaySettingsTable:
    """Table of the settings. Topics and accounts without settings have no entry."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicDelaySettings] = {}
        self.accounts: dict[str, AccountDelaySettings] = {}
        self.gone: set[str] = set()
        """Topics that were deleted while messages for them were pending. A topic that is only missing, such as after
        damage to topics.json, is not one of them: its messages must not be dropped."""
        self.dirty = False
        self.on_topic: Callable[[str], None] = lambda topic: None
        """Called when the settings of a topic have changed."""
        self.on_change: Callable[[str, bool], None] = lambda name, is_account: None
        """Called with the name of each topic or account whose entry in the table has changed."""

    def of_topic(self, topic: str) -> TopicDelaySettings:
        """Return the settings of a topic."""
        return self.topics.get(topic, _NONE)

    def of_account(self, account: str) -> AccountDelaySettings:
        """Return the settings of an account."""
        return self.accounts.get(account, _NONE_OF_ACCOUNT)

    def put_topic(self, topic: str, settings: TopicDelaySettings) -> None:
        """Replace the settings of a topic. Raises RequestError 1 if too many topics have settings."""
        self._put(self.topics, topic, settings, _NONE, MAX_TOPICS)
        if topic not in self.topics:
            self.gone.discard(topic)
        self.on_change(topic, False)
        self.on_topic(topic)

    def topic_deleted(self, topic: str, *, is_settled: bool) -> None:
        """Remove the settings of a deleted topic, or keep them unless all messages for it are settled."""
        if is_settled:
            self.put_topic(topic, _NONE)
        elif topic in self.topics and topic not in self.gone:
            self.gone.add(topic)
            self.dirty = True
            self.on_change(topic, False)

    def put_account(self, account: str, settings: AccountDelaySettings) -> None:
        """Replace the settings of an account. Raises RequestError 1 if too many accounts have settings."""
        self._put(self.accounts, account, settings, _NONE_OF_ACCOUNT, MAX_ACCOUNTS)
        self.on_change(account, True)

    def _put(self, table: dict[str, _Settings], name: str, settings: _Settings, none: _Settings, most: int) -> None:
        if settings == none:
            self.dirty |= table.pop(name, None) is not None
            return
        if name not in table and len(table) >= most:
            raise system_error(f"{most} others have delay settings: remove some of those first")
        if table.get(name) != settings:
            table[name] = settings
            self.dirty = True

    def replicate_topic(self, topic: str, settings: TopicDelaySettings | None, *, is_gone: bool) -> None:
        """Adopt the master's settings of a topic, or their removal (None)."""
        self._replicate(self.topics, topic, settings)
        if settings is not None and is_gone:
            self.gone.add(topic)
        else:
            self.gone.discard(topic)

    def replicate_account(self, account: str, settings: AccountDelaySettings | None) -> None:
        """Adopt the master's settings of an account, or their removal (None)."""
        self._replicate(self.accounts, account, settings)

    def _replicate(self, table: dict[str, _Settings], name: str, settings: _Settings | None) -> None:
        self.dirty = True
        if settings is None:
            table.pop(name, None)
        else:
            table[name] = settings

    def encode(self) -> bytes:
        """Return the content of the file."""
        return msgspec.json.encode(
            {"version": _VERSION, "topics": self.topics, "accounts": self.accounts, "gone": sorted(self.gone)}
        )

    def restore(self, stored: DelaySettingsTable) -> None:
        """Take over the settings of a file."""
        self.topics, self.accounts, self.gone = stored.topics, stored.accounts, stored.gone

    @classmethod
    def parse(cls, data: bytes) -> DelaySettingsTable:
        """Return the settings in a file; members that only newer versions know are ignored. ValueError."""
        stored = json.loads(data)
        if not isinstance(stored, dict) or stored.get("version") != _VERSION:
            raise ValueError(f"its version is not {_VERSION}")
        table = cls()
        table.topics = _read(stored.get("topics"), TopicDelaySettings, MAX_TOPICS)
        table.accounts = _read(stored.get("accounts"), AccountDelaySettings, MAX_ACCOUNTS)
        gone = stored.get("gone", [])
        if not isinstance(gone, list) or not all(isinstance(topic, str) for topic in gone):
            raise ValueError("gone is a list of topics")
        table.gone = {topic for topic in gone if topic in table.topics}
        return table


def _read(stored: Any, kind: type[_Settings], most: int) -> dict[str, _Settings]:
    if (
        not isinstance(stored, dict)
        or len(stored) > most
        or not all(isinstance(each, dict) for each in stored.values())
    ):
        raise ValueError(f"topics and accounts are objects with at most {most} members, which are objects")
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    return {
        name: msgspec.convert({key: value for key, value in settings.items() if key in known}, kind)
        for name, settings in stored.items()
    }
