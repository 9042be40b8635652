"""Configuration with RocketMQ's keys, from a broker.conf, the environment or flags, as immutable snapshots.

RocketMQ's camelCase keys are snake_case fields. Sizes are in bytes and times in ms unless a field says otherwise.
Unknown keys are rejected with the most similar known key. Keys for unsupported features (DLedger, slaves) are rejected.
Keys of RocketMQ without a meaning here are accepted and reported. Every value has an origin: where it was written.
"""

from delaymq.config.build import Resolved, build, is_hot, resolve, to_properties_text, to_settings
from delaymq.config.checks import parse_address
from delaymq.config.errors import ConfigError
from delaymq.config.fields import wire_name
from delaymq.config.layers import ENVIRONMENT_PREFIX, Given, Layer, from_environment, keys_of
from delaymq.config.model import STANDALONE_DEFAULTS, BrokerConfig, NamesrvConfig
from delaymq.config.properties_text import parse_properties_text, read_properties_file

__all__ = [
    "ENVIRONMENT_PREFIX",
    "STANDALONE_DEFAULTS",
    "BrokerConfig",
    "ConfigError",
    "Given",
    "Layer",
    "NamesrvConfig",
    "Resolved",
    "build",
    "from_environment",
    "is_hot",
    "keys_of",
    "parse_address",
    "parse_properties_text",
    "read_properties_file",
    "resolve",
    "to_properties_text",
    "to_settings",
    "wire_name",
]
