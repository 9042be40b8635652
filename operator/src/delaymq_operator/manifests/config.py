"""broker.conf: the user's keys and those derived from other fields of the spec."""

from __future__ import annotations

from collections.abc import Mapping

from delaymq.config import BrokerConfig, build, is_hot, keys_of, to_settings

from delaymq_operator.api.broker import BrokerSpec
from delaymq_operator.manifests.context import DelayTable

_LEFT_ALONE = frozenset({"brokerPermission", "haMembers"})
"""Hot keys that the operator does not reconcile: drains and people set them on a running broker, or they differ between
groups.
"""
_LEFT_UNLESS_STATED = frozenset({"logLevel"})
"""Hot keys that people change on a running broker to diagnose problems: reverted only if the spec sets them."""
_HOT_KEYS = tuple(key for key in keys_of(BrokerConfig) if is_hot(BrokerConfig, key) and key not in _LEFT_ALONE)
_COLD_KEYS = frozenset(key for key in keys_of(BrokerConfig) if not is_hot(BrokerConfig, key))


def broker_settings(spec: BrokerSpec, delay: DelayTable) -> dict[str, str]:
    """Return the keys and values of broker.conf, sorted; those derived from fields take precedence."""
    fields = {
        "delayLevelOverflow": delay.overflow,
        "flushDiskType": spec.flush_disk_type,
        "messageDelayLevel": delay.levels,
    }
    return dict(sorted((dict(spec.config) | fields).items()))


def broker_conf(settings: Mapping[str, str]) -> str:
    """Return the text of broker.conf."""
    lines = [f"{key}={_escape(value)}" for key, value in settings.items()]
    return "\n".join(["# Written by delaymq-operator from the Broker's spec: change it there.", *lines, ""])


def _escape(value: str) -> str:
    return value.strip().replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def check_settings(settings: Mapping[str, str]) -> list[str]:
    """Return sentences about ignored keys. ConfigError if a broker would not start with these settings."""
    return build(BrokerConfig, settings)[1]


def hot_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the desired value of every key that can change without a restart, including defaults.

    The log level is excluded unless it is set.
    """
    config, _ = build(BrokerConfig, settings)
    everything = to_settings(config)
    return {key: everything[key] for key in _HOT_KEYS if key in settings or key not in _LEFT_UNLESS_STATED}


def cold_keys(config: Mapping[str, str]) -> dict[str, str]:
    """Return the user's keys whose change requires a restart, except keys without a meaning."""
    return {key: value.strip() for key, value in config.items() if key in _COLD_KEYS}
