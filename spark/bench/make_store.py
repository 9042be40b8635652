"""Create a large store like that of a broker, with the broker's own code, as input of the other programs.

    python spark/bench/make_store.py --dir FOLDER [--bytes 5g] [--timed]

Messages with bodies of 1 KiB (by `--body-bytes`) in six topics of four queues, with the properties that RocketMQ's Java
client and broker give them; one in ten is delayed by 1 to 60 seconds and is stored twice; the last ones are pending.
The delays are those of levels, or with `--timed`, due times.
The folder must not exist, unless an earlier, interrupted run left it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from delaymq.message import names
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels, queue_of_level
from delaymq.message.marks import format_due
from delaymq.message.timed_marks import Statement, TimedMark, TimedMarkKind, first_due
from delaymq.store.message_store import MessageStore
from delaymq.store.model import Dispatched, NewRecord
from delaymq.store.options import StoreOptions

CACHE: Final = Path("~/.cache/delaymq/bench").expanduser()
TOPICS: Final = ("Orders", "Payments", "Shipments", "Invoices", "Notifications", "Clicks")
QUEUES: Final = 4
DELAYED_SHARE: Final = 0.1
LEVELS: Final = DelayLevels.parse(DEFAULT_LEVELS)
_HOST: Final = bytes((10, 0, 0, 7, 0, 0, 42, 159))
_PRODUCER: Final = bytes((10, 0, 0, 21, 0, 0, 180, 12))
_START_MS: Final = 1_790_000_000_000
_PER_MS: Final = 20
_UNFINISHED: Final = "bench-unfinished"
"""Marker file of unfinished stores: only stores with this file are removed."""
_BODIES: Final = 256
_STEP: Final = 50_000
"""Number of messages between two writes of the consume queues, each with a progress report."""
_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_bytes(text: str) -> int:
    """Parse `5g`, `300m` or a number of bytes. ValueError."""
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in _UNITS else (text, "")
    return int(number) * _UNITS.get(unit, 1)


class Generator:
    """Writer that appends messages and delivers delayed ones when they are due by the store's own clock."""

    def __init__(self, path: Path, body_bytes: int, segment_bytes: int, *, timed: bool = False) -> None:
        self.now_ms = _START_MS
        self._timed = timed
        self.count = 0
        chance = random.Random(7)
        self._chance = chance
        self._bodies = [chance.randbytes(body_bytes) for _ in range(_BODIES)]
        self._waiting: list[tuple[int, int, Dispatched, NewRecord]] = []
        self.delivered_up_to: dict[int, int] = {}
        # No index: these programs do not read it, and a broker would rebuild it at startup.
        options = StoreOptions(
            commit_log_file_bytes=segment_bytes, index_enable=False,
            disk_max_used_ratio=0.999, disk_clean_ratio=0.999, disk_write_refused_ratio=0.999,
        )  # fmt: skip
        self.store = MessageStore.open(path, options, now_ms=lambda: self.now_ms, levels=LEVELS)
        if timed:
            self.store.raise_format_version(2)

    def step(self) -> None:
        """Append one message, and the copies that are due."""
        self.count += 1
        if self.count % _PER_MS == 0:
            self.now_ms += 1
        while self._waiting and self._waiting[0][0] <= self.now_ms:
            self._deliver()
        number, chance = self.count, self._chance.random()
        topic, queue_id = TOPICS[number % len(TOPICS)], number // len(TOPICS) % QUEUES
        properties = {
            names.KEYS: f"order-{number:08d}",
            names.UNIQUE_KEY: f"0A000015{number & 0xFFFF:04X}18B4AAC2{number:016X}",
            "CLUSTER": "DefaultCluster",
            "WAIT": "true",
            names.TAGS: f"tag-{number % 7}",
        }
        body = self._bodies[number % _BODIES]
        if chance >= DELAYED_SHARE:
            self._append(topic, queue_id, body, properties)
            return
        level = 1 + int(chance / DELAYED_SHARE * 5)
        properties |= {names.REAL_TOPIC: topic, names.REAL_QUEUE_ID: str(queue_id)}
        if self._timed:
            due_ms = self.now_ms + LEVELS.delay_ms(level)
            properties |= {names.TIMER_DELIVER_MS: str(due_ms), names.TIMER_OUT_MS: str(due_ms)}
            message = self._message(names.TIMER_TOPIC, 0, body, properties, first_due(due_ms))
            heapq.heappush(self._waiting, (due_ms, number, self.store.append(message), message))
            return
        schedule_queue, due_ms = queue_of_level(level), self.now_ms + LEVELS.delay_ms(level)
        entry = self.store.next_queue_offset(names.SCHEDULE_TOPIC, schedule_queue)
        properties |= {names.DELAY: str(level), names.DUE: format_due(due_ms, schedule_queue, entry)}
        message = self._message(names.SCHEDULE_TOPIC, schedule_queue, body, properties)
        heapq.heappush(self._waiting, (due_ms, number, self.store.append(message), message))

    def _deliver(self) -> None:
        due_ms, _, stored, message = heapq.heappop(self._waiting)
        if self._timed:
            self._deliver_timed(due_ms, stored, message)
            return
        place = f"{stored.queue_id}:{stored.queue_offset}:{stored.physical_offset}"
        properties = {**message.properties, names.MARK: f"delivered:{place}"}
        real_topic, real_queue = properties[names.REAL_TOPIC], int(properties[names.REAL_QUEUE_ID])
        self._append(real_topic, real_queue, message.body, properties)
        self.delivered_up_to[stored.queue_id + 1] = stored.queue_offset + 1

    def _deliver_timed(self, due_ms: int, stored: Dispatched, message: NewRecord) -> None:
        properties = {name: text for name, text in message.properties.items() if name != names.DUE}
        place = stored.physical_offset
        mark = TimedMark(
            place=0, kind=TimedMarkKind.DELIVERED, decided_ms=self.now_ms, identity=place, record=place, due_ms=due_ms
        )
        real_topic, real_queue = properties[names.REAL_TOPIC], int(properties[names.REAL_QUEUE_ID])
        self.store.append(self._message(real_topic, real_queue, message.body, properties, mark.statement()))

    def _append(self, topic: str, queue_id: int, body: bytes, properties: dict[str, str]) -> None:
        self.store.append(self._message(topic, queue_id, body, properties))

    def _message(
        self, topic: str, queue_id: int, body: bytes, properties: dict[str, str], statement: Statement | None = None
    ) -> NewRecord:
        return NewRecord(topic, queue_id, body, properties, 0, 0, self.now_ms, _PRODUCER, _HOST, statement=statement)


