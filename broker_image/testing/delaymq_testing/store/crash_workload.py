"""A random life of a store over files that are recorded, for tests of what a crash leaves."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

from delaymq.message.levels import DelayLevels
from delaymq.message.marks import format_due
from delaymq.message.names import DUE, SCHEDULE_TOPIC
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord, StoreTask

from delaymq_testing.store.recording import RecordingFiles
from delaymq_testing.store.small_stores import SMALL, Clock, Watcher, message

OPTIONS = replace(SMALL, sync_flush=True, commit_log_file_bytes=24_576, index_slots=40, index_entries=120)


@dataclass
class History:
    """A response that a producer received, with the number of the call after which it came."""

    acknowledged: list[tuple[int, str, int]] = field(default_factory=list)
    """Call, unique id, physical offset."""
    saved_configs: list[tuple[int, int]] = field(default_factory=list)
    """Call after which generation n of a config file was on disk."""


class Workload:
    """A random life of a store: sends, flushes, snapshots, rolls, kills, clean stops."""

    def __init__(self, path: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = RecordingFiles(path)
        self.history = History()
        self.path = path
        self.clock = Clock(step_ms=1)
        self.sent = 0
        self.generation = 0
        self.unflushed: list[tuple[str, int]] = []
        self.running: list[tuple[StoreTask, list[tuple[str, int]]]] = []
        self.store = self.open()

    def open(self) -> MessageStore:
        levels = DelayLevels.parse()
        return MessageStore.open(
            self.path, OPTIONS, now_ms=self.clock, levels=levels, files=self.files, observers=[Watcher()]
        )

    def run(self, steps: int) -> None:
        kinds = {
            self.send: 50, self.batch: 4, self.start_flush: 14, self.finish_task: 18, self.start_snapshot: 4,
            self.allocate: 3, self.write_behind: 8, self.save_config: 2, self.kill: 1, self.stop: 1,
        }  # fmt: skip
        for step in self.chance.choices(list(kinds), list(kinds.values()), k=steps):
            step()

    def _message(self) -> tuple[str, NewRecord]:
        self.sent += 1
        unique = f"{self.sent:08d}"
        topic, queue_id = self.chance.choice([("Orders", 0), ("Orders", 1), ("Watched", 0), (SCHEDULE_TOPIC, 2)])
        body = self.chance.randbytes(int(self.chance.paretovariate(0.9) * 40) % 6_000)
        properties: dict[str, Any] = {"TAGS": self.chance.choice("ab"), "KEYS": f"k{self.sent % 17}"}
        if topic == SCHEDULE_TOPIC:
            offset = self.store.next_queue_offset(topic, queue_id)
            properties |= {"DELAY": "3", DUE: format_due(self.clock.ms + 10_000, queue_id, offset)}
        return unique, message(unique, topic=topic, queue_id=queue_id, body=body, **properties)

    def send(self) -> None:
        unique, record = self._message()
        self.unflushed.append((unique, self.store.append(record).physical_offset))

    def batch(self) -> None:
        count = self.chance.randint(2, 6)
        made = []
        for _ in range(count):
            self.sent += 1
            unique = f"{self.sent:08d}"
            made.append((unique, message(unique, topic="Batch", body=self.chance.randbytes(300))))
        for (unique, _), appended in zip(made, self.store.append_batch([record for _, record in made]), strict=True):
            self.unflushed.append((unique, appended.physical_offset))

    def start_flush(self) -> None:
        task = self.store.flush_task()
        if task is not None:
            task.run()
            self.running.append((task, self.unflushed))
            self.unflushed = []

    def start_snapshot(self) -> None:
        task = self.store.snapshot_task(force=True)
        if task is not None:
            if self.chance.random() < 0.5:
                for _ in range(3):
                    self.send()
            task.run()
            self.running.append((task, []))

    def allocate(self) -> None:
        task = self.store.allocation_task()
        if task is not None:
            task.run()
            self.running.append((task, []))

    def finish_task(self) -> None:
        if self.running:
            task, covered = self.running.pop(self.chance.randrange(len(self.running)))
            assert task.finish() is None
            for unique, offset in covered:
                self.history.acknowledged.append((self.files.calls, unique, offset))

    def write_behind(self) -> None:
        self.store.write_behind(self.chance.randint(1, 3))

    def save_config(self) -> None:
        self.generation += 1
        self.store.config_files.save("topics.json", json.dumps({"generation": self.generation}).encode())
        self.history.saved_configs.append((self.files.calls, self.generation))

    def kill(self) -> None:
        self.store.abandon()
        self._reopen()

    def stop(self) -> None:
        self.store.close()
        self._reopen()

    def _reopen(self) -> None:
        self.unflushed, self.running = [], []
        self.store = self.open()
