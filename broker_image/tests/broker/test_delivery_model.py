"""Random histories of a store, against a plain list: sends, deliveries, table changes, clocks, failures, crashes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from delaymq.broker.delivery import hand_over, recovery
from delaymq.broker.delivery.copies import copy_of, timed_copy_of
from delaymq.broker.delivery.level_entries import add_entries
from delaymq.broker.delivery.timed import carrying, replay
from delaymq.broker.delivery.timed.carrying import carried_level_record, carried_record
from delaymq.message.levels import DelayLevels, level_of_queue
from delaymq.message.marks import parse_due
from delaymq.message.names import SCHEDULE_TOPIC
from delaymq.message.record import Record
from delaymq.message.timed_marks import first_due
from delaymq.schedule import Entry
from delaymq.schedule.timeline import TIMELINE_QUEUE, PacedTimeline, Pending, Timeline, entries, state, timeline
from delaymq.store.errors import RecordTooLargeError, StoreFullError
from delaymq.store.model import NewRecord
from delaymq_testing.broker.delivery_harness import START_MS, Bench, Settings
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

TABLES = ["1s 5s 10s", "1s", "3s 2s 1s 4s", "20s 1s", "1s 1s 1s"]
STEPS_A_RUN = 150
RUNS = range(max(FUZZ_INPUTS // 600, 1))
"""By default, 33 runs of 150 steps; `make test-long-fuzz` performs 225,000 steps."""
MAX_RUNS_UNTIL_FOUND = 60


@dataclass
class Sent:
    """What the model knows about one message."""

    level: int
    """Queue of the schedule topic, or TIMELINE_QUEUE."""
    due_ms: int
    end: int
    """Of its record in the log."""


class Life:
    """One store, driven at random; `sent` are the messages that the log must still know."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bench = Bench(TABLES[0], Settings(flush_delay_offset_interval=500))
        self.sent: dict[str, Sent] = {}
        self.next_body = 0

    def step(self) -> None:
        choice = self.random.randrange(100)
        if choice < 25:
            self.send()
        elif choice < 45:
            self.send_timed()
        elif choice < 70:
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
        appended = self.bench.send(body, level, properties={"UNIQ_KEY": f"key{self.random.randrange(1_000_000)}"})
        record = self.bench.store.record_at(appended.physical_offset)
        assert record is not None
        due_ms = parse_due(record.properties["__DMQ_DUE"], record.queue_id, record.queue_offset)
        assert due_ms is not None
        self.sent[body] = Sent(record.queue_id, due_ms, len(self.bench.store.log))

    def send_timed(self) -> None:
        body = f"m{self.next_body}"
        self.next_body += 1
        due_ms = self.bench.now_ms + self.random.choice([1, 700, 5_000, 5_000, 20_000, 90_000])
        topic = self.random.choice(["orders", "invoices"])
        self.bench.send_timed(body, due_ms, topic=topic, account=self.random.choice(["", "ann"]))
        self.sent[body] = Sent(TIMELINE_QUEUE, due_ms, len(self.bench.store.log))
        for _ in range(self.random.randrange(3)):
            self.bench.delivery.maintain()

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
        handed_over = self.bench.hand_over(self.random.choice([1, 2, 7, 1_000]))
        for body in handed_over:
            assert self.sent[body].due_ms <= self.bench.now_ms, "early"
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
            self.sent = {body: sent for body, sent in self.sent.items() if sent.end <= len(self.bench.log)}
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
        pending = {body for body in self.sent if body not in counts}
        assert self.bench.delivery.pending_total() == len(pending), "lost"
        by_queue = Counter(self.sent[body].level for body in pending)
        partitions = self.bench.delivery.timeline.partitions
        for queue_id in range(TIMELINE_QUEUE, 4):
            assert partitions.of_level(level_of_queue(queue_id)).messages == by_queue[queue_id]
        for queue_id, queue in self.bench.delivery._queues.items():
            _, end = self.bench.store.queue_bounds(SCHEDULE_TOPIC, queue_id)
            assert end - queue.settled.low - queue.settled.above.count == by_queue[queue_id]
        retried = {entry[2] for entry in self.bench.delivery._hand_over.retries.entries()}
        policy = self.bench.delivery.control.policy
        if not retried and policy is None and self.bench.delivery._hand_over._paused_until_ms == 0:
            expected = min((self.sent[body].due_ms for body in pending), default=None)
            wakeup_ms = self.bench.delivery.next_wakeup_ms()
            # The timeline may wake up for a message that has ended, but never too late.
            assert expected is None or (wakeup_ms is not None and wakeup_ms <= expected)


