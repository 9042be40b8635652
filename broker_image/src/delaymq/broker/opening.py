"""Assembly of a broker from its parts, its store, and the table of requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from delaymq.access import OWN_METADATA
from delaymq.access.errors import AccessError
from delaymq.broker.broker import Broker
from delaymq.broker.delivery import Delivery
from delaymq.broker.delivery.settings.promises import Promises
from delaymq.broker.delivery.settings.smoothing import smooth_deliveries
from delaymq.broker.delivery.timed.foreign import adopt
from delaymq.broker.processors import table
from delaymq.broker.pull.stored_records import StoredRecords
from delaymq.broker.state.config_tables import Tables
from delaymq.broker.state.parts import Parts
from delaymq.broker.state.store_settings import make_parent, read_only_config, store_options
from delaymq.broker.transactions import Transactions
from delaymq.broker.transactions.producers import Producers
from delaymq.config import BrokerConfig
from delaymq.config.running import RunningSettings
from delaymq.message import names
from delaymq.store.errors import StoreError, StoreOpenError
from delaymq.store.layout import BASE_VERSION, TIMED_VERSION
from delaymq.store.message_store import MessageStore

if TYPE_CHECKING:
    from delaymq.broker.access.access import Access
    from delaymq.broker.access.rules import Rules

_logger = logging.getLogger(__name__)


def open_broker(
    config: BrokerConfig,
    now_ms: Callable[[], int],
    *,
    port: int | None = None,
    settings: RunningSettings[BrokerConfig] | None = None,
    follows: bool = False,
) -> Broker:
    """Open the store at the configured path, recover it, and load the tables.

    `follows`: the broker is a replica, whose store receives the log of another broker until `Broker.lead` is called.

    `port` is the one that clients use (None: the configured one); `settings` is the origin of the configuration. Raises
    StoreError (store.errors) if the store cannot be opened, and AccessError (broker.access) if its rules are
    unreadable. The texts state what to do.
    """
    rules = None
    if config.acl_metadata == OWN_METADATA and not config.acl_enable:
        raise AccessError("aclMetadata=own hides metadata from accounts, but aclEnable=false admits everyone: set both")
    if config.acl_enable:
        from delaymq.broker.access.rules import Rules  # imported here, because most brokers run without it

        rules = Rules(config.acl_path, now_ms)
    if config.read_only:
        config = read_only_config(config)
        open_store = MessageStore.open_read_only
    else:
        make_parent(config.store_path)
        open_store = partial(MessageStore.open, end_at_damage=follows)
    parts = Parts(config, now_ms, port)
    store = open_store(
        config.store_path,
        store_options(config),
        now_ms=now_ms,
        levels=config.levels,
        observers=parts.observers,
    )
    try:
        return assemble(parts, store, rules, settings, follows=follows)
    except BaseException:
        store.abandon()  # an incompletely opened broker has no state to save
        raise


def _access(rules: Rules, config: BrokerConfig, records: StoredRecords, now_ms: Callable[[], int]) -> Access:
    from delaymq.broker.access.access import Access  # most brokers have no accounts

    return Access(
        rules,
        now_ms,
        topic_at=records.topic_at,
        producers_topic_at=records.producers_topic_at,
        reply_topic=names.reply_topic(config.broker_cluster_name),
        admin_needs_tls=config.acl_admin_needs_tls,
        own_metadata=config.acl_metadata == OWN_METADATA,
        certificate_accounts=config.acl_certificate_accounts,
        # The server closes idle connections long before that.
        max_silence_s=2.5 * config.channel_idle_ms / 1000,
    )


def assemble(
    parts: Parts,
    store: MessageStore,
    rules: Rules | None = None,
    settings: RunningSettings[BrokerConfig] | None = None,
    *,
    follows: bool = False,
) -> Broker:
    """Return the broker of an open store, which was opened with the parts' observers, with its recovered state."""
    config, now_ms, stopped_ms = parts.config, parts.now_ms, store.last_store_timestamp_ms
    records = StoredRecords(store)
    access = None if rules is None else _access(rules, config, records, now_ms)
    tables = Tables(store, parts.topics, parts.groups, parts.offsets, parts.clients, parts.delay_settings, now_ms)
    tables.load(now_ms())
    delivery = Delivery(
        store,
        parts.replay,
        config,
        config.levels,
        now_ms,
        topic_label=parts.topic_series.label,
        # Without a topic config, nobody could consume the dead letters of the delivery.
        on_dead_letter=lambda topic: parts.topics.create_for_group(topic, 1, own=True),
        on_delivered=parts.stats.delivered,
        promises=Promises(parts.delay_settings, parts.topics.table.__contains__),
    )
    transactions = Transactions(
        store,
        parts.ledger,
        config,
        now_ms,
        parts.topics,
        parts.offsets,
        delivery.ingress,
        Producers(parts.clients, access),
        parts.store_host,
        parts.stats.committed,
    )
    if (version := parts.replay.timed.version) > BASE_VERSION and not config.read_only:
        _require_version(store, version)
    if store.format_version >= TIMED_VERSION:
        parts.topics.register_timer_topic()
    delivery.ingress.on_first_timed = parts.topics.register_timer_topic
    following = None
    if follows:
        from delaymq.broker.following.following import Following  # other brokers do not need it

        following = Following(parts, store, delivery, transactions)
    else:
        store.hand_on((delivery, parts.ledger, parts.arrivals))
        _take_over_timers(config, store, parts.replay.timed.foreign.places())
    _apply_settings(parts, delivery, None if follows else stopped_ms)
    store.pins.hold(delivery.name, delivery.pin)
    store.reserve(delivery.reserve_bytes)
    store.pins.hold("half messages", transactions.pin)
    broker = Broker(parts, store, delivery, transactions, records, tables, table, access, settings)
    broker.follow(following)
    return broker


def _apply_settings(parts: Parts, delivery: Delivery, stopped_ms: int | None) -> None:
    """Apply the delay settings of topics, and treat what came due since the log's last record was stored (None: the
    broker follows another one)."""
    control = delivery.control

    def changed(topic: str) -> None:
        control.treatments.setting_changed(topic)
        delivery.wake()

    smooth_deliveries(parts.delay_settings, control.smooth, changed)
    if parts.config.read_only:
        control.pause_locally()
    elif stopped_ms is not None:
        control.begin_treatments(stopped_ms)


def _require_version(store: MessageStore, version: int) -> None:
    """Raise the version of a store with timed messages whose state.json was damaged and created again."""
    try:
        store.raise_format_version(version)
    except StoreError as error:
        _logger.error("state.json does not exclude older programs, which would ignore timed messages: %s", error)


def _take_over_timers(config: BrokerConfig, store: MessageStore, places: list[int]) -> None:
    """Store pending timers of RocketMQ 5 as timed messages, if requested. StoreOpenError if not."""
    if not places:
        return
    if config.read_only:
        _logger.warning("the store contains %d pending timers of RocketMQ 5, which are not shown", len(places))
        return
    if not config.adopt_timers:
        raise StoreOpenError(
            f"{store.path} contains {len(places)} pending timers of RocketMQ 5, which would never be delivered: start"
            " RocketMQ's broker on the store and let them become due, or start with --adopt-timers (adoptTimers=true)"
        )
    store.raise_format_version(TIMED_VERSION)
    adopted = adopt(places, store.record_at, store.append)
    _logger.info("took over %d pending timers of RocketMQ 5", adopted)
