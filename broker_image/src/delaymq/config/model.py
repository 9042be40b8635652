"""The configurations as immutable snapshots: every key, its default, its range, and whether a change is hot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from delaymq.config.checks import ip_address, parse_addresses, parse_hours
from delaymq.config.errors import ConfigError
from delaymq.config.fields import choice, flag, number, text, wire_name
from delaymq.config.log_levels import parse_log_levels
from delaymq.config.tls_keys import ENFORCING, TlsClientKeys, TlsServerKeys, check_tls
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels

# A laptop's store: the disk is not filled by the first message.
STANDALONE_DEFAULTS: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 100_000),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}

_MS_PER_DAY = 86_400_000
_LOG_LEVEL = "debug, info, warning or error, then levels of single loggers: `info;delaymq.store=debug`"
_LOG_FORMAT = "how [logs](logs.md) are written: `text` is key=value, `json` one object a line"
_TOKEN = "what `Authorization: Bearer` must carry for `/api/`; never shown"
_TOKEN_FILE = "a file whose first line is the token, for secrets that are mounted; instead of `httpToken`"
_MAX_BUFFERED = (
    "bytes of half-received requests and of unsent answers on all connections; above it the slowest are cut off"
)
_MAX_HELD_PULLS = (
    "bytes that waiting pulls may take, about 1.5 KiB each; a connection gets as much as is left to others, and is"
    " answered at once beyond that"
)
_BLACK_LIST = "keys, joined by `;`, that nobody may change over the wire, besides paths, ports and secrets"
_NAMESRV_ACL_PATH = (
    "the file that says [who may register which broker](name-server-rules.md), and who may change topics and settings;"
    " the folder `acl` beside it is read too. Empty: everybody may"
)
_NAMESRV_ACCOUNT = (
    "a file with `accessKey` and `secretKey`, as RocketMQ's tools.yml, with which the broker signs its registrations;"
    " it is read again when it changes"
)
_ACL_PATH = (
    "the file of rules; the folder `acl` beside it is read too. Empty: `plain_acl.yml` beside the file of `-c`, or in"
    " the folder `conf` beside the store"
)

_ACL_ADMIN = (
    "whether administrative requests need TLS, a connection from this machine, or"
    " [the second signature](access-control.md#the-second-signature)"
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _BrokerAddresses:
    """Names, addresses, and who may ask for what."""

    broker_name: str = text("broker-a", "name of this broker group")
    broker_cluster_name: str = text("DefaultCluster", "name of the cluster")
    broker_id: int = number(
        0, 0, 0, "0, the master; slaves come with replication",
        outside="there are no slaves yet: write 0, or leave this broker out",
    )  # fmt: skip
    broker_ip1: str = text(
        "127.0.0.1", "the address that clients are told and message ids carry, IPv4 or IPv6", check=ip_address
    )
    broker_ip2: str = text("127.0.0.1", "the address for replication", check=ip_address)
    listen_host: str = text("127.0.0.1", "what the ports are bound to", ours=True)
    listen_port: int = number(10911, 0, 65535, "the port")
    ha_listen_port: int = number(10912, 0, 65535, "what NameServers are told; nothing listens there yet")
    http_port: int = number(8080, 0, 65535, "health, metrics, `/api/v1`", ours=True)
    http_host: str = text("127.0.0.1", "what the HTTP port is bound to", ours=True)
    http_token: str = text("", _TOKEN, ours=True, secret=True)
    http_token_file: str = text("", _TOKEN_FILE, ours=True)
    http_names: str = text(
        "", "names, joined by `;`, by which HTTP is reached on loopback without a token, besides localhost", ours=True
    )
    namesrv_addr: str = text("", "NameServers, `host:port` joined by `;`", check=parse_addresses)
    namesrv_account_file: str = text("", _NAMESRV_ACCOUNT, ours=True)
    register_name_server_period: int = number(30_000, 10_000, 60_000, "ms between registrations")
    force_register: bool = flag(
        True, "registers each time; otherwise NameServers are asked first whether their topics are outdated", hot=True
    )
    compressed_register: bool = flag(
        False, "registers in a compressed form, which has no place for unit flags of topics", hot=True
    )
    register_broker_timeout_mills: int = number(6_000, 100, 60_000, "ms for one registration")
    fast_port_enable: bool = flag(True, "whether `listenPort` − 2 is opened", ours=True)
    acl_enable: bool = flag(False, "whether requests must be signed: [access control](access-control.md)")
    acl_config_path: str = text("", _ACL_PATH, ours=True)
    acl_admin_needs_tls: bool = flag(False, _ACL_ADMIN, ours=True)


# The keys of the last base come first where all are listed: addresses, TLS, then what stands here.
@dataclass(frozen=True, kw_only=True)
class BrokerConfig(TlsClientKeys, TlsServerKeys, _BrokerAddresses):
    """One broker's configuration. A field whose metadata says hot can be changed while the broker runs."""

    # Topics and groups
    broker_permission: int = number(6, 0, 7, "4 read, 2 write, 1 inherit", hot=True)
    default_topic_queue_nums: int = number(
        8, 1, 1_024, "queues of a topic that the first message makes, at most", hot=True
    )
    auto_create_topic_enable: bool = flag(True, "whether the first message makes a topic", hot=True)
    auto_create_subscription_group: bool = flag(True, "whether a heartbeat makes a group", hot=True)
    auto_create_max_per_connection: int = number(
        1_000, 1, 1_000_000, "topics and groups that one connection makes by using them, at most", hot=True, ours=True
    )
    auto_create_max_per_account: int = number(
        5_000, 1, 1_000_000,
        "the same of one account since the start; without access control, of one address", hot=True, ours=True,
    )  # fmt: skip
    cluster_topic_enable: bool = flag(True, "a topic named as the cluster")
    broker_topic_enable: bool = flag(True, "a topic named as the broker")
    trace_topic_enable: bool = flag(False, "the trace topic")
    msg_trace_topic_name: str = text("RMQ_SYS_TRACE_TOPIC", "its name")
    region_id: str = text("DefaultRegion", "told to producers")
    trace_on: bool = flag(True, "told to producers", hot=True)
    store_reply_message_enable: bool = flag(
        True, "whether replies to requests are also kept in the topic named as the cluster, with _REPLY_TOPIC", hot=True
    )
    reject_transaction_message: bool = flag(False, "whether transactions are refused, with 16", hot=True)
    notify_consumer_ids_changed_enable: bool = flag(True, "whether members are told when a group changes", hot=True)
    enable_property_filter: bool = flag(False, "whether consumers may filter by properties, with SQL92", hot=True)
    filter_support_retry: bool = flag(
        False, "whether a group's SQL92 expressions are applied to its retries as well", hot=True
    )
    slave_read_enable: bool = flag(
        False, "whether slow consumers are told to pull from another broker, as their group says", hot=True
    )
    disable_consume_if_consumer_read_slowly: bool = flag(
        False, "whether a group that stays far behind the log's end for 3 minutes is forbidden to consume", hot=True
    )
    consumer_fallbehind_threshold: int = number(16 << 30, 1, 1 << 50, "bytes that are far behind, for this", hot=True)
    offset_moved_event_enable: bool = flag(
        True, "whether a pull at a wrong offset also writes an OFFSET_MOVED_EVENT message", hot=True, ours=True
    )

    # Sending and pulling
    max_message_size: int = number(4 << 20, 1_024, 15 << 20, "bytes of a body, or of a batch", hot=True)
    long_polling_enable: bool = flag(True, "whether pulls wait for messages", hot=True)
    short_polling_time_mills: int = number(1_000, 10, 60_000, "ms that they wait when long polling is off", hot=True)
    max_transfer_count_on_message_in_memory: int = number(32, 1, 1_024, "messages in an answer", hot=True)
    max_transfer_bytes_on_message_in_memory: int = number(256 << 10, 1_024, 15 << 20, "bytes in an answer", hot=True)
    max_transfer_count_on_message_in_disk: int = number(
        8, 1, 1_024, "the same for messages far behind the log's end", hot=True
    )
    max_transfer_bytes_on_message_in_disk: int = number(64 << 10, 1_024, 15 << 20, "the same", hot=True)
    access_message_in_memory_max_ratio: int = number(
        40, 0, 100, "percent of the memory: what lies further behind the log's end counts as on disk", hot=True
    )
    broker_fast_failure_enable: bool = flag(
        True, "whether requests are refused that [waited too long](flow-control.md)", hot=True
    )
    wait_time_mills_in_send_queue: int = number(200, 1, _MS_PER_DAY, "ms after which a send counts so", hot=True)
    wait_time_mills_in_pull_queue: int = number(5_000, 1, _MS_PER_DAY, "the same for a pull", hot=True)
    wait_time_mills_in_heartbeat_queue: int = number(31_000, 1, _MS_PER_DAY, "the same for a heartbeat", hot=True)
    wait_time_mills_in_transaction_queue: int = number(
        3_000, 1, _MS_PER_DAY, "the same for the end of a transaction", hot=True
    )
    os_page_cache_busy_time_out_mills: int = number(
        1_000, 1, _MS_PER_DAY, "ms of a write to the log, or of a sync, after which sends are rejected", hot=True
    )
    send_thread_pool_queue_capacity: int = number(
        10_000, 1, 10_000_000, "sends that may wait for the disk (SYNC_FLUSH); more are rejected", hot=True
    )
    default_query_max_num: int = number(32, 1, 64, "messages in the answer to a query that states no number", hot=True)

    # Delays
    message_delay_level: str = text(
        DEFAULT_LEVELS, "the delays, level 1 first; units s, m, h, d", hot=True, check=DelayLevels.parse
    )
    delay_level_overflow: str = choice(
        "clamp", "clamp", "reject", hot=True, ours=True,
        about="what a producer's level above the table gets; retries are always clamped",
    )  # fmt: skip
    flush_delay_offset_interval: int = number(
        10_000, 100, _MS_PER_DAY, "ms between writes of delayOffset.json", hot=True
    )

    # Store
    store_path_root_dir: str = text("store", "the store's directory")
    read_only: bool = flag(False, "whether the store is only read: nothing is accepted or handed over", ours=True)
    mapped_file_size_commit_log: int = number(1 << 30, 4_096, 1 << 31, "bytes of a log segment")
    mapped_file_size_consume_queue: int = number(6_000_000, 20, 1 << 30, "bytes of a queue file, a multiple of 20")
    max_hash_slot_num: int = number(5_000_000, 1, 100_000_000, "slots of an index file")
    max_index_num: int = number(20_000_000, 2, 400_000_000, "entries of an index file")
    message_index_enable: bool = flag(True, "whether keys are indexed")
    check_crc_on_recover: bool = flag(True, "whether recovery checks bodies")
    flush_disk_type: str = choice(
        "ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH",
        about="when an acknowledged message is on disk: [durability](durability.md)",
    )  # fmt: skip
    flush_interval_commit_log: int = number(500, 1, 60_000, "ms between syncs", hot=True)
    sync_flush_timeout: int = number(5_000, 1, 600_000, "ms until a producer is told FLUSH_DISK_TIMEOUT", hot=True)
    flush_consumer_offset_interval: int = number(
        5_000, 100, _MS_PER_DAY, "ms between writes of consumerOffset.json", hot=True
    )
    snapshot_interval_bytes: int = number(
        32 << 20, 4_096, 1 << 40, "log between two snapshots, which is what a start reads again after a kill", ours=True
    )
    file_reserved_time: int = number(72, 1, 24 * 3_650, "hours that log segments are kept", hot=True)
    delete_when: str = text(
        "04", "hours of the day, joined by `;`, in the process's time zone (`TZ`)", hot=True, check=parse_hours
    )
    disk_max_used_space_ratio: int = number(75, 10, 95, "percent above which it is deleted at any hour", hot=True)

    # Transactions
    transaction_time_out: int = number(
        6_000, 1, _MS_PER_DAY, "ms after its birth before which nobody is asked about a half message", hot=True
    )
    transaction_check_max: int = number(15, 1, 10_000, "how often its producers are asked at most", hot=True)
    transaction_check_interval: int = number(60_000, 1, _MS_PER_DAY, "ms between two questions", hot=True)

    # What the server shows, bears and lets be changed
    config_black_list: str = text("", _BLACK_LIST)
    log_level: str = text("info", _LOG_LEVEL, hot=True, ours=True, check=parse_log_levels)
    log_format: str = choice("text", "text", "json", about=_LOG_FORMAT, ours=True)
    metrics_max_topics: int = number(
        200, 0, 10_000, "topics (and groups) with metrics of their own; the others share `(other)`", hot=True, ours=True
    )
    max_connections: int = number(10_000, 1, 1_000_000, "further ones are cut off", ours=True)
    max_connections_per_address: int = number(
        0, 0, 1_000_000, "of one address; 0: as many as `maxConnections`", ours=True
    )
    max_buffered_bytes: int = number(128 << 20, 16 << 20, 1 << 40, _MAX_BUFFERED, ours=True)
    max_held_pull_bytes: int = number(64 << 20, 1 << 20, 1 << 40, _MAX_HELD_PULLS, ours=True)
    channel_idle_ms: int = number(
        120_000, 1_000, _MS_PER_DAY, "a connection that says nothing for so long is closed", ours=True
    )

    def __post_init__(self) -> None:
        _check(self)

    @property
    def deletion_hours(self) -> tuple[int, ...]:
        """`delete_when` as numbers."""
        return parse_hours(self.delete_when)

    @property
    def own_http_names(self) -> tuple[str, ...]:
        """`http_names` as names."""
        return tuple(word.strip().lower() for word in self.http_names.split(";") if word.strip())

    @property
    def name_servers(self) -> tuple[tuple[str, int], ...]:
        """The NameServers as (host, port)."""
        return parse_addresses(self.namesrv_addr)

    @property
    def dials_tls(self) -> bool:
        """Whether NameServers are connected to with TLS."""
        said = self.use_tls or self.tls_enable
        return said == "true" if said else self.tls_server_mode == ENFORCING

    @property
    def levels(self) -> DelayLevels:
        """The delay levels."""
        return DelayLevels.parse(self.message_delay_level)

    @property
    def store_path(self) -> Path:
        """The store's directory."""
        return Path(self.store_path_root_dir)

    @property
    def acl_path(self) -> Path:
        """The file of rules."""
        if self.acl_config_path:
            return Path(self.acl_config_path).absolute()
        return self.store_path.absolute().parent / "conf" / "plain_acl.yml"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _NamesrvAddresses:
    """Where it is reached."""

    listen_host: str = text("127.0.0.1", "what the ports are bound to", ours=True)
    listen_port: int = number(9876, 0, 65535, "the port")
    http_host: str = text("127.0.0.1", "what the HTTP port is bound to", ours=True)
    http_port: int = number(0, 0, 65535, "0: no HTTP of its own", ours=True)
    http_token: str = text("", _TOKEN, ours=True, secret=True)
    http_token_file: str = text("", _TOKEN_FILE, ours=True)


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig(TlsServerKeys, _NamesrvAddresses):
    """One NameServer's configuration."""

    namesrv_acl_config_path: str = text("", _NAMESRV_ACL_PATH, ours=True)
    kv_config_path: str = text(
        "namesrv/kvConfig.json", "file of the key-value settings (`standalone`: in the broker's store)"
    )
    order_message_enable: bool = flag(False, "whether routes carry the order settings", hot=True)
    route_grace_ms: int = number(
        15_000, 0, 600_000, "how long routes of a broker whose connection closed are kept", hot=True, ours=True
    )
    broker_expire_ms: int = number(
        120_000, 1_000, _MS_PER_DAY, "a broker that does not register for so long is forgotten", hot=True, ours=True
    )
    scan_interval_ms: int = number(10_000, 100, 600_000, "how often is looked for such", ours=True)
    config_black_list: str = text("", _BLACK_LIST)
    log_level: str = text("info", _LOG_LEVEL, hot=True, ours=True, check=parse_log_levels)
    log_format: str = choice("text", "text", "json", about=_LOG_FORMAT, ours=True)
    max_connections: int = number(10_000, 1, 1_000_000, "further ones are cut off", ours=True)
    max_buffered_bytes: int = number(128 << 20, 16 << 20, 1 << 40, _MAX_BUFFERED, ours=True)
    channel_idle_ms: int = number(
        120_000, 1_000, _MS_PER_DAY, "a connection that says nothing for so long is closed", ours=True
    )

    def __post_init__(self) -> None:
        _check(self)


def _check(config: BrokerConfig | NamesrvConfig) -> None:
    for item in dataclasses.fields(config):
        check = item.metadata.get("check")
        if check is not None:
            try:
                check(getattr(config, item.name))
            except ValueError as error:
                raise ConfigError(f"{wire_name(item.name)}: {error}") from error
    check_tls(config)
