"""Conversion of keys and values to a configuration, and back to text."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Generic

from delaymq.config.errors import ConfigError
from delaymq.config.fields import wire_name
from delaymq.config.known_keys import FOLDERS, NO_DLEDGER, REFUSED, WITHOUT_MEANING, is_dledger
from delaymq.config.layers import DEFAULT, Config, Given, Layer, keys_of, same_origin
from delaymq.config.model import BrokerConfig, NamesrvConfig

MAX_PROBLEMS = 50
MAX_VALUE_CHARACTERS = 16_384
"""A table of 1,000 delays takes half of it; a value set over the network must not make the file unreadable."""
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line ends, lone surrogates: not representable in a file, and in no valid name, path or
address.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(Generic[Config]):
    """A configuration and the origins of its values."""

    config: Config
    origins: Mapping[str, str]
    """Key → origin of its value."""
    ignored: Mapping[str, str]
    """Known keys without a meaning here → where they were given."""


def build(kind: type[Config], *layers: Mapping[str, str], base: Config | None = None) -> tuple[Config, list[str]]:
    """Return a configuration from layers of keys, where later layers take precedence, and notes on ignored keys.

    Raises ConfigError for unknown keys and invalid values.
    """
    resolved = resolve(kind, *(same_origin(layer, "") for layer in layers), base=base)
    return resolved.config, [f"{key} has no meaning here and is ignored" for key in resolved.ignored]


def resolve(kind: type[Config], *layers: Layer, base: Config | None = None) -> Resolved[Config]:
    """Return a configuration from layers, where later layers take precedence.

    Raises ConfigError with all problems and their origins.
    """
    reading = _Reading(kind)
    for layer in layers:
        for key, given in layer.items():
            reading.take(key, given)
    reading.check_folders(layers)
    if reading.problems:
        raise ConfigError(*reading.problems)
    try:
        config = kind(**reading.values) if base is None else dataclasses.replace(base, **reading.values)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    origins = {key: reading.origins.get(key, DEFAULT) for key in keys_of(kind)}
    return Resolved(config=config, origins=origins, ignored=reading.ignored)


class _Reading(Generic[Config]):
    """Accumulated result of reading layers."""

    def __init__(self, kind: type[Config]) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.ignored: dict[str, str] = {}
        self.problems: list[str] = []
        self._known = keys_of(kind)
        self._of_the_other = keys_of(NamesrvConfig) if issubclass(kind, BrokerConfig) else keys_of(BrokerConfig)

    def take(self, key: str, given: Given) -> None:
        if len(self.problems) >= MAX_PROBLEMS:
            return
        item = self._known.get(key)
        if item is not None:
            try:
                self.values[item.name] = _parse_value(given.value, item)
                self.origins[key] = given.origin
            except ValueError as error:
                self._refuse(given, f"{key}: {error}")
        elif key in REFUSED:
            if key not in FOLDERS and given.value.strip().lower() not in REFUSED[key].harmless:
                self._refuse(given, f"{key}={given.value.strip()[:100]}: {REFUSED[key].why}")
        elif key in WITHOUT_MEANING or key in self._of_the_other:
            self.ignored[key] = given.origin
        elif is_dledger(key):
            self._refuse(given, f"{key[:100]}: {NO_DLEDGER}")
        else:
            self._refuse(given, unknown_key(key, self._known))

    def check_folders(self, layers: Iterable[Layer]) -> None:
        """Reject folder keys, unless they name the folders in storePathRootDir that are used anyway."""
        given_ones = [(key, given) for layer in layers for key, given in layer.items()]
        roots = [given.value.strip() for key, given in given_ones if key == "storePathRootDir"]
        roots.append(BrokerConfig.store_path_root_dir)
        for key, given in given_ones:
            path = given.value.strip()
            if key in FOLDERS and path:
                harmless = {os.path.normpath(os.path.join(root, FOLDERS[key])) for root in roots}
                if os.path.normpath(path) not in harmless:
                    self._refuse(given, f"{key}={path[:100]}: {REFUSED[key].why}")

    def _refuse(self, given: Given, problem: str) -> None:
        self.problems.append(f"{given.origin}: {problem}" if given.origin else problem)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the error for an unknown key, with the most similar known key."""
    import difflib  # not needed for valid files

    nearest = difflib.get_close_matches(key[:100], [*known, *WITHOUT_MEANING, *REFUSED], n=1)
    hint = f": did you mean {nearest[0]}?" if nearest else ": remove it"
    return f"{key[:100]} is not a key of RocketMQ or DelayMQ{hint}"


def _parse_value(text: str, item: dataclasses.Field[Any]) -> Any:
    text = text.strip()
    if len(text) > MAX_VALUE_CHARACTERS:
        raise ConfigError(f"the value has {len(text)} characters: use at most {MAX_VALUE_CHARACTERS}")
    if _UNFIT.search(text):
        raise ConfigError("the value contains a control character: remove it")
    if item.type == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{text[:100]!r} is invalid: use true or false")
        return text.lower() == "true"
    if item.type == "int":
        low, high = item.metadata["low"], item.metadata["high"]
        if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()) or len(text) > 30:
            raise ConfigError(f"{text[:100]!r} is not an integer: use {low} to {high}")
        number = int(text)
        if not low <= number <= high:
            raise ConfigError(f"{number} is out of range: {item.metadata['outside'] or f'use {low} to {high}'}")
        return number
    choices = item.metadata.get("choices")
    if choices and text not in choices:
        raise ConfigError(f"{text[:100]!r} is invalid: use one of {', '.join(choices)}")
    check = item.metadata.get("check")
    if check is not None:
        check(text)
    return text


def to_settings(config: BrokerConfig | NamesrvConfig) -> dict[str, str]:
    """Return the configuration as key → text, without secrets."""
    return {
        wire_name(item.name): to_text(getattr(config, item.name))
        for item in dataclasses.fields(config)
        if not item.metadata.get("secret")
    }


def to_text(value: str | int | bool) -> str:
    """Return a value as text for a configuration file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_properties_text(config: BrokerConfig | NamesrvConfig) -> str:
    """Return `to_settings` as `key=value` lines, as in responses to request code 26."""
    return "".join(f"{key}={value}\n" for key, value in to_settings(config).items())


def is_hot(kind: type[Config], key: str) -> bool | None:
    """Return whether a change of `key` needs no restart; None for an unknown key."""
    item = keys_of(kind).get(key)
    return None if item is None else bool(item.metadata.get("hot"))
