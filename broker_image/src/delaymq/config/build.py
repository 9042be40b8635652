"""From keys and values to a configuration, and back to text."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from delaymq.config.errors import ConfigError
from delaymq.config.known_keys import REFUSED, WITHOUT_MEANING
from delaymq.config.model import BrokerConfig, NamesrvConfig

ENVIRONMENT_PREFIX = "DELAYMQ_"

Config = TypeVar("Config", BrokerConfig, NamesrvConfig)

# RocketMQ's key for a field when it is not the plain camelCase of its name.
_WIRE_NAMES = {"broker_ip1": "brokerIP1", "broker_ip2": "brokerIP2", "check_crc_on_recover": "checkCRCOnRecover"}


def wire_name(name: str) -> str:
    """RocketMQ's key for the field `name`."""
    head, *rest = name.split("_")
    return _WIRE_NAMES.get(name) or head + "".join(word.capitalize() for word in rest)


def keys_of(kind: type[Config]) -> dict[str, dataclasses.Field[Any]]:
    """Every key of a configuration, in the order of its fields."""
    return {wire_name(item.name): item for item in dataclasses.fields(kind)}


def from_environment(kind: type[Config], environment: Mapping[str, str]) -> dict[str, str]:
    """Keys set by variables such as DELAYMQ_LISTEN_PORT."""
    names = {ENVIRONMENT_PREFIX + item.name.upper(): key for key, item in keys_of(kind).items()}
    return {names[name]: value for name, value in environment.items() if name in names}


def build(kind: type[Config], *layers: Mapping[str, str], base: Config | None = None) -> tuple[Config, list[str]]:
    """A configuration from layers of keys, the later ones on top, and sentences about keys that were left aside.

    ConfigError when a key is unknown or a value cannot be used.
    """
    known = keys_of(kind)
    values: dict[str, Any] = {}
    left_aside = []
    for layer in layers:
        for key, text in layer.items():
            item = known.get(key)
            if item is not None:
                values[item.name] = _parse_value(key, text, item)
            elif key in REFUSED:
                harmless, why = REFUSED[key]
                if text.strip() not in harmless:
                    raise ConfigError(f"{key}={text.strip()[:100]}: {why}")
            elif key in WITHOUT_MEANING:
                left_aside.append(f"{key} has no meaning here and is left aside")
            else:
                raise ConfigError(_unknown(key, known))
    try:
        return (dataclasses.replace(base, **values) if base is not None else kind(**values)), left_aside
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _unknown(key: str, known: Iterable[str]) -> str:
    if "dledger" in key.lower() or "dleger" in key.lower():
        return f"{key}: there is no dLedger here: remove the key"
    nearest = difflib.get_close_matches(key, [*known, *WITHOUT_MEANING], n=1)
    hint = f": did you mean {nearest[0]}?" if nearest else ": remove it"
    return f"{key[:100]} is not a key of RocketMQ's or DelayMQ's{hint}"


def _parse_value(key: str, text: str, item: dataclasses.Field[Any]) -> Any:
    text = text.strip()
    if item.type == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{key}: {text[:100]!r} is neither true nor false")
        return text.lower() == "true"
    if item.type == "int":
        low, high = item.metadata["low"], item.metadata["high"]
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"{key}: {text[:100]!r} is not a whole number") from None
        if not low <= number <= high:
            raise ConfigError(f"{key}: {number} is out of range: write {low} to {high}")
        return number
    choices = item.metadata.get("choices")
    if choices and text not in choices:
        raise ConfigError(f"{key}: {text[:100]!r} is none of {', '.join(choices)}")
    return text


def to_settings(config: BrokerConfig | NamesrvConfig) -> dict[str, str]:
    """The configuration by key, as text; secrets are left out."""
    settings = {}
    for item in dataclasses.fields(config):
        if item.name == "http_token":
            continue
        value = getattr(config, item.name)
        settings[wire_name(item.name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return settings


def to_properties_text(config: BrokerConfig | NamesrvConfig) -> str:
    """`to_settings` as `key=value` lines, as request code 26 answers it."""
    return "".join(f"{key}={value}\n" for key, value in to_settings(config).items())


def is_hot(kind: type[Config], key: str) -> bool | None:
    """Whether a change of `key` needs no restart; None for an unknown key."""
    item = keys_of(kind).get(key)
    return None if item is None else bool(item.metadata.get("hot"))
