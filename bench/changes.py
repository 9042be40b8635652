"""Measure changes of pending messages within the process, without sockets: processor time per request."""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from delaymq.broker.broker import Broker
from delaymq.broker.opening import open_broker
from delaymq.config import BrokerConfig
from delaymq.message.properties import format_properties
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response
from delaymq.server.main import GC_THRESHOLDS
from delaymq_testing.broker.harness import FakeSession, response_of, send_fields

DAY_MS = 86_400_000
BODY = bytes(100)
SEGMENT_BYTES = 64 << 20
TURN_REQUESTS = 200
"""Requests between two turns of the broker's work in the background."""
SNAPSHOT_REQUESTS = 100_000


def _now_ms() -> int:
    return int(time.time() * 1_000)


def _send(**properties: str) -> Command:
    fields = {name: str(value) for name, value in send_fields("Orders").items()}
    fields["i"] = format_properties(properties)
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=BODY)


def _unique_id(number: int) -> str:
    return f"7F0000010A2B18B4AAC2{number:012X}"


def _key(number: int) -> str:
    return f"reminder-{number}"


def _due(chance: random.Random) -> str:
    return str(_now_ms() + DAY_MS + chance.randrange(300 * DAY_MS))


def _schedule(number: int, chance: random.Random, **properties: str) -> Command:
    return _send(UNIQ_KEY=_unique_id(number), TAGS="a", TIMER_DELIVER_MS=_due(chance), **properties)


class Requests:
    """Requests of one client to a broker, and the processor time in ns that each of them took."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._session = FakeSession()
        self._count = 0

    def make(self, commands: Iterable[Command]) -> Iterator[int]:
        """Make the requests, all of which must succeed."""
        for command in commands:
            before = time.thread_time_ns()
            result = self._broker.handle(self._session, command)
            yield time.thread_time_ns() - before
            response: Response = response_of(result)
            if response.code:
                raise SystemExit(f"a request was rejected with code {response.code}: {response.remark}")
            self._count += 1
            if not self._count % TURN_REQUESTS:
                self._work()

    def _work(self) -> None:
        """Do what the server does between requests."""
        store = self._broker.store
        tasks = [store.flush_task()]
        if not self._count % SNAPSHOT_REQUESTS:
            tasks.append(store.snapshot_task(force=True))
        for task in tasks:
            if task is not None:
                task.run()
                task.finish()
        store.write_behind()
        while self._broker.delivery.maintain():
            pass


def _rows(pending: int, count: int, chance: random.Random) -> Iterator[tuple[str, list[Command]]]:
    """Yield the names of the measurements and their requests."""
    chosen = chance.sample(range(pending), 4 * count)
    cancelled, by_id, moved, replaced = (chosen[at : at + count] for at in range(0, 4 * count, count))
    new = range(pending, pending + 3 * count)
    yield "cancel by DELAY_KEY", [_send(DELAY_ACTION="cancel", DELAY_KEY=_key(each)) for each in cancelled]
    yield "cancel by unique id", [_send(TIMER_DEL_UNIQKEY=_unique_id(each)) for each in by_id]
    yield "move", [_send(DELAY_ACTION="move", DELAY_KEY=_key(each), TIMER_DELIVER_MS=_due(chance)) for each in moved]
    renewed = zip(new, replaced, strict=False)
    yield "replace", [_schedule(number, chance, DELAY_KEY=_key(each)) for number, each in renewed]
    yield "schedule with a key", [_schedule(each, chance, DELAY_KEY=_key(each)) for each in new[count : 2 * count]]
    yield "send", [_send(UNIQ_KEY=_unique_id(each)) for each in new[2 * count :]]


def main(words: list[str]) -> int:
    """Print the figures; return 0."""
    parser = argparse.ArgumentParser(prog="bench/changes.py", description=__doc__)
    parser.add_argument("--pending", type=int, default=400_000, metavar="COUNT", help="pending messages (400000)")
    parser.add_argument("--requests", type=int, default=10_000, metavar="COUNT", help="requests of each kind (10000)")
    parser.add_argument("--folder", type=Path, help="folder with room for 700 bytes per message (default: TMPDIR)")
    arguments = parser.parse_args(words)
    if not 0 < 4 * arguments.requests <= arguments.pending:
        parser.error("--pending must be at least four times --requests")
    chance = random.Random(1)
    gc.set_threshold(*GC_THRESHOLDS)
    with tempfile.TemporaryDirectory(prefix="delaymq-changes-", dir=arguments.folder) as path:
        config = BrokerConfig(
            store_path_root_dir=path, broker_fast_failure_enable=False, mapped_file_size_commit_log=SEGMENT_BYTES
        )
        broker = open_broker(config, _now_ms)
        requests = Requests(broker)
        for _ in requests.make(
            _schedule(number, chance, DELAY_KEY=_key(number)) for number in range(arguments.pending)
        ):
            pass
        gc.collect()
        gc.freeze()
        print(f"{broker.delivery.pending_total():,} pending messages; processor time per request:")
        for name, commands in _rows(arguments.pending, arguments.requests, chance):
            times = sorted(requests.make(commands))
            mean, median, high = sum(times) / len(times), times[len(times) // 2], times[len(times) * 99 // 100]
            print(
                f"{name}: {mean / 1e3:.1f} µs, p50 {median / 1e3:.1f} µs, p99 {high / 1e3:.1f} µs, {1e9 / mean:,.0f}/s",
                flush=True,
            )
        broker.store.abandon()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
