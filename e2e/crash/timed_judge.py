"""Effects of crashes on timed messages, derived from the bytes of the log alone."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from crash.timed_load import TOPIC, Request, Sent, body_of
from harness.commitlog import Record, Timed, delayed_messages, records, timed_messages

_ABSOLUTE = ("TIMER_DELIVER_MS", "__STARTDELIVERTIME")
_RELATIVE_MS = {"TIMER_DELAY_SEC": 1000, "TIMER_DELAY_MS": 1}


@dataclass(frozen=True, kw_only=True)
class TimedVerdict:
    """Counts, and violations by unique key or physical offset."""

    acknowledged: int
    failed: int
    stored_although_failed: int
    timed: int
    """Timed messages of all topics."""
    carried: int
    """Records that carried them forward."""
    carried_with_level: int
    """Records that carried messages with a delay level forward."""
    changes: dict[str, int]
    """Acknowledged changes by action, and messages that were replaced."""
    pending_at: tuple[int, ...]
    """Number of pending timed messages at each crash."""
    breaches: dict[str, tuple[str, ...]]
    """Without empty ones."""

    def text(self) -> str:
        """Return one line of counts, then up to three examples of each violation."""
        counts = (
            f"acknowledged {self.acknowledged}, failed {self.failed} (stored anyway {self.stored_although_failed}),"
            f" timed {self.timed}, carried {self.carried}, with a delay level {self.carried_with_level},"
            f" changed {self.changes},"
            f" pending at the crashes {list(self.pending_at)}"
        )
        examples = [f"  {name}: {len(keys)}, {', '.join(keys[:3])}" for name, keys in self.breaches.items()]
        return "\n".join([counts, *(examples or ["  no breach"])])


def judge_timed(log_path: Path, level_table: str, sent: Sent, crashes_ms: list[int]) -> TimedVerdict:
    """Compare the log since the first record with the responses to the producers. BadLogError if the log is invalid."""
    copies: dict[str, list[Record]] = {}
    cancelled: set[str] = set()
    timer_records = carried_with_level = 0
    for record in records(log_path):
        timer_records += record.is_timed
        carried_with_level += record.is_scheduled and ":carried:" in record.properties.get("__DMQ_MARK", "")
        if ":cancelled:" in record.properties.get("__DMQ_MARK", ""):
            cancelled.add(record.unique_key)
        if record.topic == TOPIC:
            copies.setdefault(record.unique_key, []).append(record)
    timed = list(timed_messages(log_path).values())
    known = {**sent.acknowledged, **sent.failed}
    replaced = {each.record.unique_key for each in timed if any(kind == "replaced" for kind, _ in each.ends)}
    breaches = {
        "lost": [key for key in sent.acknowledged if key not in copies and key not in cancelled | replaced],
        **_breaches_of_changes(sent, copies, cancelled, replaced),
        "duplicated": [key for key, found in copies.items() if len(found) > 1],
        "never sent": [key for key in copies if key not in known],
        "early": [
            *(
                key
                for key, found in copies.items()
                if key in known and key not in sent.changes and any(_is_early(known[key], c) for c in found)
            ),
            *_before_due(timed, log_path, level_table, sent.changes.keys()),
        ],
        "wrong due time": [str(each.identity) for each in timed if not _is_due_as_requested(each)],
        "altered": [
            key
            for key, found in copies.items()
            if key in known and any(_differs(key, known[key], c, key in sent.changes) for c in found)
        ],
        "ended more than once": [str(each.identity) for each in timed if len(each.ends) > 1],
        "pending": [str(each.identity) for each in timed if each.is_pending],
    }
    return TimedVerdict(
        acknowledged=len(sent.acknowledged),
        failed=len(sent.failed),
        stored_although_failed=sum(key in copies for key in sent.failed),
        timed=len(timed),
        carried=timer_records - len(timed),
        carried_with_level=carried_with_level,
        changes={
            **Counter(change.action for each in sent.changes.values() for change in each if change.code == 0),
            "replaced": len(replaced),
        },
        pending_at=tuple(_pending_at(timed, at_ms) for at_ms in crashes_ms),
        breaches={name: tuple(found) for name, found in breaches.items() if found},
    )


def _breaches_of_changes(
    sent: Sent, copies: dict[str, list[Record]], cancelled: set[str], replaced: set[str]
) -> dict[str, list[str]]:
    """Compare the responses to changes with the log."""
    found: dict[str, list[str]] = {
        "delivered after a cancel": [], "denied": [], "earlier than moved": [], "cancelled without a request": []
    }  # fmt: skip
    for key, changes in sent.changes.items():
        stored = copies.get(key, [])
        for number, change in enumerate(changes):
            if change.code is None:
                continue
            if change.code == 0 and change.action == "cancel" and stored:
                found["delivered after a cancel"].append(key)
            ended = any(copy.stored_ms <= change.answered_ms for copy in stored)
            if change.code and not ended and key not in cancelled | replaced:
                found["denied"].append(key)  # it was pending, and is reported as delivered or unknown
            is_last = number == len(changes) - 1
            if change.code == 0 and is_last and change.due_ms is not None:
                found["earlier than moved"] += [key for copy in stored if copy.stored_ms < change.due_ms]
    asked = {key for key, changes in sent.changes.items() if any(change.action == "cancel" for change in changes)}
    found["cancelled without a request"] += sorted(cancelled - asked - {""})
    return found


def _is_early(request: Request, copy: Record) -> bool:
    """Whether a copy was stored before the due time, which is at the earliest the delay after the birth."""
    properties = request.properties
    absolute_ms = next((int(properties[name]) for name in _ABSOLUTE if name in properties), None)
    return copy.stored_ms < (absolute_ms if absolute_ms is not None else request.born_ms + _delay_ms(properties))


def _delay_ms(properties: dict[str, str]) -> int:
    """Return the requested delay; 0 with a level or an absolute time."""
    return next((int(properties[name]) * unit for name, unit in _RELATIVE_MS.items() if name in properties), 0)


def _before_due(timed: list[Timed], log_path: Path, level_table: str, changed: Collection[str]) -> list[str]:
    """Return timed messages of any topic, and delayed ones, with a copy stored before the due time in their record.

    Messages with a delay level that have been moved, such as some of those with keys in `changed`, are timed ones.
    """
    delayed = delayed_messages(log_path, level_table, real_topic=TOPIC)
    early = [str(each.identity) for each in timed if any(copy.stored_ms < each.due_ms for copy in each.copies)]
    early += [
        key
        for key, messages in delayed.items()
        if key not in changed and any(copy.stored_ms < each.due_ms for each in messages for copy in each.copies)
    ]
    return early


def _is_due_as_requested(each: Timed) -> bool:
    """Whether the due time is the requested one; a delay counts from a time between birth and storage."""
    properties = each.record.properties
    if each.moves or properties.get("__DMQ_MARK", "").startswith("rescheduled:"):
        return True
    for name in _ABSOLUTE:
        if name in properties:
            return each.due_ms == int(properties[name])
    delay_ms = _delay_ms(properties)
    return each.record.born_ms + delay_ms <= each.due_ms <= each.record.stored_ms + delay_ms


def _differs(key: str, request: Request, copy: Record, is_changed: bool) -> bool:
    # A message with a level becomes a timed one if it has a key or is moved.
    replaceable = ("DELAY", *_RELATIVE_MS) if is_changed or "DELAY_KEY" in request.properties else ()
    expected = {name: value for name, value in request.properties.items() if name not in replaceable}
    if any(copy.properties.get(name) != value for name, value in expected.items()):
        return True
    return (copy.queue_id, copy.body_crc) != (request.queue_id, zlib.crc32(body_of(key)) & 0x7FFFFFFF)


def _pending_at(timed: list[Timed], at_ms: int) -> int:
    return sum(
        each.record.stored_ms <= at_ms and not any(end.stored_ms <= at_ms for _, end in each.ends) for each in timed
    )
