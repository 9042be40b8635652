"""The configurations as immutable snapshots: every key, its default, its range, and whether a change is hot."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from delaymq.config.errors import ConfigError
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels


def _hot(default: Any) -> Any:
    """A field whose change needs no restart."""
    return field(default=default, metadata={"hot": True})


def _range(default: int, low: int, high: int, *, hot: bool = False) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "hot": hot})


def _choice(default: str, *choices: str, hot: bool = False) -> Any:
    return field(default=default, metadata={"choices": choices, "hot": hot})


_MS_A_DAY = 86_400_000


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """One broker's configuration. A field whose metadata says hot can be changed while the broker runs."""

    # Names and addresses
    broker_name: str = "broker-a"
    broker_cluster_name: str = "DefaultCluster"
    broker_id: int = _range(0, 0, 0)
    """0 is the master; slaves come with replication."""
    broker_ip1: str = "127.0.0.1"
    """The address that clients are told, and that message ids carry (IPv4 or IPv6)."""
    broker_ip2: str = "127.0.0.1"
    """The address for replication."""
    listen_host: str = "127.0.0.1"
    """Ours: the address that the broker's ports are bound to."""
    listen_port: int = _range(10911, 0, 65535)
    ha_listen_port: int = _range(10912, 0, 65535)
    http_port: int = _range(8080, 0, 65535)
    """Ours: /livez, /readyz, /metrics, /api/v1."""
    http_host: str = "127.0.0.1"
    """Ours: the address that the HTTP port is bound to."""
    http_token: str = ""
    """Ours: what `Authorization: Bearer` must carry, beyond health and metrics, when HTTP is not on loopback only."""
    namesrv_addr: str = ""
    """NameServers, `host:port` joined by `;`."""
    register_name_server_period: int = _range(30_000, 10_000, 60_000)
    register_broker_timeout_mills: int = _range(6_000, 100, 60_000)
    fast_port_enable: bool = True
    """Ours: whether the second port, listenPort − 2, is opened."""

    # Topics and groups
    broker_permission: int = _range(6, 0, 7, hot=True)
    default_topic_queue_nums: int = _range(8, 1, 1_024, hot=True)
    auto_create_topic_enable: bool = _hot(True)
    auto_create_subscription_group: bool = _hot(True)
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    region_id: str = "DefaultRegion"
    trace_on: bool = _hot(True)
    reject_transaction_message: bool = _hot(False)
    notify_consumer_ids_changed_enable: bool = _hot(True)
    enable_property_filter: bool = _hot(False)
    slave_read_enable: bool = False
    offset_moved_event_enable: bool = _hot(True)
    """Ours: whether a pull at a wrong offset also writes an OFFSET_MOVED_EVENT message, as RocketMQ does."""

    # Sending and pulling
    max_message_size: int = _range(4 * 1024 * 1024, 1_024, 15 * 1024 * 1024, hot=True)
    long_polling_enable: bool = _hot(True)
    short_polling_time_mills: int = _range(1_000, 10, 60_000, hot=True)
    max_transfer_count_on_message_in_memory: int = _range(32, 1, 1_024, hot=True)
    max_transfer_bytes_on_message_in_memory: int = _range(256 * 1024, 1_024, 15 * 1024 * 1024, hot=True)
    max_transfer_count_on_message_in_disk: int = _range(8, 1, 1_024, hot=True)
    max_transfer_bytes_on_message_in_disk: int = _range(64 * 1024, 1_024, 15 * 1024 * 1024, hot=True)
    access_message_in_memory_max_ratio: int = _range(40, 0, 100, hot=True)
    default_query_max_num: int = _range(32, 1, 64, hot=True)

    # Delays
    message_delay_level: str = _hot(DEFAULT_LEVELS)
    delay_level_overflow: str = _choice("clamp", "clamp", "reject", hot=True)
    """Ours: what a producer's level above the table gets; retries are always clamped."""
    flush_delay_offset_interval: int = _range(10_000, 100, _MS_A_DAY, hot=True)

    # Store
    store_path_root_dir: str = "store"
    mapped_file_size_commit_log: int = _range(1 << 30, 4_096, 1 << 31)
    mapped_file_size_consume_queue: int = _range(6_000_000, 20, 1 << 30)
    """Bytes of a queue file: a whole number of 20-byte entries. (RocketMQ's files say bytes too, rounded up to 20.)"""
    max_hash_slot_num: int = _range(5_000_000, 1, 100_000_000)
    max_index_num: int = _range(20_000_000, 2, 400_000_000)
    message_index_enable: bool = True
    check_crc_on_recover: bool = True
    flush_disk_type: str = _choice("ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH")
    flush_interval_commit_log: int = _range(500, 1, 60_000, hot=True)
    sync_flush_timeout: int = _range(5_000, 1, 600_000, hot=True)
    flush_consumer_offset_interval: int = _range(5_000, 100, _MS_A_DAY, hot=True)
    snapshot_interval_bytes: int = _range(32 << 20, 4_096, 1 << 40)
    """Ours: log bytes between two snapshots; recovery after a crash reads at most about this much."""
    file_reserved_time: int = _range(72, 1, 24 * 3_650, hot=True)
    """Hours."""
    delete_when: str = _hot("04")
    """Hours of the day, local time, joined by `;`."""
    disk_max_used_space_ratio: int = _range(75, 10, 95, hot=True)

    # Transactions (served by a later version)
    transaction_time_out: int = _range(6_000, 1, _MS_A_DAY, hot=True)
    transaction_check_max: int = _range(15, 1, 10_000, hot=True)
    transaction_check_interval: int = _range(60_000, 1, _MS_A_DAY, hot=True)

    # Limits of the server (ours)
    max_connections: int = _range(10_000, 1, 1_000_000)
    channel_idle_ms: int = _range(120_000, 1_000, _MS_A_DAY)

    def __post_init__(self) -> None:
        DelayLevels.parse(self.message_delay_level)
        _ = self.deletion_hours
        for key, address in (("brokerIP1", self.broker_ip1), ("brokerIP2", self.broker_ip2)):
            try:
                ipaddress.ip_address(address.partition("%")[0])
            except ValueError:
                raise ConfigError(
                    f"{key}: {address[:100]!r} is no IP address: message ids carry one, so write it"
                ) from None

    @property
    def deletion_hours(self) -> tuple[int, ...]:
        """`delete_when` as numbers."""
        words = [word.strip() for word in self.delete_when.split(";") if word.strip()]
        for word in words:
            if not (word.isascii() and word.isdigit() and len(word) <= 2 and int(word) < 24):
                raise ConfigError(f"deleteWhen: {word[:100]!r} is no hour of the day: write 00 to 23, joined by ;")
        return tuple(int(word) for word in words)

    @property
    def name_servers(self) -> tuple[tuple[str, int], ...]:
        """The NameServers as (host, port)."""
        return tuple(parse_address(word, "namesrvAddr") for word in self.namesrv_addr.split(";") if word.strip())

    @property
    def levels(self) -> DelayLevels:
        """The delay levels."""
        return DelayLevels.parse(self.message_delay_level)

    @property
    def store_path(self) -> Path:
        """The store's directory."""
        return Path(self.store_path_root_dir)


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig:
    """One NameServer's configuration."""

    listen_host: str = "127.0.0.1"
    listen_port: int = _range(9876, 0, 65535)
    http_host: str = "127.0.0.1"
    http_port: int = _range(0, 0, 65535)
    """0: no HTTP of its own."""
    http_token: str = ""
    kv_config_path: str = "namesrv/kvConfig.json"
    order_message_enable: bool = _hot(False)
    route_grace_ms: int = _range(15_000, 0, 600_000, hot=True)
    """Ours: how long the routes of a broker whose connection closed are kept."""
    broker_expire_ms: int = _range(120_000, 1_000, _MS_A_DAY, hot=True)
    scan_interval_ms: int = _range(10_000, 100, 600_000)
    max_connections: int = _range(10_000, 1, 1_000_000)
    channel_idle_ms: int = _range(120_000, 1_000, _MS_A_DAY)


def parse_address(text: str, key: str) -> tuple[str, int]:
    """Host and port of `host:port`, the host an IPv6 address in brackets if need be; ConfigError names `key`."""
    host, _, port = text.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ConfigError(f"{key}: {text.strip()!r} is not an address: write host:port, such as 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)
