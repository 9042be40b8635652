"""Stores with known results: for each record, the reason that the analysis must find."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from delaymq.message import names
from delaymq.message.group_marks import GroupMark
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels, queue_of_level
from delaymq.message.marks import format_due
from delaymq.message.timed_marks import (
    MAX_NUMBER,
    GroupMarkKind,
    TimedDue,
    TimedMark,
    TimedMarkKind,
    first_due,
    replacing_due,
)
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord
from delaymq.store.options import StoreOptions

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
START_MS = 1_790_000_000_000
LEVELS = DelayLevels.parse(DEFAULT_LEVELS)
HOUR_MS = 3_600_000
RETENTION_HOURS = 72


@dataclass
class Written:
    """One record, and the expected results for it."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    segment: int
    size: int
    store_ms: int
    message: NewRecord
    reason: str
    due_ms: int = 0
    identity: int | None = None
    """Physical offset of the first record of a timed message."""
    others: list[Written] = field(default_factory=list, repr=False)
    """Other records of a timed message, which do not hold it."""
    copies: list[Written] = field(default_factory=list, repr=False)


class Workload:
    """Writes a store record by record, as DelayMQ's broker (with marks) or RocketMQ's (without marks) would."""

    def __init__(self, path: Path, *, segment_bytes: int = 16_384, marks: bool = True) -> None:
        self.path = path
        self.now_ms = START_MS
        self.records: list[Written] = []
        self.forgotten: list[Written] = []
        self.consumed: dict[tuple[str, str], dict[int, int]] = {}
        self.delay_offsets: dict[int, int] = {}
        self._marks = marks
        self._segment_bytes = segment_bytes
        self._keys = 0
        self._options = StoreOptions(
            commit_log_file_bytes=segment_bytes, consume_queue_file_bytes=2_000, index_enable=False,
            disk_max_used_ratio=0.999, disk_clean_ratio=0.999, disk_write_refused_ratio=0.999,
        )  # fmt: skip
        self._store = self._open()

    def append(self, topic: str, queue_id: int, reason: str, *, body: bytes = b"", **fields: Any) -> Written:
        """Append one record; `fields` are those of NewRecord."""
        properties = dict(fields.pop("properties", {}))
        if topic not in (names.OP_HALF_TOPIC, names.MARKS_TOPIC) and names.UNIQUE_KEY not in properties:
            self._keys += 1
            properties[names.UNIQUE_KEY] = f"7F0000010000{self._keys:020X}"
        message = NewRecord(
            topic, queue_id, body, properties, 0, int(fields.pop("sys_flag", 0)),
            int(fields.pop("born_ms", self.now_ms)), HOST, HOST, **fields,
        )  # fmt: skip
        done = self._store.append(message)
        written = Written(
            topic, queue_id, done.queue_offset, done.physical_offset,
            done.physical_offset // self._segment_bytes * self._segment_bytes, done.size, done.store_timestamp_ms,
            message, reason,
        )  # fmt: skip
        self.records.append(written)
        return written

    def send(
        self, topic: str, queue_id: int, reason: str, body: bytes = b"x" * 100, keys: str | None = None
    ) -> Written:
        """Append a message."""
        properties = {names.TAGS: "t", **({} if keys is None else {names.KEYS: keys})}
        return self.append(topic, queue_id, reason, body=body, properties=properties)

    def delay(self, level: int, topic: str, queue_id: int, body: bytes = b"d" * 100) -> Written:
        """Append a delayed message, which is pending until it is settled."""
        schedule_queue = queue_of_level(level)
        due_ms = self.now_ms + LEVELS.delay_ms(level)
        properties = {names.DELAY: str(level), names.REAL_TOPIC: topic, names.REAL_QUEUE_ID: str(queue_id)}
        if self._marks:
            number = self._store.next_queue_offset(names.SCHEDULE_TOPIC, schedule_queue)
            properties[names.DUE] = format_due(due_ms, schedule_queue, number)
        written = self.append(names.SCHEDULE_TOPIC, schedule_queue, "pending", body=body, properties=properties)
        written.due_ms = due_ms
        return written

    def schedule(
        self, due_ms: int, topic: str, queue_id: int, body: bytes = b"t" * 100, group: str | None = None
    ) -> Written:
        """Append a timed message, which is pending until it is settled."""
        properties = {
            names.TIMER_DELIVER_MS: str(due_ms), names.TIMER_OUT_MS: str(due_ms), names.REAL_TOPIC: topic,
            names.REAL_QUEUE_ID: str(queue_id),
        }  # fmt: skip
        if group is not None:
            properties[names.DELAY_GROUP] = group
        statement = None
        if self._marks:
            self._store.raise_format_version(2)
            statement = first_due(due_ms)
        written = self.append(names.TIMER_TOPIC, 0, "pending", body=body, properties=properties, statement=statement)
        written.due_ms, written.identity = due_ms, written.physical_offset
        return written

    def carry(self, entry: Written, due_ms: int | None = None) -> Written:
        """Store a timed message again, as before the deletion of its segment; return the record that now holds it."""
        assert entry.identity is not None
        due_ms = entry.due_ms if due_ms is None else due_ms
        # The store adds the place; here it only has to differ from the identity.
        properties = {name: text for name, text in entry.message.properties.items() if name != names.DUE}
        statement = TimedDue(MAX_NUMBER, due_ms, entry.identity).statement()
        message = entry.message
        carried = self.append(
            names.TIMER_TOPIC, 0, "pending", body=message.body, properties=properties, statement=statement,
            born_ms=message.born_timestamp_ms,
        )  # fmt: skip
        for each in (entry, *entry.others):
            each.reason = "replaced"
        carried.identity = entry.identity
        self._hand_on(entry, carried, due_ms)
        return carried

    def carry_level(self, entry: Written) -> Written:
        """Store a message with a delay level again, as before the deletion of its segment; return the new record."""
        self._store.raise_format_version(2)
        message, queue_id = entry.message, entry.queue_id
        properties = {name: text for name, text in message.properties.items() if name != names.MARK}
        number = self._store.next_queue_offset(names.SCHEDULE_TOPIC, queue_id)
        properties[names.DUE] = format_due(entry.due_ms, queue_id, number)
        mark = TimedMark(
            place=0, kind=TimedMarkKind.CARRIED, decided_ms=self.now_ms, identity=entry.physical_offset,
            record=entry.physical_offset, due_ms=entry.due_ms, next_due_ms=entry.due_ms,
            queue=(queue_id, entry.queue_offset),
        )  # fmt: skip
        carried = self.append(
            names.SCHEDULE_TOPIC, queue_id, "pending", body=message.body, properties=properties,
            statement=mark.statement(), born_ms=message.born_timestamp_ms,
        )  # fmt: skip
        carried.due_ms, entry.due_ms, entry.reason = entry.due_ms, 0, "replaced"
        return carried

    def cancel_level(self, entry: Written) -> Written:
        """Cancel a message with a delay level by a mark alone; return the mark."""
        mark = TimedMark(
            place=0, kind=TimedMarkKind.CANCELLED, decided_ms=self.now_ms, identity=entry.physical_offset,
            record=entry.physical_offset, due_ms=entry.due_ms, queue=(entry.queue_id, entry.queue_offset),
        )  # fmt: skip
        properties = {names.UNIQUE_KEY: entry.message.properties[names.UNIQUE_KEY]}
        self._end(entry, "withdrawn")
        return self.append(names.MARKS_TOPIC, 0, "mark_needed", properties=properties, statement=mark.statement())

    def move_level(self, entry: Written, due_ms: int) -> Written:
        """Store a message with a delay level again, as a timed message; return its record."""
        properties = {
            name: text for name, text in entry.message.properties.items() if name not in (names.DUE, names.DELAY)
        }
        properties[names.TIMER_OUT_MS] = str(due_ms)
        properties[names.MARK] = f"rescheduled:{entry.queue_id}:{entry.queue_offset}:{entry.physical_offset}"
        message = entry.message
        moved = self.append(
            names.TIMER_TOPIC, 0, "pending", body=message.body, properties=properties, statement=first_due(due_ms),
            born_ms=message.born_timestamp_ms,
        )  # fmt: skip
        moved.due_ms, moved.identity = due_ms, moved.physical_offset
        entry.due_ms, entry.reason = 0, "replaced"
        return moved

    def replace(self, entry: Written, due_ms: int) -> Written:
        """Schedule a timed message that replaces a pending one; return its record."""
        assert entry.identity is not None
        properties = {**entry.message.properties, names.TIMER_OUT_MS: str(due_ms)}
        del properties[names.DUE]
        newer = self.append(
            names.TIMER_TOPIC, 0, "pending", body=b"n" * 90, properties=properties,
            statement=replacing_due(due_ms, entry.identity, entry.due_ms),
        )  # fmt: skip
        self._end(entry, "withdrawn")
        newer.due_ms, newer.identity = due_ms, newer.physical_offset
        return newer

    def roll(self, entry: Written) -> Written:
        """Store a timed message again like RocketMQ 5, which copies all properties; return the record that holds it.

        A record with DelayMQ's statement still holds it. Without one, the newest record does.
        """
        times = int(entry.message.properties.get(names.TIMER_ROLL_TIMES, "0")) + 1
        properties = {**entry.message.properties, names.TIMER_ROLL_TIMES: str(times)}
        born_ms = entry.message.born_timestamp_ms
        body = entry.message.body
        rolled = self.append(names.TIMER_TOPIC, 0, "pending", body=body, properties=properties, born_ms=born_ms)
        if not self._marks:
            rolled.identity = rolled.physical_offset
            self._hand_on(entry, rolled, entry.due_ms)
            return rolled
        rolled.reason = "replaced"
        entry.others.append(rolled)
        return entry

    @staticmethod
    def _hand_on(entry: Written, newer: Written, due_ms: int) -> None:
        newer.due_ms, newer.others = due_ms, [*entry.others, entry]
        entry.due_ms = 0

    def recall(self, entry: Written, *, with_topic: bool) -> Written:
        """Recall a timed message like RocketMQ 5, whose version 5.3.2 and later put the topic before the key."""
        topic, key = (entry.message.properties[name] for name in (names.REAL_TOPIC, names.UNIQUE_KEY))
        properties = {
            names.REAL_TOPIC: topic, names.REAL_QUEUE_ID: "0", names.TIMER_OUT_MS: str(entry.due_ms),
            names.TIMER_DELETE_UNIQUE_KEY: f"{topic}{key}" if with_topic else key,
        }  # fmt: skip
        self._end(entry, "withdrawn")
        return self.append(names.TIMER_TOPIC, 0, "mark_needed", properties=properties)

    def state(self, entry: Written, kind: TimedMarkKind, *, next_due_ms: int | None = None) -> Written:
        """Append a mark alone about a timed message, with nothing of the message; without a next due time, an end."""
        mark = self._timed_mark(entry, kind, next_due_ms)
        done = self.append(names.MARKS_TOPIC, 0, "mark_needed", statement=mark.statement())
        if next_due_ms is None:
            self._end(entry, "withdrawn")
        else:
            entry.due_ms = next_due_ms
        return done

    def change_group(
        self, entries: Iterable[Written], kind: GroupMarkKind, topic: str, group: str, next_due_ms: int | None = None
    ) -> Written:
        """Append a statement about a group, of which `entries` are the pending messages."""
        mark = GroupMark(place=0, kind=kind, decided_ms=self.now_ms, topic=topic, group=group, next_due_ms=next_due_ms)
        done = self.append(names.MARKS_TOPIC, 0, "mark_needed", statement=mark.statement())
        for entry in entries:
            if next_due_ms is None:
                self._end(entry, "withdrawn")
            else:
                entry.due_ms = next_due_ms
        return done

    def deliver(self, entry: Written, reason: str = "retained") -> Written:
        """Deliver a delayed message now; return its copy."""
        copy = self._settle(entry, "delivered", entry.message.properties[names.REAL_TOPIC], reason)
        entry.copies.append(copy)
        self._end(entry, "delivered")
        return copy

    def drop(self, entry: Written) -> Written:
        """Settle a delayed message by a mark alone."""
        self._end(entry, "withdrawn")
        return self._settle(entry, "dropped", names.MARKS_TOPIC, "mark_needed")

    def dead_letter(self, entry: Written) -> Written:
        """Settle a delayed message that cannot be delivered, by a dead letter."""
        self._end(entry, "withdrawn")
        return self._settle(entry, "dropped", names.SCHEDULE_DLQ_TOPIC, "retained")

    @staticmethod
    def _end(entry: Written, reason: str) -> None:
        for each in (entry, *entry.others):
            each.reason = reason

    def lose(self, entry: Written) -> None:
        """Lose a delayed message: the offset passes it without a copy. Settle or lose all earlier entries, too."""
        entry.reason = "lost"

    def half(self, topic: str, queue_id: int, body: bytes = b"h" * 100) -> Written:
        """Append a half message."""
        properties = {
            names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: "g", names.REAL_TOPIC: topic,
            names.REAL_QUEUE_ID: str(queue_id),
        }  # fmt: skip
        return self.append(names.HALF_TOPIC, 0, "half_pending", body=body, properties=properties)

    def end(self, half: Written, *, commit: bool) -> Written | None:
        """Commit or roll back: append the op mark, and before it, on a commit, the message, which is returned."""
        half.reason = "transaction_settled"
        message = None
        if commit:
            properties = half.message.properties
            message = self.append(
                properties[names.REAL_TOPIC], int(properties[names.REAL_QUEUE_ID]), "retained", body=half.message.body,
                properties=properties, sys_flag=8, prepared_transaction_offset=half.physical_offset,
            )  # fmt: skip
        settled = str(half.queue_offset).encode()
        self.append(names.OP_HALF_TOPIC, 0, "operation_needed", body=settled, properties={names.TAGS: "d"})
        return message

    def consume(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Set a group's consumer offset."""
        self.consumed.setdefault((topic, group), {})[queue_id] = next_offset

    def set_delay_offsets(self) -> None:
        """Advance the delay offsets like a scheduler: all entries below a level's offset are settled."""
        for entry in [*self.forgotten, *self.records]:
            if entry.topic == names.SCHEDULE_TOPIC:
                low = self.delay_offsets.setdefault(entry.queue_id + 1, 0)
                if low == entry.queue_offset and entry.reason != "pending":
                    self.delay_offsets[entry.queue_id + 1] = low + 1

    def close(self) -> None:
        """Write the positions as RocketMQ does (with numbers as keys), and close the store."""
        groups = ",".join(
            f'"{topic}@{group}":{{{",".join(f"{q}:{o}" for q, o in offsets.items())}}}'
            for (topic, group), offsets in self.consumed.items()
        )
        levels = ",".join(f"{level}:{offset}" for level, offset in self.delay_offsets.items())
        config = self.path / "config"
        config.mkdir(exist_ok=True)
        (config / "consumerOffset.json").write_text(f'{{"offsetTable":{{{groups}}}}}')
        (config / "delayOffset.json").write_text(f'{{"offsetTable":{{{levels}}}}}')
        self._store.close()

    def take_over(self) -> None:
        """Continue a store of RocketMQ as DelayMQ."""
        self._marks = True

    def damage(self, record: Written) -> None:
        """Destroy a record while the broker is down; the next start fills the gap."""
        self._store.close()
        with open(self.path / "commitlog" / f"{record.segment:020d}", "r+b") as log:
            log.seek(record.physical_offset - record.segment)
            log.write(b"\xff" * record.size)
        (self.path / "delaymq/snapshot.json").unlink()
        (self.path / "abort").touch()
        self._store = self._open()
        record.topic, record.queue_id, record.reason, record.due_ms = names.MARKS_TOPIC, 0, "filler", 0

    def delete_segments_before(self, offset: int) -> None:
        """Delete whole files from the front, like retention; their records are then in `forgotten`."""
        self._store.close()
        gone = {each.segment for each in self.records if each.segment + self._segment_bytes <= offset}
        for segment in gone:
            (self.path / "commitlog" / f"{segment:020d}").unlink()
        self.forgotten += [each for each in self.records if each.segment in gone]
        self.records = [each for each in self.records if each.segment not in gone]
        self._store = self._open()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic: its records are then in no queue."""
        self._store.delete_topic(topic)
        for record in self.records:
            if record.topic == topic:
                record.reason = "topic_deleted"

    @property
    def store_id(self) -> str:
        """The store id in state.json."""
        return str(json.loads((self.path / "delaymq/state.json").read_text())["storeId"])

    def bytes_by(self, *attributes: str) -> Counter[tuple[object, ...]]:
        """Return the expected bytes by attributes of `Written`."""
        found: Counter[tuple[object, ...]] = Counter()
        for record in self.records:
            found[tuple(getattr(record, name) for name in attributes)] += record.size
        return found

    def _open(self) -> MessageStore:
        return MessageStore.open(self.path, self._options, now_ms=lambda: self.now_ms, levels=LEVELS)

    def _settle(self, entry: Written, kind: str, topic: str, reason: str) -> Written:
        properties = dict(entry.message.properties)
        elsewhere = topic in (names.MARKS_TOPIC, names.SCHEDULE_DLQ_TOPIC)
        queue_id = 0 if elsewhere else int(properties[names.REAL_QUEUE_ID])
        statement = None
        if self._marks and entry.identity is not None:
            properties.pop(names.DUE, None)
            statement = self._timed_mark(entry, TimedMarkKind(kind)).statement()
        elif self._marks:
            place = f"{entry.queue_id}:{entry.queue_offset}:{entry.physical_offset}"
            properties[names.MARK] = f"{kind}:{place}"
        body = entry.message.body
        born_ms = entry.message.born_timestamp_ms
        return self.append(
            topic, queue_id, reason, body=body, properties=properties, born_ms=born_ms, statement=statement
        )

    def _timed_mark(self, entry: Written, kind: TimedMarkKind, next_due_ms: int | None = None) -> TimedMark:
        """Return a mark; the store adds its place."""
        assert entry.identity is not None
        return TimedMark(
            place=0, kind=kind, decided_ms=self.now_ms, identity=entry.identity, record=entry.physical_offset,
            due_ms=entry.due_ms, next_due_ms=next_due_ms,
        )  # fmt: skip


def _timed_round(work: Workload, chance: random.Random, waiting: list[Written], number: int, *, marks: bool) -> None:
    """Write timed messages, and store some of `waiting` again."""
    if chance.randrange(2):
        waiting.append(work.schedule(work.now_ms + chance.choice((1, 700, 4 * HOUR_MS)), "Later", 0))
    if number % 9 == 0:
        work.schedule(work.now_ms + 3_650 * 24 * HOUR_MS, "Later", 1)
    if number % 7 == 3:
        timed = [entry for entry in waiting if entry.identity is not None]
        for entry in timed[:2]:
            waiting.remove(entry)
            waiting.append(work.carry(entry) if marks and number % 2 else work.roll(entry))


def mixed_workload(path: Path, *, seed: int = 1, rounds: int = 40, marks: bool = True) -> Workload:
    """Interleave all kinds of records: about 15 per round, three hours between rounds; the last 72 h do not expire.

    Topics: Read (two groups, one behind), State (keyed), Kept (no group), Later (delays and due times), Money
    (transactions), Gone (deleted).
    """
    chance = random.Random(seed)
    work = Workload(path, marks=marks)
    state: dict[str, Written] = {}
    read: list[Written] = []
    waiting: list[Written] = []
    kept: list[Written] = []
    halves: list[Written] = []
    aged: list[Written] = []
    for number in range(rounds):
        if number == rounds // 4:
            for _ in range(3):
                work.send("Gone", 0, "retained")
            work.delete_topic("Gone")
        read += [work.send("Read", 0, "unread", bytes(chance.randrange(400))) for _ in range(chance.randrange(1, 5))]
        for _ in range(chance.randrange(1, 4)):
            key = f"item-{chance.randrange(6)}"
            message = work.send("State", chance.randrange(2), "retained", bytes(chance.randrange(200)), keys=key)
            if key in state:
                state[key].reason = "superseded"
            state[key] = message
            aged.append(message)
        aged.append(work.send("Kept", 0, "retained", keys="same"))
        waiting += [work.delay(chance.choice((1, 5)), "Later", 0) for _ in range(chance.randrange(3))]
        _timed_round(work, chance, waiting, number, marks=marks)
        if number % 9 == 0:
            far = work.delay(18, "Later", 1)
            # Some are never delivered: they pin old segments, until they are carried forward.
            if not marks or number % 2:
                waiting.append(far)
            else:
                kept.append(far)
        if number % 12 == 7 and kept:
            work.carry_level(kept.pop(0))
        half = work.half("Money", 0)
        fate = chance.randrange(3)
        if fate < 2 and (ended := work.end(half, commit=fate == 1)) is not None:
            aged.append(ended)
        elif fate == 2:
            halves.append(half)
        work.now_ms += 1_000
        for entry in list(waiting):
            if entry.due_ms <= work.now_ms:
                work.now_ms += chance.randrange(3)
                aged.append(work.deliver(entry))
                waiting.remove(entry)
        if marks and number % 11 == 5 and waiting:
            work.drop(waiting.pop())
        work.now_ms += HOUR_MS * 3
    for entry in read[: len(read) // 2]:
        entry.reason = "consumed"
    for group, share in (("slow", 2), ("fast", 1)):
        work.consume(group, "Read", 0, len(read) // share)
    work.consume("TOOLS_CONSUMER", "Read", 0, 0)
    for level in (1, 5, 18):
        work.delay(level, "Later", 0)
    expired_before_ms = work.now_ms - RETENTION_HOURS * HOUR_MS
    for record in [*aged, *read]:
        if record.reason in ("retained", "unread") and record.store_ms < expired_before_ms:
            record.reason = "expired"
    work.schedule(work.now_ms + 1, "Later", 0)
    work.set_delay_offsets()
    work.close()
    return work
