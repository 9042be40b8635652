"""Statements about many scheduled messages: those of a group, of a topic, or all.

They are `__DMQ_MARK` properties of form 2, `2:PLACE:KIND:DECIDED:TOPIC:GROUP:NEXT:DETAILS:CRC`, on records of the
topic of marks. TOPIC and GROUP are names in Base64 for URLs, without padding. A statement about a group applies to
messages of which the log contains a record before it. One about a pause has no NEXT; it applies until the next one
about the same topic and group. An empty GROUP stands for the topic, an empty TOPIC for all topics. Format:
docs/formats/store.md.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

from delaymq.message.names import MARK
from delaymq.message.timed_marks import (
    GroupMarkKind,
    Statement,
    checked_statement,
    newer_form,
    own_body,
    stated_number,
)

_KINDS: Final = {str(kind): kind for kind in GroupMarkKind}
PAUSES: Final = frozenset((GroupMarkKind.PAUSED, GroupMarkKind.RESUMED))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMark:
    """Statement about the pending messages of a group, or about a pause."""

    place: int
    kind: GroupMarkKind
    decided_ms: int
    """Time of the decision, by the broker's clock."""
    topic: str
    group: str
    next_due_ms: int | None = None
    """Due time from then on; None: the messages have ended, or the statement is about a pause."""

    def statement(self) -> Statement:
        """Return the statement without its place."""
        due = "" if self.next_due_ms is None else self.next_due_ms
        body = f"{self.kind}:{self.decided_ms}:{_encoded(self.topic)}:{_encoded(self.group)}:{due}:"
        return checked_statement(MARK, body, self.decided_ms, self.next_due_ms or 0)

    def __str__(self) -> str:
        return self.statement().at(self.place)


def is_group_mark(text: str) -> bool:
    """Whether a statement, whose checksum was verified, is about many messages."""
    words = text.split(":", 3)
    return len(words) == 4 and words[2] in _KINDS


def parse_own_group_mark(text: str, place: int) -> GroupMark | None:
    """Return the statement of the record at `place`; None if the text is damaged or another record's. NewerFormError.

    `is_group_mark` must be true.
    """
    body = own_body(text, place)
    if body is None:
        return None
    words = body.split(":")
    if len(words) != 6 or words[5]:
        raise newer_form(text)
    kind, decided, topic, group, due, _ = words
    try:
        names = _decoded(topic), _decoded(group)
    except ValueError:
        raise newer_form(text) from None
    return GroupMark(
        place=place,
        kind=_KINDS[kind],
        decided_ms=stated_number(decided, text),
        topic=names[0],
        group=names[1],
        next_due_ms=stated_number(due, text) if due else None,
    )


def indexed_group_key(topic: str, group: str) -> str:
    """Return the key under which the statements about a group are indexed."""
    return f"{_encoded(topic)}.{_encoded(group)}"


def _encoded(name: str) -> str:
    return urlsafe_b64encode(name.encode("utf-8", "surrogateescape")).decode("ascii").rstrip("=")


def _decoded(word: str) -> str:
    return urlsafe_b64decode(word + "=" * (-len(word) % 4)).decode("utf-8", "surrogateescape")
