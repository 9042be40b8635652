"""`delaymq standalone|broker|namesrv`: a configuration from flags, environment and file, then the server.

Precedence: flags, then environment (DELAYMQ_LISTEN_PORT …), then the file of `-c`, then defaults. Nothing heavy is
imported before the arguments are known to be right.
"""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from delaymq.cli.errors import CommandError
from delaymq.cli.rocketmq_conf import rocketmq_conf
from delaymq.config import (
    ENVIRONMENT_PREFIX,
    STANDALONE_DEFAULTS,
    BrokerConfig,
    ConfigError,
    NamesrvConfig,
    build,
    from_environment,
    keys_of,
    read_properties_file,
)

EXIT_USAGE = 2
COMMAND_VARIABLES = frozenset({"DELAYMQ_NAMESRV", "DELAYMQ_HTTP", "DELAYMQ_HTTP_TOKEN"})
"""What the other commands read."""
ALLOCATED_SEGMENTS = 2
"""The one that is written and the next one are really allocated."""
ABOUT = {
    "standalone": "Run a NameServer and a broker in one process.",
    "broker": "Run a broker.",
    "namesrv": "Run a NameServer.",
}


def serve(command: str, arguments: Sequence[str]) -> int:
    """Runs a server until it is told to stop (SIGTERM, SIGINT); the exit code. CommandError for what is wrong."""
    options = parser(command).parse_args(arguments)
    environment = dict(os.environ)
    _say(misspelt_variables(environment))
    try:
        if command == "namesrv":
            config, notes = namesrv_config(options, environment)
            _say(notes)
            from delaymq.server.main import run_namesrv

            return run_namesrv(config)
        broker, notes = broker_config(command, options, environment)
        if options.print_rocketmq_conf:
            print(rocketmq_conf(broker), end="")
            return 0
        _say([*notes, disk_note(broker)])
        if command == "broker":
            from delaymq.server.main import run_broker

            return run_broker(broker)
        namesrv, more = standalone_namesrv_config(options, environment, broker)
        _say(more)
        from delaymq.server.main import run_standalone

        return run_standalone(broker, namesrv)
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error


def parser(command: str) -> argparse.ArgumentParser:
    """The arguments of one server."""
    made = argparse.ArgumentParser(
        prog=f"delaymq {command}",
        description=f"{ABOUT[command]} Settings: flags, then environment (DELAYMQ_LISTEN_PORT …), then the file of -c.",
        allow_abbrev=False,
    )
    made.add_argument("-c", "--config", type=Path, metavar="FILE", help="a configuration with RocketMQ's keys")
    made.add_argument("--host", help="the address to listen on, HTTP too (default 127.0.0.1)")
    if command != "broker":
        made.add_argument("--namesrv-port", type=_port, metavar="PORT", help="the NameServer's port (default 9876)")
    listen_help = "as --namesrv-port" if command == "namesrv" else "the broker's port (default 10911); port - 2 too"
    made.add_argument("--listen-port", type=_port, metavar="PORT", help=listen_help)
    default_http = "none" if command == "namesrv" else "8080"
    made.add_argument("--http-port", type=_port, metavar="PORT", help=f"health and metrics (default {default_http})")
    default_store = "namesrv" if command == "namesrv" else "store"
    made.add_argument(
        "--store-path", type=Path, metavar="DIR", help=f"where the data is kept (default ./{default_store})"
    )
    if command != "namesrv":
        made.add_argument("--broker-ip", metavar="IP", help="the address that clients are told (default: the host)")
        made.add_argument(
            "--print-rocketmq-conf", action="store_true",
            help="print the broker.conf with which RocketMQ's own broker opens this store, and end",
        )  # fmt: skip
    if command == "broker":
        made.add_argument("--namesrv", metavar="HOST:PORT", help="the NameServers to register with, joined by ;")
    return made


