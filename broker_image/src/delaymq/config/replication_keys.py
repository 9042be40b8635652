"""Keys of a replicated group: its members, what they promise, and when they take over."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from delaymq.config.checks import parse_address
from delaymq.config.errors import ConfigError
from delaymq.config.fields import choice, number, text

ASYNC_MASTER: Final = "ASYNC_MASTER"
SYNC_MASTER: Final = "SYNC_MASTER"
SLAVE: Final = "SLAVE"
"""A plain slave, which is no member of a group."""
MAX_MEMBERS: Final = 9
"""A group has one to five members; more may be listed while they are replaced."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
_SHOWN: Final = 100


def member_name(name: str) -> None:
    """Raise ConfigError unless `name` is empty or the name of a member."""
    if name and not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:_SHOWN]!r} is not a name: use 1 to 64 characters A-Z, a-z, 0-9, ., _ and -")


def _optional_address(text: str) -> None:
    if text:
        parse_address(text)


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

    replica_address: str = text(
        "",
        "address at which consumers reach this member while it is a replica, as `host:port`; empty: its address in"
        " `haMembers`",
        ours=True,
        check=_optional_address,
    )

    broker_role: str = choice(
        ASYNC_MASTER,
        ASYNC_MASTER,
        SYNC_MASTER,
        SLAVE,
        about="whether responses to sends wait for replicas (SYNC_MASTER); the same on all members, since each of them"
        " can become the master. SLAVE: a [plain slave](plain-slaves.md)",
    )
    slave_timeout: int = number(
        3_000, 100, 600_000, "ms after which a send that waits for replicas returns FLUSH_SLAVE_TIMEOUT", hot=True
    )
    min_in_sync_replicas: int = number(
        1, 1, 5, "number of members in sync, with the master, below which sends are rejected", ours=True
    )
    replica_acknowledge: str = choice(
        "Appended",
        "Appended",
        "Flushed",
        about="what a member has of a message when it counts: a copy in memory, or on disk",
        ours=True,
    )
    replica_failover: str = choice(
        "Automatic",
        "Automatic",
        "Manual",
        about="whether a replica takes over when the master is lost, or only by an order",
        ours=True,
    )
    ha_replica_timeout_ms: int = number(
        2_000, 500, 60_000, "ms without an acknowledgement after which the master waits for a replica no longer",
        ours=True,
    )  # fmt: skip
    replica_lease_ms: int = number(
        10_000, 3_000, 600_000, "ms after which a master that reaches neither the register nor its replicas stops",
        ours=True,
    )  # fmt: skip

    @property
    def members(self) -> dict[str, tuple[str, int]]:
        """Addresses of all members by name; empty without replication."""
        return parse_members(self.ha_members)


def check_replication(keys: ReplicationKeys, register: str) -> None:
    """Raise ConfigError for incomplete and contradicting keys; `register` is `replicaRegister`."""
    members = keys.members
    if not members:
        if keys.broker_role == SYNC_MASTER:
            raise ConfigError(
                "brokerRole=SYNC_MASTER: responses cannot wait for replicas, since haMembers is empty: list all members"
                " of the group, or use ASYNC_MASTER"
            )
        for key, value in (
            ("haMemberName", keys.ha_member_name),
            ("haSecretFile", keys.ha_secret_file),
            ("replicaRegister", register),
        ):
            if value:
                raise ConfigError(f"{key} is set, but haMembers is not: list all members of the group, or remove it")
        return
    if keys.broker_role == SLAVE:
        raise ConfigError(
            "brokerRole=SLAVE: a plain slave is no member of a group: remove haMembers, or use ASYNC_MASTER"
        )
    if not keys.ha_member_name:
        raise ConfigError("haMembers is set, but haMemberName is not: set it to the name of this broker in haMembers")
    if keys.ha_member_name not in members:
        raise ConfigError(f"haMembers does not contain {keys.ha_member_name}, the haMemberName of this broker: add it")
    if not keys.ha_secret_file:
        raise ConfigError(
            "haMembers is set, but haSecretFile is not: write at least 16 random characters to a file, the same on all"
            " members of the group, and set haSecretFile to its path"
        )
    if not register:
        raise ConfigError(
            "haMembers is set, but replicaRegister is not: name etcd or a Lease, which states which member is the"
            " master, such as etcd:https://HOST:2379"
        )
    if keys.min_in_sync_replicas > len(members):
        raise ConfigError(
            f"minInSyncReplicas={keys.min_in_sync_replicas} exceeds the number of members in haMembers, {len(members)}:"
            " all sends would be rejected"
        )
