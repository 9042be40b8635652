"""`delaymq standalone|broker|namesrv`: build the configuration from flags, environment and file, then run the server.

Precedence: flags, then environment (DELAYMQ_LISTEN_PORT …), then the file of `-c`, then defaults. No heavy module is
imported before the arguments are validated.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from delaymq.cli.errors import CommandError
from delaymq.cli.servers.groups import check_groups, group_count, keys_of_group, left_groups
from delaymq.cli.servers.rocketmq_conf import rocketmq_conf
from delaymq.cli.servers.settings import ServerSettings, settings_of
from delaymq.cli.servers.time_zone import prepare_time_zone
from delaymq.config import BrokerConfig, ConfigError, NamesrvConfig, Resolved
from delaymq.config.layers import same_origin
from delaymq.config.running import RunningSettings
from delaymq.server.errors import ServerError
from delaymq.server.groups.handoff import Handoff, received_handoff

EXIT_USAGE = 2
ALLOCATED_SEGMENTS = 2
"""The current segment and the next one have allocated disk space."""
ABOUT = {
    "standalone": "Run a NameServer and a broker in one process.",
    "broker": "Run a broker.",
    "namesrv": "Run a NameServer.",
}


def serve(command: str, arguments: Sequence[str]) -> int:
    """Run a server until SIGTERM or SIGINT and return its exit code; raise CommandError for invalid settings."""
    options = parser(command).parse_args(arguments)
    environment = dict(os.environ)
    try:
        handoff = None
        if command != "namesrv" and options.group is not None:
            handoff = received_handoff()
        of_group = same_origin(handoff.keys, "flag --groups") if handoff is not None else None
        found = settings_of(command, options, environment, of_group)
        if found.broker is None:
            return _serve_namesrv(found, options)
        if handoff is not None:
            return _serve_group(found, found.broker, options, handoff)
        if options.groups > 1:
            return _serve_groups(found, found.broker, options)
        return _serve_broker(found, found.broker, options)
    except ServerError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
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
    if left := left_groups(broker.config.store_path, 1):
        if not broker.config.read_only:
            raise ConfigError(left)
        notes.append(left)
    settings = RunningSettings(BrokerConfig, broker, options.config)
    if found.namesrv is None:
        from delaymq.server.main import run_broker

        return run_broker(broker.config, settings=settings, notes=notes, facts=facts)
    if broker.config.members:
        raise ConfigError(
            "haMembers: `standalone` has no replicas: run `delaymq namesrv`, and `delaymq broker` for each member"
        )
    from delaymq.server.main import run_standalone

    return run_standalone(
        broker.config,
        found.namesrv.config,
        settings=settings,
        namesrv_settings=RunningSettings(NamesrvConfig, found.namesrv, options.config),
        notes=notes,
        facts=facts,
    )


def _serve_groups(found: ServerSettings, broker: Resolved[BrokerConfig], options: argparse.Namespace) -> int:
    """Run the supervisor of several groups."""
    config, count = broker.config, options.groups
    if options.print_rocketmq_conf:
        raise ConfigError(
            "--print-rocketmq-conf: each group has a store of its own: run it without --groups, with the --store-path"
            " of one group"
        )
    check_groups(config, found.namesrv.config if found.namesrv is not None else None, count)
    if left := left_groups(config.store_path, count):
        raise ConfigError(left)
    disk_note(config)  # for its error
    from delaymq.server.main import run_groups

    namesrv = found.namesrv
    return run_groups(
        config,
        [keys_of_group(config, index) for index in range(count)],
        [sys.executable, *sys.orig_argv[1:]],
        None if namesrv is None else (namesrv.config, RunningSettings(NamesrvConfig, namesrv, options.config)),
        notes=[*found.notes, *prepare_time_zone()],
    )


def _serve_group(
    found: ServerSettings, broker: Resolved[BrokerConfig], options: argparse.Namespace, handoff: Handoff
) -> int:
    """Run one of several groups; the supervisor logs the notes on the settings."""
    prepare_time_zone()
    from delaymq.server.main import run_broker

    settings = RunningSettings(BrokerConfig, broker, options.config)
    return run_broker(broker.config, settings=settings, facts=[disk_note(broker.config)], handoff=handoff)


def parser(command: str) -> argparse.ArgumentParser:
    """Return the argument parser of one server."""
    made = argparse.ArgumentParser(
        prog=f"delaymq {command}",
        description=f"{ABOUT[command]} Precedence of settings: flags, environment (DELAYMQ_LISTEN_PORT …), -c file.",
        allow_abbrev=False,
    )
    made.add_argument("-c", "--config", type=Path, metavar="FILE", help="configuration file with RocketMQ's keys")
    made.add_argument("--host", help="address to listen on, also for HTTP (default 127.0.0.1)")
    if command != "broker":
        made.add_argument("--namesrv-port", type=_port, metavar="PORT", help="port of the NameServer (default 9876)")
    is_namesrv = command == "namesrv"
    listen_help = (
        "same as --namesrv-port" if is_namesrv else "port of the broker (default 10911); it also uses port - 2"
    )
    made.add_argument("--listen-port", type=_port, metavar="PORT", help=listen_help)
    http_help = "health and metrics (default none)" if is_namesrv else "API, health and metrics (default 8080)"
    made.add_argument("--http-port", type=_port, metavar="PORT", help=f"HTTP port: {http_help}")
    store_help = f"directory for the data (default ./{'namesrv' if command == 'namesrv' else 'store'})"
    made.add_argument("--store-path", type=Path, metavar="DIR", help=store_help)
    made.add_argument("--tls-mode", metavar="MODE", help="disabled, permissive (default) or enforcing")
    made.add_argument("--tls-cert", type=Path, metavar="FILE", help="server certificate, PEM")
    made.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    made.add_argument("--tls-config", type=Path, metavar="FILE", help="TLS settings file of RocketMQ (tls.properties)")
    if command != "namesrv":
        made.add_argument("--read-only", action="store_true", help="open a store or a backup without changing it")
        made.add_argument("--adopt-timers", action="store_true", help="take over pending timers that RocketMQ 5 stored")
        made.add_argument("--broker-ip", metavar="IP", help="address advertised to clients (default: same as --host)")
        made.add_argument(
            "--print-rocketmq-conf", action="store_true",
            help="print a broker.conf with which RocketMQ's broker can open this store, and exit",
        )  # fmt: skip
        made.add_argument(
            "--groups", type=group_count, default=1, metavar="N",
            help="number of broker groups, each with a process and a store of its own, to use several processor cores"
            " (default 1)",
        )  # fmt: skip
        made.add_argument("--group", help=argparse.SUPPRESS)  # added by the supervisor of several groups
    if command == "broker":
        made.add_argument("--namesrv", metavar="HOST:PORT", help="NameServers to register with, separated by ;")
    return made


def disk_note(config: BrokerConfig) -> str:
    """Return a note on the disk space that the store needs and that is free; raise ConfigError for an unusable path."""
    store = config.store_path.absolute()
    try:
        place = next(path for path in (store, *store.parents) if path.exists())
    except OSError as error:
        raise ConfigError(f"cannot access the store's directory {store}: {error.strerror}") from error
    if not place.is_dir():
        raise ConfigError(f"cannot create the store {store}: {place} is not a directory: specify another --store-path")
    needed = ALLOCATED_SEGMENTS * config.mapped_file_size_commit_log
    free = shutil.disk_usage(place).free
    if (store / "commitlog").exists():
        return f"store {store}: {_size(free)} free"  # existing files keep their sizes
    text = f"store {store}: {_size(needed)} allocated at startup, {_size(free)} free"
    return text if free >= needed else f"{text}: this is not enough; free some space, or specify another --store-path"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use a number from 0 (any free port) to 65535")
    return int(text)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
