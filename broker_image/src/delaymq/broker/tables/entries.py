"""Tables of a broker as its replicas receive them: names of entries, with values in JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from delaymq.broker.delivery.control import encode_policy
from delaymq.broker.groups.queue_locks import LOCK_MS

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.groups.client_snapshot import RememberedClients, RememberedGroup

DELETED: Final = b"null"
"""Value of an entry that was deleted."""
LOG_BEGIN: Final = ""
"""Name of the last entry of DELETIONS in a session: the beginning of the master's log, before which it has forgotten
deletions."""
OFFSETS_ARE_KNOWN: Final = ""
"""Name of an entry of OFFSETS that is present unless the master's own table is unreadable."""
Name: TypeAlias = str | tuple[str, int]
"""Name of an entry: a text, or topic and queue id of EMPTY_QUEUES, of which names are encoded only when necessary."""
_encode = msgspec.json.encode


class Table(IntEnum):
    """Tables, in the order in which their entries are sent."""

    DELETIONS = 1
    """Topic → end of the log when the topic was deleted."""
    TOPICS = 2
    GROUPS = 3
    TOPIC_SETTINGS = 4
    """Delay settings of a topic, and whether the topic was deleted while messages for it were pending."""
    ACCOUNT_SETTINGS = 5
    POLICY = 6
    """One entry without a name: the policy of deliveries in `delivery.json`."""
    TREATMENTS = 7
    """Topic → treatment of its overdue messages that is in progress."""
    LOCKS = 8
    """Group and client → queues that the client has locked, with the age of each lock in ms."""
    CLIENTS = 9
    """Consumer group → its members and subscriptions."""
    OFFSETS = 10
    """`TOPIC@GROUP` → consumer offset by queue."""
    EMPTY_QUEUES = 11
    """Topic and queue id of a queue without records in the log → number of its next entry."""


class TopicSettings(msgspec.Struct):
    """Entry of TOPIC_SETTINGS."""

    settings: msgspec.Raw
    gone: bool


class TableSource:
    """Entries of a master's tables. Values are encoded when they are sent, so that only the newest one is sent."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._clients: dict[str, RememberedGroup] = {}
        treatments = broker.delivery.control.treatments
        self._values: dict[Table, Callable[[str], Any]] = {
            Table.DELETIONS: self._deletion,
            Table.TOPICS: lambda name: broker.topics.table.get(name),
            Table.GROUPS: lambda name: broker.groups.table.get(name),
            Table.TOPIC_SETTINGS: self._topic_settings,
            Table.ACCOUNT_SETTINGS: lambda name: broker.delay_settings.accounts.get(name),
            Table.POLICY: self._policy,
            Table.TREATMENTS: lambda name: treatments.stored.get(name),
            Table.LOCKS: self._locks,
            Table.CLIENTS: lambda name: self._clients.get(name),
            Table.OFFSETS: lambda name: broker.offsets.table.get(name) if name != OFFSETS_ARE_KNOWN else {},
        }

    def watch(self, changed: Callable[[Table, str], None]) -> None:
        """Call `changed` with each entry that changes, except for offsets, which `changed_offsets` returns."""
        broker, control = self._broker, self._broker.delivery.control
        broker.store.deletions.on_delete = partial(changed, Table.DELETIONS)
        broker.topics.on_change = partial(changed, Table.TOPICS)
        broker.groups.on_change = partial(changed, Table.GROUPS)
        broker.delay_settings.on_change = lambda name, is_account: changed(
            Table.ACCOUNT_SETTINGS if is_account else Table.TOPIC_SETTINGS, name
        )
        control.on_policy = partial(changed, Table.POLICY, "")
        control.treatments.on_change = partial(changed, Table.TREATMENTS)
        broker.locks.on_change = lambda group, client_id: changed(Table.LOCKS, name_of(group, client_id))

        def remembered(clients: RememberedClients) -> None:
            before, self._clients = self._clients, clients.groups
            for name in before.keys() | clients.groups.keys():
                if before.get(name) != clients.groups.get(name):
                    changed(Table.CLIENTS, name)

        broker.clients.on_remembered = remembered
        broker.clients.dirty = True
        broker.offsets.changed = set()

    def changed_offsets(self) -> Collection[str]:
        """Return the names of the offsets that have changed since the last call."""
        offsets = self._broker.offsets
        changed, offsets.changed = offsets.changed, set()
        return changed or ()

    def names(self, table: Table) -> list[Name]:
        """Return the names of all entries, in the order in which they are to be sent."""
        broker = self._broker
        match table:
            case Table.DELETIONS:
                return [*broker.store.deleted_topics, LOG_BEGIN]
            case Table.TOPICS:
                return list(broker.topics.table)
            case Table.GROUPS:
                return list(broker.groups.table)
            case Table.TOPIC_SETTINGS:
                return list(broker.delay_settings.topics)
            case Table.ACCOUNT_SETTINGS:
                return list(broker.delay_settings.accounts)
            case Table.POLICY:
                return [""]
            case Table.TREATMENTS:
                return list(broker.delivery.control.treatments.stored)
            case Table.LOCKS:
                return [name_of(*each) for each in broker.locks.holders()]
            case Table.CLIENTS:
                return list(self._clients)
            case Table.OFFSETS:
                return [] if broker.offsets.unreadable else [OFFSETS_ARE_KNOWN, *broker.offsets.table]
            case Table.EMPTY_QUEUES:
                # A log that begins at 0 has at least one record of each queue.
                return list(broker.store.queues()) if broker.store.min_offset else []

    def entry(self, table: Table, name: Name) -> bytes:
        """Return a member of a JSON object: the name of an entry and its value, `DELETED` if there is none.

        It is empty for a queue with records, which replicas receive in the log.
        """
        if isinstance(name, tuple):
            number = self._next_number(*name)
            return b"" if number is None else b"%b:%d" % (_encode(name_of(*name)), number)
        value = self._values[table](name)
        return b"%b:%b" % (_encode(name), DELETED if value is None else _encode(value))

    def _deletion(self, name: str) -> int | None:
        store = self._broker.store
        return store.min_offset if name == LOG_BEGIN else store.deleted_topics.get(name)

    def _policy(self, name: str) -> Any:
        policy = self._broker.delivery.control.policy
        return None if policy is None else msgspec.Raw(encode_policy(policy))

    def _topic_settings(self, name: str) -> Any:
        table = self._broker.delay_settings
        settings = table.topics.get(name)
        return None if settings is None else TopicSettings(msgspec.Raw(_encode(settings)), name in table.gone)

    def _locks(self, name: str) -> Any:
        now_ms = self._broker.now_ms()
        held = self._broker.locks.held_by(*locks_of(name))
        ages = ((queue, max(now_ms - since_ms, 0)) for queue, since_ms in held.items())
        return [(*queue, age_ms) for queue, age_ms in ages if age_ms <= LOCK_MS] or None

    def _next_number(self, topic: str, queue_id: int) -> int | None:
        low, high = self._broker.store.stored_bounds(topic, queue_id)
        return high if low >= high > 0 else None


def name_of(*parts: str | int) -> str:
    """Return the name of an entry that has several parts."""
    return _encode(parts).decode()


def locks_of(name: str) -> tuple[str, str]:
    """Return group and client of an entry of LOCKS. ValueError."""
    return msgspec.json.decode(name, type=tuple[str, str])


def queue_of(name: str) -> tuple[str, int]:
    """Return topic and queue id of an entry of EMPTY_QUEUES. ValueError."""
    return msgspec.json.decode(name, type=tuple[str, int])
