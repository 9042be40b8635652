"""Small files of a store for backups, and the sizes of its large files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from delaymq.api_types.store import FileSizes
from delaymq.broker import topics
from delaymq.broker.delivery.control import FILE_NAME as POLICY_FILE
from delaymq.broker.delivery.control import encode_policy
from delaymq.broker.delivery.offsets import FILE_NAME as DELAY_OFFSETS
from delaymq.broker.delivery.settings.table import FILE_NAME as DELAY_SETTINGS
from delaymq.broker.groups import subscription_groups
from delaymq.protocol.bodies import DelayOffsets
from delaymq.store.disk.config_files import CONSUMER_OFFSETS, UNREADABLE_OFFSETS
from delaymq.store.layout import DELETED_TOPICS

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.store.message_store import MessageStore

CONSUMER_FILTER = "consumerFilter.json"
"""File of RocketMQ, which is preserved but not used."""


def file_sizes(store: "MessageStore") -> FileSizes:
    """Return the file sizes with which the store was opened."""
    options = store.options
    return FileSizes(
        commit_log_file_bytes=options.commit_log_file_bytes,
        consume_queue_file_bytes=options.consume_queue_file_bytes,
        index_slots=options.index_slots,
        index_entries=options.index_entries,
        index_enabled=options.index_enable,
    )


def required_version(store: "MessageStore") -> int:
    """Return the lowest format version of programs that may interpret the store's log."""
    return store.format_version


def small_files(broker: "Broker") -> Iterator[tuple[str, str]]:
    """Yield path (relative to the store) and content of each file, generated when it is requested."""
    store = broker.store
    yield f"config/{topics.FILE_NAME}", broker.topics.encode().decode()
    yield f"config/{subscription_groups.FILE_NAME}", broker.groups.encode().decode()
    table = UNREADABLE_OFFSETS if broker.offsets.unreadable else broker.offsets.encode()
    yield CONSUMER_OFFSETS, table.decode()
    yield f"config/{DELAY_OFFSETS}", DelayOffsets(broker.delivery.delay_offsets()).encode().decode()
    yield f"delaymq/{DELETED_TOPICS}", json.dumps(dict(store.deleted_topics))
    if broker.delay_settings.topics or broker.delay_settings.accounts:
        yield f"delaymq/{DELAY_SETTINGS}", broker.delay_settings.encode().decode()
    if (policy := broker.delivery.control.policy) is not None:
        yield f"delaymq/{POLICY_FILE}", encode_policy(policy).decode()
    consumer_filter = Path(store.path, "config", CONSUMER_FILTER)
    if consumer_filter.is_file():
        yield f"config/{CONSUMER_FILTER}", consumer_filter.read_text(encoding="utf-8", errors="replace")
