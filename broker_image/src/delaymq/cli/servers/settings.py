"""Effective settings of a server from flags, environment, file and defaults, each with its origin."""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from delaymq.config import (
    ENVIRONMENT_PREFIX,
    STANDALONE_DEFAULTS,
    BrokerConfig,
    ConfigError,
    Given,
    Layer,
    NamesrvConfig,
    Resolved,
    keys_of,
    resolve,
    wire_name,
)
from delaymq.config.build import to_text
from delaymq.config.describe import STANDALONE_DEFAULT
from delaymq.config.layers import Config, environment_layer, file_layer, only, same_origin, variable_of
from delaymq.config.tls_keys import DEFAULT_FILE, NOT_IN_THE_FILE, TlsServerKeys

COMMAND_VARIABLES: Final = frozenset(
    """
    DELAYMQ_ACCESS_KEY DELAYMQ_ROCKETMQ_SIGNATURE DELAYMQ_SECRET_KEY DELAYMQ_SECRET_KEY_FILE DELAYMQ_SECURITY_TOKEN
    DELAYMQ_CONFIG DELAYMQ_CONTEXT DELAYMQ_HTTP DELAYMQ_HTTP_PLAIN_SIGN_IN DELAYMQ_HTTP_TOKEN DELAYMQ_KERNELS
    DELAYMQ_NAMESRV DELAYMQ_TLS DELAYMQ_TLS_CA DELAYMQ_TLS_CERT DELAYMQ_TLS_INSECURE DELAYMQ_TLS_KEY
    DELAYMQ_TLS_KEY_PASSWORD DELAYMQ_TLS_SERVER_NAME
    """.split()  # noqa: SIM905  (names are read better than quotes)
)
"""Variables that the other commands read."""
MAX_TOKEN_BYTES: Final = 4_096
MAX_SHOWN_KEYS: Final = 12
_NAMESRV_ONLY: Final = frozenset(keys_of(NamesrvConfig)) - frozenset(keys_of(BrokerConfig))


class ServerSettings(NamedTuple):
    """Settings of the broker and the NameServer that a command runs, and notes for the operator."""

    broker: Resolved[BrokerConfig] | None
    namesrv: Resolved[NamesrvConfig] | None
    notes: list[str]


def settings_of(
    command: str, options: argparse.Namespace, environment: Mapping[str, str], of_group: Layer | None = None
) -> ServerSettings:
    """Return the settings of `delaymq standalone|broker|namesrv`; raise ConfigError with all problems.

    `of_group`: settings of one of several broker groups, which take precedence over all others.
    """
    file, notes = file_layer(options.config) if options.config else ({}, [])
    tls_file, tls_notes = tls_layer(options, file, environment)
    file = {**tls_file, **file}
    notes += [*tls_notes, *misspelt_variables(environment)]
    if command == "namesrv":
        namesrv = namesrv_settings(options, file, environment)
        return ServerSettings(None, namesrv, notes + _ignored_note(namesrv))
    own = file if command == "broker" else {key: each for key, each in file.items() if key not in _NAMESRV_ONLY}
    problems: Sequence[str] = ()
    try:
        broker = broker_settings(command, options, own, environment, of_group or {})
    except ConfigError as error:
        # Continue with defaults to report the NameServer's problems, too.
        problems = error.problems
        broker = resolve(BrokerConfig)
    notes += _ignored_note(broker)
    if command == "broker" and not problems:
        return ServerSettings(broker, None, notes)
    if command == "standalone":
        try:
            beside = standalone_namesrv_settings(options, file, environment, broker.config)
        except ConfigError as error:
            raise ConfigError(*problems, *error.problems) from error
        if not problems:
            return ServerSettings(broker, beside, notes)
    raise ConfigError(*problems)


