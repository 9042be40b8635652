"""First opening of a restored store, before a broker serves it: builds queues and index, applies the overdue policy.

Until the policy is applied, the store is marked as paused, so that an interrupted restore delivers nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from delaymq.broker.delivery.changes.changes import BROKER
from delaymq.broker.delivery.control import FILE_NAME, DeliveryMode, DeliveryPolicy, encode_policy
from delaymq.broker.delivery.pause_facts import ALL
from delaymq.broker.opening import open_broker
from delaymq.cli.overdue_policy import OverduePolicy
from delaymq.clock import now_ms
from delaymq.config import BrokerConfig
from delaymq.store.backup.manifest import Manifest
from delaymq.store.disk.config_files import ConfigFiles
from delaymq.store.disk.files import Files
from delaymq.store.options import StoreOptions

DROPPED_AT_ONCE: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """Contents of the restored store."""

    overdue_policy: OverduePolicy
    """What was applied."""
    pending: int
    """Pending delayed messages, including the overdue ones."""
    overdue: int
    """Messages that were already due when the store was restored."""
    dropped: int
    open_transactions: int
    """Half messages without an outcome: a running broker checks them with their producers."""
    paused: bool
    records: int
    rebuild_ms: int


def pause_deliveries(store: Path) -> None:
    """Mark the store as paused, before it is first opened."""
    _write(store, DeliveryPolicy(mode=DeliveryMode.PAUSED, since_ms=now_ms()))


def reopen(
    store: Path,
    manifest: Manifest,
    options: StoreOptions,
    overdue: OverduePolicy | None,
    may_drop: Callable[[int], None],
) -> Reopened:
    """Open the store, apply `overdue`, and close it cleanly.

    Without `overdue`, overdue messages are delivered, unless the log states that deliveries are paused. Calls
    `may_drop` with the number of messages before dropping any.
    """
    # The command prints its own result; startup log lines are for servers.
    logging.getLogger("delaymq").setLevel(logging.ERROR)
    broker = open_broker(_config(store, manifest, options), now_ms)
    delivery = broker.delivery
    report = broker.store.recovery
    at_ms = now_ms()
    dropped = 0
    try:
        if overdue is None:
            overdue = OverduePolicy(what="deliver" if delivery.pauses.of_all is None else "pause")
        count = delivery.control.overdue(at_ms)
        if overdue.what == "drop" and count:
            may_drop(count)
            delivery.control.drop(at_ms)
            # Only messages due at `at_ms`; later ones are left to the broker.
            while delivery.hand_over(at_ms, DROPPED_AT_ONCE):
                continue
            dropped = delivery.counters.refused
        # Messages that a full disk kept from being dropped are left for the broker to drop, not to deliver.
        is_dropping = delivery.control.policy is not None and delivery.control.policy.mode is DeliveryMode.DROP
        if overdue.what in ("deliver", "drop") and not is_dropping:
            delivery.control.resume()
        if overdue.what == "spread":
            delivery.pauses.resume(*ALL, BROKER)
        pending = delivery.pending_total()
        open_transactions = broker.transactions.totals().pending
    finally:
        broker.close()
    if overdue.what == "spread":
        # The spread starts with the first broker on this store.
        _write(store, DeliveryPolicy(mode=DeliveryMode.SPREAD, since_ms=at_ms, over_ms=overdue.over_ms))
    return Reopened(
        overdue_policy=overdue,
        pending=pending,
        overdue=count,
        dropped=dropped,
        open_transactions=open_transactions,
        paused=overdue.what == "pause",
        records=report.replayed_records,
        rebuild_ms=report.duration_ms,
    )


def _config(store: Path, manifest: Manifest, options: StoreOptions) -> BrokerConfig:
    config = BrokerConfig(
        store_path_root_dir=str(store),
        mapped_file_size_commit_log=options.commit_log_file_bytes,
        mapped_file_size_consume_queue=options.consume_queue_file_bytes,
        max_hash_slot_num=options.index_slots,
        max_index_num=options.index_entries,
        message_index_enable=options.index_enable,
        # The broker that is started later creates its own topics.
        cluster_topic_enable=False,
        broker_topic_enable=False,
        auto_create_topic_enable=True,
    )
    if manifest.message_delay_level is not None:
        config = replace(config, message_delay_level=manifest.message_delay_level)
    return config


def _write(store: Path, policy: DeliveryPolicy) -> None:
    ConfigFiles(Files(), f"{store}/delaymq", str(store), []).save(FILE_NAME, encode_policy(policy))
