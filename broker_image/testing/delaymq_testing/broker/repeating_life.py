"""Model of repeating messages: what each record in the log must say, computed from the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from delaymq.broker.delivery.changes.changes import Requester
from delaymq.broker.delivery.changes.requests import Action, ChangeRequest, perform
from delaymq.broker.delivery.timed.requests import TimeRequest
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark, parse_own_mark
from delaymq.store.errors import StoreFullError

from delaymq_testing.broker.delivery_harness import HOST, Bench

_CRON_MS = 5_000
_LATE_MS = 2_000
_MOST_MISSED = 1_000
_MOST_MOVED_MS = 50
"""Times that are taken are passed over."""


_ACTIONS = Action.CANCEL, Action.MOVE, Action.FIRE, Action.TOUCH


class State(NamedTuple):
    """What the log says about a message after one record."""

    end: int
    """End of the record."""
    due_ms: int | None
    run: int


@dataclass
class Repeated:
    """A repeating message. Its times are multiples of 5 s, or an interval after each other."""

    place: int
    topic: str
    states: list[State]
    missed: str
    every_ms: int | None
    until_ms: int | None
    runs: int | None

    @property
    def now(self) -> State:
        return self.states[-1]

    def following(self, base_ms: int, after_ms: int) -> int | None:
        """First time after one."""
        if self.every_ms is None:
            time_ms = (after_ms // _CRON_MS + 1) * _CRON_MS
        else:
            time_ms = base_ms + self.every_ms
            while time_ms <= after_ms:
                time_ms += self.every_ms
        return None if self.until_ms is not None and time_ms > self.until_ms else time_ms

    def oldest_ms(self, now_ms: int) -> int:
        """Time of the first of the last 1,000 runs that are due."""
        due_ms, step_ms = self.now.due_ms or 0, self.every_ms or _CRON_MS
        last_ms = now_ms if self.until_ms is None else min(now_ms, self.until_ms)
        base_ms = due_ms if self.every_ms is not None else 0
        last_ms = base_ms + (last_ms - base_ms) // step_ms * step_ms
        return last_ms - (_MOST_MISSED - 1) * step_ms

    def expected(self, now_ms: int, *, is_skipped: bool) -> tuple[int | None, int | None]:
        """Time of the run that is due (None: it is skipped), and the next due time (None: no further run).

        `is_skipped` is what happened: of the runs that were missed, the limit is checked once.
        """
        due_ms, run = self.now.due_ms, self.now.run
        assert due_ms is not None
        if self.missed == "none" and now_ms - due_ms > _LATE_MS:
            return None, self.following(due_ms, now_ms - _LATE_MS - 1)
        if self.missed == "all" and is_skipped and self.oldest_ms(now_ms) > due_ms:
            return None, self.oldest_ms(now_ms)
        time_ms = due_ms
        while self.missed == "latest":
            later_ms = self.following(due_ms, time_ms)
            if later_ms is None or later_ms > now_ms:
                break
            time_ms = later_ms
        is_last = self.runs is not None and run + 1 >= self.runs
        return time_ms, None if is_last else self.following(due_ms, time_ms)


class RepeatingLife:
    """The repeating messages of a life."""

    def __init__(self, bench: Bench, random: Random) -> None:
        self.bench = bench
        self.random = random
        self.schedules: dict[str, Repeated] = {}
        self._next_body = 0

    def send(self) -> None:
        body = f"r{self._next_body}"
        self._next_body += 1
        now_ms, random = self.bench.now_ms, self.random
        missed = random.choice(["latest", "all", "none"])
        every_ms = random.choice([None, 1_000, 3_000, 20_000])
        until_ms = random.choice([None, None, now_ms + 40_000])
        runs = random.choice([None, None, 1, 4])
        more = {names.DELAY_MISSED: missed}
        if missed == "none":
            more[names.DELAY_EXPIRE_MS] = str(_LATE_MS)
        if every_ms is None:
            more[names.DELAY_CRON] = "*/5 * * * * *"
        else:
            more[names.DELAY_EVERY_MS] = str(every_ms)
        if until_ms is not None:
            more[names.DELAY_UNTIL_MS] = str(until_ms)
        if runs is not None:
            more[names.DELAY_RUNS] = str(runs)
        due_ms = self.bench.delivery.ingress.requested_time({"UNIQ_KEY": body, **more}, 0)
        place, topic = len(self.bench.store.log), random.choice(["orders", "invoices"])
        self.bench.send_timed(body, due_ms or 0, topic=topic, properties=more)
        sent = Repeated(place, topic, [], missed, every_ms, until_ms, runs)
        assert due_ms == sent.following(now_ms, now_ms)
        sent.states.append(State(len(self.bench.store.log), due_ms, 0))
        self.schedules[body] = sent

    def dues_ms(self, of_topic: Callable[[str], bool] = lambda topic: True) -> list[int]:
        """Due times of the pending messages, of some topics."""
        return [
            sent.now.due_ms for sent in self.schedules.values() if sent.now.due_ms is not None and of_topic(sent.topic)
        ]

    def lose(self, end: int) -> None:
        """Forgets what is after the end of the log."""
        for sent in self.schedules.values():
            sent.states = [state for state in sent.states if state.end <= end]
        self.schedules = {body: sent for body, sent in self.schedules.items() if sent.states}

    def note_records(self, before: int) -> None:
        """Compares the records of a hand-over with what had to be stored."""
        by_place = {sent.place: sent for sent in self.schedules.values()}
        for record in self.bench.store.records():
            if record.physical_offset >= before and names.MARK in record.properties:
                mark = parse_own_mark(record.properties[names.MARK], record.physical_offset)
                sent = by_place.get(mark.identity) if mark is not None else None
                if mark is not None and sent is not None:
                    self._note(record, mark, sent)

    def _note(self, record: Record, mark: TimedMark, sent: Repeated) -> None:
        now_ms, state = self.bench.now_ms, sent.now
        assert state.due_ms is not None, "a run after the end"
        assert state.due_ms <= now_ms, "early"
        assert mark.due_ms == state.due_ms
        time_ms, next_ms = sent.expected(now_ms, is_skipped=record.topic == names.MARKS_TOPIC)
        run = state.run
        if time_ms is None:
            assert record.topic == names.MARKS_TOPIC, "too late"
        else:
            run += 1
            assert record.properties.get(names.DELAY_RUN) == str(run), "another number"
            assert record.properties[names.TIMER_OUT_MS] == str(time_ms), "another time"
            assert mark.run == run
            assert names.SCHEDULE_PROPERTIES[0] not in record.properties
        assert (mark.next_due_ms is None) == (next_ms is None), "the schedule ends or not"
        if next_ms is not None and mark.next_due_ms is not None:
            assert next_ms <= mark.next_due_ms < next_ms + _MOST_MOVED_MS, "another next time"
        sent.states.append(State(record.physical_offset + record.size, mark.next_due_ms, run))

    def change(self) -> None:
        """Cancels, moves, fires or touches a message, whether it is pending or not."""
        if self.schedules:
            body = self.random.choice(list(self.schedules)[-20:])
            self.perform(body, self.random.choice(_ACTIONS))

    def perform(self, body: str, action: Action) -> None:
        sent, now_ms = self.schedules[body], self.bench.now_ms
        wanted_ms: int | None = now_ms
        if action is Action.MOVE:
            wanted_ms = now_ms + self.random.choice([0, 1_500, 10_000])
        elif action is Action.TOUCH:
            wanted_ms = sent.following(now_ms, now_ms)
        is_beyond = wanted_ms is None or (sent.until_ms is not None and wanted_ms > sent.until_ms)
        is_refused = is_beyond and action in (Action.MOVE, Action.TOUCH) and sent.now.due_ms is not None
        time = TimeRequest(False, wanted_ms or 0)
        request = ChangeRequest(action=action, topic=sent.topic, unique_id=body, time=time)
        if self.random.random() < 0.1:
            self.bench.store.refuse = lambda message: StoreFullError("full")
        try:
            outcome = perform(self.bench.delivery, request, Requester("", HOST))
        except StoreFullError:
            return
        except ValueError:
            assert is_refused
            return
        finally:
            self.bench.store.refuse = lambda message: None
        assert len(outcome.changed) == (sent.now.due_ms is not None), f"{action}: {outcome}"
        for changed in outcome.changed:
            assert changed.pending is not None
            assert changed.pending.due_ms == sent.now.due_ms
            due_ms = None if action is Action.CANCEL else changed.due_ms
            if due_ms is not None and wanted_ms is not None:
                assert wanted_ms <= due_ms < wanted_ms + _MOST_MOVED_MS
            sent.states.append(sent.now._replace(end=changed.end, due_ms=due_ms))

    def end_all(self) -> None:
        """Cancels all messages that would repeat for ever."""
        for body, sent in self.schedules.items():
            while sent.now.due_ms is not None and sent.until_ms is None and sent.runs is None:
                self.perform(body, Action.CANCEL)