def broker_settings(
    command: str, options: argparse.Namespace, file: Layer, environment: Mapping[str, str], of_group: Layer
) -> Resolved[BrokerConfig]:
    """Return the broker's settings; raise ConfigError with all problems."""
    defaults = same_origin(STANDALONE_DEFAULTS if command == "standalone" else {}, STANDALONE_DEFAULT)
    variables = environment_layer(BrokerConfig, environment)
    flags = _host_flags(options)
    _set(flags, "listenPort", options.listen_port, "--listen-port")
    _set(flags, "httpPort", options.http_port, "--http-port")
    _set(flags, "storePathRootDir", options.store_path, "--store-path")
    _set(flags, "readOnly", "true" if options.read_only else None, "--read-only")
    _set(flags, "adoptTimers", "true" if options.adopt_timers else None, "--adopt-timers")
    _set(flags, "brokerIP1", options.broker_ip, "--broker-ip")
    _set_tls(flags, options)
    if command == "broker":
        _set(flags, "namesrvAddr", options.namesrv, "--namesrv")
    layers = [defaults, file, variables, flags, of_group]
    if not any("brokerIP1" in layer for layer in layers):
        host = next((layer["listenHost"] for layer in reversed(layers) if "listenHost" in layer), None)
        if host is not None:
            flags["brokerIP1"] = Given(advertised_address(host.value), f"the host ({host.origin})")
    if options.config is not None and any("aclEnable" in layer for layer in layers):
        # RocketMQ also looks for it in the folder of broker.conf.
        beside = options.config.absolute().parent / "plain_acl.yml"
        defaults = {**defaults, "aclConfigPath": Given(str(beside), f"the folder of {options.config}")}
        layers[0] = defaults
    return _with_tokens(resolve(BrokerConfig, *layers))


def namesrv_settings(
    options: argparse.Namespace, file: Layer, environment: Mapping[str, str]
) -> Resolved[NamesrvConfig]:
    """Return the settings of a separate NameServer; raise ConfigError with all problems."""
    flags = _host_flags(options)
    ports = {port for port in (options.namesrv_port, options.listen_port) if port is not None}
    if len(ports) > 1:
        raise ConfigError("--namesrv-port and --listen-port are equivalent here: use one of them")
    flag = "--listen-port" if options.namesrv_port is None else "--namesrv-port"
    _set(flags, "listenPort", next(iter(ports), None), flag)
    _set(flags, "httpPort", options.http_port, "--http-port")
    _set_tls(flags, options)
    if options.store_path is not None:
        flags["kvConfigPath"] = Given(str(options.store_path / "kvConfig.json"), "flag --store-path")
    return _with_token(resolve(NamesrvConfig, file, environment_layer(NamesrvConfig, environment), flags))


def standalone_namesrv_settings(
    options: argparse.Namespace, file: Layer, environment: Mapping[str, str], broker: BrokerConfig
) -> Resolved[NamesrvConfig]:
    """Return the settings of standalone's NameServer: the broker's host and logging, and a separate port and file."""
    # Shared keys such as listenPort apply to the broker here.
    layers = [only(layer, _NAMESRV_ONLY) for layer in (file, environment_layer(NamesrvConfig, environment))]
    of_broker = {"listenHost": broker.listen_host, "logLevel": broker.log_level, "logFormat": broker.log_format}
    shared = [item.name for item in dataclasses.fields(TlsServerKeys)]
    of_broker |= {wire_name(name): to_text(getattr(broker, name)) for name in shared}
    audit = ("audit_log_enable", "audit_log_max_bytes", "audit_log_files")
    of_broker |= {wire_name(name): to_text(getattr(broker, name)) for name in audit}
    if broker.audit_log_path:
        of_broker["auditLogPath"] = str(Path(broker.audit_log_path) / "namesrv")
    flags = same_origin(of_broker | {"httpPort": "0"}, "the broker's settings")
    _set(flags, "listenPort", options.namesrv_port, "--namesrv-port")
    kv_config_path = {"kvConfigPath": str(broker.store_path / "delaymq" / "kvConfig.json")}
    return resolve(NamesrvConfig, same_origin(kv_config_path, STANDALONE_DEFAULT), *layers, flags)


