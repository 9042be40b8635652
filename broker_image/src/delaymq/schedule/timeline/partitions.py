"""Partitions of the index, owners of messages (account and group), and exact counts of pending messages by both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

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
    """Group whose messages are in this partition because they came due while it was paused; empty for all others."""
    level: int = 0
    """Delay level; 0 for timed messages."""


class Owner(NamedTuple):
    """What messages have in common besides their partition."""

    account: str
    """Account of the producer; empty without one."""
    topic: str = ""
    """Topic of the group; empty without one."""
    group: str = ""


NO_OWNER: Final = 0
"""Number of the owner of messages without account and group."""
_LAST_OWNER: Final = 0x7FFF_FFFF
MOVED: Final = 0x8000_0000
"""Bit in the number of an owner whose messages were moved: its entries may have the keys of older ones."""


class Partitions:
    """Numbers of partitions and owners, and counts.

    Numbers of partitions are used again only after a restart without a use, and numbers of owners never. An owner with
    a group is forgotten with its last message.
    """

    def __init__(self) -> None:
        self._keys: dict[int, PartitionKey] = {}
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._of_topic: dict[str, list[int]] = {}
        self._owners: dict[Owner, int] = {}
        self._owner_keys: dict[int, Owner] = {}
        self._of_group: dict[tuple[str, str], list[int]] = {}
        """Owners by topic and group."""
        self._next_owner = NO_OWNER
        self.owner_number("")
        self._counts: dict[tuple[int, int], tuple[list[int], ...]] = {}
        """Messages and bytes by partition and owner, without zeroes, each followed by the sums that include them: those
        of the partition, its delay level, its topic, and the account."""
        self._of_partition: dict[int, list[int]] = {}
        """Messages and bytes by partition, without zeroes."""
        self._of_levels: dict[int, list[int]] = {}
        """Messages and bytes by delay level."""
        self._of_topics: dict[str, list[int]] = {}
        """Messages and bytes by topic, including zeroes."""
        self._of_accounts: dict[str, list[int]] = {}
        """Messages and bytes by account, including zeroes."""
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
        return sorted(self._of_partition)

    # Owners.

    def owner_number(self, account: str, topic: str = "", group: str = "") -> int:
        """Return the number of an owner, which is created if it does not exist; 0 without account and group."""
        owner = Owner(account, topic, group)
        number = self._owners.get(owner)
        return self._new_owner(owner) if number is None else number

    def _new_owner(self, owner: Owner, bits: int = 0) -> int:
        if self._next_owner > _LAST_OWNER:
            raise OSError("the numbers of groups are used up: restart the broker without its snapshot")
        number = self._next_owner | bits
        self._add_owner(number, owner)
        self._next_owner += 1
        return number

    def _add_owner(self, number: int, owner: Owner) -> None:
        self._owners[owner] = number
        self._owner_keys[number] = owner
        if owner.group:
            self._of_group.setdefault((owner.topic, owner.group), []).append(number)

    def has_account(self, account: str) -> bool:
        """Whether an account without a group has a number. It keeps the number."""
        return Owner(account, "", "") in self._owners

    def owner(self, number: int) -> Owner:
        """Return the names of an owner."""
        return self._owner_keys[number]

    def of_group(self, topic: str, group: str) -> list[int]:
        """Return the numbers of the owners with a group of a topic."""
        return list(self._of_group.get((topic, group), ()))

    @property
    def groups(self) -> int:
        """Number of groups with pending messages."""
        return len(self._of_group)

    def has_group(self, topic: str, group: str) -> bool:
        """Whether a group has pending messages."""
        return (topic, group) in self._of_group

    def groups_of(self, topic: str) -> Iterator[tuple[str, Totals] | None]:
        """Yield the groups of a topic with their pending messages, and None in place of each group of others."""
        for of_topic, group in list(self._of_group):
            yield (group, self.totals_of_group(topic, group)) if of_topic == topic else None

    def totals_of_group(self, topic: str, group: str) -> Totals:
        """Return the pending messages of a group."""
        found = [self._counts[key][0] for key in self._keys_of_group(topic, group)]
        return Totals(sum(each[0] for each in found), sum(each[1] for each in found))

    def replace_owners(self, topic: str, group: str, *, is_ended: bool) -> dict[int, int]:
        """Replace the owners with a group; return the new ones by former one.

        With `is_ended`, their messages are not counted any more. Otherwise, all of them are counted in the partition of
        the topic, and not as messages of a paused group.
        """
        counts = [(*key, *self._counts[key][0]) for key in self._keys_of_group(topic, group)]
        formers = self.of_group(topic, group)
        replaced = dict.fromkeys(formers, NO_OWNER)
        if not is_ended:
            for former in formers:
                owner = self._owner_keys[former]
                replaced[former] = self._new_owner(owner, MOVED)
            home = self.number(topic)
            for _, owner_number, messages, record_bytes in counts:
                self.count(home, replaced[owner_number], messages, record_bytes)
        for partition, owner_number, messages, record_bytes in counts:
            self.count(partition, owner_number, -messages, -record_bytes)
        for former in formers:
            if former in self._owner_keys:
                self.forget_owner(former)
        return replaced

    def _keys_of_group(self, topic: str, group: str) -> list[tuple[int, int]]:
        numbers = [self._numbers.get((topic, each, 0)) for each in ("", group)]
        return [
            (number, owner)
            for owner in self.of_group(topic, group)
            for number in numbers
            if number is not None and (number, owner) in self._counts
        ]

    def _uncounted(self, partition: int, owner: int) -> None:
        """Forget a count of zero, and an owner with a group that has no messages any more."""
        if not self._counts.pop((partition, owner))[1][0]:
            del self._of_partition[partition]
        if owner and (names := self._owner_keys[owner]).group:
            others = (self._numbers.get((names.topic, each, 0), -1) for each in ("", names.group))
            if not any((number, owner) in self._counts for number in others):
                self.forget_owner(owner)

    def forget_owner(self, number: int) -> None:
        """Forget an owner with a group."""
        names = self._owner_keys.pop(number)
        if self._owners.get(names) == number:
            del self._owners[names]
        numbers = self._of_group[names.topic, names.group]
        numbers.remove(number)
        if not numbers:
            del self._of_group[names.topic, names.group]

    def forget_uncounted_owners(self) -> None:
        """Forget the owners with groups of which no message is pending, after all statements of a log were read."""
        counted = {owner for _, owner in self._counts}
        for number in [number for number, names in self._owner_keys.items() if names.group and number not in counted]:
            self.forget_owner(number)

    # Counts.

    def count(self, partition: int, owner: int, messages: int, record_bytes: int) -> None:
        """Add a number of messages, possibly negative, and the bytes of their records."""
        found = self._counts.get((partition, owner))
        if found is None:
            topic, _, level = self._keys[partition]
            found = self._counts[partition, owner] = (
                [0, 0],
                self._of_partition.setdefault(partition, [0, 0]),
                self._of_levels.setdefault(level, [0, 0]),
                self._of_topics.setdefault(topic, [0, 0]),
                self._of_accounts.setdefault(self._owner_keys[owner].account, [0, 0]),
            )
        for counts in found:
            counts[0] += messages
            counts[1] += record_bytes
        self.messages += messages
        self.bytes += record_bytes
        if not found[0][0]:
            self._uncounted(partition, owner)

    def remove(self, entries: Iterable[Pending]) -> None:
        """Count messages as not pending any more."""
        table = self._counts
        for _, _, _, size, owner, partition in entries:
            own, of_partition, of_level, of_topic, of_account = table[partition, owner]
            own[0] -= 1
            own[1] -= size
            of_partition[0] -= 1
            of_partition[1] -= size
            of_level[0] -= 1
            of_level[1] -= size
            of_topic[0] -= 1
            of_topic[1] -= size
            of_account[0] -= 1
            of_account[1] -= size
            self.messages -= 1
            self.bytes -= size
            if not own[0]:
                self._uncounted(partition, owner)

    def of_partition(self, partition: int) -> Totals:
        """Return the pending messages of a partition."""
        return Totals(*self._of_partition.get(partition, (0, 0)))

    def totals(self, topic: str) -> Totals:
        """Return the pending messages of a topic."""
        return Totals(*self._of_topics.get(topic, (0, 0)))

    def of_account(self, account: str) -> Totals:
        """Return the pending timed messages of an account. Those with a delay level have none."""
        return Totals(*self._of_accounts.get(account, (0, 0)))

    def of_level(self, level: int) -> Totals:
        """Return the pending messages of a delay level; level 0 stands for the timed messages."""
        return Totals(*self._of_levels.get(level, (0, 0)))

    def topics(self) -> dict[str, Totals]:
        """Return the pending messages by topic, for topics that have any."""
        return {topic: Totals(*counts) for topic, counts in self._of_topics.items() if counts[0]}

    def classes(self) -> Iterator[tuple[PartitionKey, Owner, Totals]]:
        """Yield the names of partition and owner, and the pending messages, of each class that has any."""
        for (partition, owner), (counts, *_) in self._counts.items():
            yield self._keys[partition], self._owner_keys[owner], Totals(*counts)

    def drop_unused(self, used: Iterable[int]) -> None:
        """Remove partitions without pending messages, except those that runs still contain."""
        kept = {*used, *self._of_partition}
        for number in [number for number in self._keys if number not in kept]:
            key = self._keys.pop(number)
            del self._numbers[key]
            numbers = self._of_topic[key.topic]
            numbers.remove(number)
            if not numbers:
                del self._of_topic[key.topic]
                self._of_topics.pop(key.topic, None)

    # State.

    def state(self) -> dict[str, object]:
        """Return the state without `owners` and `counts` as JSON-compatible data."""
        return {
            "partitions": [[number, *key] for number, key in self._keys.items()],
            "nextOwner": self._next_owner,
            "next": self._next,
        }

    @property
    def owners(self) -> Mapping[int, Owner]:
        """Names of all owners by number."""
        return self._owner_keys

    @property
    def counts(self) -> Mapping[tuple[int, int], tuple[list[int], ...]]:
        """Messages and bytes by partition and owner, in the first list; the others are sums."""
        return self._counts

    @classmethod
    def from_state(cls, state: dict[str, object]) -> Partitions:
        """Return the partitions that `state()` described. ValueError, TypeError, KeyError if it is invalid.

        `owners` has rows of number and names, `counts` rows of partition, owner, messages and bytes.
        """
        partitions = cls()
        keys, counts, following = (state[name] for name in ("partitions", "counts", "next"))
        if not (isinstance(keys, list) and isinstance(counts, list)):
            raise ValueError("partitions and counts are lists")
        for number, topic, group, *level in keys:
            partitions._add(int(number), PartitionKey(str(topic), str(group), *map(int, level)))
        partitions._restore_owners(state)
        for partition, owner, messages, record_bytes in counts:
            partitions.count(int(partition), int(owner), int(messages), int(record_bytes))
        if not isinstance(following, int) or any(number >= following for number in partitions._keys):
            raise ValueError("the next number of a partition is missing or in use")
        partitions._next = following
        return partitions

    def _restore_owners(self, state: dict[str, object]) -> None:
        if "accounts" in state:  # version 1, which had no groups
            names = ["", *_names(state["accounts"])]
            owners: object = [[number, name, "", ""] for number, name in enumerate(names)]
            following: object = len(names)
        else:
            owners, following = state["owners"], state["nextOwner"]
        if not isinstance(owners, list):
            raise ValueError("owners is a list")
        for number, account, topic, group in owners:
            if int(number) != NO_OWNER:
                self._add_owner(int(number), Owner(str(account), str(topic), str(group)))
        if not isinstance(following, int) or any(number & ~MOVED >= following for number in self._owner_keys):
            raise ValueError("the next number of an owner is missing or in use")
        self._next_owner = following


def _names(value: object) -> list[str]:
    if not isinstance(value, list):
        raise ValueError("accounts is a list")
    return [str(each) for each in value]
