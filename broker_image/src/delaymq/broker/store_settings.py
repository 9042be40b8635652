"""How the broker's configuration describes its store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from delaymq.config import BrokerConfig
from delaymq.store.errors import NotAStoreError
from delaymq.store.options import StoreOptions

# What RocketMQ allows a record beyond the message's body.
_RECORD_EXTRA_BYTES = 64 * 1024
READ_ONLY: Final = 4
"""Of brokerPermission."""


def store_options(config: BrokerConfig) -> StoreOptions:
    """The store's options as the broker's configuration states them."""
    return StoreOptions(
        commit_log_file_bytes=config.mapped_file_size_commit_log,
        consume_queue_file_bytes=config.mapped_file_size_consume_queue,
        index_slots=config.max_hash_slot_num,
        index_entries=config.max_index_num,
        index_enable=config.message_index_enable,
        check_crc_on_recover=config.check_crc_on_recover,
        sync_flush=config.flush_disk_type == "SYNC_FLUSH",
        file_reserved_hours=config.file_reserved_time,
        delete_when=config.deletion_hours,
        disk_max_used_ratio=config.disk_max_used_space_ratio / 100,
        snapshot_interval_bytes=config.snapshot_interval_bytes,
        max_record_bytes=config.max_message_size + _RECORD_EXTRA_BYTES,
    )


def read_only_config(config: BrokerConfig) -> BrokerConfig:
    """The configuration of a broker that only reads its store: routes permit reading alone, and nothing is written."""
    return replace(config, broker_permission=READ_ONLY, offset_moved_event_enable=False)


def make_parent(path: Path) -> None:
    """The folders above a store; NotAStoreError when they cannot be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotAStoreError(
            f"{path.parent}: cannot be made ({error.strerror}): name a folder that this user may write to"
        ) from error
