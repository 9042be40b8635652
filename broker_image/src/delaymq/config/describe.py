"""Description of settings for output: value, origin, hot or restart; never a secret."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypedDict

from delaymq.config.build import to_text
from delaymq.config.fields import wire_name
from delaymq.config.layers import DEFAULT, Given
from delaymq.config.model import BrokerConfig, NamesrvConfig

STANDALONE_DEFAULT = "standalone default"
BY_THE_SERVER = "set by the server itself"


class SettingRow(TypedDict):
    """One key. The value of a secret is None; `isSet` tells whether it is set."""

    key: str
    value: str | None
    isSet: bool
    origin: str
    default: str
    change: str
    """`hot` (a change takes effect immediately) or `restart`."""
    waiting: str | None
    """The value that takes effect after a restart."""


def describe(
    config: BrokerConfig | NamesrvConfig, origins: Mapping[str, str], waiting: Mapping[str, Given] | None = None
) -> list[SettingRow]:
    """Return rows for all keys, in the order of the configuration."""
    rows = []
    for item in dataclasses.fields(config):
        key = wire_name(item.name)
        value = getattr(config, item.name)
        origin = origins.get(key, DEFAULT)
        if origin == DEFAULT and value != item.default:
            origin = BY_THE_SERVER
        later = (waiting or {}).get(key)
        row = SettingRow(
            key=key,
            value=None if item.metadata.get("secret") else to_text(value),
            isSet=value != "",
            origin=origin,
            default=to_text(item.default),  # type: ignore[arg-type]
            change="hot" if item.metadata["hot"] else "restart",
            waiting=later.value if later is not None else None,
        )
        rows.append(row)
    return rows
