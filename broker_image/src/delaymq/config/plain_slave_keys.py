"""Keys of replication over RocketMQ's HA protocol, for migrations."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from delaymq.config.checks import parse_address
from delaymq.config.errors import ConfigError
from delaymq.config.fields import flag, number, text

MAX_NETWORKS: Final = 64
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_networks(value: str) -> tuple[Network, ...]:
    """Parse IP addresses and networks such as `10.0.0.0/24`, separated by `;`. ConfigError."""
    words = [word.strip() for word in value.split(";") if word.strip()]
    if len(words) > MAX_NETWORKS:
        raise ConfigError(f"{len(words)} addresses are too many: use at most {MAX_NETWORKS}, or networks")
    networks: list[Network] = []
    for word in words:
        try:
            networks.append(ipaddress.ip_network(word))
        except ValueError:
            raise ConfigError(
                f"{word[:100]!r} is neither an IP address nor a network: use 10.0.0.7 or 10.0.0.0/24"
            ) from None
    return tuple(networks)


def _address(value: str) -> None:
    if value:
        parse_address(value)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PlainSlaveKeys:
    """Keys of plain slaves, and of a broker that is one."""

    ha_plain_slaves: bool = flag(
        False, "whether [plain slaves](plain-slaves.md) may copy the log, on `haListenPort`", ours=True
    )
    ha_plain_slave_addresses: str = text(
        "",
        "IP addresses of plain slaves, or networks such as `10.0.0.0/24`, separated by `;`",
        ours=True,
        check=parse_networks,
    )
    ha_master_address: str = text(
        "", "with `brokerRole=SLAVE`: address of the master's HA port, as `host:port`", check=_address
    )
    ha_master_broker_address: str = text(
        "",
        "with `brokerRole=SLAVE`: address of the master for requests, as `host:port`; empty: the host of"
        " `haMasterAddress`, with the port below",
        ours=True,
        check=_address,
    )
    ha_max_bytes_per_second: int = number(
        100 << 20,
        1 << 16,
        1 << 40,
        "limit of the bytes of the log that all plain slaves receive per second, and that all members of the group that"
        " are not in sync receive: with less than what is stored, they never catch up",
        hot=True,
        ours=True,
    )
    ha_pin_max_bytes: int = number(
        8 << 30,
        0,
        1 << 50,
        "bytes at the end of the log that are kept for connected plain slaves and replicas that have not received them;"
        " a replica that needs older ones starts again with an empty log",
        hot=True,
        ours=True,
    )
    ha_transfer_batch_size: int = number(
        32 << 10, 1 << 10, 2 << 20, "maximum bytes of the log in one frame to a plain slave", hot=True
    )
    ha_send_heartbeat_interval: int = number(
        5_000, 100, 600_000, "ms without data after which master and plain slave send a heartbeat", hot=True
    )
    ha_housekeeping_interval: int = number(
        20_000, 1_000, 600_000, "ms without a sign of the other side after which its connection is closed", hot=True
    )

    @property
    def plain_slave_networks(self) -> tuple[Network, ...]:
        """Addresses of plain slaves."""
        return parse_networks(self.ha_plain_slave_addresses)

    @property
    def master_ha_address(self) -> tuple[str, int]:
        """HA address of the master. ConfigError if there is none."""
        return parse_address(self.ha_master_address)

    @property
    def master_broker_address(self) -> tuple[str, int]:
        """Address of the master for requests. ConfigError if there is none."""
        if self.ha_master_broker_address:
            return parse_address(self.ha_master_broker_address)
        host, port = parse_address(self.ha_master_address)
        return host, port - 1  # RocketMQ's default of haListenPort is listenPort + 1


def check_plain_slaves(keys: PlainSlaveKeys) -> None:
    """Raise ConfigError for contradicting keys."""
    if keys.ha_plain_slaves and not keys.plain_slave_networks:
        raise ConfigError(
            "haPlainSlaves is true, but haPlainSlaveAddresses is empty: list the addresses of the slaves, because the"
            " protocol has no authentication"
        )
