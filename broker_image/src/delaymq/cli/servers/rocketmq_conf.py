"""Generator of a broker.conf with which RocketMQ's broker can open a store; it rejects files of other lengths."""

from __future__ import annotations

from pathlib import Path

from delaymq.config import BrokerConfig
from delaymq.message.names import TIMER_TOPIC

_INDEX_HEAD_BYTES = 40
_SLOT_BYTES = 4
_ENTRY_BYTES = 20
ENTRIES_PER_SLOT = 4


def rocketmq_conf(config: BrokerConfig) -> str:
    """Return the text; sizes are taken from existing files, otherwise from the configuration."""
    store = config.store_path.absolute()
    log_bytes = _size_of_first(store / "commitlog", "*") or config.mapped_file_size_commit_log
    queue_bytes = _size_of_first(store / "consumequeue", "*/*/*") or config.mapped_file_size_consume_queue
    lines = [f"# Configuration with which RocketMQ 4.9 can open the store in {store}. Stop DelayMQ first."]
    if (store / "consumequeue" / TIMER_TOPIC).is_dir():
        lines += [
            "# The store contains messages with due times. RocketMQ 4.9 never delivers them; RocketMQ 5 also delivers",
            "# those that were delivered before: see `delaymq store verify --for-rocketmq`. For RocketMQ 5, add",
            f"# timerMaxDelaySec={config.timer_max_delay_sec}",
        ]
    index_bytes = _size_of_first(store / "index", "*")
    slots, entries = config.max_hash_slot_num, config.max_index_num
    if index_bytes and index_bytes != _index_bytes(slots, entries):
        # A file does not record its layout; nearly all have four entries per slot, RocketMQ's default.
        slots = (index_bytes - _INDEX_HEAD_BYTES) // (_SLOT_BYTES + ENTRIES_PER_SLOT * _ENTRY_BYTES)
        entries = ENTRIES_PER_SLOT * slots
    if index_bytes and index_bytes != _index_bytes(slots, entries):
        lines.append(
            f"# The layout of index files of {index_bytes} bytes is unknown: delete {store / 'index'} first;"
            " older messages can then no longer be found by key."
        )
    values = {
        "brokerClusterName": config.broker_cluster_name,
        "brokerName": config.broker_name,
        "brokerId": config.broker_id,
        "brokerIP1": config.broker_ip1,
        "listenPort": config.listen_port,
        "namesrvAddr": config.namesrv_addr or "127.0.0.1:9876",
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": log_bytes,
        "mappedFileSizeConsumeQueue": queue_bytes,
        "maxHashSlotNum": slots,
        "maxIndexNum": entries,
        "messageDelayLevel": config.message_delay_level,
        "flushDiskType": config.flush_disk_type,
        "fileReservedTime": config.file_reserved_time,
        "deleteWhen": config.delete_when,
    }
    if config.acl_enable:
        lines.append(f"# Copy the access rules {config.acl_path} to ROCKETMQ_HOME/conf/plain_acl.yml.")
        values["aclEnable"] = "true"
    return "".join(f"{line}\n" for line in [*lines, *(f"{key}={value}" for key, value in values.items())])


def _index_bytes(slots: int, entries: int) -> int:
    return _INDEX_HEAD_BYTES + _SLOT_BYTES * slots + _ENTRY_BYTES * entries


def _size_of_first(folder: Path, pattern: str) -> int | None:
    first = min((path for path in folder.glob(pattern) if path.name.isdigit() and path.is_file()), default=None)
    return None if first is None else first.stat().st_size
