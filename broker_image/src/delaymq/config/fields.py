"""Declaration of keys: default, valid values, hot or restart, and description.

The metadata of a field is the only source of a key's meaning: `config keys` and the page of all settings are
generated from it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

_WIRE_NAMES = {
    "broker_ip1": "brokerIP1",
    "broker_ip2": "brokerIP2",
    "check_crc_on_recover": "checkCRCOnRecover",
    "use_tls": "useTLS",
    "tls_server_mode": "tls.server.mode",
    "tls_test_mode_enable": "tls.test.mode.enable",
    "tls_config_file": "tls.config.file",
    "tls_enable": "tls.enable",
    "tls_server_need_client_auth": "tls.server.need.client.auth",
    "tls_server_auth_client": "tls.server.authClient",
    "tls_client_auth_server": "tls.client.authServer",
    "tls_client_server_name": "tls.client.serverName",
    **{
        f"tls_{side}_{name}": f"tls.{side}.{key}"
        for side in ("server", "client", "register")
        for name, key in (
            ("cert_path", "certPath"),
            ("key_path", "keyPath"),
            ("key_password", "keyPassword"),
            ("trust_cert_path", "trustCertPath"),
        )
    },
}
"""RocketMQ's key for a field if it is not the camelCase form of the field's name."""


@functools.cache
def wire_name(name: str) -> str:
    """Return RocketMQ's key for the field `name`."""
    head, *rest = name.split("_")
    return _WIRE_NAMES.get(name) or head + "".join(word.capitalize() for word in rest)


def text(
    default: str,
    about: str,
    *,
    hot: bool = False,
    ours: bool = False,
    secret: bool = False,
    check: Callable[[str], object] | None = None,
) -> Any:
    """Declare a text; `check` raises ValueError for invalid values; secrets are never shown."""
    return _key(default, about, hot, ours, secret=secret, check=check)


def flag(default: bool, about: str, *, hot: bool = False, ours: bool = False) -> Any:
    """Declare a key that is true or false."""
    return _key(default, about, hot, ours)


def number(
    default: int, low: int, high: int, about: str, *, hot: bool = False, ours: bool = False, outside: str = ""
) -> Any:
    """Declare an integer from `low` to `high`; `outside` is the advice for other values."""
    return _key(default, about, hot, ours, low=low, high=high, outside=outside)


def choice(default: str, *choices: str, about: str, hot: bool = False, ours: bool = False) -> Any:
    """Declare a key with a fixed set of values."""
    return _key(default, about, hot, ours, choices=choices)


def _key(default: Any, about: str, hot: bool, ours: bool, **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"about": about, "hot": hot, "ours": ours, **more})
