"""Treatment of messages that came due while the broker was not running, as the settings of their topics require.

The treatments that are in progress are stored in delaymq/overdue.json, before they begin, so that another start
continues with the rest of the messages. A pause is a fact in the log as soon as its mark is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from delaymq.api_types.delay_settings import OverdueInProgress
from delaymq.broker.delivery.settings.table import MAX_TOPICS
from delaymq.message.errors import IllegalMessageError
from delaymq.schedule.buckets import BoundedCounts
from delaymq.schedule.timeline.inspection import count_each_by_due, find_first
from delaymq.schedule.timeline.queues import Shift
from delaymq.store.errors import StoreError

if TYPE_CHECKING:
    from delaymq.api_types.delay_settings import Overdue
    from delaymq.broker.delivery.reader import DeliveryStore
    from delaymq.broker.delivery.settings.promises import Promises
    from delaymq.schedule.timeline import Pending, Timeline

FILE_NAME: Final = "overdue.json"
_VERSION: Final = 1
_REVIEWED_PER_MS: Final = 20
"""Treatments of which it is checked whether they are complete, per ms: those of 20,000 topics once per second."""
_TREATED: Final = 1
"""Bucket of the counts of a topic: messages that its treatment concerns."""
_SET_BACK_MS: Final = 600_000
"""If the clock is set back to more than this before a start, it was ahead then, and messages were not overdue."""
_LOGGED_TOPICS: Final = 20
_EFFECTS: Final = {
    "spread": "they are delivered evenly over {s} s",
    "shift": "each is delivered {late} s after its due time",
    "drop": "they are not delivered, and the log keeps them with marks",
    "pause": "the topic is paused: resume it with `delaymq delay resume --topic {topic}`",
}

_logger = logging.getLogger(__name__)


class Treatment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Treatment of the messages of a topic that were due in a time, as stored."""

    treatment: Literal["spread", "shift", "drop", "pause"]
    after_ms: int
    """Messages due after this time, the store time of the last record before the downtime, are treated."""
    up_to_ms: int
    """Messages due after this time, that of the start, are not."""
    until_ms: int
    """End of a spread or shift."""

    @property
    def shift_ms(self) -> int:
        """Time in ms by which a shift delivers each message later than it is due."""
        return self.until_ms - self.up_to_ms

    def was_ahead(self, now_ms: int) -> bool:
        """Return whether the clock was ahead at the start, which does not concern pauses: they are in the log."""
        return self.treatment != "pause" and now_ms < self.up_to_ms - _SET_BACK_MS


class _Stored(msgspec.Struct, frozen=True):
    version: int
    topics: dict[str, Treatment]


class Requests(NamedTuple):
    """What requests of administrators decide about deliveries, and how to pause them."""

    is_decided: Callable[[], bool]
    """Whether deliveries are paused, or someone has requested a treatment of all overdue messages."""
    pause: Callable[[str], int | None]
    """Pauses a topic, and returns the end of the mark in the log. StoreError, IllegalMessageError, OSError."""
    pause_all: Callable[[], None]
    """Pauses all deliveries, without a mark in the log."""
    stop: Callable[[OSError], None]
    """Stops deliveries, because the index of pending messages cannot be read."""


