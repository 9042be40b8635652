"""Reader of RocketMQ's commit log that shares no code with delaymq, so that tests can judge delaymq by it.

It returns records in log order and the fate of delayed and timed messages. It does not repair, and does not read queues
or indexes. Layout: docs/formats/store. All numbers are big-endian. A missing or incomplete end is the end of the log;
damage before it raises BadLogError.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MESSAGE_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
BORN_IPV6_FLAG = 16
STORE_IPV6_FLAG = 32

_HEAD = struct.Struct(">iIIiiqqiq")
"""total size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag, born time"""
assert _HEAD.size == 48
_SIZE_MAGIC = struct.Struct(">iI")
_TAIL = struct.Struct(">iqi")
"""Reconsume times, prepared transaction offset, body length."""
_INT64 = struct.Struct(">q")


def segments(store_path: Path) -> dict[str, bytes]:
    """Return the segments of a log by name, without those that have been allocated ahead."""
    folder = store_path / "commitlog"
    files = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
    return {name: data for name, data in files.items() if data.count(0) < len(data)}


class BadLogError(Exception):
    """The log contains data that is neither a record nor its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A message in the log; times are milliseconds since 1970."""

    physical_offset: int
    size: int
    queue_id: int
    queue_offset: int
    body_crc: int
    flag: int
    sys_flag: int
    born_ms: int
    stored_ms: int
    reconsume_times: int
    body: bytes
    topic: str
    properties: dict[str, str]

    @property
    def unique_key(self) -> str:
        return self.properties.get("UNIQ_KEY", "")

    @property
    def is_scheduled(self) -> bool:
        """Whether it is in the schedule topic (its copy in the real topic is another record)."""
        return self.topic == SCHEDULE_TOPIC

    @property
    def is_timed(self) -> bool:
        """Whether it is in the topic of timed messages, pending or not."""
        return self.topic == TIMER_TOPIC

    @property
    def is_copy(self) -> bool:
        """Whether it is the delivered copy of a message with a delay level; for a timed one, see `timed_messages`.

        The record of a dropped message, and a half message, have the same properties in another topic.
        """
        return self.topic == self.properties.get("REAL_TOPIC") and self.properties.get("DELAY", "0") != "0"


def properties_of(raw: bytes) -> dict[str, str]:
    r"""Parse `name \x01 value` joined by `\x02`; the last of equal names is used, empty values count as absent."""
    found: dict[str, str] = {}
    for pair in raw.decode("utf-8").split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator and value:
            found[name] = value
    return found


def _segments(store: Path) -> list[tuple[int, Path]]:
    paths = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    return [(int(path.name), path) for path in paths]


def records(store: Path, *, with_bodies: bool = False, first_segment: int = 0) -> Iterator[Record]:
    """Yield every record from the oldest segment, or from the one that starts at ``first_segment``, to the log's
    end.

    Raises BadLogError if a later segment contains records although an earlier one ends too soon.
    """
    ended_at: int | None = None
    for base, path in _segments(store):
        if base < first_segment or path.stat().st_size == 0:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if ended_at is not None:
                if _SIZE_MAGIC.unpack_from(data, 0)[0] != 0:
                    raise BadLogError(f"{path.name} holds data, but the log ended at {ended_at}")
                continue
            position = 0
            while position + _SIZE_MAGIC.size <= len(data):
                size, magic = _SIZE_MAGIC.unpack_from(data, position)
                if magic == BLANK_MAGIC and size == len(data) - position:
                    position = len(data)
                    break
                record = _record(data, position, base, with_bodies) if magic == MESSAGE_MAGIC else None
                if record is None:
                    break
                yield record
                position += size
            if position < len(data):
                ended_at = base + position


def log_end(store: Path) -> int:
    """Return the physical offset after the last valid record; only the last segment with data is read."""
    end = first_segment = 0
    for base, path in _segments(store):
        with path.open("rb") as file:
            if any(file.read(_SIZE_MAGIC.size)):
                end = first_segment = base
    for record in records(store, first_segment=first_segment):
        end = record.physical_offset + record.size
    return end


def pulled_records(body: bytes) -> list[Record]:
    """Return the records in the response to a pull, with bodies. BadLogError if it is not a sequence of records."""
    found: list[Record] = []
    position = 0
    while position < len(body):
        # A record states its own physical offset; all else is verified as in the log.
        stated = _HEAD.unpack_from(body, position)[6] if position + _HEAD.size <= len(body) else 0
        record = _record(body, position, stated - position, with_body=True)
        if record is None:
            raise BadLogError(f"byte {position} of a response with {len(body)} bytes is not the beginning of a record")
        found.append(record)
        position += record.size
    return found


def _record(data: mmap.mmap | bytes, position: int, base: int, with_body: bool) -> Record | None:
    """Return the record at `position`, or None if there is no complete record (the log's end)."""
    if position + _HEAD.size > len(data):
        return None
    size, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = _HEAD.unpack_from(data, position)
    if size < 91 or position + size > len(data) or physical_offset != base + position:
        return None
    at = position + _HEAD.size + (20 if sys_flag & BORN_IPV6_FLAG else 8)
    stored_ms = _INT64.unpack_from(data, at)[0]
    at += 8 + (20 if sys_flag & STORE_IPV6_FLAG else 8)
    reconsume_times, _, body_bytes = _TAIL.unpack_from(data, at)
    at += _TAIL.size
    if body_bytes < 0 or at + body_bytes + 3 > position + size:
        return None
    body = data[at : at + body_bytes]
    if zlib.crc32(body) & 0x7FFFFFFF != crc:
        return None
    at += body_bytes
    topic_bytes = data[at]
    topic = data[at + 1 : at + 1 + topic_bytes]
    at += 1 + topic_bytes
    property_bytes = int.from_bytes(data[at : at + 2], "big")
    at += 2
    if at + property_bytes != position + size:
        return None
    return Record(
        physical_offset=physical_offset, size=size, queue_id=queue_id, queue_offset=queue_offset, body_crc=crc,
        flag=flag, sys_flag=sys_flag, born_ms=born_ms, stored_ms=stored_ms, reconsume_times=reconsume_times,
        body=body if with_body else b"", topic=topic.decode("utf-8"),
        properties=properties_of(data[at : at + property_bytes]),
    )  # fmt: skip


def delays_ms(table: str) -> list[int]:
    """Return the delays of a messageDelayLevel table; level n is at index n - 1."""
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return [int(word[:-1]) * units[word[-1]] for word in table.split()]


def due_ms(record: Record, level_delays_ms: list[int]) -> int:
    """Return the due time of a record in the schedule topic.

    `__DMQ_DUE` = `due_ms:queueId:queueOffset` applies only to the record that it names; otherwise store time + level.
    """
    words = record.properties.get("__DMQ_DUE", "").split(":")
    if len(words) == 3 and [int(word) for word in words[1:]] == [record.queue_id, record.queue_offset]:
        return int(words[0])
    level = min(int(record.properties["DELAY"]), len(level_delays_ms))
    return record.stored_ms + level_delays_ms[level - 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delayed:
    """A delayed message: its record in the schedule topic and its delivered copies."""

    scheduled: Record
    due_ms: int
    copies: tuple[Record, ...]


def delayed_messages(store: Path, table: str, *, real_topic: str | None = None) -> dict[str, list[Delayed]]:
    """Return delayed messages by unique key: normally one per key, several if a producer repeated the send.

    In that case, copies are assigned in log order, and any surplus belongs to the last one.
    """
    level_delays_ms = delays_ms(table)
    scheduled: dict[str, list[Record]] = {}
    copies: dict[str, list[Record]] = {}
    for record in records(store):
        if not (record.is_scheduled or record.is_copy):
            continue
        if real_topic is not None and record.properties.get("REAL_TOPIC") != real_topic:
            continue
        (scheduled if record.is_scheduled else copies).setdefault(record.unique_key, []).append(record)
    orphans = copies.keys() - scheduled.keys()
    if orphans:
        raise BadLogError(f"{len(orphans)} delivered messages were never scheduled, such as {min(orphans)}")
    found: dict[str, list[Delayed]] = {}
    for key, waiting in scheduled.items():
        handed = copies.get(key, [])
        found[key] = [
            Delayed(
                scheduled=record,
                due_ms=due_ms(record, level_delays_ms),
                copies=tuple(handed[n:] if n == len(waiting) - 1 else handed[n : n + 1]),
            )
            for n, record in enumerate(waiting)
        ]
    return found


def lateness_ms(store: Path, table: str, *, real_topic: str | None = None) -> list[int]:
    """Return the store time of the first copy minus the due time for each delivered message, sorted."""
    return sorted(
        message.copies[0].stored_ms - message.due_ms
        for messages in delayed_messages(store, table, real_topic=real_topic).values()
        for message in messages
        if message.copies
    )


def requested_times(store: Path) -> dict[str, list[tuple[int, int]]]:
    """Return due time and store time of each delivered timed message by topic, in log order.

    The due time is the one that the producer requested in TIMER_DELIVER_MS, which each broker keeps in the copy;
    messages with a relative delay are omitted.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for record in records(store):
        due = record.properties.get("TIMER_DELIVER_MS", "")
        if due and not record.is_timed:
            found.setdefault(record.topic, []).append((int(due), record.stored_ms))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A timed message: its record, and the records that state something about it."""

    identity: int
    """Physical offset of its first record."""
    record: Record
    due_ms: int
    """Due time that applied last."""
    copies: tuple[Record, ...]
    """Records in its real topic, in log order."""
    ends: tuple[tuple[str, Record], ...]
    """Kind and record of each mark that ends it, including those of copies, in log order; more than one is an error.
    The kind `replaced` is that of a later message with the same DELAY_KEY, which states the end in its own record."""
    moves: tuple[Record, ...]
    """Marks that changed the due time, in log order."""

    @property
    def is_pending(self) -> bool:
        return not self.ends


class _Collected:
    """The records that state something about one timed message, while the log is read."""

    def __init__(self, identity: int, record: Record) -> None:
        self.identity = identity
        self.record = record
        self.due_ms = 0
        self.copies: list[Record] = []
        self.ends: list[tuple[str, Record]] = []
        self.moves: list[Record] = []

    def changed(self, kind: str, next_due: str, record: Record) -> None:
        if not next_due:
            self.ends.append((kind, record))
        elif not self.ends:
            self.due_ms = int(next_due)
            self.moves.append(record)
        if kind == "delivered":
            self.copies.append(record)

    def frozen(self) -> Timed:
        return Timed(
            identity=self.identity, record=self.record, due_ms=self.due_ms, copies=tuple(self.copies),
            ends=tuple(self.ends), moves=tuple(self.moves),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Statement:
    """A property `2:PLACE:WORD:WORD:…:CRC32`; PLACE is the physical offset of the record that stated it."""

    place: int
    words: tuple[str, ...]


def _statement(record: Record, name: str) -> _Statement | None:
    """Return the statement of form 2 in a property; None if there is none. BadLogError if it is damaged."""
    text = record.properties.get(name, "")
    words = text.split(":")
    if words[0] != "2" or len(words) < 4:
        return None
    stated, _, checksum = text.rpartition(":")
    if len(words[1]) != 20 or f"{zlib.crc32(stated.encode()):08x}" != checksum:
        raise BadLogError(f"{name} of the record at {record.physical_offset} is damaged: {text!r}")
    return _Statement(place=int(words[1]), words=tuple(words[2:-1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a record of the timer topic states about the message that it holds."""

    identity: int
    due_ms: int
    details: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Statement about one timed message."""

    kind: str
    decided_ms: int
    identity: int
    due_ms: int
    """Due time until then."""
    next_due_ms: int | None
    """Due time from then on; None: the message has ended."""
    details: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMark:
    """Statement about the messages of a group, or about a pause of a group or, with an empty group, of a topic."""

    kind: str
    decided_ms: int
    topic: str
    group: str
    next_due_ms: int | None


_PAUSE_KINDS = ("paused", "resumed")
_GROUP_KINDS = ("groupCancelled", "groupMoved", "groupFired", *_PAUSE_KINDS)


def mark_of(record: Record) -> Mark | GroupMark | None:
    """Return the statement of form 2 in a record outside the timer topic; None without one. BadLogError."""
    stated = _statement(record, "__DMQ_MARK")
    if stated is None or stated.place != record.physical_offset:
        return None
    if stated.words[0] in _GROUP_KINDS:
        kind, decided, topic, group, next_due, _ = stated.words
        return GroupMark(
            kind=kind, decided_ms=int(decided), topic=_decoded(topic), group=_decoded(group),
            next_due_ms=int(next_due) if next_due else None,
        )  # fmt: skip
    kind, decided, identity, _, due, next_due, queue, details = stated.words
    if queue:
        return None  # of a delay level
    return Mark(
        kind=kind, decided_ms=int(decided), identity=int(identity), due_ms=int(due),
        next_due_ms=int(next_due) if next_due else None, details=_details(details),
    )  # fmt: skip


def held_by(record: Record) -> Held | None:
    """Return what a record of the timer topic holds; None if it holds no message of DelayMQ. BadLogError."""
    due = _statement(record, "__DMQ_DUE")
    held = _held(record, due)
    if due is None or held is None:
        return None
    return Held(identity=held[0], due_ms=held[1], details=_details(due.words[2] if len(due.words) > 2 else ""))


def _details(text: str) -> dict[str, str]:
    pairs = (detail.partition("=") for detail in text.split(",") if detail)
    return {name: value for name, _, value in pairs}


def _decoded(word: str) -> str:
    return urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode("utf-8")


def timed_messages(store: Path, *, real_topic: str | None = None) -> dict[int, Timed]:
    """Return timed messages by identity, in the order in which they were sent.

    Due times and marks count only in the record at their own place. A copy with the due time of another place and
    without a mark was delivered by RocketMQ 5. A record of the timer topic with such a due time, or with
    TIMER_ROLL_TIMES, was stored again by RocketMQ 5 and stands for no other message. Pauses change no message.

    Raises BadLogError if a statement is damaged, or names a message whose record should be in the log but is not.
    """
    found: dict[int, _Collected] = {}
    begin: int | None = None
    for record in records(store):
        at = record.physical_offset
        begin = at if begin is None else begin
        due, mark = _statement(record, "__DMQ_DUE"), _statement(record, "__DMQ_MARK")
        if record.is_timed:
            held = _held(record, due)
            if held is not None:
                identity, due_ms = held
                found.setdefault(identity, _Collected(identity, record)).due_ms = due_ms
                replaced = found.get(_replaced(due))
                if replaced is not None:
                    replaced.changed("replaced", "", record)
            continue
        if mark is not None and mark.words[0] in _PAUSE_KINDS:
            continue
        if mark is not None and mark.words[0] in _GROUP_KINDS:
            raise BadLogError(f"the record at {at} is about many messages, whose states are not evaluated here")
        if mark is not None and mark.place == at and not mark.words[6]:
            kind, _, stated, _, _, next_due, *_ = mark.words
        elif mark is None and due is not None and due.place != at:
            kind, stated, next_due = "delivered", due.words[1] if len(due.words) > 1 else str(due.place), ""
        else:
            continue  # of a delay level, or no statement
        message = found.get(int(stated))
        if message is not None:
            message.changed(kind, next_due, record)
        elif int(stated) >= begin:
            raise BadLogError(f"the record at {at} names a timed message at {stated}, where there is none")
    wanted = (each for each in found.values() if real_topic in (None, each.record.properties.get("REAL_TOPIC")))
    return {each.identity: each.frozen() for each in wanted}


def _replaced(due: _Statement | None) -> int:
    """Return the identity of the message that a new one replaces; -1 without one."""
    details = due.words[2] if due is not None and len(due.words) > 2 else ""
    values = [detail.removeprefix("replaces=") for detail in details.split(",") if detail.startswith("replaces=")]
    return int(values[0].partition(".")[0]) if values else -1


def _held(record: Record, due: _Statement | None) -> tuple[int, int] | None:
    """Return identity and due time of the message that a record of the timer topic holds; None if it holds none."""
    if due is None:
        out_ms = record.properties.get("TIMER_OUT_MS", "")
        if not out_ms.isdecimal() or "TIMER_ROLL_TIMES" in record.properties:
            return None
        return record.physical_offset, int(out_ms)
    if due.place != record.physical_offset:
        return None
    identity = int(due.words[1]) if len(due.words) > 1 and due.words[1] else due.place
    return identity, int(due.words[0])
