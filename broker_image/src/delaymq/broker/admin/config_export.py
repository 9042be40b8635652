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


_FOR_CLIENTS: Final = ("httpPort", "maxMessageSize", "messageDelayLevel", "recallMessageEnable", "timerMaxDelaySec")
"""Settings by which DelayMQ's clients determine how to send delayed messages (client/core/broker_delays.py)."""


def exported_settings(config: BrokerConfig) -> bytes:
    """Return `key=value` lines. Secrets are omitted."""
    settings = to_settings(config)
    return encode_settings(settings | {key: fact for key, fact in _FACTS.items() if not settings.get(key)})


def settings_for_clients(config: BrokerConfig) -> bytes:
    """Return the lines of the settings that clients use, without paths, addresses and names."""
    settings = to_settings(config)
    return encode_settings({key: settings[key] for key in _FOR_CLIENTS})
