"""A broker's delivery on a store in memory with a stopped clock, driven by scenarios and tests."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq.broker.delivery import Delivery
from delaymq.broker.delivery.delay_rewrite import requested_level, strip_own
from delaymq.broker.delivery.recovery import Replay
from delaymq.message.levels import DelayLevels
from delaymq.message.names import DELAY_RUN, MARK, MARKS_TOPIC, REPEATING, SCHEDULE_TOPIC, TIMER_TOPIC
from delaymq.message.record import Record
from delaymq.store.model import Dispatched, NewRecord

from delaymq_testing.broker.memory_store import MemoryStore
from delaymq_testing.schedule.memory_files import MemoryFiles
from delaymq_testing.schedule.timeline_index_model import SMALL

START_MS = 1_700_000_000_000
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


@dataclass
class Settings:
    """The part of a broker's configuration that delays need."""

    delay_level_overflow: str = "clamp"
    flush_delay_offset_interval: int = 10_000
    timer_max_delay_sec: int = 10 * 365 * 86_400
    file_reserved_time: int = 72
    timer_carry_max_bytes_per_second: int = 1 << 30


class Bench:
    """One store, and one delivery at a time on it."""

    def __init__(self, levels: str = "1s 5s 10s", settings: Settings | None = None) -> None:
        self.now_ms = START_MS
        self.levels = DelayLevels.parse(levels)
        self.settings = settings or Settings()
        self.files: dict[str, bytes] = {}
        self.log = b""
        self.min_offset = 0
        self.snapshot: tuple[int, dict[str, object]] | None = None
        self.timeline_files = MemoryFiles()
        self.format_version = 1
        self.start()

    def clock(self) -> int:
        return self.now_ms

    def start(self) -> None:
        """Opens what is there."""
        replay = Replay(sizes=SMALL)
        self.store = MemoryStore(
            now_ms=self.clock,
            levels=self.levels,
            observers=[replay],
            log=self.log,
            files=self.files,
            snapshot=self.snapshot,
            min_offset=self.min_offset,
            timeline_files=self.timeline_files,
            format_version=self.format_version,
        )
        self.delivery = Delivery(self.store, replay, self.settings, self.levels, self.clock)
        self.wakeups = 0
        self.delivery.on_wakeup_earlier = self._note_wakeup
        self.store.observers = [self.delivery]

    def _note_wakeup(self) -> None:
        self.wakeups += 1

    def kill(self) -> None:
        """kill -9: what was appended stays, what only the process knew goes."""
        self._keep(len(self.store.log))

    def lose_power(self) -> None:
        """What was not flushed goes too."""
        self._keep(self.store.flushed_offset)

    def _keep(self, end: int) -> None:
        self.log = bytes(self.store.log[:end])
        self.format_version = self.store.format_version
        self.timeline_files.lose_power()
        self.min_offset = self.store.min_offset
        if self.snapshot is not None and self.snapshot[0] > end:
            self.snapshot = None

    def stop(self) -> None:
        """A clean stop: delayOffset.json, then the snapshot."""
        self.delivery.close()
        self.take_snapshot()
        self.kill()

    def take_snapshot(self) -> None:
        """As the store does: the states of now, stated when all up to now is on the disk."""
        self.snapshot = self.store.snapshot()
        self.store.flush()

    def save(self) -> None:
        """Lets the delivery write delayOffset.json if it may."""
        if (task := self.delivery.save_task()) is not None:
            task.run()
            assert task.finish() is None

    def send(
        self,
        body: str,
        level: int = 0,
        *,
        topic: str = "orders",
        queue_id: int = 0,
        properties: dict[str, str] | None = None,
        reconsume_times: int = 0,
    ) -> Dispatched:
        """What a send does: strips, prepares, appends. The body is the unique key too, unless one is given."""
        own = {"UNIQ_KEY": body} if properties is None else dict(properties)
        strip_own(own)
        if level:
            own["DELAY"] = str(level)
        wanted = requested_level(own)
        if wanted:
            topic, queue_id, own = self.delivery.ingress.prepare(own, topic, queue_id, wanted)
        return self.append(body, topic=topic, queue_id=queue_id, properties=own, reconsume_times=reconsume_times)

    def send_timed(
        self,
        body: str,
        due_ms: int,
        *,
        topic: str = "orders",
        queue_id: int = 0,
        account: str = "",
        properties: dict[str, str] | None = None,
        **more: str,
    ) -> Dispatched:
        """Stores a message with a due time, as a send does. The properties may be given in either way."""
        properties = {"UNIQ_KEY": body, **(properties or {}), **more}
        statement = self.delivery.ingress.prepare_timed(properties, topic, queue_id, due_ms, account)
        return self.store.append(
            NewRecord(TIMER_TOPIC, 0, body.encode(), properties, 0, 0, self.now_ms, HOST, HOST, statement=statement)
        )

    def append(
        self, body: str, *, topic: str, queue_id: int, properties: dict[str, str], reconsume_times: int = 0
    ) -> Dispatched:
        """Appends as it stands, as a foreign broker would."""
        return self.store.append(
            NewRecord(topic, queue_id, body.encode(), properties, 0, 0, self.now_ms, HOST, HOST, reconsume_times)
        )

    def foreign_send(
        self, body: str, level: int, *, topic: str = "orders", queue_id: int = 0, **more: str
    ) -> Dispatched:
        """A delayed message as the real broker stores it."""
        properties = {
            "UNIQ_KEY": body,
            "DELAY": str(level),
            "REAL_TOPIC": topic,
            "REAL_QID": str(queue_id),
            **more,
        }
        return self.append(body, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=properties)

    def foreign_deliver(self, physical_offset: int) -> Dispatched:
        """The real broker's copy of a delayed record: everything stays, no mark."""
        record = self.store.record_at(physical_offset)
        assert record is not None
        properties = record.properties
        return self.store.append(
            NewRecord(
                properties["REAL_TOPIC"],
                int(properties["REAL_QID"]),
                record.body,
                properties,
                record.flag,
                record.sys_flag,
                record.born_timestamp_ms,
                record.born_host,
                record.store_host,
                record.reconsume_times,
            )
        )

    def hand_over(self, budget: int = 1_000) -> list[str]:
        """Bodies of what is handed over now, in order."""
        before = len(self.store.log)
        self.delivery.hand_over(self.now_ms, budget)
        return [record.body.decode() for record in self.copies() if record.physical_offset >= before]

    def expired(self) -> list[str]:
        """Unique keys of the messages that were dropped because they were late."""
        return [
            self._body_at(int(record.properties["KEYS"]))
            for record in self.store.records()
            if record.topic == MARKS_TOPIC and ":expired:" in record.properties[MARK] and not self._repeats(record)
        ]

    def _repeats(self, mark: Record) -> bool:
        message = self.store.record_at(int(mark.properties["KEYS"]))
        assert message is not None
        return not REPEATING.isdisjoint(message.properties)

    def _body_at(self, place: int) -> str:
        record = self.store.record_at(place)
        assert record is not None
        return record.body.decode()

    def run_until(self, offset_ms: int) -> list[str]:
        """Hands over at each wake-up until `offset_ms` after the start."""
        handed_over = []
        end_ms = START_MS + offset_ms
        while (wakeup_ms := self.delivery.next_wakeup_ms()) is not None and wakeup_ms <= end_ms:
            self.now_ms = max(self.now_ms, wakeup_ms)
            handed_over += self.hand_over()
        self.now_ms = end_ms
        return handed_over

    def copies(self) -> list[Record]:
        """Records outside the schedule topic, without marks."""
        return [
            record for record in self.store.records() if record.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC, MARKS_TOPIC)
        ]

    def delivered(self) -> list[str]:
        """Bodies of all marked copies in the log, without those of repeating messages."""
        return [
            record.body.decode()
            for record in self.copies()
            if MARK in record.properties and DELAY_RUN not in record.properties
        ]
