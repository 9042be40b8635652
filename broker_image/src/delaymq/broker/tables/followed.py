"""Tables of a replica: they are those of its master, until it takes over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from delaymq.api_types.delay_settings import AccountDelaySettings, TopicDelaySettings
from delaymq.broker.delivery.control import DeliveryPolicy, parse_policy
from delaymq.broker.delivery.settings.overdue import Treatment
from delaymq.broker.groups.client_snapshot import RememberedClients, RememberedGroup
from delaymq.broker.groups.queue_locks import LOCK_MS
from delaymq.broker.tables.entries import (
    LOG_BEGIN,
    OFFSETS_ARE_KNOWN,
    Table,
    TopicSettings,
    locks_of,
    name_of,
    queue_of,
)
from delaymq.broker.topics import checked_topic
from delaymq.message import names
from delaymq.message.names import topic_problem
from delaymq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from delaymq.protocol.errors import RequestError

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

_ENTRIES: Final[dict[Table, Any]] = {
    Table.DELETIONS: int,
    Table.TOPICS: TopicConfig,
    Table.GROUPS: SubscriptionGroupConfig,
    Table.TOPIC_SETTINGS: TopicSettings,
    Table.ACCOUNT_SETTINGS: AccountDelaySettings,
    Table.POLICY: dict[str, Any],
    Table.TREATMENTS: Treatment,
    Table.LOCKS: list[tuple[str, str, int, int]],
    Table.CLIENTS: RememberedGroup,
    Table.OFFSETS: dict[int, int],
    Table.EMPTY_QUEUES: int,
}
MAX_NAMES: Final = 1_000_000
"""Maximum number of entries of one table, above what any broker accepts."""
_SWEPT_AT_ONCE: Final = 2_000
_DECODERS: Final[dict[Table, msgspec.json.Decoder[Any]]] = {
    table: msgspec.json.Decoder(dict[str, kind | None])  # type: ignore[valid-type]
    for table, kind in _ENTRIES.items()
}

_logger = logging.getLogger(__name__)


class FollowedTables:
    """Applies the tables of a master to a broker that follows.

    A session begins with all entries. Each is applied when it is received: it is at least as new as what was
    acknowledged while this member was in sync. Entries that the session does not contain are removed at its end.
    """

    def __init__(self, broker: Broker, rebuild: Callable[[Mapping[str, int]], None]) -> None:
        """`rebuild` restarts the process with other deletions of topics, after which the queues are built again."""
        self._broker = broker
        self._rebuild = rebuild
        self._received: dict[Table, set[str]] | None = None
        """Names of the entries of a session until they are complete."""
        self._deletions: dict[str, int] = {}
        """Deletions of the session."""
        self._clients: dict[str, RememberedGroup] = {}
        self._appliers: dict[Table, Callable[[Mapping[str, Any]], None]] = {
            Table.TOPICS: self._apply_topics,
            Table.GROUPS: self._apply_groups,
            Table.TOPIC_SETTINGS: self._apply_topic_settings,
            Table.ACCOUNT_SETTINGS: self._apply_account_settings,
            Table.POLICY: self._apply_policy,
            Table.TREATMENTS: self._apply_treatments,
            Table.LOCKS: self._apply_locks,
            Table.CLIENTS: self._apply_clients,
            Table.OFFSETS: self._apply_offsets,
        }

    def begin(self) -> None:
        """Begin a session: entries that it does not contain will be removed."""
        self._received = {table: set() for table in Table}
        self._deletions = {}

    @property
    def is_complete(self) -> bool:
        """Whether all entries of the session have been applied."""
        return self._received is None

    def receive(self, table: int, data: bytes, *, is_complete: bool) -> Iterator[None]:
        """Return the steps that apply entries of a table; `is_complete`: all tables have been received.

        Deletions of topics are applied immediately: the log continues behind them. ValueError: nothing has changed.
        OSError: deletions could not be written, and have to be received again.
        """
        kind, entries = decoded(table, data)
        if kind is Table.DELETIONS:
            self._delete(entries)
        if self._received is not None:
            received = self._received[kind]
            received.update(entries)
            if len(received) > MAX_NAMES:
                raise ValueError(f"table {kind.name} has more than {MAX_NAMES} entries")
        return self._steps(kind, entries, is_complete=is_complete)

    def _steps(self, table: Table, entries: dict[str, Any], *, is_complete: bool) -> Iterator[None]:
        if table is Table.EMPTY_QUEUES:
            yield from self._continue_queues(entries)
        elif table is not Table.DELETIONS:
            self._appliers[table](entries)
        yield
        if is_complete and self._received is not None:
            yield from self._sweep(self._received)
            self._received = None

    def write(self) -> OSError | None:
        """Write definitions that have changed. Returns the error if they are not durable."""
        failure = self._broker.persist_definitions()
        try:
            self._broker.delivery.control.write()
        except OSError as error:
            failure = error
        return failure

    # Queues

    def _delete(self, entries: Mapping[str, int | None]) -> None:
        """Delete topics as the master did. The queues are built again if its deletions of the common log differ."""
        store = self._broker.store
        deletions, end, first = store.deletions, store.end_offset, store.min_offset
        stated = {topic: offset for topic, offset in entries.items() if offset is not None and topic != LOG_BEGIN}
        if end == first and not self._deletions:
            deletions.forget()  # those of the log that this empty one replaces
        self._deletions |= stated
        changed = {topic: offset for topic, offset in stated.items() if deletions.offsets.get(topic) != offset}
        is_late = any(first < offset < end for offset in changed.values())
        begin = entries.get(LOG_BEGIN)
        if begin is not None:
            # The former master may have deleted topics without this one.
            own = {topic for topic, offset in deletions.offsets.items() if offset > begin}
            is_late = is_late or not own <= self._deletions.keys()
        if is_late:
            older = {topic: offset for topic, offset in deletions.offsets.items() if offset <= (begin or 0)}
            self._rebuild(older | self._deletions)
            return
        deletions.follow({topic: offset for topic, offset in changed.items() if offset >= end})
        for topic in changed:
            self._broker.forget_counts(topic)

    def _continue_queues(self, entries: Mapping[str, int | None]) -> Iterator[None]:
        store = self._broker.store
        for name, number in entries.items():
            topic, queue_id = queue_of(name)
            # A deletion that was received since may have been applied before.
            if number is not None and topic not in store.deleted_topics:
                store.continue_queue(topic, queue_id, number)
                yield

    # Tables

    def _apply_topics(self, entries: Mapping[str, TopicConfig | None]) -> None:
        for name, topic in entries.items():
            self._broker.topics.replicate(name, topic)

    def _apply_groups(self, entries: Mapping[str, SubscriptionGroupConfig | None]) -> None:
        for name, group in entries.items():
            self._broker.groups.replicate(name, group)

    def _apply_topic_settings(self, entries: Mapping[str, TopicSettings | None]) -> None:
        for name, each in entries.items():
            settings, is_gone = (None, False) if each is None else (_settings(each), each.gone)
            self._broker.delay_settings.replicate_topic(name, settings, is_gone=is_gone)

    def _apply_account_settings(self, entries: Mapping[str, AccountDelaySettings | None]) -> None:
        for name, settings in entries.items():
            self._broker.delay_settings.replicate_account(name, settings)

    def _apply_policy(self, entries: Mapping[str, dict[str, Any] | None]) -> None:
        for policy in entries.values():
            self._broker.delivery.control.replicate(None if policy is None else _policy(policy))

    def _apply_treatments(self, entries: Mapping[str, Treatment | None]) -> None:
        self._broker.delivery.control.treatments.replicate(entries)

    def _apply_locks(self, entries: Mapping[str, list[tuple[str, str, int, int]] | None]) -> None:
        now_ms = self._broker.now_ms()
        for name, held in entries.items():
            queues = {(owner, topic, queue): now_ms - age for owner, topic, queue, age in held or ()}
            self._broker.locks.replicate(*locks_of(name), queues)

    def _apply_clients(self, entries: Mapping[str, RememberedGroup | None]) -> None:
        for name, members in entries.items():
            if members is None:
                self._clients.pop(name, None)
            else:
                self._clients[name] = members

    def _apply_offsets(self, entries: Mapping[str, dict[int, int] | None]) -> None:
        self._broker.offsets.replicate({name: each for name, each in entries.items() if name != OFFSETS_ARE_KNOWN})

    def _sweep(self, received: dict[Table, set[str]]) -> Iterator[None]:
        """Remove the entries that the session does not contain."""
        for table, apply in self._appliers.items():
            if table is Table.OFFSETS and OFFSETS_ARE_KNOWN not in received[table]:
                continue  # those of this member are the best ones
            left = iter(list(self._names(table)))
            while part := list(islice(left, _SWEPT_AT_ONCE)):
                if stale := dict.fromkeys(name for name in part if name not in received[table]):
                    apply(stale)
                yield
        self._apply_treatments({})  # so that the file of an earlier time is replaced
        if self._broker.offsets.unreadable and OFFSETS_ARE_KNOWN in received[Table.OFFSETS]:
            self._broker.adopt_offsets()

    def _names(self, table: Table) -> Iterable[str]:
        """Return the names of this broker's entries, without those that every broker has."""
        broker = self._broker
        match table:
            case Table.TOPICS:
                return (name for name in broker.topics.table if not broker.topics.is_system(name))
            case Table.GROUPS:
                return broker.groups.table.keys() - set(names.SYSTEM_GROUPS)
            case Table.TOPIC_SETTINGS:
                return broker.delay_settings.topics
            case Table.ACCOUNT_SETTINGS:
                return broker.delay_settings.accounts
            case Table.TREATMENTS:
                return broker.delivery.control.treatments.stored
            case Table.LOCKS:
                return (name_of(*each) for each in broker.locks.holders())
            case Table.CLIENTS:
                return self._clients
            case Table.OFFSETS:
                return broker.offsets.table
            case _:
                return ()

    # Role

    def lead(self) -> None:
        """Complete the tables when this broker takes over. OSError: the deletions of topics cannot be written."""
        broker, store = self._broker, self._broker.store
        self._received = None
        store.deletions.end()
        # A cut leaves queues without entries, whose topics may have been deleted or never acknowledged.
        adopted = broker.topics.adopt(queue for queue in store.queues() if store.next_queue_offset(*queue))
        if adopted:
            _logger.warning("%d stored topics without a definition were added: %s", len(adopted), adopted[:20])
        broker.offsets.clamp(store.next_queue_offset)
        broker.delivery.control.write()
        for topic in list(broker.delay_settings.topics):
            broker.delay_settings.on_topic(topic)
        now_ms = broker.now_ms()
        if self._clients:
            broker.clients.restore(RememberedClients(1, now_ms, self._clients), now_ms)
        broker.clients.dirty = True


