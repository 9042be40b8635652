"""Facts about timed messages in one record, by the broker's own parsers: independent of the data source."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from delaymq.message import names
from delaymq.message.errors import NewerFormError
from delaymq.message.flags import TRANSACTION_ROLLBACK, transaction_type
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedDue, TimedMark, corrected, parse_own_due, parse_own_mark, place_of
from delaymq.store.tools.record_kinds import kind_of
from delaymq.store.tools.timed_messages import own_group_mark

_KINDS = {
    "delivered copy": "delivered", "dead letter": "dead_letter", "mark": "system", "filler": "system",
    "timed": "delayed", "timed copy": "delivered", "timed mark": "system",
    "group mark": "system",
}  # fmt: skip


@dataclass
class TimedFacts:
    """Columns of a record."""

    due_ms: int | None = None
    mark: str | None = None
    queue: tuple[int, int] | None = None
    timer_record: str | None = None
    timer_out_ms: int | None = None
    identity: int | None = None
    mark_identity: int | None = None
    mark_due_ms: int | None = None
    next_due_ms: int | None = None
    topic: str | None = None
    """Real topic."""
    group: str | None = None
    run: int | None = None
    """Number of the run that a mark states, or of the last one before a record of the timer topic."""


def timed_facts(record: Record) -> TimedFacts:
    """Return the facts; NewerFormError if the record states something in an unknown form."""
    properties, place = record.properties, record.physical_offset
    text = properties.get(names.TIMER_OUT_MS, "")
    facts = TimedFacts(timer_out_ms=int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None)
    facts.topic, facts.group = properties.get(names.REAL_TOPIC), properties.get(names.DELAY_GROUP)
    if transaction_type(record.sys_flag) == TRANSACTION_ROLLBACK:
        return facts
    of_group = own_group_mark(record)
    if of_group is not None:
        facts.topic, facts.group = of_group.topic, of_group.group
        facts.mark, facts.next_due_ms = of_group.kind.value, of_group.next_due_ms
    due_text, mark_text = properties.get(names.DUE, ""), properties.get(names.MARK, "")
    due = parse_own_due(due_text, place) or _mended_due(due_text, place)
    mark = parse_own_mark(mark_text, place) or _mended_mark(mark_text, place)
    named = _identity_elsewhere(due_text) if due is None else None
    if mark is not None:
        facts.mark, facts.mark_due_ms, facts.next_due_ms = mark.kind.value, mark.due_ms, mark.next_due_ms
        facts.run = mark.run
        if mark.queue is None:
            facts.mark_identity = mark.identity
        else:
            facts.queue = min(mark.queue[0], (1 << 31) - 1), mark.queue[1]
    else:
        facts.mark_identity = _hint(mark_text)
        facts.run = _run_by_id(properties, facts.mark_identity)
    if record.topic == names.SCHEDULE_TOPIC and due is not None:
        facts.due_ms = due.due_ms
    if record.topic != names.TIMER_TOPIC:
        if mark is None and facts.mark_identity is None:
            facts.mark_identity = named
        return facts
    facts.due_ms = facts.timer_out_ms if due is None else due.due_ms
    facts.run = None if due is None else due.run
    facts.identity = place
    if due is not None and due.replaced is not None:
        facts.mark, facts.mark_identity, facts.mark_due_ms = "cancelled", due.replaced, due.replaced_due_ms
    if due is not None:
        facts.identity = due.identity
        facts.timer_record = "stated" if due.identity == place else "carried"
    elif named is not None:
        facts.timer_record, facts.identity = "rolled", named
    elif names.TIMER_DELETE_UNIQUE_KEY in properties:
        facts.timer_record = "recall"
    else:
        facts.timer_record = "rolled" if names.TIMER_ROLL_TIMES in properties else "unstated"
    return facts


def kind_name(record: Record) -> str:
    """Return the data source's name of a record's kind."""
    kind = kind_of(record).value
    properties = record.properties
    queue = properties.get(names.REAL_QUEUE_ID)
    if (
        kind == "normal"
        and names.TIMER_OUT_MS in properties
        and (properties.get(names.REAL_TOPIC), queue) == (record.topic, str(record.queue_id))
    ):
        return "delivered"
    return _KINDS.get(kind, kind)


def _mended_due(text: str, place: int) -> TimedDue | None:
    mended = corrected(text, place)
    return None if mended is None else parse_own_due(mended, place)


def _mended_mark(text: str, place: int) -> TimedMark | None:
    mended = corrected(text, place)
    return None if mended is None else parse_own_mark(mended, place)


def _identity_elsewhere(text: str) -> int | None:
    place = place_of(text)
    if place is None:
        return None
    try:
        due = parse_own_due(text, place)
    except NewerFormError:
        return None
    return None if due is None else due.identity


def _run_by_id(properties: dict[str, str], identity: int | None) -> int | None:
    """Return the number of the run of a message that a copy with a damaged mark delivers, by its unique id."""
    text = properties.get(names.DELAY_RUN, "")
    if identity is None or not (text.isascii() and text.isdigit() and len(text) <= 18):
        return None
    named = f"{properties.get(names.DELAY_SCHEDULE_ID, '')}:{identity}:{int(text)}"
    digest = sha256(named.encode()).hexdigest().upper()
    return int(text) if properties.get(names.UNIQUE_KEY) == digest[:20] + "0" * 8 + digest[20:24] else None


def _hint(text: str) -> int | None:
    words = text.split(":")
    if place_of(text) is not None or len(words) != 11:
        return None
    return int(words[4]) if words[4].isascii() and words[4].isdigit() and len(words[4]) <= 18 else None
