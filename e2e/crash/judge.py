"""Effects of a crash on delayed messages, according to the log and to a group that read every queue afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.commitlog import BadLogError, Record, delayed_messages, delays_ms


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """Sends by outcome: unique keys with their level."""

    acknowledged: Mapping[str, int]
    failed: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Counts of messages by origin; the violations are unique keys."""

    acknowledged: int
    failed: int
    stored_although_failed: int
    lost: tuple[str, ...]
    """Acknowledged, but never delivered."""
    twice: tuple[str, ...]
    """Delivered more often than stored: two records in the log with one origin."""
    early: tuple[str, ...]
    """Delivered before the due time, or sooner after the producer's own timestamp than the level's delay."""
    wrong_due: tuple[str, ...]
    """The due time in the record is not the time of arrival plus the level's delay."""
    altered: tuple[str, ...]
    """Delivered in another topic or queue than it was sent to, or with another body."""
    missing_for_group: tuple[str, ...]
    """Acknowledged, but not among the messages that a new group read."""
    twice_for_group: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        return not self.breaches()

    def breaches(self) -> dict[str, tuple[str, ...]]:
        found = {
            "lost": self.lost,
            "twice": self.twice,
            "early": self.early,
            "wrong due time": self.wrong_due,
            "altered": self.altered,
            "missing for a new group": self.missing_for_group,
            "twice for a new group": self.twice_for_group,
        }
        return {name: keys for name, keys in found.items() if keys}

    def text(self) -> str:
        """Return one line of counts, then up to three examples of each violation."""
        counts = (
            f"acknowledged {self.acknowledged}, failed {self.failed} (stored anyway {self.stored_although_failed}),"
            f" lost {len(self.lost)}, twice {len(self.twice)}, early {len(self.early)};"
            f" new group: missing {len(self.missing_for_group)}, twice {len(self.twice_for_group)}"
        )
        examples = [f"  {name}: {', '.join(keys[:3])}" for name, keys in self.breaches().items()]
        return "\n".join([counts, *examples])


def read_attempts(path: Path) -> Attempts:
    """Read the load program's lines `A|F unique-key level …`."""
    acknowledged: dict[str, int] = {}
    failed: dict[str, int] = {}
    for line in path.read_text().splitlines():
        outcome, key, level = line.split(" ")[:3]
        (acknowledged if outcome == "A" else failed)[key] = int(level)
    return Attempts(acknowledged=acknowledged, failed=failed)


def judge(*, store_path: Path, level_table: str, topic: str, attempts: Attempts, read_keys: Counter[str]) -> Verdict:
    """Compare the responses to producers with the log and with ``read_keys`` of ``topic``, read by a new group.

    Raises BadLogError if the log itself is invalid.
    """
    level_delays_ms = delays_ms(level_table)
    delayed = delayed_messages(store_path, level_table, real_topic=topic)
    unknown = delayed.keys() - attempts.acknowledged.keys() - attempts.failed.keys()
    if unknown:
        raise BadLogError(f"{len(unknown)} messages that no producer sent, such as {min(unknown)}")
    early: list[str] = []
    wrong_due: list[str] = []
    altered: list[str] = []
    for key, messages in delayed.items():
        for message in messages:
            delay_ms = level_delays_ms[int(message.scheduled.properties["DELAY"]) - 1]
            due_by_birth_ms = message.scheduled.born_ms + delay_ms
            # `__DMQ_DUE` is computed on arrival: after the producer's clock was read, before the record is appended.
            if not due_by_birth_ms <= message.due_ms <= message.scheduled.stored_ms + delay_ms:
                wrong_due.append(key)
            earliest_ms = max(message.due_ms, due_by_birth_ms)
            if any(copy.stored_ms < earliest_ms for copy in message.copies):
                early.append(key)
            if any(_differs(message.scheduled, copy) for copy in message.copies):
                altered.append(key)
    copies = {key: sum(len(message.copies) for message in messages) for key, messages in delayed.items()}
    return Verdict(
        acknowledged=len(attempts.acknowledged),
        failed=len(attempts.failed),
        stored_although_failed=sum(1 for key in attempts.failed if key in delayed),
        lost=tuple(key for key in attempts.acknowledged if not copies.get(key)),
        twice=tuple(key for key, count in copies.items() if count > len(delayed[key])),
        early=tuple(early),
        wrong_due=tuple(wrong_due),
        altered=tuple(altered),
        missing_for_group=tuple(key for key in attempts.acknowledged if key not in read_keys),
        twice_for_group=tuple(key for key, count in read_keys.items() if count > len(delayed.get(key, ()))),
    )


def _differs(scheduled: Record, copy: Record) -> bool:
    wanted = (scheduled.properties["REAL_TOPIC"], scheduled.properties["REAL_QID"], scheduled.body_crc, scheduled.flag)
    return (copy.topic, str(copy.queue_id), copy.body_crc, copy.flag) != wanted