class OverdueTreatments:
    """Treatments that are in progress."""

    def __init__(
        self,
        store: DeliveryStore,
        timeline: Timeline,
        promises: Promises,
        requests: Requests,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._timeline = timeline
        self._promises = promises
        self._requests = requests
        self._now_ms = now_ms
        self._marked_end = 0
        """End of the newest mark of a pause in the log."""
        self._review_ms = 0
        self.open: dict[str, Treatment] = {}
        """Treatments by topic."""
        self._latest: Treatment | None = None
        """That of the latest start."""
        self.stored: dict[str, Treatment] = {}
        """Treatments that the file states, some of which may have ended."""
        self._is_written = True
        """Whether the file states the treatments of the broker that this one follows."""
        self.on_change: Callable[[str], None] = lambda topic: None
        """Called with each topic whose stored treatment has changed."""

    def begin(self, stopped_ms: int) -> None:
        """Begin treatments at a start, or continue those that a stop has interrupted.

        `stopped_ms` is the store time of the log's last record. OSError, TimelineDamagedError: nothing has begun.
        """
        former, now_ms = self._store.own_files.load(FILE_NAME, _parse) or {}, self._now_ms()
        self.stored = former
        wanted = {} if self._requests.is_decided() else self._wanted(self._unfinished(former), stopped_ms, now_ms)
        counts = self._counts(wanted)
        begun = {topic: treatment for topic, treatment in wanted.items() if counts[topic].counts[_TREATED]}
        if not begun and not former:
            return
        begun |= self._shifted(begun, stopped_ms, now_ms)
        try:
            self._save(begun)
            self.open = begun
            self._note_latest()
            for topic, treatment in begun.items():
                self._apply(topic, treatment)
        except (StoreError, IllegalMessageError, OSError) as error:
            self._pause_all(error)
            return
        self._report({topic: counts[topic].counts[_TREATED] for topic in begun})

    def replicate(self, changed: Mapping[str, Treatment | None]) -> None:
        """Adopt treatments of the broker that this one follows, or their end (None). `begin` continues them."""
        self._is_written = False
        self.stored = {topic: each for topic, each in {**self.stored, **changed}.items() if each is not None}

    def write(self) -> None:
        """Store the treatments of the broker that this one follows. OSError."""
        if not self._is_written:
            self._save(self.stored)
            self._is_written = True

    def in_progress(self, topic: str) -> OverdueInProgress | None:
        """Return the treatment of a topic; None without one."""
        treatment = self.open.get(topic)
        if treatment is None:
            return None
        return OverdueInProgress(
            treatment=treatment.treatment,
            after_ms=treatment.after_ms,
            up_to_ms=treatment.up_to_ms,
            until_ms=treatment.until_ms if treatment.treatment in ("spread", "shift") else None,
        )

    def review(self) -> None:
        """End the treatments that are complete; called after hand-overs."""
        now_ms = self._now_ms()
        interval_ms = len(self.open) // _REVIEWED_PER_MS
        if now_ms < self._review_ms <= now_ms + interval_ms:
            return
        self._review_ms = now_ms + interval_ms
        over = [topic for topic, treatment in self.open.items() if self._is_over(topic, treatment, now_ms)]
        is_paused = any(self.open[topic].treatment == "pause" for topic in over)
        self._forget(over)
        if self.is_review_due(now_ms):
            self._note_latest()
        # What the file still states about others of them has no messages, so it is not written for each. Pauses end
        # together, as soon as their marks are on disk, and their messages remain.
        if over and (is_paused or not self.open):
            self._save_or_report()

    def is_review_due(self, now_ms: int) -> bool:
        """Return whether a treatment is to be ended although no message is due, because the clock was ahead."""
        return bool(self.open) and self._latest is not None and self._latest.was_ahead(now_ms)

    def _note_latest(self) -> None:
        begun = (each for each in self.open.values() if each.treatment != "pause")
        self._latest = max(begun, key=lambda each: each.up_to_ms, default=None)

    def end_all(self) -> None:
        """End spreads and drops, because someone has decided about all overdue messages, or has paused deliveries."""
        self._end([topic for topic, treatment in self.open.items() if treatment.treatment != "pause"])

    def pause_changed(self, topic: str, *, is_paused: bool) -> None:
        """End the treatment of a topic that is paused, because whoever resumes it decides about its messages."""
        treatment = self.open.get(topic)
        if treatment is not None and (treatment.treatment == "pause") != is_paused:
            self._end([topic])

    def setting_changed(self, topic: str) -> None:
        """End the treatment of a topic for which another one applies now."""
        treatment, overdue = self.open.get(topic), self._promises.settings.of_topic(topic).overdue
        if treatment is not None and (overdue is None or overdue.treatment != treatment.treatment):
            self._end([topic])

    def _end(self, topics: list[str]) -> None:
        """End treatments: the rest is delivered as if there were none."""
        if topics:
            self._forget(topics)
            self._save_or_report()

    # Start.

    def _unfinished(self, former: dict[str, Treatment]) -> dict[str, Treatment]:
        """Return the treatments with messages, because the file also states others that have ended. OSError, damage."""
        counts = self._counts(former)
        return {topic: treatment for topic, treatment in former.items() if counts[topic].counts[_TREATED]}

    def _wanted(self, former: dict[str, Treatment], stopped_ms: int, now_ms: int) -> dict[str, Treatment]:
        found = {}
        for topic, settings in self._promises.settings.topics.items():
            overdue = settings.overdue
            if overdue is None or self._timeline.queues.is_paused(topic, ""):
                continue
            treatment = _treatment(overdue, former.get(topic), stopped_ms, now_ms)
            if treatment is not None:
                found[topic] = treatment
        return found

    def _counts(self, wanted: dict[str, Treatment]) -> dict[str, BoundedCounts]:
        """Return counts of each topic, of which _TREATED is that of the messages that its treatment concerns.

        They do not include held messages of paused groups. OSError, TimelineDamagedError.
        """
        counts = {}
        for topic, treatment in wanted.items():
            counts[topic] = BoundedCounts([treatment.after_ms + 1, treatment.up_to_ms + 1])
        numbers = ((number, each) for topic, each in counts.items() for number in self._partitions_of(topic))
        for _ in count_each_by_due(self._timeline, numbers):
            pass
        return counts

    def _partitions_of(self, topic: str) -> list[int]:
        """Return the partitions of a topic, without those of held messages of paused groups."""
        partitions = self._timeline.partitions
        return [number for number in partitions.of_topic(topic) if not partitions.key(number).group]

    def _shifted(self, begun: dict[str, Treatment], stopped_ms: int, now_ms: int) -> dict[str, Treatment]:
        """Return the shifts that begin at `now_ms`, so long that no message is due earlier than now. OSError, damage.

        All topics are shifted by the same time, so that the distances between their messages remain. Only those with
        messages of an earlier downtime are shifted by more, if these were.
        """
        shifts = {topic: each for topic, each in begun.items() if each.treatment == "shift" and each.up_to_ms == now_ms}
        late_ms = self._lateness_ms(shifts, stopped_ms, now_ms)
        found = {}
        for topic, each in shifts.items():
            shift_ms = max(late_ms, each.shift_ms)
            if each.after_ms < stopped_ms:
                shift_ms = max(shift_ms, self._lateness_ms([topic], each.after_ms, now_ms))
            found[topic] = msgspec.structs.replace(each, until_ms=now_ms + shift_ms)
        return found

    def _lateness_ms(self, topics: Iterable[str], after_ms: int, now_ms: int) -> int:
        """Return how late the first message is that was due after a time, 0 if none was. OSError, damage."""
        # Counts do not tell the first due time: that of a message that has ended may be earlier.
        numbers = (number for topic in topics for number in self._partitions_of(topic))
        first: list[Pending] = []
        for _ in find_first(self._timeline, numbers, 1, first, (after_ms + 1, 0), (now_ms + 1, 0)):
            pass
        return now_ms - first[0].due_ms if first else 0

    def _apply(self, topic: str, treatment: Treatment) -> None:
        queues = self._timeline.queues
        if treatment.treatment == "pause":
            self._marked_end = self._requests.pause(topic) or self._marked_end
        elif treatment.treatment == "spread":
            queues.spread(topic, treatment.until_ms)
        elif treatment.treatment == "shift":
            self._shift(topic, Shift(treatment.after_ms, treatment.up_to_ms, treatment.shift_ms))
        else:
            times = self._promises.dropped[topic] = treatment.after_ms, treatment.up_to_ms
            queues.set_unlimited(topic, times)

    def _shift(self, topic: str, shift: Shift | None) -> None:
        try:
            self._timeline.shift(topic, shift)
        except OSError as error:
            self._requests.stop(error)  # some entries are in no queue

    def _pause_all(self, error: Exception) -> None:
        self._forget(list(self.open))
        try:
            self._requests.pause_all()
        except OSError as failure:
            error = failure
        _logger.error(
            "messages that came due while the broker was not running cannot be treated as their topics require (%s):"
            " all deliveries are paused: repair the disk, and resume them with `delaymq delay resume`",
            error,
        )

    def _report(self, counts: dict[str, int]) -> None:
        for topic, treatment in list(self.open.items())[:_LOGGED_TOPICS]:
            seconds, late = (round(ms / 1_000) for ms in (treatment.until_ms - self._now_ms(), treatment.shift_ms))
            _logger.warning(
                "%d messages for topic %s came due while the broker was not running: %s",
                counts[topic],
                topic,
                _EFFECTS[treatment.treatment].format(s=seconds, late=late, topic=topic),
                extra={"topic": topic},
            )
        if len(self.open) > _LOGGED_TOPICS:
            more = list(self.open)[_LOGGED_TOPICS:]
            _logger.warning(
                "%d messages for %d other topics came due while the broker was not running, and are treated as their"
                " settings require: see `delaymq delay settings`",
                sum(counts[topic] for topic in more),
                len(more),
            )

    # End.

    def _is_over(self, topic: str, treatment: Treatment, now_ms: int) -> bool:
        queues = self._timeline.queues
        if treatment.treatment == "pause":
            return self._store.durable_offset >= self._marked_end
        if treatment.was_ahead(now_ms):
            return True
        if treatment.treatment == "spread":
            return not queues.is_spread(topic) or now_ms >= treatment.until_ms
        if treatment.treatment == "shift":
            return not queues.is_shifted(topic) or now_ms >= treatment.until_ms
        due_ms = queues.next_due_of(topic)
        if due_ms is not None and due_ms <= treatment.up_to_ms:
            return False
        key = self._timeline.partitions.key
        return all(key(entry.partition).topic != topic for entry in self._timeline.taken_messages)

    def _forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            treatment = self.open.pop(topic)
            self._promises.dropped.pop(topic, None)
            self._timeline.queues.end_spread(topic)
            self._timeline.queues.set_unlimited(topic, None)
            if treatment.treatment == "shift":
                self._shift(topic, None)

    def _save(self, treatments: dict[str, Treatment]) -> None:
        if treatments:
            self._store.own_files.save(FILE_NAME, msgspec.json.encode(_Stored(_VERSION, treatments)))
        else:
            self._store.own_files.remove(FILE_NAME)
        before, self.stored = self.stored, dict(treatments)
        for topic in before.keys() | treatments.keys():
            if before.get(topic) != treatments.get(topic):
                self.on_change(topic)

    def _save_or_report(self) -> None:
        try:
            self._save(self.open)
        except OSError as error:
            # The next start continues treatments that have ended, if they still have messages.
            _logger.error("delaymq/%s could not be written: %s", FILE_NAME, error)


def _treatment(overdue: Overdue, former: Treatment | None, stopped_ms: int, now_ms: int) -> Treatment | None:
    """Return the treatment that a topic needs, which may be the rest of a former one."""
    treatment = overdue.treatment
    if treatment == "deliver":
        return None
    if former is not None and (former.treatment != treatment or former.was_ahead(now_ms)):
        former = None
    if 0 < stopped_ms <= now_ms - overdue.after_ms:
        after_ms = stopped_ms if former is None else min(former.after_ms, stopped_ms)
        shift_ms = former.shift_ms if former is not None and treatment == "shift" else 0
        until_ms = now_ms + (overdue.over_ms or shift_ms)
        return Treatment(treatment=treatment, after_ms=after_ms, up_to_ms=now_ms, until_ms=until_ms)
    if former is None or treatment == "shift":
        return former
    left_ms = max(former.until_ms - stopped_ms, 0)
    return msgspec.structs.replace(former, until_ms=now_ms + left_ms)


def _parse(data: bytes) -> dict[str, Treatment]:
    stored = msgspec.json.decode(data, type=_Stored)
    if stored.version != _VERSION or len(stored.topics) > MAX_TOPICS:
        raise ValueError(f"its version is not {_VERSION}, or it has more than {MAX_TOPICS} topics")
    return stored.topics