def tls_layer(
    options: argparse.Namespace, file: Layer, environment: Mapping[str, str]
) -> tuple[dict[str, Given], list[str]]:
    """Return the settings of RocketMQ's tls.properties, and notes on its ignored keys.

    Raises ConfigError if an explicitly named file cannot be read; the file at RocketMQ's default path may be missing.
    """
    named = file.get("tls.config.file", Given(DEFAULT_FILE, "")).value
    named = environment.get(variable_of("tls_config_file"), named)
    path = Path(named if options.tls_config is None else options.tls_config)
    if not named or (str(path) == DEFAULT_FILE and not os.access(path, os.R_OK)):
        return {}, []
    layer, notes = file_layer(path)
    taken = {key: given for key, given in layer.items() if key.startswith("tls.") and key not in NOT_IN_THE_FILE}
    vain = ", ".join(sorted(layer.keys() - taken.keys())[:MAX_SHOWN_KEYS])
    if vain:
        notes.append(f"{path}: ignored, as in RocketMQ: {vain}; set them in the configuration file")
    return taken, notes


def _set_tls(flags: dict[str, Given], options: argparse.Namespace) -> None:
    _set(flags, "tls.server.mode", options.tls_mode, "--tls-mode")
    _set(flags, "tls.server.certPath", options.tls_cert, "--tls-cert")
    _set(flags, "tls.server.keyPath", options.tls_key, "--tls-key")
    _set(flags, "tls.config.file", options.tls_config, "--tls-config")


def advertised_address(host: str) -> str:
    """Return the IP address that a broker on `host` advertises to clients; raise ConfigError if it is unknown."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise ConfigError(
                f"--host {host} is neither an IP address nor a resolvable name ({error.strerror}): specify an"
                " address of this machine"
            ) from error
    if address.is_unspecified:
        raise ConfigError(
            f"--host {host} means all interfaces: set the address advertised to clients with --broker-ip or brokerIP1"
        )
    return str(address)


def misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """Return notes on environment variables that resemble settings but are unknown.

    They are not errors: Kubernetes sets variables named after services, which may also start with DELAYMQ_.
    """
    known = {variable_of(item.name) for kind in (BrokerConfig, NamesrvConfig) for item in dataclasses.fields(kind)}
    notes = []
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known | COMMAND_VARIABLES:
            import difflib  # not needed for correct settings

            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            notes += [f"the environment variable {name} is not a setting: did you mean {each}?" for each in nearest]
    return notes


def _ignored_note(resolved: Resolved[Config]) -> list[str]:
    """Return a single note on all keys without a meaning."""
    keys = list(resolved.ignored)
    if not keys:
        return []
    shown = ", ".join(keys[:MAX_SHOWN_KEYS])
    if len(keys) > MAX_SHOWN_KEYS:
        shown += f" and {len(keys) - MAX_SHOWN_KEYS} more (`delaymq config check FILE` lists all)"
    return [f"ignored keys without a meaning here: {shown}"]


def _with_tokens(resolved: Resolved[BrokerConfig]) -> Resolved[BrokerConfig]:
    return _with_token(_with_token(resolved), "httpMetricsToken", "http_metrics_token")


def _with_token(resolved: Resolved[Config], key: str = "httpToken", field: str = "http_token") -> Resolved[Config]:
    path = getattr(resolved.config, f"{field}_file")
    if not path:
        return resolved
    if getattr(resolved.config, field):
        raise ConfigError(
            f"{key} ({resolved.origins[key]}) and {key}File ({resolved.origins[f'{key}File']})"
            " are both set: keep one of them"
        )
    try:
        with Path(path).open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES).decode().splitlines()[0].strip()
    except (OSError, UnicodeDecodeError, IndexError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is empty or not UTF-8 text"
        raise ConfigError(f"{key}File: cannot read {path}: {why}") from error
    if not token:
        raise ConfigError(f"{key}File: the first line of {path} is empty: write the token there")
    values: dict[str, Any] = {field: token}
    config = dataclasses.replace(resolved.config, **values)
    origins = {**resolved.origins, key: f"the file {path} ({key}File)"}
    return dataclasses.replace(resolved, config=config, origins=origins)


def _host_flags(options: argparse.Namespace) -> dict[str, Given]:
    if options.host is None:
        return {}
    return same_origin({"listenHost": options.host, "httpHost": options.host}, "flag --host")


def _set(layer: dict[str, Given], key: str, value: object, flag: str) -> None:
    if value is not None:
        layer[key] = Given(str(value), f"flag {flag}")
