"""Configuration classes: every key with its default, range and description, and whether a change is hot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from delaymq.config.access_keys import AccessKeys, AuditKeys, SessionKeys, check_access
from delaymq.config.checks import ip_address, parse_addresses, parse_hours
from delaymq.config.errors import ConfigError
from delaymq.config.fields import choice, flag, number, text, wire_name
from delaymq.config.log_levels import parse_log_levels
from delaymq.config.plain_slave_keys import PlainSlaveKeys, check_plain_slaves
from delaymq.config.register_keys import RegisterKeys, check_register
from delaymq.config.replication_keys import SLAVE, ReplicationKeys, check_replication
from delaymq.config.tls_keys import ENFORCING, TlsClientKeys, TlsServerKeys, check_tls, check_tls_client
from delaymq.message.levels import DEFAULT_LEVELS, MAX_DELAY_MS, DelayLevels, delay_text

STANDALONE_DEFAULTS: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 100_000),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}
"""For development: the first message must not fill a small disk."""

_MS_PER_DAY = 86_400_000
_MAX_DELAY_SEC = MAX_DELAY_MS // 1_000
_LOG_LEVEL = "debug, info, warning or error, then levels of individual loggers: `info;delaymq.store=debug`"
_LOG_FORMAT = "format of [logs](logs.md): `text` (key=value) or `json` (one object per line)"
_TOKEN = "bearer token required for `/api/`; never shown"
_TOKEN_FILE = "file whose first line is the token, for mounted secrets; replaces `httpToken`"
_MAX_BUFFERED = (
    "maximum bytes of partially received requests and unsent responses on all connections; above it, the slowest"
    " connections are closed"
)
_MAX_HELD_PULLS = (
    "maximum bytes for held pulls, about 1.5 KiB each; one connection may use as much of it as is still free,"
    " and its further pulls are answered immediately"
)
_BLACK_LIST = "keys, separated by `;`, that cannot be changed over the network, in addition to paths, ports and secrets"
_NAMESRV_ACL_PATH = (
    "file with the [rules for registering brokers](name-server-rules.md) and for changing topics and settings; the"
    " folder `acl` next to it is read, too. Empty: no restrictions"
)
_NAMESRV_ACCOUNT = (
    "file with `accessKey` and `secretKey`, in the format of RocketMQ's tools.yml, with which the broker signs its"
    " registrations; reloaded when it changes"
)
_NAMESRV_METADATA = "with `own`, accounts receive [routes](name-server-rules.md#metadata) only of permitted topics"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _BrokerAddresses:
    """Names, addresses, and access control."""

    broker_name: str = text("broker-a", "name of the broker group")
    broker_cluster_name: str = text("DefaultCluster", "name of the cluster")
    broker_id: int = number(0, 0, 1 << 30, "0 for the master; above 0 only with `brokerRole=SLAVE`")
    broker_ip1: str = text(
        "127.0.0.1", "IPv4 or IPv6 address advertised to clients and contained in offset message ids", check=ip_address
    )
    broker_ip2: str = text("127.0.0.1", "address for replication", check=ip_address)
    listen_host: str = text("127.0.0.1", "address to which the ports are bound", ours=True)
    listen_port: int = number(10911, 0, 65535, "port for clients")
    ha_listen_port: int = number(10912, 0, 65535, "port for [plain slaves](plain-slaves.md), reported to NameServers")
    http_port: int = number(8080, 0, 65535, "port for health, metrics and `/api/v1`", ours=True)
    http_host: str = text("127.0.0.1", "address to which the HTTP port is bound", ours=True)
    http_token: str = text("", _TOKEN, ours=True, secret=True)
    http_token_file: str = text("", _TOKEN_FILE, ours=True)
    http_names: str = text(
        "",
        "names, separated by `;`, accepted besides localhost for HTTP requests on loopback without a token",
        ours=True,
    )
    namesrv_addr: str = text("", "NameServers, as `host:port` separated by `;`", check=parse_addresses)
    namesrv_account_file: str = text("", _NAMESRV_ACCOUNT, ours=True)
    register_name_server_period: int = number(30_000, 10_000, 60_000, "ms between registrations")
    force_register: bool = flag(
        True, "whether to register each time; otherwise only if a NameServer's topics are outdated", hot=True
    )
    compressed_register: bool = flag(
        False,
        "whether to register in compressed form, which omits the unit flags of topics (`-u` and `-s` of mqadmin"
        " updateTopic)",
        hot=True,
    )
    register_broker_timeout_mills: int = number(6_000, 100, 60_000, "timeout of a registration, in ms")
    fast_port_enable: bool = flag(True, "whether to listen on `listenPort` − 2, too", ours=True)


# The keys of the last base come first where all are listed: addresses, TLS, then what stands here.
@dataclass(frozen=True, kw_only=True)
class BrokerConfig(
    AuditKeys,
    PlainSlaveKeys,
    RegisterKeys,
    ReplicationKeys,
    SessionKeys,
    TlsClientKeys,
    TlsServerKeys,
    AccessKeys,
    _BrokerAddresses,
):
    """Configuration of a broker. Fields with `hot` in their metadata can be changed while the broker runs."""

    # Topics and groups
    broker_permission: int = number(
        6, 0, 7, "permissions of the broker, as a sum: 4 read, 2 write, 1 inherit", hot=True
    )
    default_topic_queue_nums: int = number(
        8, 1, 1_024, "maximum number of queues of an automatically created topic", hot=True
    )
    auto_create_topic_enable: bool = flag(True, "whether the first message creates a topic", hot=True)
    auto_create_subscription_group: bool = flag(True, "whether a heartbeat creates a group", hot=True)
    auto_create_max_per_connection: int = number(
        1_000,
        1,
        1_000_000,
        "maximum number of topics and groups created automatically per connection",
        hot=True,
        ours=True,
    )
    auto_create_max_per_account: int = number(
        5_000, 1, 1_000_000,
        "the same per account since startup; per address without access control", hot=True, ours=True,
    )  # fmt: skip
    cluster_topic_enable: bool = flag(True, "whether to create a topic named after the cluster")
    broker_topic_enable: bool = flag(True, "whether to create a topic named after the broker")
    trace_topic_enable: bool = flag(False, "whether to create the trace topic")
    msg_trace_topic_name: str = text("RMQ_SYS_TRACE_TOPIC", "name of the trace topic")
    region_id: str = text("DefaultRegion", "region reported to producers")
    trace_on: bool = flag(True, "trace switch reported to producers", hot=True)
    store_reply_message_enable: bool = flag(
        True,
        "whether replies are also stored in the topic named after the cluster, with the suffix _REPLY_TOPIC",
        hot=True,
    )
    reject_transaction_message: bool = flag(False, "whether transactions are rejected, with response code 16", hot=True)
    notify_consumer_ids_changed_enable: bool = flag(
        True, "whether members are notified when their group changes", hot=True
    )
    enable_property_filter: bool = flag(False, "whether consumers may filter by properties, with SQL92", hot=True)
    filter_support_retry: bool = flag(
        False, "whether a group's SQL92 expressions are applied to its retries as well", hot=True
    )
    slave_read_enable: bool = flag(
        False,
        "whether to direct slow consumers to the broker configured in their group, and whether a"
        " [replica](replication.md#reads) responds to consumers",
        hot=True,
    )
    disable_consume_if_consumer_read_slowly: bool = flag(
        False, "whether to stop consumption by a group that stays far behind the log's end for 3 minutes", hot=True
    )
    consumer_fallbehind_threshold: int = number(
        16 << 30, 1, 1 << 50, "lag, in bytes, from which a group counts as far behind", hot=True
    )
    offset_moved_event_enable: bool = flag(
        True, "whether a pull at a wrong offset also writes an OFFSET_MOVED_EVENT message", hot=True, ours=True
    )

    # Sending and pulling
    max_message_size: int = number(4 << 20, 1_024, 15 << 20, "maximum bytes of a body or a batch", hot=True)
    long_polling_enable: bool = flag(True, "whether pulls are held until messages arrive", hot=True)
    short_polling_time_mills: int = number(
        1_000, 10, 60_000, "ms for which pulls are held if long polling is off", hot=True
    )
    max_transfer_count_on_message_in_memory: int = number(
        32, 1, 1_024, "maximum number of messages in a response", hot=True
    )
    max_transfer_bytes_on_message_in_memory: int = number(
        256 << 10, 1_024, 15 << 20, "maximum bytes of a response", hot=True
    )
    max_transfer_count_on_message_in_disk: int = number(
        8, 1, 1_024, "maximum number of messages in a response to a consumer far behind the log's end", hot=True
    )
    max_transfer_bytes_on_message_in_disk: int = number(
        64 << 10, 1_024, 15 << 20, "maximum bytes of a response to a consumer far behind the log's end", hot=True
    )
    access_message_in_memory_max_ratio: int = number(
        40, 0, 100, "percentage of memory; messages further behind the log's end are treated as being on disk", hot=True
    )
    broker_fast_failure_enable: bool = flag(
        True, "whether to reject requests that [waited too long](flow-control.md)", hot=True
    )
    wait_time_mills_in_send_queue: int = number(200, 1, _MS_PER_DAY, "maximum waiting time of a send, in ms", hot=True)
    wait_time_mills_in_pull_queue: int = number(
        5_000, 1, _MS_PER_DAY, "maximum waiting time of a pull, in ms", hot=True
    )
    wait_time_mills_in_heartbeat_queue: int = number(
        31_000, 1, _MS_PER_DAY, "maximum waiting time of a heartbeat, in ms", hot=True
    )
    wait_time_mills_in_transaction_queue: int = number(
        3_000, 1, _MS_PER_DAY, "maximum waiting time of the end of a transaction, in ms", hot=True
    )
    os_page_cache_busy_time_out_mills: int = number(
        1_000, 1, _MS_PER_DAY, "duration of a write or sync of the log, in ms, after which sends are rejected", hot=True
    )
    send_thread_pool_queue_capacity: int = number(
        10_000,
        1,
        10_000_000,
        "maximum number of sends that wait for the disk (SYNC_FLUSH); further ones are rejected",
        hot=True,
    )
    default_query_max_num: int = number(
        32, 1, 64, "maximum number of messages in the response to a query that does not specify one", hot=True
    )

    # Delays
    message_delay_level: str = text(
        DEFAULT_LEVELS,
        "delays of the delay levels, starting with level 1; units s, m, h, d",
        hot=True,
        check=DelayLevels.parse,
    )
    delay_level_overflow: str = choice(
        "clamp", "clamp", "reject", hot=True, ours=True,
        about="treatment of a delay level above the table; retries are always clamped",
    )  # fmt: skip
    timer_max_delay_sec: int = number(
        _MAX_DELAY_SEC, 1, _MAX_DELAY_SEC, "longest delay of a message and of a delay level, in s", hot=True, ours=True
    )
    timer_carry_max_bytes_per_second: int = number(
        16 << 20,
        1 << 16,
        1 << 40,
        "limit of the bytes of pending messages that are appended again per second before their segment is deleted",
        hot=True,
        ours=True,
    )
    recall_message_enable: bool = flag(
        True, "whether clients may cancel and move pending messages, and deliver them early", hot=True
    )
    timer_clock_step_ms: int = number(
        10_000,
        0,
        _MS_PER_DAY,
        "step of the clock in ms: after a larger one forward, deliveries of delayed messages wait 30 s; 0: never",
        hot=True,
        ours=True,
    )
    adopt_timers: bool = flag(
        False, "whether to take over pending timers of RocketMQ 5; if false, a store with some is rejected", ours=True
    )
    flush_delay_offset_interval: int = number(
        10_000, 100, _MS_PER_DAY, "ms between writes of delayOffset.json", hot=True
    )

    # Store
    store_path_root_dir: str = text("store", "directory of the store")
    read_only: bool = flag(False, "whether to open the store read-only: no message is accepted or delivered", ours=True)
    mapped_file_size_commit_log: int = number(1 << 30, 4_096, 1 << 31, "size of a commit log segment, in bytes")
    mapped_file_size_consume_queue: int = number(
        6_000_000, 20, 1 << 30, "size of a consume queue file, in bytes; a multiple of 20"
    )
    max_hash_slot_num: int = number(5_000_000, 1, 100_000_000, "number of slots of an index file")
    max_index_num: int = number(20_000_000, 2, 400_000_000, "number of entries of an index file")
    message_index_enable: bool = flag(True, "whether to index message keys")
    check_crc_on_recover: bool = flag(True, "whether recovery verifies the checksums of bodies")
    flush_disk_type: str = choice(
        "ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH",
        about="when an acknowledged message is durable: [durability](durability.md)",
    )  # fmt: skip
    flush_interval_commit_log: int = number(500, 1, 60_000, "ms between syncs of the commit log", hot=True)
    sync_flush_timeout: int = number(5_000, 1, 600_000, "ms after which a send returns FLUSH_DISK_TIMEOUT", hot=True)
    flush_consumer_offset_interval: int = number(
        5_000, 100, _MS_PER_DAY, "ms between writes of consumerOffset.json", hot=True
    )
    snapshot_interval_bytes: int = number(
        32 << 20,
        4_096,
        1 << 40,
        "bytes of log between two snapshots; about as many are replayed at startup after a crash",
        ours=True,
    )
    file_reserved_time: int = number(72, 1, 24 * 3_650, "hours for which log segments are kept", hot=True)
    delete_when: str = text(
        "04",
        "hours of the day, separated by `;`, at which expired segments are deleted, in the process's time zone (`TZ`)",
        hot=True,
        check=parse_hours,
    )
    disk_max_used_space_ratio: int = number(
        75, 10, 95, "disk usage, in percent, above which expired segments are deleted at any hour", hot=True
    )
    disk_space_clean_forcibly_ratio: int = number(
        85, 10, 99, "disk usage, in percent, above which segments are deleted regardless of their age", hot=True
    )
    disk_space_warning_level_ratio: int = number(
        90, 10, 99, "disk usage, in percent, above which messages are rejected", hot=True
    )

    # Transactions
    transaction_time_out: int = number(
        6_000, 1, _MS_PER_DAY, "minimum age of a half message, in ms, before it is checked", hot=True
    )
    transaction_check_max: int = number(15, 1, 10_000, "maximum number of checks of a half message", hot=True)
    transaction_check_interval: int = number(60_000, 1, _MS_PER_DAY, "ms between two checks", hot=True)

    # Output, limits and protected settings
    config_black_list: str = text("", _BLACK_LIST)
    log_level: str = text("info", _LOG_LEVEL, hot=True, ours=True, check=parse_log_levels)
    log_format: str = choice("text", "text", "json", about=_LOG_FORMAT, ours=True)
    metrics_max_topics: int = number(
        200,
        0,
        10_000,
        "number of topics (and of groups) with separate metrics; the others share `(other)`",
        hot=True,
        ours=True,
    )
    max_connections: int = number(
        10_000, 1, 1_000_000, "maximum number of connections; further ones are closed", ours=True
    )
    max_connections_per_address: int = number(
        0, 0, 1_000_000, "maximum number of connections per address; 0: no separate limit", ours=True
    )
    max_buffered_bytes: int = number(128 << 20, 16 << 20, 1 << 40, _MAX_BUFFERED, ours=True)
    max_held_pull_bytes: int = number(64 << 20, 1 << 20, 1 << 40, _MAX_HELD_PULLS, ours=True)
    channel_idle_ms: int = number(120_000, 1_000, _MS_PER_DAY, "ms after which an idle connection is closed", ours=True)

    def __post_init__(self) -> None:
        _check(self)
        check_replication(self, self.replica_register)
        check_register(self)
        check_access(self, self)
        check_tls_client(self)
        if self.members and self.read_only:
            raise ConfigError("readOnly: a member of a group cannot be read-only: remove haMembers")
        check_plain_slaves(self)
        self._check_role()
        longest_ms = max(self.levels.delays_ms)
        if longest_ms > self.timer_max_delay_sec * 1_000:
            raise ConfigError(
                f"messageDelayLevel: the level {delay_text(longest_ms)} is longer than timerMaxDelaySec"
                f" ({self.timer_max_delay_sec} s): shorten the level or increase timerMaxDelaySec"
            )

    def _check_role(self) -> None:
        if self.is_plain_slave and not self.ha_master_address:
            raise ConfigError(
                "brokerRole=SLAVE: haMasterAddress is empty: set it to the master's address and haListenPort, remove"
                " this broker, or use replicas (haMembers)"
            )
        if self.is_plain_slave and self.read_only:
            raise ConfigError("readOnly: a plain slave writes to its store: remove readOnly, or use ASYNC_MASTER")
        if self.broker_id and not self.is_plain_slave:
            raise ConfigError(f"brokerId={self.broker_id}: a master has the id 0: use 0, or brokerRole=SLAVE")

    @property
    def is_plain_slave(self) -> bool:
        """Whether this broker follows a master over RocketMQ's HA protocol."""
        return self.broker_role == SLAVE

    @property
    def deletion_hours(self) -> tuple[int, ...]:
        """Hours of `delete_when`."""
        return parse_hours(self.delete_when)

    @property
    def own_http_names(self) -> tuple[str, ...]:
        """Names of `http_names`, in lower case."""
        return tuple(word.strip().lower() for word in self.http_names.split(";") if word.strip())

    @property
    def name_servers(self) -> tuple[tuple[str, int], ...]:
        """NameServers as (host, port)."""
        return parse_addresses(self.namesrv_addr)

    @property
    def dials_tls(self) -> bool:
        """Whether connections to NameServers use TLS."""
        said = self.use_tls or self.tls_enable
        return said == "true" if said else self.tls_server_mode == ENFORCING

    @property
    def levels(self) -> DelayLevels:
        """Parsed delay levels."""
        return DelayLevels.parse(self.message_delay_level)

    @property
    def store_path(self) -> Path:
        """Directory of the store."""
        return Path(self.store_path_root_dir)

    @property
    def audit_folder(self) -> Path | None:
        """Folder of the audit log; None without one."""
        if not self.audit_log_enable:
            return None
        if self.audit_log_path:
            return Path(self.audit_log_path)
        return None if self.read_only else self.store_path / "delaymq" / "audit"

    @property
    def acl_path(self) -> Path:
        """File of access rules."""
        if self.acl_config_path:
            return Path(self.acl_config_path).absolute()
        return self.store_path.absolute().parent / "conf" / "plain_acl.yml"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _NamesrvAddresses:
    """Addresses of a NameServer."""

    listen_host: str = text("127.0.0.1", "address to which the ports are bound", ours=True)
    listen_port: int = number(9876, 0, 65535, "port for brokers and clients")
    http_host: str = text("127.0.0.1", "address to which the HTTP port is bound", ours=True)
    http_port: int = number(0, 0, 65535, "HTTP port; 0: no HTTP server", ours=True)
    http_token: str = text("", _TOKEN, ours=True, secret=True)
    http_token_file: str = text("", _TOKEN_FILE, ours=True)


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig(AuditKeys, TlsServerKeys, _NamesrvAddresses):
    """Configuration of a NameServer."""

    namesrv_acl_config_path: str = text("", _NAMESRV_ACL_PATH, ours=True)
    namesrv_acl_metadata: str = choice("open", "open", "own", about=_NAMESRV_METADATA, ours=True)
    kv_config_path: str = text(
        "namesrv/kvConfig.json", "file of the key-value configuration (`standalone`: in the broker's store)"
    )
    order_message_enable: bool = flag(False, "whether routes include the order configuration", hot=True)
    route_grace_ms: int = number(
        15_000,
        0,
        600_000,
        "ms for which the routes of a broker are kept after its connection closes",
        hot=True,
        ours=True,
    )
    broker_expire_ms: int = number(
        120_000, 1_000, _MS_PER_DAY, "ms without a registration after which a broker is removed", hot=True, ours=True
    )
    scan_interval_ms: int = number(10_000, 100, 600_000, "ms between checks for such brokers", ours=True)
    config_black_list: str = text("", _BLACK_LIST)
    log_level: str = text("info", _LOG_LEVEL, hot=True, ours=True, check=parse_log_levels)
    log_format: str = choice("text", "text", "json", about=_LOG_FORMAT, ours=True)
    max_connections: int = number(
        10_000, 1, 1_000_000, "maximum number of connections; further ones are closed", ours=True
    )
    max_buffered_bytes: int = number(128 << 20, 16 << 20, 1 << 40, _MAX_BUFFERED, ours=True)
    channel_idle_ms: int = number(120_000, 1_000, _MS_PER_DAY, "ms after which an idle connection is closed", ours=True)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def audit_folder(self) -> Path | None:
        """Folder of the audit log; None without one."""
        if not self.audit_log_enable:
            return None
        if self.audit_log_path:
            return Path(self.audit_log_path)
        return Path(self.kv_config_path).parent / "namesrv-audit" if self.kv_config_path else None


def _check(config: BrokerConfig | NamesrvConfig) -> None:
    for item in dataclasses.fields(config):
        check = item.metadata.get("check")
        if check is not None:
            try:
                check(getattr(config, item.name))
            except ValueError as error:
                raise ConfigError(f"{wire_name(item.name)}: {error}") from error
    check_tls(config)
