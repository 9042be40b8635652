"""Configuration: RocketMQ's own keys, from a broker.conf, the environment or flags, as immutable snapshots.

Keys are written in RocketMQ's camelCase; here they are snake_case fields. Sizes are bytes and times ms unless a
field says otherwise. Unknown keys are refused with the nearest known one, dLedger keys are refused (there is no
dLedger here), keys of RocketMQ without a meaning here are accepted and reported.
"""

from delaymq.config.build import (
    ENVIRONMENT_PREFIX,
    build,
    from_environment,
    is_hot,
    keys_of,
    to_properties_text,
    to_settings,
    wire_name,
)
from delaymq.config.errors import ConfigError
from delaymq.config.model import BrokerConfig, NamesrvConfig, parse_address
from delaymq.config.properties_text import parse_properties_text, read_properties_file

__all__ = [
    "ENVIRONMENT_PREFIX",
    "BrokerConfig",
    "ConfigError",
    "NamesrvConfig",
    "build",
    "from_environment",
    "is_hot",
    "keys_of",
    "parse_address",
    "parse_properties_text",
    "read_properties_file",
    "to_properties_text",
    "to_settings",
    "wire_name",
]
