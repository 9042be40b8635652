"""Store options that are derived from the broker's configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from delaymq.config import BrokerConfig
from delaymq.store.errors import NotAStoreError
from delaymq.store.options import StoreOptions

_RECORD_EXTRA_BYTES = 64 * 1024
"""Bytes that RocketMQ allows in a record in addition to the message's body."""
READ_ONLY: Final = 4
"""Value of brokerPermission."""


def store_options(config: BrokerConfig) -> StoreOptions:
    """Return the store's options according to the broker's configuration."""
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
        disk_clean_ratio=config.disk_space_clean_forcibly_ratio / 100,
        disk_write_refused_ratio=config.disk_space_warning_level_ratio / 100,
        snapshot_interval_bytes=config.snapshot_interval_bytes,
        max_record_bytes=config.max_message_size + _RECORD_EXTRA_BYTES,
    )


def read_only_config(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration of a broker that opens its store read-only: routes permit only reading."""
    return replace(config, broker_permission=READ_ONLY, offset_moved_event_enable=False)


def make_parent(path: Path) -> None:
    """Create the folders above a store. Raises NotAStoreError if they cannot be created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotAStoreError(
            f"{path.parent}: cannot be created ({error.strerror}): choose a folder that this user may write to"
        ) from error