def broker_config(
    command: str, options: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[BrokerConfig, list[str]]:
    """The broker's configuration and notes about keys that have no meaning. Raises ConfigError."""
    defaults = STANDALONE_DEFAULTS if command == "standalone" else {}
    file = read_properties_file(options.config) if options.config else {}
    if command == "standalone":
        file = {key: text for key, text in file.items() if not _is_namesrv_key(key)}
    variables = from_environment(BrokerConfig, environment)
    flags: dict[str, str] = {}
    if options.host is not None:
        flags |= {"listenHost": options.host, "httpHost": options.host}
    _set(flags, "listenPort", options.listen_port)
    _set(flags, "httpPort", options.http_port)
    _set(flags, "storePathRootDir", options.store_path)
    _set(flags, "brokerIP1", options.broker_ip)
    if command == "broker":
        _set(flags, "namesrvAddr", options.namesrv)
    layers = [defaults, file, variables, flags]
    if not any("brokerIP1" in layer for layer in layers):
        host = next((layer["listenHost"] for layer in reversed(layers) if "listenHost" in layer), "127.0.0.1")
        flags["brokerIP1"] = advertised_address(host)
    return build(BrokerConfig, *layers)


def namesrv_config(options: argparse.Namespace, environment: Mapping[str, str]) -> tuple[NamesrvConfig, list[str]]:
    """The NameServer's configuration. Raises ConfigError."""
    file = read_properties_file(options.config) if options.config else {}
    flags: dict[str, str] = {}
    if options.host is not None:
        flags |= {"listenHost": options.host, "httpHost": options.host}
    ports = {port for port in (options.namesrv_port, options.listen_port) if port is not None}
    if len(ports) > 1:
        raise ConfigError("--namesrv-port and --listen-port mean the same here: give one of them")
    _set(flags, "listenPort", next(iter(ports), None))
    _set(flags, "httpPort", options.http_port)
    if options.store_path is not None:
        flags["kvConfigPath"] = str(options.store_path / "kvConfig.json")
    return build(NamesrvConfig, file, from_environment(NamesrvConfig, environment), flags)


def standalone_namesrv_config(
    options: argparse.Namespace, environment: Mapping[str, str], broker: BrokerConfig
) -> tuple[NamesrvConfig, list[str]]:
    """The NameServer beside a broker: the broker's host, a port of its own, its file in the broker's store."""
    # listenPort and the like are the broker's here.
    file = read_properties_file(options.config) if options.config else {}
    layers = [
        {key: text for key, text in layer.items() if _is_namesrv_key(key)}
        for layer in (file, from_environment(NamesrvConfig, environment))
    ]
    flags = {"listenHost": broker.listen_host, "httpPort": "0"}
    _set(flags, "listenPort", options.namesrv_port)
    kv_config_path = {"kvConfigPath": str(broker.store_path / "delaymq" / "kvConfig.json")}
    return build(NamesrvConfig, kv_config_path, *layers, flags)


def _is_namesrv_key(key: str) -> bool:
    """Whether a key is the NameServer's alone."""
    return key in keys_of(NamesrvConfig) and key not in keys_of(BrokerConfig)


def advertised_address(host: str) -> str:
    """The IP address that clients of a broker on `host` are told. Raises ConfigError when that cannot be known."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise ConfigError(f"--host {host}: not an address, and no name that can be resolved ({error})") from error
    if address.is_unspecified:
        raise ConfigError(
            f"--host {host} is all interfaces: say with --broker-ip (or brokerIP1) which address clients are told"
        )
    return str(address)


def disk_note(config: BrokerConfig) -> str:
    """What the store needs on its disk, and whether it is there. Raises ConfigError when it cannot be a folder."""
    store = config.store_path.absolute()
    try:
        place = next(path for path in (store, *store.parents) if path.exists())
    except OSError as error:
        raise ConfigError(f"the store's folder {store} cannot be looked at: {error.strerror}") from error
    if not place.is_dir():
        raise ConfigError(f"the store's folder {store} cannot be: {place} is no folder; name another (--store-path)")
    needed = ALLOCATED_SEGMENTS * config.mapped_file_size_commit_log
    free = shutil.disk_usage(place).free
    if (store / "commitlog").exists():
        return f"store {store}: {_size(free)} are free"  # its files keep the sizes that they have
    text = f"store {store}: {_size(needed)} are allocated at the start, {_size(free)} are free"
    return text if free >= needed else f"{text}: too little, make room first"


def misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """Sentences about variables that look like settings and are none.

    No errors: Kubernetes sets variables by the names of services, which may begin with DELAYMQ_ too.
    """
    known = {ENVIRONMENT_PREFIX + item.name.upper() for kind in (BrokerConfig, NamesrvConfig) for item in fields(kind)}
    notes = []
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known | COMMAND_VARIABLES:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            notes += [f"the variable {name} is no setting: did you mean {each}?" for each in nearest]
    return notes


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"delaymq: {note}", file=sys.stderr)


def _set(layer: dict[str, str], key: str, value: object) -> None:
    if value is not None:
        layer[key] = str(value)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write 0 (any free one) to 65535")
    return int(text)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
