"""Model of a broker's delivery: random histories of a store, and a plain list of what the log must still know."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from delaymq.broker.delivery.changes.changes import Changed, Requester
from delaymq.broker.delivery.changes.fates import FateKind
from delaymq.broker.delivery.changes.requests import Action, ChangeRequest, Outcome, perform
from delaymq.broker.delivery.delay_rewrite import KeyPendingError
from delaymq.broker.delivery.timed.requests import TimeRequest
from delaymq.message.levels import DelayLevels, level_of_queue
from delaymq.message.marks import parse_due
from delaymq.message.names import SCHEDULE_TOPIC
from delaymq.schedule.timeline import TIMELINE_QUEUE
from delaymq.store.errors import RecordTooLargeError, StoreFullError
from delaymq.store.model import NewRecord

from delaymq_testing.broker.delivery_harness import HOST, Bench, Settings
from delaymq_testing.broker.repeating_life import RepeatingLife

TABLES = ["1s 5s 10s", "1s", "3s 2s 1s 4s", "20s 1s", "1s 1s 1s"]


class Fact(NamedTuple):
    """What one record in the log says about a message."""

    end: int
    """End of the record."""
    due_ms: int | None
    """None: the message was cancelled or replaced."""
    level: int
    """Queue of the schedule topic, or TIMELINE_QUEUE."""
    place: int
    """Identity: physical offset of the first record."""
    delay_ms: int | None
    """Delay that the message was sent with; None: that of its level."""


@dataclass
class Sent:
    """What the model knows about one message."""

    topic: str
    unique_id: str
    facts: list[Fact]
    key: str = ""
    group: str = ""
    expire_ms: int | None = None

    @property
    def now(self) -> Fact:
        return self.facts[-1]

    def is_too_late(self, now_ms: int) -> bool:
        """Whether it will be dropped as soon as deliveries continue."""
        due_ms = self.now.due_ms
        return due_ms is not None and self.expire_ms is not None and now_ms - due_ms > self.expire_ms


class Paused(NamedTuple):
    """A record that begins or ends a pause."""

    end: int
    """End of the record."""
    topic: str
    group: str
    """Empty for the whole topic."""
    is_paused: bool


_SINGLE = (Action.CANCEL, Action.MOVE, Action.FIRE, Action.TOUCH)
_OF_GROUPS = (Action.CANCEL, Action.MOVE, Action.FIRE)
_TOPICS = ("orders", "invoices")
_GROUPS = ("x", "y")


class Life:
    """One store, driven at random; `sent` are the messages that the log must still know."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bench = Bench(TABLES[0], Settings(flush_delay_offset_interval=500))
        self.sent: dict[str, Sent] = {}
        self.repeating = RepeatingLife(self.bench, self.random)
        self.pauses: list[Paused] = []
        self.next_body = 0

    def step(self) -> None:
        choice = self.random.randrange(100)
        if choice < 25:
            self.send()
        elif choice < 40:
            self.send_timed()
        elif choice < 43:
            self.repeating.send()
        elif choice < 52:
            self.change()
        elif choice < 55:
            self.repeating.change()
        elif choice < 58:
            self.change_group()
        elif choice < 61:
            self.pause_or_resume()
        elif choice < 73:
            self.hand_over()
        elif choice < 78:
            self.bench.store.flush()
        elif choice < 84:
            self.bench.save()
        elif choice < 87:
            self.bench.take_snapshot()
        elif choice < 88:
            self.carry()
        elif choice < 90:
            self.bench.levels = DelayLevels.parse(self.random.choice(TABLES))
            self.bench.delivery.set_levels(self.bench.levels)
        elif choice < 91:
            self.change_policy()
        elif choice < 92:
            self.bench.now_ms -= self.random.randrange(3_000)
        elif choice < 94:
            self.spoil_offsets()
        else:
            self.restart()

    def send(self) -> None:
        body = f"m{self.next_body}"
        self.next_body += 1
        level = self.random.randrange(1, 5)
        unique_id = self.unique_id(body)
        appended = self.bench.send(body, level, properties={"UNIQ_KEY": unique_id})
        record = self.bench.store.record_at(appended.physical_offset)
        assert record is not None
        due_ms = parse_due(record.properties["__DMQ_DUE"], record.queue_id, record.queue_offset)
        assert due_ms is not None
        fact = Fact(len(self.bench.store.log), due_ms, record.queue_id, record.physical_offset, None)
        self.sent[body] = Sent("orders", unique_id, [fact])

    def unique_id(self, body: str) -> str:
        """Of a new message, or of one that its producer sends again."""
        if self.sent and self.random.random() < 0.1:
            return self.random.choice(list(self.sent.values())).unique_id
        return body

    def send_timed(self) -> None:
        body = f"m{self.next_body}"
        self.next_body += 1
        due_ms = self.bench.now_ms + self.random.choice([1, 700, 5_000, 5_000, 20_000, 90_000])
        topic = self.random.choice(_TOPICS)
        more = {"UNIQ_KEY": self.unique_id(body), "TIMER_DELIVER_MS": str(due_ms)}
        sent, place = Sent(topic, more["UNIQ_KEY"], []), len(self.bench.store.log)
        if self.random.random() < 0.2:
            sent.expire_ms = 2_000
            more["DELAY_EXPIRE_MS"] = "2000"
        if self.random.random() < 0.3:
            sent.key = more["DELAY_KEY"] = self.random.choice("abc")
            more["DELAY_ON_SAME_KEY"] = self.random.choice(["replace", "keep", "refuse"])
        if self.random.random() < 0.4:
            sent.group = more["DELAY_GROUP"] = self.random.choice(_GROUPS)
        earlier = self.with_key(topic, sent.key)
        is_too_late = earlier is not None and earlier.is_too_late(self.bench.now_ms)
        account, refusal = self.random.choice(["", "ann"]), None
        try:
            self.bench.send_timed(body, due_ms, topic=topic, account=account, **more)  # type: ignore[arg-type]
        except KeyPendingError as error:
            refusal = error
        if refusal is not None:
            assert earlier is not None, "a key is pending although no message has it"
            assert not is_too_late, "a message that will be dropped keeps another one out"
            assert refusal.is_kept is (more["DELAY_ON_SAME_KEY"] == "keep")
            assert refusal.pending.due_ms == earlier.now.due_ms
            return
        end = len(self.bench.store.log)
        if earlier is not None:
            assert is_too_late or more["DELAY_ON_SAME_KEY"] == "replace"
            earlier.facts.append(earlier.now._replace(end=end, due_ms=None))
        sent.facts.append(Fact(end, due_ms, TIMELINE_QUEUE, place, due_ms - self.bench.now_ms))
        self.sent[body] = sent
        for _ in range(self.random.randrange(3)):
            self.bench.delivery.maintain()

    def gone(self) -> set[str]:
        """Bodies that were delivered, or dropped because they were late."""
        return {*self.bench.delivered(), *self.bench.expired()}

    def with_key(self, topic: str, key: str) -> Sent | None:
        gone = self.gone()
        pending = [
            sent
            for body, sent in self.sent.items()
            if key and (sent.topic, sent.key) == (topic, key) and sent.now.due_ms is not None and body not in gone
        ]
        assert len(pending) < 2, "two pending messages have one key"
        return pending[0] if pending else None

    def change(self) -> None:
        """Cancels, moves, fires or touches a message, by unique id or key, whether it is pending or not."""
        if not self.sent:
            return
        body, sent = self.random.choice(list(self.sent.items())[-40:])
        gone = self.gone()
        by_key = bool(sent.key) and self.random.random() < 0.5
        alike = {
            other: each
            for other, each in self.sent.items()
            if each.topic == sent.topic and (each.key == sent.key if by_key else each.unique_id == sent.unique_id)
        }
        pending = [each for other, each in alike.items() if each.now.due_ms is not None and other not in gone]
        time = TimeRequest(True, self.random.choice([0, 3_000, 20_000]))
        if self.random.random() < 0.5:
            time = TimeRequest(False, self.bench.now_ms // 5_000 * 5_000 + self.random.choice([0, 5_000]))
        request = ChangeRequest(
            action=self.random.choice(_SINGLE),
            topic=sent.topic,
            key=sent.key if by_key else None,
            unique_id=None if by_key else sent.unique_id,
            time=time,
        )
        kind = self.random.randrange(8)
        if kind == 0:
            self.bench.store.refuse = lambda message: StoreFullError("full")
        elif kind == 1:
            self.bench.store.fail_after = lambda message: OSError("after")
        try:
            outcome = perform(self.bench.delivery, request, Requester("", HOST))
        except StoreFullError:
            assert pending, "a record for nothing"
            return
        finally:
            self.bench.store.refuse = self.bench.store.fail_after = lambda message: None
        assert outcome.fate is None or not pending, f"{request} found nothing: {outcome}"
        assert len(outcome.changed) == len(pending), "another number of messages was changed"
        by_place = {each.now.place: each for each in pending}
        for changed in outcome.changed:
            assert changed.pending is not None
            self.note(request, changed, by_place[changed.pending.identity])
        if len(alike) == 1 and not pending:
            self.check_fate(request, outcome, body, sent)

    def change_group(self) -> None:
        """Cancels, moves or fires the messages of a group."""
        topic, group = self.random.choice(_TOPICS), self.random.choice(_GROUPS)
        gone = self.gone()
        pending = [
            sent
            for body, sent in self.sent.items()
            if (sent.topic, sent.group) == (topic, group) and sent.now.due_ms is not None and body not in gone
        ]
        # Often to a time at which they were due before.
        time = TimeRequest(False, self.bench.now_ms // 5_000 * 5_000 + self.random.choice([0, 5_000, 20_000]))
        action = self.random.choice(_OF_GROUPS)
        request = ChangeRequest(action=action, topic=topic, group=group, time=time)
        if self.random.randrange(8) == 0:
            self.bench.store.refuse = lambda message: StoreFullError("full")
        try:
            outcome = perform(self.bench.delivery, request, Requester("", HOST))
        except StoreFullError:
            assert pending, "a record for nothing"
            return
        finally:
            self.bench.store.refuse = lambda message: None
        assert outcome.messages == len(pending), "another number of messages was changed"
        for changed in outcome.changed:
            expected_ms = self.bench.now_ms if action is Action.FIRE else max(time.time_ms, self.bench.now_ms)
            assert changed.due_ms == (None if action is Action.CANCEL else expected_ms)
            for sent in pending:
                sent.facts.append(sent.now._replace(end=changed.end, due_ms=changed.due_ms))
        for _ in range(self.random.randrange(3)):
            self.bench.delivery.maintain()

    def pause_or_resume(self) -> None:
        """Pauses or resumes a topic, or a group of it."""
        topic, group = self.random.choice(_TOPICS), self.random.choice(["", *_GROUPS])
        is_paused = self.random.random() < 0.4
        request = ChangeRequest(action=Action.PAUSE if is_paused else Action.RESUME, topic=topic, group=group or None)
        (changed,) = perform(self.bench.delivery, request, Requester("", HOST)).changed
        if changed.end:
            assert self.is_paused(topic, group, alone=True) is not is_paused
            self.pauses.append(Paused(changed.end, topic, group, is_paused))
        assert self.is_paused(topic, group, alone=True) is is_paused

    def is_paused(self, topic: str, group: str, *, alone: bool = False) -> bool:
        """Whether messages of a topic and group are held; `alone`: by a pause of exactly these."""
        state = {(each.topic, each.group): each.is_paused for each in self.pauses}
        return state.get((topic, group), False) or (not alone and state.get((topic, ""), False))

    def resume_all(self) -> None:
        """Ends all pauses."""
        for topic in _TOPICS:
            for group in ("", *_GROUPS):
                self.bench.delivery.pauses.resume(topic, group, Requester("", HOST))
        self.pauses.clear()

    def note(self, request: ChangeRequest, changed: Changed, sent: Sent) -> None:
        assert changed.pending is not None
        assert changed.pending.due_ms == sent.now.due_ms
        now_ms, level = self.bench.now_ms, sent.now.level
        if request.action is Action.CANCEL:
            assert changed.due_ms is None
            sent.facts.append(sent.now._replace(end=changed.end, due_ms=None))
            return
        wanted_ms, delay_ms = now_ms, sent.now.delay_ms
        if delay_ms is None:
            delay_ms = self.bench.levels.delay_ms(level + 1)
        if request.action is Action.MOVE:
            assert request.time is not None
            wanted_ms = max(request.time.due_ms(now_ms), now_ms)
        elif request.action is Action.TOUCH:
            wanted_ms = now_ms + delay_ms
        assert changed.due_ms is not None
        assert wanted_ms <= changed.due_ms < wanted_ms + 50
        place = sent.now.place if level == TIMELINE_QUEUE else changed.place
        sent.facts.append(Fact(changed.end, changed.due_ms, TIMELINE_QUEUE, place, delay_ms))

    def check_fate(self, request: ChangeRequest, outcome: Outcome, body: str, sent: Sent) -> None:
        if body in self.bench.delivered():
            expected = FateKind.DELIVERED
        elif body in self.bench.expired():
            expected = FateKind.EXPIRED
        elif request.action is Action.CANCEL and outcome.fate is None:
            expected = None
        else:
            expected = FateKind.CANCELLED
        kind = outcome.fate.kind if outcome.fate is not None else None
        assert kind == expected or (kind is FateKind.REPLACED and expected is FateKind.CANCELLED and sent.key)

    def carry(self) -> None:
        self.bench.store.expired_end = self.random.choice([self.bench.store.flushed_offset, len(self.bench.store.log)])
        for _ in range(self.random.randrange(30)):
            self.bench.delivery.carry(self.bench.now_ms)
            self.bench.now_ms += 1

    def change_policy(self) -> None:
        """Pauses, resumes, or spreads what is overdue."""
        control = self.bench.delivery.control
        choice = self.random.randrange(3)
        if choice == 0:
            control.pause()
        elif choice == 1:
            control.resume()
        else:
            self.bench.now_ms += 20_000
            control.spread(5_000)

    def hand_over(self) -> None:
        wakeup_ms = self.bench.delivery.next_wakeup_ms()
        if wakeup_ms is not None and self.random.random() < 0.7:
            self.bench.now_ms = max(self.bench.now_ms, wakeup_ms + self.random.choice([0, 0, 1, 700, 30_000]))
        else:
            self.bench.now_ms += self.random.randrange(800)
        kind = self.random.randrange(8)
        if kind == 0:
            self.bench.store.refuse = lambda message: StoreFullError("full") if self.random.random() < 0.4 else None
        elif kind == 1:
            self.bench.store.refuse = self.refuse_some
        elif kind == 2:
            self.bench.store.fail_after = lambda message: OSError("after") if self.random.random() < 0.5 else None
        before = len(self.bench.store.log)
        handed_over = self.bench.hand_over(self.random.choice([1, 2, 7, 1_000]))
        assert not handed_over or not self.bench.delivery.control.is_paused, "delivered while everything was paused"
        self.repeating.note_records(before)
        for body in handed_over:
            if body in self.repeating.schedules:
                continue
            due_ms = self.sent[body].now.due_ms
            assert due_ms is not None, "delivered after it was cancelled"
            assert due_ms <= self.bench.now_ms, "early"
            assert not self.is_paused(self.sent[body].topic, self.sent[body].group), "delivered while it was paused"
            expire_ms = self.sent[body].expire_ms
            assert expire_ms is None or self.bench.now_ms - due_ms <= expire_ms, "later than its producer allowed"
        self.bench.store.refuse = self.bench.store.fail_after = lambda message: None

    def refuse_some(self, message: NewRecord) -> Exception | None:
        return RecordTooLargeError("too large") if message.body.endswith((b"3", b"7")) else None

    def spoil_offsets(self) -> None:
        content = self.random.choice([None, b"", b"{", b'{"offsetTable":{"1":99999}}', b'{"offsetTable":{}}'])
        self.bench.files.clear()
        if content is not None:
            self.bench.files["delayOffset.json"] = content

    def restart(self) -> None:
        kind = self.random.randrange(4)
        if kind == 0:
            self.bench.stop()
        elif kind == 1:
            self.bench.lose_power()
            for sent in self.sent.values():
                sent.facts = [fact for fact in sent.facts if fact.end <= len(self.bench.log)]
            self.sent = {body: sent for body, sent in self.sent.items() if sent.facts}
            self.repeating.lose(len(self.bench.log))
            self.pauses = [each for each in self.pauses if each.end <= len(self.bench.log)]
        else:
            self.bench.kill()
        if self.random.random() < 0.3:
            self.bench.snapshot = None
        self.damage_index()
        self.bench.start()

    def damage_index(self) -> None:
        """Loses or damages a file of the timeline's index."""
        files = self.bench.timeline_files
        if files.names() and self.random.random() < 0.2:
            name = self.random.choice(files.names())
            if self.random.random() < 0.5:
                files.remove(name)
            elif size := len(files.read(name) or b""):
                files.damage(name, self.random.randrange(size))

    def check(self) -> None:
        counts = Counter(self.bench.delivered())
        assert all(count == 1 for count in counts.values()), "delivered twice"
        assert set(counts) <= set(self.sent)
        gone = self.gone()
        assert all(self.sent[body].now.due_ms is not None for body in gone), "delivered after it was cancelled"
        pending = {body for body, sent in self.sent.items() if sent.now.due_ms is not None and body not in gone}
        repeating = self.repeating.dues_ms()
        assert self.bench.delivery.pending_total() == len(pending) + len(repeating), "lost"
        by_queue = Counter(self.sent[body].now.level for body in pending)
        by_queue[TIMELINE_QUEUE] += len(repeating)
        partitions = self.bench.delivery.timeline.partitions
        for queue_id in range(TIMELINE_QUEUE, 4):
            assert partitions.of_level(level_of_queue(queue_id)).messages == by_queue[queue_id]
        for queue_id, queue in self.bench.delivery._queues.items():
            _, end = self.bench.store.stored_bounds(SCHEDULE_TOPIC, queue_id)
            assert end - queue.settled.low - queue.settled.above.count == by_queue[queue_id]
        for topic in _TOPICS:
            for group in _GROUPS:
                members = [body for body in pending if (self.sent[body].topic, self.sent[body].group) == (topic, group)]
                assert partitions.totals_of_group(topic, group).messages == len(members), "a group is counted wrongly"
        retried = {entry[2] for entry in self.bench.delivery._hand_over.retries.entries()}
        control = self.bench.delivery.control
        if (
            not retried
            and control.policy is None
            and not control.is_paused
            and self.bench.delivery._hand_over._paused_until_ms == 0
        ):
            # While changes of groups are being applied, some messages are due earlier than the index knows.
            waiting = [self.sent[body] for body in pending if not self.bench.delivery.timeline.sweep]
            dues = [sent.now.due_ms or 0 for sent in waiting if not self.is_paused(sent.topic, sent.group)]
            dues += self.repeating.dues_ms(lambda topic: not self.is_paused(topic, ""))
            expected = min(dues, default=None)
            wakeup_ms = self.bench.delivery.next_wakeup_ms()
            # The timeline may wake up for a message that has ended, but never too late.
            assert expected is None or (wakeup_ms is not None and wakeup_ms <= expected)


def _deliver(life: Life, budget: int = 1_000) -> None:
    before = len(life.bench.store.log)
    life.bench.hand_over(budget)
    life.repeating.note_records(before)


def run_to_the_end(life: Life, steps: int = 150) -> None:
    """Performs random steps, then delivers everything."""
    for _ in range(steps):
        life.step()
        life.check()
    life.resume_all()
    life.repeating.end_all()
    life.bench.now_ms += 20_000
    life.bench.delivery.control.spread(5_000)
    _deliver(life, 1)
    life.bench.delivery.control.resume()
    life.bench.now_ms += 1_000_000
    life.bench.store.flush()
    while life.bench.delivery.maintain():
        continue
    while (wakeup_ms := life.bench.delivery.next_wakeup_ms()) is not None:
        life.bench.now_ms = max(life.bench.now_ms, wakeup_ms)
        _deliver(life)
    life.check()
    assert life.repeating.dues_ms() == []
    expected = {body for body, sent in life.sent.items() if sent.now.due_ms is not None}
    assert sorted([*life.bench.delivered(), *life.bench.expired()]) == sorted(expected)
    life.bench.stop()
    life.bench.start()
    assert life.bench.delivery.corrected == []
    assert life.bench.delivery.pending_total() == 0
    assert life.bench.hand_over() == []
    assert life.bench.delivery.next_wakeup_ms() is None
