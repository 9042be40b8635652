"""Crash states of a broker during transactions: committed once, never undone, nothing lost.

DELAYMQ_CRASH_STATES (default 1,000) and DELAYMQ_SEED as in the other crash replays; a fifth as many states here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from delaymq.broker.broker import Broker
from delaymq.broker.groups.consumer_group import Client
from delaymq.broker.opening import assemble
from delaymq.broker.requests.results import Deferred
from delaymq.broker.state.parts import Parts
from delaymq.message import names
from delaymq.message.names import UNIQUE_KEY
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import StoreReader
from delaymq_testing.broker.harness import FakeSession, broker_config, send_fields
from delaymq_testing.broker.transactions import COMMIT, GROUP, ROLLBACK, Half
from delaymq_testing.repetitions import CRASH_STATES as STATES
from delaymq_testing.repetitions import SEED
from delaymq_testing.store.crash_workload import OPTIONS, Workload
from delaymq_testing.store.recording import QuietFiles, after_crashes
from delaymq_testing.store.small_stores import Clock, flush

TOPIC = "Orders"
RECORDINGS = 4
CONFIG = broker_config(
    Path("unused"), flush_disk_type="SYNC_FLUSH", message_delay_level="1s 2s", flush_consumer_offset_interval=100
)


def open_broker(path: str, clock: Clock, files: QuietFiles | None) -> Broker:
    """What `open_broker` does, over a file layer of the test's."""
    parts = Parts(CONFIG, clock)
    store = MessageStore.open(path, OPTIONS, now_ms=clock, levels=CONFIG.levels, files=files, observers=parts.observers)
    return assemble(parts, store)


def fate_of(key: str) -> int:
    return COMMIT if int(key) % 3 else ROLLBACK


def prepare(broker: Broker, key: str) -> Half:
    properties = {UNIQUE_KEY: key, "TRAN_MSG": "true", "PGROUP": GROUP}
    if int(key) % 5 == 0:
        properties["DELAY"] = "1"
    sent = send_fields(TOPIC, properties) | {"f": 4, "k": "false"}
    fields = {name: str(value) for name, value in sent.items() if not isinstance(value, bool)}
    command = request_command(RequestCode.SEND_MESSAGE_V2, fields, bytes(int(key) * 7 % 300))
    result = broker.handle(FakeSession(), command)
    assert isinstance(result, Deferred), result
    answer = result.response
    return Half(key, int(answer.fields["queueOffset"]), int(answer.fields["msgId"][16:], 16))


def end(broker: Broker, half: Half) -> Deferred | None:
    """Tells a producer's decision, which depends on the key alone; the answer if the broker took it."""
    fields = {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": str(fate_of(half.key)),
        "msgId": half.key,
    }
    result = broker.handle(FakeSession(), request_command(RequestCode.END_TRANSACTION, fields))
    return result if isinstance(result, Deferred) else None


class TransactionWorkload(Workload):
    """Prepares, ends once or twice, checks, persists, hands over; and all that the other one does."""

    broker: Broker

    def open(self) -> MessageStore:
        self.broker = open_broker(self.path, self.clock, self.files)  # type: ignore[arg-type]
        self.ready: list[Half] = []
        return self.broker.store

    def run(self, steps: int) -> None:
        kinds = {
            self.prepare: 40, self.end: 30, self.send: 3, self.check: 5, self.hand_over: 5, self.persist: 8,
            self.start_flush: 14, self.finish_task: 18, self.start_snapshot: 4, self.allocate: 3,
            self.write_behind: 6, self.kill: 1, self.stop: 1,
        }  # fmt: skip
        for step in self.chance.choices(list(kinds), list(kinds.values()), k=steps):
            step()

    def prepare(self) -> None:
        self.sent += 1
        half = prepare(self.broker, f"{self.sent:08d}")
        self.unflushed.append((f"half {half.key}", half.physical_offset))
        self.ready.append(half)

    def end(self) -> None:
        if self.ready:
            half = self.chance.choice(self.ready)
            if end(self.broker, half) is not None:
                self.unflushed.append((f"ended {half.key}", half.physical_offset))

    def check(self) -> None:
        session = FakeSession()
        client = Client(session, "client", "JAVA", 409, self.clock())
        self.broker.clients.register_producer(client, GROUP)
        self.clock.ms += 70_000
        self.broker.transactions.check(self.clock(), 20)
        for command in session.notified[:5]:
            end(self.broker, Half.of_check(command))
        self.broker.clients.session_closed(session)

    def hand_over(self) -> None:
        self.broker.hand_over(self.clock(), 20)

    def persist(self) -> None:
        task = self.broker.persist_task(self.clock())
        if task is not None:
            task.run()
            task.finish()

    def stop(self) -> None:
        self.broker.close()
        self._reopen()


def check(path: Path, call: int, workload: TransactionWorkload) -> int:
    """Open a crash state, let producers answer, count the messages; how many were committed before the crash."""
    before = Counter(
        record.properties[UNIQUE_KEY]
        for record in (StoreReader(path).records() if (path / "commitlog").exists() else ())
        if record.topic == TOPIC and "TRAN_MSG" in record.properties
    )
    clock = Clock(start_ms=workload.clock.ms + 600_000, step_ms=1)
    broker = open_broker(str(path), clock, QuietFiles())
    try:
        session = FakeSession()
        broker.clients.register_producer(Client(session, "client", "JAVA", 409, clock()), GROUP)
        for _ in range(3):
            clock.ms += 70_000
            while broker.transactions.check(clock(), 64):
                pass
            for command in session.notified:
                end(broker, Half.of_check(command))
            flush(broker.store)
        while broker.hand_over(clock(), 100):
            pass
        assert broker.transactions.totals().pending == 0
        halves: dict[str, int] = {}
        copies: Counter[str] = Counter()
        settled: Counter[int] = Counter()
        for record in StoreReader(path).records():
            if record.topic == names.HALF_TOPIC:
                halves[record.properties[UNIQUE_KEY]] = record.queue_offset
            elif record.topic == TOPIC and "TRAN_MSG" in record.properties:
                copies[record.properties[UNIQUE_KEY]] += 1
            elif record.topic == names.OP_HALF_TOPIC:
                settled[int(record.body)] += 1
        told = {unique for at, unique, _ in workload.history.acknowledged if at <= call}
        acknowledged = {unique.removeprefix("half ") for unique in told if unique.startswith("half ")}
        assert acknowledged <= halves.keys(), "an acknowledged half message is lost"
        committed = {key for key in halves if fate_of(key) == COMMIT}
        assert [key for key in copies if key not in committed] == [], "rolled back and seen"
        assert [key for key, count in copies.items() if count > 1] == [], "committed twice"
        assert committed <= copies.keys(), "committed and never seen"
        assert set(halves.values()) <= settled.keys(), "settled without an op mark"
    finally:
        broker.close()
    return sum(before.values())


@pytest.mark.timeout(300 + STATES // 10)
@pytest.mark.parametrize("recording", range(RECORDINGS))
def test_each_transaction_has_its_fate_after_any_crash(tmp_path: Path, recording: int) -> None:
    seed = SEED + 2_000 + recording
    workload = TransactionWorkload(str(tmp_path / "recorded"), seed)
    workload.run(450)
    workload.store.abandon()
    found = after_crashes(
        workload.files,
        seed=seed,
        states=-(-STATES // (5 * RECORDINGS)),
        folder=tmp_path,
        check=lambda state, call: check(state, call, workload),
    )
    committed = sum(found)
    assert any(unique.startswith("ended") for _, unique, _ in workload.history.acknowledged)
    assert committed
