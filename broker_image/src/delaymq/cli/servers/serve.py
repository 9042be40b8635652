"""`delaymq standalone|broker|namesrv`: a configuration from flags, environment and file, then the server.

Precedence: flags, then environment (DELAYMQ_LISTEN_PORT …), then the file of `-c`, then defaults. Nothing heavy is
imported before the arguments are known to be right.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from delaymq.cli.errors import CommandError
from delaymq.cli.servers.rocketmq_conf import rocketmq_conf
from delaymq.cli.servers.settings import ServerSettings, settings_of
from delaymq.cli.servers.time_zone import prepare_time_zone
from delaymq.config import BrokerConfig, ConfigError, NamesrvConfig, Resolved
from delaymq.config.running import RunningSettings

EXIT_USAGE = 2
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
    try:
        found = settings_of(command, options, environment)
        if found.broker is None:
            return _serve_namesrv(found, options)
        return _serve_broker(found, found.broker, options)
    except ConfigError as error:
        raise CommandError("\ndelaymq: ".join(error.problems), EXIT_USAGE) from error


def _serve_namesrv(found: ServerSettings, options: argparse.Namespace) -> int:
    assert found.namesrv is not None
    from delaymq.server.main import run_namesrv

    settings = RunningSettings(NamesrvConfig, found.namesrv, options.config)
    return run_namesrv(found.namesrv.config, settings=settings, notes=[*found.notes, *prepare_time_zone()])


def _serve_broker(found: ServerSettings, broker: Resolved[BrokerConfig], options: argparse.Namespace) -> int:
    if options.print_rocketmq_conf:
        print(rocketmq_conf(broker.config), end="")
        return 0
    notes = [*found.notes, *prepare_time_zone()]
    facts = [disk_note(broker.config)]
    settings = RunningSettings(BrokerConfig, broker, options.config)
    if found.namesrv is None:
        from delaymq.server.main import run_broker

        return run_broker(broker.config, settings=settings, notes=notes, facts=facts)
    from delaymq.server.main import run_standalone

    return run_standalone(
        broker.config,
        found.namesrv.config,
        settings=settings,
        namesrv_settings=RunningSettings(NamesrvConfig, found.namesrv, options.config),
        notes=notes,
        facts=facts,
    )


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
    made.add_argument("--tls-mode", metavar="MODE", help="disabled, permissive (default) or enforcing")
    made.add_argument("--tls-cert", type=Path, metavar="FILE", help="the certificate that TLS clients are shown, PEM")
    made.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    made.add_argument("--tls-config", type=Path, metavar="FILE", help="RocketMQ's tls.properties")
    if command != "namesrv":
        made.add_argument(
            "--read-only", action="store_true", help="look at a store, or at a backup, without changing anything in it"
        )
        made.add_argument("--broker-ip", metavar="IP", help="the address that clients are told (default: the host)")
        made.add_argument(
            "--print-rocketmq-conf", action="store_true",
            help="print the broker.conf with which RocketMQ's own broker opens this store, and end",
        )  # fmt: skip
    if command == "broker":
        made.add_argument("--namesrv", metavar="HOST:PORT", help="the NameServers to register with, joined by ;")
    return made


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


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write 0 (any free one) to 65535")
    return int(text)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
