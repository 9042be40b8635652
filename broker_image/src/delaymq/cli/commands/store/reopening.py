"""A restored store is opened once before any broker serves it: queues and index are built, overdue messages decided on.

Until that decision is kept the store stands as paused, so that a restore which is killed half-way delivers nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from delaymq.broker.delivery.control import FILE_NAME, DeliveryMode, DeliveryPolicy, encode_policy
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
    """What the restored store holds."""

    pending: int
    """Delayed messages that wait, the overdue ones counted."""
    overdue: int
    """Those that were due when the store was restored."""
    dropped: int
    open_transactions: int
    """Half messages that nobody has ended: their producers are asked when a broker runs."""
    paused: bool
    records: int
    rebuild_ms: int


def hold_back(store: Path) -> None:
    """Keeps the store paused until it is decided otherwise; before it can be opened."""
    _write(store, DeliveryPolicy(mode=DeliveryMode.PAUSED, since_ms=now_ms()))


def reopen(
    store: Path, manifest: Manifest, options: StoreOptions, overdue: OverduePolicy, may_drop: Callable[[int], None]
) -> Reopened:
    """Open the store, do what `overdue` says, and stop cleanly. `may_drop` is asked with the number before any goes."""
    # The terminal is told in the end; what a start logs is for servers.
    logging.getLogger("delaymq").setLevel(logging.ERROR)
    broker = open_broker(_config(store, manifest, options), now_ms)
    delivery = broker.delivery
    report = broker.store.recovery
    at_ms = now_ms()
    dropped = 0
    try:
        count = delivery.control.overdue(at_ms)
        if overdue.what == "drop" and count:
            may_drop(count)
            delivery.control.drop(at_ms)
            # As of that moment: what comes due meanwhile is left to the broker.
            while delivery.hand_over(at_ms, DROPPED_AT_ONCE):
                continue
            dropped = delivery.counters.refused
        # What the store did not take, being full, is for the broker to drop, and not to deliver.
        is_dropping = delivery.control.policy is not None and delivery.control.policy.mode is DeliveryMode.DROP
        if overdue.what in ("deliver", "drop") and not is_dropping:
            delivery.control.resume()
        pending = sum(delivery.pending().values())
        open_transactions = broker.transactions.totals().pending
    finally:
        broker.close()
    if overdue.what == "spread":
        # It begins with the broker that is started here first.
        _write(store, DeliveryPolicy(mode=DeliveryMode.SPREAD, since_ms=at_ms, over_ms=overdue.over_ms))
    return Reopened(
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
        # Topics that a broker makes for itself are left to the one that will be started.
        cluster_topic_enable=False,
        broker_topic_enable=False,
        auto_create_topic_enable=True,
    )
    if manifest.message_delay_level is not None:
        config = replace(config, message_delay_level=manifest.message_delay_level)
    return config


def _write(store: Path, policy: DeliveryPolicy) -> None:
    ConfigFiles(Files(), f"{store}/delaymq", str(store), []).save(FILE_NAME, encode_policy(policy))