def run_to_the_end(life: Life) -> None:
    """Performs random steps, then delivers everything."""
    for _ in range(STEPS_A_RUN):
        life.step()
        life.check()
    life.bench.now_ms += 20_000
    life.bench.delivery.control.spread(5_000)
    life.bench.hand_over(1)
    life.bench.delivery.control.resume()
    life.bench.now_ms += 1_000_000
    life.bench.store.flush()
    while (wakeup_ms := life.bench.delivery.next_wakeup_ms()) is not None:
        life.bench.now_ms = max(life.bench.now_ms, wakeup_ms)
        life.bench.hand_over()
    life.check()
    assert sorted(life.bench.delivered()) == sorted(life.sent)
    life.bench.stop()
    life.bench.start()
    assert life.bench.delivery.corrected == []
    assert life.bench.delivery.pending_total() == 0
    assert life.bench.hand_over() == []
    assert life.bench.delivery.next_wakeup_ms() is None


@pytest.mark.parametrize("run", RUNS)
def test_each_message_is_delivered_once_and_never_early(run: int) -> None:
    run_to_the_end(Life(SEED * 1_000_003 + run))


def _nothing(*_: object, **__: object) -> None:
    """Replaces a method whose effect is omitted."""


def _carried_as_new(record: Record, pending: Pending) -> NewRecord:
    copy = carried_record(record, pending)
    return copy._replace(statement=first_due(pending.due_ms))


def _without_mark(*given: Any, **named: Any) -> Any:
    fate, copy = timed_copy_of(*given, **named)
    return fate, copy._replace(statement=None)


def _carried_level_as_new(*given: Any) -> NewRecord:
    return carried_level_record(*given)._replace(statement=None)


def _without_identities(*given: Any) -> list[int]:
    given[-1].clear()
    return add_entries(*given)


def _level_without_mark(*given: Any, **named: Any) -> Any:
    fate, copy = copy_of(*given, **named)
    del copy.properties["__DMQ_MARK"]
    return fate, copy._replace(property_bytes=None)


def _without_levels(self: recovery.Replay, state: object) -> None:
    _restore(self, state)
    self._has_levels = False


def _early(self: Timeline, now_ms: int, count: int) -> list[Entry]:
    return _take(self, now_ms + 400, count)


_take = Timeline.take
_restore = recovery.Replay.restore
BUGS: dict[str, tuple[object, str, object]] = {
    "messages are taken before they are due": (Timeline, "take", _early),
    "a delivered message stays in the index": (Timeline, "settle", _nothing),
    "messages that the full store rejected are forgotten": (Timeline, "give_back", _nothing),
    "marks after the snapshot are ignored": (Timeline, "end", _nothing),
    "marks are ignored when the whole log is replayed": (Timeline, "end_unseen", _nothing),
    "a snapshot omits what waits for another attempt": (Timeline, "taken_messages", property(lambda self: [])),
    "a carried message is a new one": (carrying, "carried_record", _carried_as_new),
    "copies have no mark": (hand_over, "timed_copy_of", _without_mark),
    "the rest of a spread is forgotten": (PacedTimeline, "end", _nothing),
    "damaged states are believed": (state, "crc32", lambda data: 0),
    "the index of the snapshot is ignored": (
        state,
        "restore",
        lambda files, reference, *rest: state.empty(files, *rest),
    ),
    "copies with a delay level have no mark": (hand_over, "copy_of", _level_without_mark),
    "a settled entry from before the snapshot stays in the index": (recovery, "end_entry", _nothing),
    "entries after the snapshot are not in the index": (recovery.Replay, "add_levels", _nothing),
    "entries before the snapshot are added again": (recovery.Replay, "restore", _without_levels),
    "a carried message with a delay level is a new one": (carrying, "carried_level_record", _carried_level_as_new),
    "carried messages with a delay level keep no identity": (recovery, "add_entries", _without_identities),
    "a carried message with a delay level stays at its earlier place": (recovery, "end_carried", _nothing),
    "ended entries are forgotten by the next run": (entries, "packed_end", lambda due_ms, identity: b""),
}


