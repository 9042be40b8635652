"""Broker groups of `--groups N`: name, port and folder of each, and the checks before they are started.

Group 0 has the name, ports and store of a broker without `--groups`. Its store is therefore used unchanged when groups
are added, and after they have been removed.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Final

from delaymq.config import BrokerConfig, ConfigError, NamesrvConfig
from delaymq.config.replication_keys import ASYNC_MASTER
from delaymq.server.listening import FAST_PORT_DISTANCE

MAX_GROUPS: Final = 64
PORT_DISTANCE: Final = 10
"""Distance of the groups' ports: a broker has the ports 10911, 10909 (fast) and 10912 (slaves), so none collide."""
FOLDER: Final = "groups"
"""Folder in the store of group 0 that contains the stores of the others, named by their numbers."""
_NUMBER: Final = re.compile("[1-9][0-9]{0,8}")
_MAX_PORT: Final = 65_535


def group_count(text: str) -> int:
    """Parse the value of `--groups`."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MAX_GROUPS:
        raise argparse.ArgumentTypeError(f"{text[:32]!r} is not a number of groups: use 1 to {MAX_GROUPS}")
    return int(text)


def group_name(config: BrokerConfig, index: int) -> str:
    """Return the broker name of a group; `config` is that of group 0."""
    return config.broker_name if index == 0 else f"{config.broker_name}-{index}"


def keys_of_group(config: BrokerConfig, index: int) -> dict[str, str]:
    """Return the settings in which a group differs from `config`, that of group 0, or must not differ."""
    store = config.store_path.absolute()
    keys = {
        "brokerName": group_name(config, index),
        "listenPort": str(config.listen_port + index * PORT_DISTANCE if config.listen_port else 0),
        "storePathRootDir": str(store if index == 0 else store / FOLDER / str(index)),
    }
    if config.audit_log_path and index:
        keys["auditLogPath"] = str(Path(config.audit_log_path).absolute() / str(index))
    if config.acl_enable:
        keys["aclConfigPath"] = str(config.acl_path)  # its default depends on the store
    return keys


def check_groups(config: BrokerConfig, namesrv: NamesrvConfig | None, count: int) -> None:
    """Raise ConfigError if `count` groups cannot be started with this configuration of group 0."""
    for key, is_set in (
        ("haMembers", bool(config.members)),
        ("haPlainSlaves", bool(config.ha_plain_slaves)),
        ("brokerRole", config.broker_role != ASYNC_MASTER),
    ):
        if is_set:
            raise ConfigError(
                f"{key}: --groups {count} starts groups without replicas: remove {key}, or start each group with a"
                " `delaymq broker` of its own"
            )
    taken = {config.http_port: "httpPort"}
    if namesrv is not None:
        taken[namesrv.listen_port] = "the NameServer's port"
    if not config.listen_port:
        return
    for index in range(count):
        port = config.listen_port + index * PORT_DISTANCE
        if port > _MAX_PORT:
            raise ConfigError(
                f"listenPort={config.listen_port}: group {index} would have port {port}: use at most"
                f" {_MAX_PORT - (count - 1) * PORT_DISTANCE} with --groups {count}"
            )
        for each in (port, port - FAST_PORT_DISTANCE) if config.fast_port_enable else (port,):
            if each > 0 and each in taken:
                raise ConfigError(
                    f"listenPort={config.listen_port}: group {index} would have port {each}, which is {taken[each]}:"
                    " choose other ports"
                )


def left_groups(store: Path, count: int) -> str:
    """Return a sentence on the highest group in `store` that `count` groups do not include; empty without one."""
    folder = store.absolute() / FOLDER
    try:
        used = [each.name for each in folder.iterdir() if each.is_dir() and any(each.iterdir())]
        numbers = [int(name) for name in used if _NUMBER.fullmatch(name)]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}: make it readable") from error
    highest = max(numbers, default=0)
    if highest < count:
        return ""
    return (
        f"the store has data of group {highest} in {folder / str(highest)}, which would not be used: start"
        f" with --groups {highest + 1}, or take that group out of service and move its folder away"
    )
