"""Partitions of the index (topic, group and delay level), accounts, and exact counts of pending messages by both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from delaymq.schedule.timeline.entries import Pending


class Totals(NamedTuple):
    """Pending messages and the bytes of their records."""

    messages: int
    bytes: int


class PartitionKey(NamedTuple):
    """Names of a partition."""

    topic: str
    """Topic to which the messages are delivered; empty if it was unknown when they were added."""
    group: str = ""
    level: int = 0
    """Delay level; 0 for timed messages."""


class Partitions:
    """Numbers of partitions and accounts, and counts. A number is used again only after a restart without a use."""

    def __init__(self) -> None:
        self._keys: dict[int, PartitionKey] = {}
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._of_topic: dict[str, list[int]] = {}
        self._accounts: dict[str, int] = {"": 0}
        self._account_names: list[str] = [""]
        self._counts: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        """Messages and bytes by partition and account, without zeroes, each next to those of its delay level."""
        self._of_levels: dict[int, list[int]] = {}
        """Messages and bytes by delay level."""
        self._next = 0
        self.messages = 0
        """Number of pending messages."""
        self.bytes = 0
        """Bytes of their records."""

    def number(self, topic: str, group: str = "", level: int = 0) -> int:
        """Return the number of a partition, which is created if it does not exist."""
        number = self._numbers.get((topic, group, level))
        if number is None:
            number = self._next
            self._add(number, PartitionKey(topic, group, level))
            self._next += 1
        return number

    def _add(self, number: int, key: PartitionKey) -> None:
        self._numbers[key] = number
        self._keys[number] = key
        self._of_topic.setdefault(key.topic, []).append(number)

    def find(self, topic: str, group: str = "", level: int = 0) -> int | None:
        """Return the number of a partition; None if it does not exist."""
        return self._numbers.get((topic, group, level))

    def key(self, number: int) -> PartitionKey:
        """Return the names of a partition."""
        return self._keys[number]

    def names(self) -> dict[int, PartitionKey]:
        """Return the names of all partitions by number."""
        return dict(self._keys)

    def of_topic(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions."""
        return list(self._of_topic.get(topic, ()))

    def pending(self) -> list[int]:
        """Return the numbers of the partitions with pending messages, in ascending order."""
        return sorted({partition for partition, _ in self._counts})

    def account_number(self, account: str) -> int:
        """Return the number of an account; 0 without one."""
        number = self._accounts.get(account)
        if number is None:
            number = self._accounts[account] = len(self._account_names)
            self._account_names.append(account)
        return number

    def account(self, number: int) -> str:
        """Return the name of an account; empty without one."""
        return self._account_names[number]

    def count(self, partition: int, account: int, messages: int, record_bytes: int) -> None:
        """Add a number of messages, possibly negative, and the bytes of their records."""
        found = self._counts.get((partition, account))
        if found is None:
            found = [0, 0], self._of_levels.setdefault(self._keys[partition].level, [0, 0])
            self._counts[partition, account] = found
        own, of_level = found
        own[0] += messages
        own[1] += record_bytes
        of_level[0] += messages
        of_level[1] += record_bytes
        if not own[0]:
            del self._counts[partition, account]
        self.messages += messages
        self.bytes += record_bytes

    def remove(self, entries: Iterable[Pending]) -> None:
        """Count messages as not pending any more."""
        table = self._counts
        for _, _, _, size, account, partition in entries:
            own, of_level = table[partition, account]
            own[0] -= 1
            own[1] -= size
            of_level[0] -= 1
            of_level[1] -= size
            if not own[0]:
                del table[partition, account]
            self.messages -= 1
            self.bytes -= size

    def of_partition(self, partition: int) -> Totals:
        """Return the pending messages of a partition."""
        messages = record_bytes = 0
        for account in range(len(self._account_names)):
            found = self._counts.get((partition, account))
            if found is not None:
                messages += found[0][0]
                record_bytes += found[0][1]
        return Totals(messages, record_bytes)

    def totals(self, topic: str) -> Totals:
        """Return the pending messages of a topic."""
        each = [self.of_partition(partition) for partition in self._of_topic.get(topic, ())]
        return Totals(sum(totals.messages for totals in each), sum(totals.bytes for totals in each))

    def of_level(self, level: int) -> Totals:
        """Return the pending messages of a delay level; level 0 stands for the timed messages."""
        return Totals(*self._of_levels.get(level, (0, 0)))

    def topics(self) -> dict[str, Totals]:
        """Return the pending messages by topic, for topics that have any."""
        found: dict[str, Totals] = {}
        for (partition, _), ((messages, record_bytes), _) in self._counts.items():
            topic = self._keys[partition].topic
            known = found.get(topic, Totals(0, 0))
            found[topic] = Totals(known.messages + messages, known.bytes + record_bytes)
        return found

    def classes(self) -> Iterator[tuple[PartitionKey, str, Totals]]:
        """Yield names, account and pending messages of each class that has any."""
        for (partition, account), (counts, _) in self._counts.items():
            yield self._keys[partition], self._account_names[account], Totals(*counts)

    def drop_unused(self, used: Iterable[int]) -> None:
        """Remove partitions without pending messages, except those that runs still contain."""
        kept = set(used)
        kept.update(partition for partition, _ in self._counts)
        for number in [number for number in self._keys if number not in kept]:
            key = self._keys.pop(number)
            del self._numbers[key]
            numbers = self._of_topic[key.topic]
            numbers.remove(number)
            if not numbers:
                del self._of_topic[key.topic]

    def state(self) -> dict[str, object]:
        """Return the state as JSON-compatible data."""
        return {
            "partitions": [[number, *key] for number, key in self._keys.items()],
            "accounts": self._account_names[1:],
            "counts": [[*key, *counts] for key, (counts, _) in self._counts.items()],
            "next": self._next,
        }

    @classmethod
    def from_state(cls, state: dict[str, object]) -> Partitions:
        """Return the partitions that `state()` described. ValueError, TypeError, KeyError if it is invalid."""
        partitions = cls()
        keys, accounts, counts, following = (state[name] for name in ("partitions", "accounts", "counts", "next"))
        if not (isinstance(keys, list) and isinstance(accounts, list) and isinstance(counts, list)):
            raise ValueError("partitions, accounts and counts are lists")
        for number, topic, group, *level in keys:
            partitions._add(int(number), PartitionKey(str(topic), str(group), *map(int, level)))
        for account in accounts:
            partitions.account_number(str(account))
        for partition, account, messages, record_bytes in counts:
            partitions.count(int(partition), int(account), int(messages), int(record_bytes))
        if not isinstance(following, int) or any(number >= following for number in partitions._keys):
            raise ValueError("the next number of a partition is missing or in use")
        partitions._next = following
        return partitions