def make_store(
    path: Path, log_bytes: int, *, body_bytes: int = 1024, segment_bytes: int = 1 << 30, timed: bool = False
) -> int:
    """Create a store with a log of about this size at `path`; return the number of messages sent. FileExistsError."""
    if (path / _UNFINISHED).exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    (path / _UNFINISHED).touch()
    generator = Generator(path, body_bytes, segment_bytes, timed=timed)
    store, began = generator.store, time.monotonic()
    while store.end_offset < log_bytes:
        for _ in range(_STEP):
            generator.step()
            if store.end_offset >= log_bytes:
                break
        while store.write_behind():
            pass
        if sys.stderr.isatty():
            rate = generator.count / (time.monotonic() - began)
            print(f"\r{store.end_offset >> 20} MiB, {rate:,.0f} messages/s", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    levels = {str(level): offset for level, offset in sorted(generator.delivered_up_to.items())}
    store.config_files.save("delayOffset.json", json.dumps({"offsetTable": levels}).encode())
    store.close()
    os.unlink(path / _UNFINISHED)
    return generator.count


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dir", type=Path, default=CACHE / "store", help=f"directory of the store (default: {CACHE}/store)"
    )
    parser.add_argument("--bytes", default="5g", help="size of the log, such as 300m (default: 5g)")
    parser.add_argument("--body-bytes", type=int, default=1024, help="size of a body (default: 1024)")
    parser.add_argument("--timed", action="store_true", help="delay messages by due times instead of levels")
    arguments = parser.parse_args(argv)
    try:
        count = make_store(
            arguments.dir, parse_bytes(arguments.bytes), body_bytes=arguments.body_bytes, timed=arguments.timed
        )
    except ValueError as error:
        parser.error(str(error))
    except FileExistsError:
        print(f"{arguments.dir} is there already: remove it, or name another folder", file=sys.stderr)
        return 2
    print(f"{count} messages in {arguments.dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
