"""Files of the broker's tables: loaded and repaired at the start, written after changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from delaymq.broker import topics
from delaymq.broker.delivery.settings import table as delay_settings
from delaymq.broker.delivery.settings.table import DelaySettingsTable
from delaymq.broker.groups import client_snapshot
from delaymq.broker.groups import consumer_offsets as offsets
from delaymq.broker.groups import subscription_groups as groups
from delaymq.broker.groups.client_registry import ClientRegistry
from delaymq.broker.groups.client_snapshot import RememberedClients
from delaymq.broker.groups.consumer_offsets import OffsetTable
from delaymq.broker.groups.subscription_groups import Groups
from delaymq.broker.topics import Topics
from delaymq.protocol.errors import RequestError
from delaymq.store.errors import UnreadableTableError
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.store.message_store import MessageStore

_logger = logging.getLogger(__name__)
T = TypeVar("T")


class Tables:
    """Loader and writer of the tables of one store: topics, groups, offsets, delay settings, remembered clients."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: OffsetTable,
        clients: ClientRegistry,
        delay_settings: DelaySettingsTable,
        now_ms: Callable[[], int],
    ) -> None:
        self.throttled = ThrottledLogger(_logger, now_ms)
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._delay_settings = delay_settings

    def load(self, now_ms: int) -> None:
        """Load all files.

        A missing or damaged file leaves the defaults; topics are then derived from the stored queues. Existing but
        unreadable offsets stay `unreadable`.
        """
        store = self._store
        stored_topics = store.config_files.load(topics.FILE_NAME, _readable(topics.parse_table))
        if stored_topics is not None:
            self._topics.restore(stored_topics)
        stored_groups = store.config_files.load(groups.FILE_NAME, _readable(groups.parse_table))
        if stored_groups is not None:
            self._groups.restore(stored_groups)
        self._load_offsets()
        stored_settings = store.own_files.load(delay_settings.FILE_NAME, DelaySettingsTable.parse)
        if stored_settings is not None:
            self._delay_settings.restore(stored_settings)
        stored_clients = store.own_files.load(
            client_snapshot.FILE_NAME, RememberedClients.parse, max_bytes=client_snapshot.MAX_FILE_BYTES
        )
        if stored_clients is not None:
            self._clients.restore(stored_clients, now_ms)
        if stored_topics is None or not store.recovery.clean:
            adopted = self._topics.adopt(store.queues())
            if adopted:
                _logger.warning("topics.json lacked %d stored topics, which were added: %s", len(adopted), adopted[:20])
        if not store.recovery.clean:
            count = self._offsets.clamp(lambda topic, queue_id: store.stored_bounds(topic, queue_id)[1])
            if count:
                text = (
                    "consumerOffset.json was ahead of the log in %d queues: their offsets were set to the queues' ends"
                )
                _logger.warning(text, count)

    def _load_offsets(self) -> None:
        load = self._store.config_files.load_or_keep
        try:
            stored = load(offsets.FILE_NAME, _readable(offsets.parse_table), max_bytes=offsets.MAX_FILE_BYTES)
        except UnreadableTableError as error:
            self._offsets.unreadable = tuple(error.paths)
            _logger.error("consumers are not served: %s", offsets.remedy(self._offsets.unreadable))
            return
        if stored is not None:
            self._offsets.restore(stored)

    def forget_offsets(self) -> None:
        """Discard the unreadable offsets: all groups start without offsets. On OSError, nothing has changed."""
        self._save_offsets(self._offsets.encode())
        self._offsets.unreadable = ()

    def _save_offsets(self, data: bytes) -> None:
        self._store.config_files.save(offsets.FILE_NAME, data, max_bytes=offsets.MAX_FILE_BYTES)

    def write_definitions(self) -> OSError | None:
        """Write topics, groups and delay settings if they changed.

        Nothing else writes them, so no older state can follow.
        """
        save = self._store.config_files.save
        try:
            if self._topics.dirty:
                save(topics.FILE_NAME, self._topics.encode())
                self._topics.dirty = False
            if self._groups.dirty:
                save(groups.FILE_NAME, self._groups.encode())
                self._groups.dirty = False
            if self._delay_settings.dirty:
                self._store.own_files.save(delay_settings.FILE_NAME, self._delay_settings.encode())
                self._delay_settings.dirty = False
        except OSError as error:
            self.throttled.error(
                "topics, groups or delay settings could not be written (the broker retries): %s", error
            )
            return error
        return None

    def changed(self, now_ms: int) -> list[Callable[[], None]]:
        """Return the writes of offsets and clients that are due. They may run in any thread, one at a time."""
        writes: list[Callable[[], None]] = []
        if self._offsets.dirty and not self._offsets.unreadable:
            self._offsets.dirty = False
            # Encoding a large table would block the event loop for too long.
            writes.append(lambda: self._save_offsets(self._offsets.encode()))
        if self._clients.must_remember(now_ms):
            writes.append(partial(self._save_clients, self._clients.remember(now_ms)))
        return writes

    def _save_clients(self, clients: RememberedClients) -> None:
        self._store.own_files.save(
            client_snapshot.FILE_NAME, clients.encode(), max_bytes=client_snapshot.MAX_FILE_BYTES
        )

    def mark_changed(self) -> None:
        """Schedule both files for the next call of `changed`, for example after a failed write."""
        self._offsets.dirty = self._clients.dirty = True


class PersistTask:
    """StoreTask (store.model) that writes offsets and clients. Only one may run at a time."""

    def __init__(self, tables: Tables, writes: list[Callable[[], None]]) -> None:
        self._tables = tables
        self._writes = writes
        self._error: OSError | None = None

    def run(self) -> None:
        """Write the files. Callable from any thread."""
        for write in self._writes:
            try:
                write()
            except OSError as error:
                self._error = error

    def finish(self) -> OSError | None:
        """Return the error, if any. The files will then be written again."""
        if self._error is not None:
            self._tables.mark_changed()
            self._tables.throttled.error(
                "offsets or clients could not be written (the broker retries): %s", self._error
            )
        return self._error


def _readable(parse: Callable[[bytes], T]) -> Callable[[bytes], T]:
    def parse_or_value_error(data: bytes) -> T:
        try:
            return parse(data)
        except RequestError as error:
            raise ValueError(error.remark) from error

    return parse_or_value_error
