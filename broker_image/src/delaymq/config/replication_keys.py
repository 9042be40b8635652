"""Keys of the links between the members of a replicated group.

No broker has them yet: a broker that accepted them without replicating would be trusted with copies that do not exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from delaymq.config.checks import parse_address
from delaymq.config.errors import ConfigError
from delaymq.config.fields import text

MAX_MEMBERS: Final = 9
"""A group has one to five members; more may be listed while they are replaced."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
_SHOWN: Final = 100


def member_name(name: str) -> None:
    """Raise ConfigError unless `name` is empty or the name of a member."""
    if name and not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:_SHOWN]!r} is not a name: use 1 to 64 characters A-Z, a-z, 0-9, ., _ and -")


def parse_members(text: str) -> dict[str, tuple[str, int]]:
    """Parse `name=host:port`, separated by `;`, as addresses by name."""
    members: dict[str, tuple[str, int]] = {}
    names: dict[tuple[str, int], str] = {}
    for word in text.split(";"):
        if not word.strip():
            continue
        name, separator, stated = word.strip().partition("=")
        if not separator or not name:
            raise ConfigError(
                f"{word.strip()[:_SHOWN]!r} is not a member: use name=host:port, such as b-0=10.0.0.1:10911"
            )
        member_name(name)
        address = parse_address(stated)
        if not _HOST.fullmatch(address[0]):
            raise ConfigError(f"{address[0][:_SHOWN]!r} is neither a host name nor an IP address")
        if name in members:
            raise ConfigError(f"two members have the name {name}: give each member its own name")
        if address in names:
            raise ConfigError(f"the members {names[address]} and {name} have the same address: correct one of them")
        members[name] = address
        names[address] = name
    if len(members) > MAX_MEMBERS:
        raise ConfigError(f"a group has at most {MAX_MEMBERS} members, and {len(members)} are listed: remove some")
    return members


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReplicationKeys:
    """Keys of a member. Without `ha_members`, a broker has no replicas."""

    ha_member_name: str = text(
        "", "name of this member of the broker group, unique in it", ours=True, check=member_name
    )
    ha_members: str = text(
        "",
        "all members of the broker group, as `name=host:port` separated by `;`, with their `listenPort`; host names are"
        " resolved for each connection",
        hot=True,
        ours=True,
        check=parse_members,
    )
    ha_secret_file: str = text(
        "",
        "file with the secret by which the members of the group recognise each other, one per line: the first is used,"
        " all are accepted; reloaded when it changes",
        ours=True,
    )

    @property
    def members(self) -> dict[str, tuple[str, int]]:
        """Addresses of all members by name; empty without replication."""
        return parse_members(self.ha_members)


def check_replication(keys: ReplicationKeys) -> None:
    """Raise ConfigError for incomplete and contradicting keys."""
    members = keys.members
    if not members:
        for key, value in (("haMemberName", keys.ha_member_name), ("haSecretFile", keys.ha_secret_file)):
            if value:
                raise ConfigError(f"{key} is set, but haMembers is not: list all members of the group, or remove it")
        return
    if not keys.ha_member_name:
        raise ConfigError("haMembers is set, but haMemberName is not: set it to the name of this broker in haMembers")
    if keys.ha_member_name not in members:
        raise ConfigError(f"haMembers does not contain {keys.ha_member_name}, the haMemberName of this broker: add it")
    if not keys.ha_secret_file:
        raise ConfigError(
            "haMembers is set, but haSecretFile is not: write at least 16 random characters to a file, the same on all"
            " members of the group, and set haSecretFile to its path"
        )
