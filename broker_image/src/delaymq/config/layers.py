"""Layers of keys from file, environment and flags; each value has an origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from delaymq.config.fields import wire_name
from delaymq.config.model import BrokerConfig, NamesrvConfig
from delaymq.config.properties_text import read_entries

ENVIRONMENT_PREFIX = "DELAYMQ_"
DEFAULT = "default"

Config = TypeVar("Config", BrokerConfig, NamesrvConfig)


class Given(NamedTuple):
    """A value as written, and its origin: `broker.conf:12`, `variable DELAYMQ_LISTEN_PORT`, `flag --host`."""

    value: str
    origin: str


Layer = Mapping[str, Given]


def keys_of(kind: type[Config]) -> dict[str, dataclasses.Field[Any]]:
    """Return every key of a configuration, in the order of its fields."""
    return {wire_name(item.name): item for item in dataclasses.fields(kind)}


def variable_of(field_name: str) -> str:
    """Return the environment variable that sets the field."""
    return ENVIRONMENT_PREFIX + field_name.upper()


def from_environment(kind: type[Config], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the keys set by environment variables such as DELAYMQ_LISTEN_PORT."""
    return {key: given.value for key, given in environment_layer(kind, environment).items()}


def environment_layer(kind: type[Config], environment: Mapping[str, str]) -> dict[str, Given]:
    """Return the same keys as `from_environment`, with the variables as origins."""
    names = {variable_of(item.name): key for key, item in keys_of(kind).items()}
    return {names[name]: Given(value, f"variable {name}") for name, value in environment.items() if name in names}


def same_origin(values: Mapping[str, str], origin: str) -> dict[str, Given]:
    """Return a layer of values with the same origin."""
    return {key: Given(value, origin) for key, value in values.items()}


def file_layer(path: Path) -> tuple[dict[str, Given], list[str]]:
    """Return the file's values, and notes on duplicate keys; raise ConfigError if the file cannot be read."""
    layer: dict[str, Given] = {}
    notes = []
    for entry in read_entries(path):
        origin = f"{path}:{entry.line}"
        earlier = layer.get(entry.key)
        if earlier is not None:
            notes.append(f"{entry.key[:100]} is set in {earlier.origin} and in {origin}: the last value is used")
        layer[entry.key] = Given(entry.value, origin)
    return layer, notes


def only(layer: Layer, keys: Iterable[str]) -> dict[str, Given]:
    """Return the part of a layer with the given keys."""
    wanted = frozenset(keys)
    return {key: given for key, given in layer.items() if key in wanted}
