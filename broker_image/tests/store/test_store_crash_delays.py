"""Crash states of a store with the scheduler at work: each delayed message is delivered once.

DELAYMQ_CRASH_STATES (default 1,000) and DELAYMQ_SEED as in the other crash replay; a fifth as many states here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.broker.delivery import Delivery
from delaymq.broker.delivery.recovery import Replay
from delaymq.message.levels import DelayLevels
from delaymq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC, UNIQUE_KEY
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import StoreReader
from delaymq_testing.repetitions import CRASH_STATES as STATES
from delaymq_testing.repetitions import SEED
from delaymq_testing.schedule.timeline_index_model import SMALL
from delaymq_testing.store.crash_workload import OPTIONS, Workload
from delaymq_testing.store.recording import QuietFiles, after_crashes
from delaymq_testing.store.small_stores import HOST, Clock, flush
from delaymq_testing.store.small_stores import message as plain_message

LEVELS = DelayLevels.parse("1s 2s 5s")
TOPIC = "Delayed"
RECORDINGS = 4


class Settings:
    delay_level_overflow = "clamp"
    flush_delay_offset_interval = 10
    timer_max_delay_sec = 86_400
    file_reserved_time = 72
    timer_carry_max_bytes_per_second = 1 << 30


def open_with_delivery(path: str, clock: Clock, files: QuietFiles | None) -> tuple[MessageStore, Delivery]:
    replay = Replay(sizes=SMALL)
    store = MessageStore.open(path, OPTIONS, now_ms=clock, levels=LEVELS, files=files, observers=[replay])
    delivery = Delivery(store, replay, Settings(), LEVELS, clock)
    store.hand_on([delivery])
    return store, delivery


class DelayWorkload(Workload):
    """Sends delayed messages, lets time pass, hands over, saves offsets; and all that the other one does."""

    delivery: Delivery

    def open(self) -> MessageStore:
        store, self.delivery = open_with_delivery(self.path, self.clock, self.files)  # type: ignore[arg-type]
        return store

    def run(self, steps: int) -> None:
        kinds = {
            self.send_delayed: 20, self.send_timed: 20, self.merge: 10, self.carry: 10,
            self.send: 3, self.pass_time: 10, self.hand_over: 12, self.save_offsets: 8,
            self.start_flush: 14, self.finish_task: 18, self.start_snapshot: 4, self.allocate: 3,
            self.write_behind: 6, self.kill: 1, self.stop: 1,
        }  # fmt: skip
        for step in self.chance.choices(list(kinds), list(kinds.values()), k=steps):
            step()

    def send(self) -> None:
        self.sent += 1
        self.store.append(plain_message(f"{self.sent:08d}", body=bytes(500)))

    def send_delayed(self) -> None:
        self.sent += 1
        unique = f"{self.sent:08d}"
        level = self.chance.randint(1, 3)
        topic, queue_id, properties = self.delivery.ingress.prepare({UNIQUE_KEY: unique}, TOPIC, self.sent % 2, level)
        record = plain_message(unique, topic=topic, queue_id=queue_id, body=self.chance.randbytes(200), host=HOST)
        record = record._replace(properties=properties)
        self.unflushed.append((unique, self.store.append(record).physical_offset))

    def send_timed(self) -> None:
        self.sent += 1
        unique = f"{self.sent:08d}"
        properties = {UNIQUE_KEY: unique}
        due_ms = self.clock.ms + self.chance.choice([1, 500, 3_000, 20_000])
        statement = self.delivery.ingress.prepare_timed(properties, TOPIC, self.sent % 2, due_ms)
        record = plain_message(unique, topic=TIMER_TOPIC, body=self.chance.randbytes(200), host=HOST)
        record = record._replace(properties=properties, statement=statement)
        self.unflushed.append((unique, self.store.append(record).physical_offset))

    def carry(self) -> None:
        """Carries messages of full segments forward, without deleting these: each record must remain for the check."""
        self.store.set_options(replace(OPTIONS, file_reserved_hours=0, disk_max_used_ratio=0.0))
        for _ in range(8):
            self.delivery.carry(self.clock())

    def merge(self) -> None:
        self.delivery.maintain()

    def pass_time(self) -> None:
        self.clock.ms += self.chance.randint(0, 2_000)

    def hand_over(self) -> None:
        self.delivery.hand_over(self.clock(), self.chance.randint(1, 20))

    def save_offsets(self) -> None:
        task = self.delivery.save_task()
        if task is not None:
            task.run()
            self.running.append((task, []))

    def stop(self) -> None:
        self.delivery.close()
        super().stop()


def check(path: Path, call: int, workload: DelayWorkload) -> int:
    """Open a crash state, let everything come due, count the copies; how many were handed over before the crash."""
    clock = Clock(start_ms=workload.clock.ms + 60_000, step_ms=1)
    before = (
        sum(record.topic == TOPIC for record in StoreReader(path).records()) if (path / "commitlog").exists() else 0
    )
    store, delivery = open_with_delivery(str(path), clock, QuietFiles())
    try:
        flush(store)
        for _ in range(1_000):
            if not delivery.hand_over(clock(), 100):
                break
        delayed: set[str] = set()
        copies: Counter[str] = Counter()
        for record in StoreReader(path).records():
            if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
                delayed.add(record.properties[UNIQUE_KEY])
            elif record.topic == TOPIC:
                copies[record.properties[UNIQUE_KEY]] += 1
        acknowledged = {unique for at, unique, _ in workload.history.acknowledged if at <= call}
        assert acknowledged <= delayed, "an acknowledged message is lost"
        assert {unique for unique in delayed if not copies[unique]} == set(), "never handed over"
        assert [unique for unique, count in copies.items() if count > 1] == [], "handed over twice"
    finally:
        delivery.close()
        store.close()
    return before


@pytest.mark.timeout(300 + STATES // 10)
@pytest.mark.parametrize("recording", range(RECORDINGS))
def test_each_delayed_message_is_delivered_once_after_any_crash(tmp_path: Path, recording: int) -> None:
    seed = SEED + 1_000 + recording
    workload = DelayWorkload(str(tmp_path / "recorded"), seed)
    workload.run(450)
    workload.store.abandon()
    found = after_crashes(
        workload.files,
        seed=seed,
        states=-(-STATES // (5 * RECORDINGS)),
        folder=tmp_path,
        check=lambda state, call: check(state, call, workload),
    )
    handed_over = sum(found)
    assert workload.history.acknowledged
    assert handed_over