def decoded(table: int, data: bytes) -> tuple[Table, dict[str, Any]]:
    """Return the table and the checked entries of a part. ValueError."""
    kind = Table(table)
    entries: dict[str, Any] = _DECODERS[kind].decode(data)
    for name, value in entries.items():
        _check(kind, name, value)
    return kind, entries


def _check(table: Table, name: str, value: Any) -> None:
    match table:
        case Table.TOPICS if value is not None:
            value.topic_name = name
            try:
                checked_topic(value)
            except RequestError as error:
                raise ValueError(error.remark) from error
        case Table.GROUPS if value is not None and (problem := names.group_problem(name)) is not None:
            raise ValueError(problem)
        case Table.TOPIC_SETTINGS if value is not None:
            _settings(value)
        case Table.POLICY if value is not None:
            _policy(value)
        case Table.LOCKS:
            locks_of(name)
            if any(not 0 <= age <= LOCK_MS for *_, age in value or ()):
                raise ValueError(f"the age of a lock of {name[:128]!r} is impossible")
        case Table.OFFSETS if value is not None and min(value, default=0) < 0:
            raise ValueError(f"a queue of {name[:128]!r} is negative")
        case Table.DELETIONS if value is not None and value < 0:
            raise ValueError(f"the deletion of {name[:128]!r} has a negative offset")
        case Table.EMPTY_QUEUES:
            topic, queue_id = queue_of(name)
            if topic_problem(topic) is not None or not 0 <= queue_id < 1 << 31 or not 0 < (value or 1) < 1 << 58:
                raise ValueError(f"{name[:128]!r} does not name a queue, or its number is impossible")
        case _:
            pass


def _policy(entry: dict[str, Any]) -> DeliveryPolicy:
    return parse_policy(msgspec.json.encode(entry))


def _settings(entry: TopicSettings) -> TopicDelaySettings:
    return msgspec.json.decode(entry.settings, type=TopicDelaySettings)
