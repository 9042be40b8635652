"""Body of response 26: the broker's settings, and facts that RocketMQ's tools expect among them."""

from __future__ import annotations

import os
from typing import Final

from delaymq.config import BrokerConfig
from delaymq.config.build import to_settings
from delaymq.protocol.bodies import encode_settings

_FACTS: Final = {
    "filterServerNums": "0",
    "useTLS": "false",
    "clientCallbackExecutorThreads": str(
        os.cpu_count() or 1
    ),  # from which exportMetrics derives the number of processors
}
"""mqadmin exportConfigs and exportMetrics fail or show nothing if one of them is missing."""


def exported_settings(config: BrokerConfig) -> bytes:
    """Return `key=value` lines. Secrets are omitted."""
    settings = to_settings(config)
    return encode_settings(settings | {key: fact for key, fact in _FACTS.items() if not settings.get(key)})