@pytest.mark.parametrize("bug", BUGS)
def test_model_detects_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[bug])
    for module in (replay, timeline):
        if hasattr(module, BUGS[bug][1]):
            monkeypatch.setattr(module, BUGS[bug][1], BUGS[bug][2])
    for run in range(MAX_RUNS_UNTIL_FOUND):
        try:
            run_to_the_end(Life(run))
        except Exception:
            return
    pytest.fail(f"not found in {MAX_RUNS_UNTIL_FOUND} runs")


def test_undisturbed_messages_due_together_are_delivered_in_send_order() -> None:
    for seed in range(8):
        random = Random(seed)
        bench = Bench("1s 2s 3s")
        sent: list[tuple[int, int, str]] = []
        for number in range(200):
            level = random.randrange(1, 4)
            bench.send(f"m{number}", level, queue_id=level)
            sent.append((bench.now_ms + level * 1_000, level, f"m{number}"))
            bench.now_ms += random.choice([0, 0, 0, 1, 40])
            if random.random() < 0.05:
                bench.hand_over(random.choice([1, 10]))
            if random.random() < 0.03:
                bench.kill()
                bench.start()
        bench.run_until(bench.now_ms - START_MS + 5_000)
        for level in range(1, 4):
            copies = [record.body.decode() for record in bench.copies() if record.queue_id == level]
            assert copies == [body for _, of_level, body in sent if of_level == level]


class RealBroker:
    """What RocketMQ's own scheduler does with a store: each queue in order, from the position in delayOffset.json."""

    def __init__(self, bench: Bench, positions: dict[int, int]) -> None:
        self.bench = bench
        self.positions = positions

    def deliver(self) -> list[str]:
        delivered = []
        for queue_id in range(3):
            entries = self.bench.store.entries.get(("SCHEDULE_TOPIC_XXXX", queue_id), [])
            position = self.positions.get(queue_id + 1, 0)
            while position < len(entries) and entries[position][2] <= self.bench.now_ms:
                copy = self.bench.store.record_at(self.bench.foreign_deliver(entries[position][0]).physical_offset)
                assert copy is not None
                delivered.append(copy.body.decode())
                position += 1
            self.positions[queue_id + 1] = position
        return delivered

    def file(self) -> bytes:
        pairs = ",".join(f"{level}:{offset}" for level, offset in self.positions.items() if offset)
        return f'{{\n\t"offsetTable":{{{pairs}\n\t}}\n}}'.encode()


@pytest.mark.parametrize("seed", range(20))
def test_store_alternating_between_brokers_delivers_each_message_once(seed: int) -> None:
    random = Random(seed)
    bench = Bench("1s 3s 9s")
    sent: list[str] = []
    delivered: list[str] = []
    for turn in range(8):
        real = None
        if turn % 2:
            bench.stop()
            bench.start()
            assert bench.delivery.corrected == []
            real = RealBroker(bench, bench.delivery.delay_offsets())
        for _ in range(25):
            body, level = f"m{len(sent)}", random.randrange(1, 4)
            if real is None:
                bench.send(body, level)
            else:
                bench.foreign_send(body, level)
            sent.append(body)
            bench.now_ms += random.randrange(300)
            if random.random() < 0.3:
                delivered += bench.hand_over(random.choice([1, 100])) if real is None else real.deliver()
            if real is not None and random.random() < 0.2:
                bench.files["delayOffset.json"] = real.file()
        if real is not None:
            if random.random() < 0.5:  # a clean stop; otherwise the file is as old as it happens to be
                bench.files["delayOffset.json"] = real.file()
            if random.random() < 0.5:
                bench.snapshot = None
            bench.kill()
            bench.start()
    bench.now_ms += 10_000
    delivered += bench.hand_over()
    assert sorted(delivered) == sorted(sent)
