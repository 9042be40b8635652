"""Stores of mixed content, damaged bit by bit: what a broker makes of them must cost only the messages that were hit.

A template is built once and its files are kept in memory. A case writes them, flips bits of the log, opens the store
with a broker, lets everything come due, closes it and reads what is there (plain_reader).
"""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from delaymq.broker.broker import Broker
from delaymq.broker.groups.consumer_group import Client
from delaymq.broker.opening import assemble
from delaymq.broker.state.parts import Parts
from delaymq.message.names import HALF_TOPIC, SCHEDULE_TOPIC
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.store.message_store import MessageStore
from delaymq.store.options import StoreOptions

from delaymq_testing.broker.harness import FakeSession, broker_config, send_fields
from delaymq_testing.store.plain_reader import Found, read_log, read_queues
from delaymq_testing.store.small_stores import flush
from delaymq_testing.store.timed_records import TimedStore

GROUP = "payers"
COMMIT, ROLLBACK = 8, 12
MAX_CARRIES = 50
OPTIONS = StoreOptions(
    commit_log_file_bytes=32_768,
    consume_queue_file_bytes=2_000,
    index_slots=64,
    index_entries=800,
    snapshot_interval_bytes=1 << 40,
)
CONFIG = broker_config(Path("unused"), message_delay_level="1s 2s 5s", auto_create_subscription_group=True)
_OWN_TOPICS = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_")


class Clock:
    """The wall clock of a case."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def open_broker(path: Path, clock: Clock, files: Any) -> Broker:
    """What `open_broker` does, over small files that do not wait for the disk."""
    parts = Parts(CONFIG, clock)
    store = MessageStore.open(path, OPTIONS, now_ms=clock, levels=CONFIG.levels, files=files, observers=parts.observers)
    return assemble(parts, store)


@dataclass
class Template:
    """A store before it is damaged."""

    name: str
    files: dict[str, bytes]
    records: list[Found]
    end_ms: int
    owners: dict[int, str] = field(default_factory=dict)
    """Physical offset of a record → the message that it is about."""
    fates: dict[str, Counter[str]] = field(default_factory=dict)
    """Message → how often it is found in which topic in the end, undamaged."""

    def __post_init__(self) -> None:
        at = {record.at: record for record in self.records}
        for record in self.records:
            key = record.properties.get("UNIQ_KEY")
            if key is None and (origin := at.get(_origin(record))) is not None:
                key = origin.properties["UNIQ_KEY"]
            self.owners[record.at] = key or ""

    @property
    def has_snapshot(self) -> bool:
        return "delaymq/snapshot.json" in self.files

    def write(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def hit_by(self, positions: list[int]) -> set[str]:
        """The messages that have a record with one of these physical offsets in it."""
        return {
            self.owners[record.at]
            for record in self.records
            for position in positions
            if record.at <= position < record.at + record.size
        }


class Workload:
    """Fills a store by requests, as clients do."""

    def __init__(self, path: Path, files: Any, seed: int) -> None:
        self.path, self.files = path, files
        self.chance = random.Random(seed)
        self.clock = Clock()
        self.broker = open_broker(path, self.clock, files)
        self.session = FakeSession()
        self.sent = 0
        self.halves: list[tuple[str, int, int]] = []

    def round(self, *, small: bool = False) -> None:
        """Some of everything."""
        steps = [self.plain] * 26 + [self.delayed] * 22 + [self.half] * 8 + [self.batch] * 3 + [self.retry] * 4
        steps += [self.dead_letter] * 2 + [self.end] * 6 + [self.pass_time] * 5
        steps += [self.timed] * 14 + [self.undeliverable] * 12 + [self.carry] * 3
        self.chance.shuffle(steps)
        for step in steps[: len(steps) // 3] if small else steps:
            step()

    def key(self) -> str:
        self.sent += 1
        return f"M{self.sent:07d}"

    def body(self) -> bytes:
        return self.chance.randbytes(self.chance.choice([0, 20, 20, 60, 200]))

    def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> Any:
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
        result = self.broker.handle(self.session, request_command(code, texts, body))
        answer: Any = getattr(result, "response", result)
        assert answer.code == 0, answer
        self.clock.now_ms += self.chance.choice([0, 1, 3])
        return answer

    def send(self, topic: str, queue_id: int, properties: dict[str, str], **fields: Any) -> Any:
        header = send_fields(topic, properties) | {"e": queue_id} | fields
        return self.ask(RequestCode.SEND_MESSAGE_V2, header, fields.pop("data", None) or self.body())

    def plain(self) -> None:
        key = self.key()
        topic = self.chance.choice(["Orders", "Orders", "Bills"])
        self.send(topic, self.sent % 4, {"UNIQ_KEY": key, "KEYS": f"k{key}"})

    def delayed(self) -> None:
        level = str(self.chance.choice([1, 1, 2, 3]))
        self.send("Delayed", self.sent % 2, {"UNIQ_KEY": self.key(), "DELAY": level, "TAGS": "late"})

    def batch(self) -> None:
        messages = [BatchMessage(0, self.body(), f"UNIQ_KEY\x01{self.key()}".encode()) for _ in range(4)]
        fields = send_fields("Orders", {}) | {"e": self.sent % 4, "m": True}
        self.ask(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(messages))

    def half(self) -> None:
        key = self.key()
        properties = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": GROUP}
        if self.sent % 3 == 0:
            properties["DELAY"] = "2"
        answer = self.send("Paid", self.sent % 2, properties, f=4)
        self.halves.append((key, int(answer.fields["queueOffset"]), int(answer.fields["msgId"][16:], 16)))

    def end(self) -> None:
        if self.halves:
            end_transaction(self.broker, self.session, *self.halves.pop(self.chance.randrange(len(self.halves))))

    def timed(self) -> None:
        delay_ms = self.chance.choice([100, 1_000, 5_000, 300_000])
        self.send("Timed", self.sent % 2, {"UNIQ_KEY": self.key(), "TIMER_DELAY_MS": str(delay_ms)})

    def undeliverable(self) -> None:
        """A timed message that becomes a dead letter, or a mark alone: clients cannot send it."""
        topic = self.chance.choice([SCHEDULE_TOPIC, HALF_TOPIC])
        due_ms = self.clock() + self.chance.choice([100, 1_000])
        TimedStore(self.broker.store).schedule(self.key(), due_ms, topic=topic)

    def retry(self) -> None:
        self.send_back({"delayLevel": 1})

    def dead_letter(self) -> None:
        self.send_back({"delayLevel": -1})

    def send_back(self, fields: dict[str, Any]) -> None:
        answer = self.send("Retried", self.sent % 2, {"UNIQ_KEY": self.key()})
        offset = int(answer.fields["msgId"][16:], 16)
        self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": offset, "group": "readers"} | fields)

    def pass_time(self) -> None:
        self.clock.now_ms += self.chance.randint(300, 1_500)
        self.broker.hand_over(self.clock(), self.chance.randint(1, 30))

    def carry(self) -> None:
        """Carry the pending messages of full segments forward; their earlier records remain."""
        flush(self.broker.store)
        self.broker.store.set_options(replace(OPTIONS, file_reserved_hours=0, disk_max_used_ratio=0.0))
        self.clock.now_ms += 30_000  # a pass over all queues begins
        for _ in range(20):
            self.broker.delivery.carry(self.clock())
            self.clock.now_ms += 1
        self.broker.store.set_options(OPTIONS)

    def carry_a_level(self) -> None:
        """Carry until the log contains a carried message with a delay level: not every order of steps leads to one."""
        for _ in range(MAX_CARRIES):
            if any(":carried:" in record.properties.get("__DMQ_MARK", "") for record in read_log(self.path)):
                return
            for step in [self.delayed] * 5 + [self.plain] * 20 + [self.carry]:
                step()
        raise AssertionError("no message with a delay level was carried")

    def snapshot(self) -> None:
        persist(self.broker, self.clock)
        self.broker.delivery.close()  # flushes, and writes delayOffset.json
        task = self.broker.store.snapshot_task(force=True)
        assert task is not None
        task.run()
        assert task.finish() is None

    def files_now(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.path)): path.read_bytes()
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and path.name != "lock"
        }


def persist(broker: Broker, clock: Clock) -> None:
    if (task := broker.persist_task(clock())) is not None:
        task.run()
        task.finish()


def end_transaction(broker: Broker, session: FakeSession, key: str, queue_offset: int, physical_offset: int) -> None:
    """Tells a producer's decision, which depends on the key alone."""
    fields = {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(physical_offset),
        "commitOrRollback": str(ROLLBACK if key[-1:] in "05" else COMMIT),
        "msgId": key,
    }
    broker.handle(session, request_command(RequestCode.END_TRANSACTION, fields))


def build(folder: Path, files: Any, seed: int, *, small: bool = False) -> list[Template]:
    """The templates: killed behind a snapshot, killed without one, stopped with one, stopped without one."""
    work = Workload(folder / "made", files, seed)
    work.round(small=small)
    work.snapshot()
    work.round(small=small)
    if not small:
        work.carry_a_level()
    persist(work.broker, work.clock)
    work.broker.store.abandon()
    killed = work.files_now()
    work.broker = open_broker(work.path, work.clock, files)
    work.broker.close()
    stopped = work.files_now()
    records = read_log(work.path)
    snapshot = "delaymq/snapshot.json"
    templates = [
        Template("killed behind a snapshot", killed, records, work.clock()),
        Template("killed", {name: data for name, data in killed.items() if name != snapshot}, records, work.clock()),
        Template("stopped", stopped, records, work.clock()),
        Template(
            "stopped without a snapshot",
            {name: data for name, data in stopped.items() if name != snapshot},
            records,
            work.clock(),
        ),
    ]
    for template in templates:
        template.write(folder / "case")
        template.fates = outcome(folder / "case", files, template.end_ms, template.owners).fates
    return templates


@dataclass
class Outcome:
    """What is there when everything has come due."""

    fates: dict[str, Counter[str]]
    unreachable: set[str]
    """Messages with a record that its queue does not lead to."""
    numbers: dict[int, tuple[str, int, int]]
    """Physical offset → topic, queue and number by which consumers find the record."""
    blanks: int
    records: int


def outcome(path: Path, files: Any, now_ms: int, owners: dict[int, str]) -> Outcome:
    """Opens a store, delivers what is pending, answers for half messages, closes, and reads what is there.

    `owners`: of the records that were there before; a damaged one may name another message.
    """
    clock = Clock(now_ms + 600_000)
    broker = open_broker(path, clock, files)
    try:
        _let_all_come(broker, clock)
    finally:
        broker.close()
    return look(path, owners, now_ms + 600_000)


def look(path: Path, owners: dict[int, str], since_ms: int) -> Outcome:
    """What a closed store holds."""
    found = read_log(path)
    owners = dict(owners)
    queues = read_queues(path)
    numbers = {
        offset: (topic, queue_id, number)
        for (topic, queue_id), queue in queues.items()
        for number, offset in queue.places.items()
    }
    fates: dict[str, Counter[str]] = defaultdict(Counter)
    unreachable = set()
    for record in found:
        key = owners[record.at] = _owner(record, owners, since_ms)
        if record.is_filler or not key or not record.in_queue:
            continue
        if numbers.get(record.at) != (record.topic, record.queue_id, record.number):
            unreachable.add(key)
        elif not record.topic.startswith(_OWN_TOPICS):
            fates[key][record.topic] += 1
    return Outcome(fates, unreachable, numbers, sum(queue.blanks for queue in queues.values()), len(found))


def _owner(record: Found, owners: dict[int, str], since_ms: int) -> str:
    """The message that a record is about: by its place, by the record that it was made of, or by what it says.

    Where the log's damaged tail was cut, a record stored since `since_ms` may have replaced another.
    """
    if record.at in owners and record.stored_ms < since_ms:
        return owners[record.at]
    return owners.get(_origin(record)) or record.properties.get("UNIQ_KEY", "")


def _origin(record: Found) -> int:
    """The physical offset of the record that this one was made of, by its mark or transaction; -1 if it says none."""
    words = record.properties.get("__DMQ_MARK", "").split(":")
    origin = words[4] if words[0] == "2" and len(words) > 4 else words[-1]
    return int(origin) if origin.isdecimal() else record.prepared_offset or -1


def _let_all_come(broker: Broker, clock: Clock) -> None:
    session = FakeSession()
    flush(broker.store)  # messages that were carried are delivered once their records are on disk
    broker.clients.register_producer(Client(session, "client", "JAVA", 409, clock()), GROUP)
    for _ in range(2):
        clock.now_ms += 70_000
        while broker.transactions.check(clock(), 64):
            pass
        for command in session.notified:
            fields = command.fields
            key = fields.get("msgId", "M0")
            end_transaction(broker, session, key, int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"]))
        session.notified.clear()
        for _ in range(10_000):
            if not broker.hand_over(clock(), 1_000):
                break


def damage(template: Template, chance: random.Random, *, double: bool) -> list[tuple[int, int]]:
    """Physical offset and bit of each flip: one anywhere in the used log; or two, in neighbours or in two places."""
    if not double:
        return [_in_record(chance.choice(template.records), chance)]
    if chance.random() < 0.5:
        first = chance.randrange(len(template.records) - 1)
        pair = template.records[first : first + 2]
    else:
        pair = chance.sample(template.records, 2)
    return [_in_record(record, chance) for record in pair]


def _in_record(record: Found, chance: random.Random) -> tuple[int, int]:
    # Half of the flips go to the head: what no checksum covers is there.
    reach = 88 if chance.random() < 0.5 else record.size
    return record.at + chance.randrange(min(reach, record.size)), chance.randrange(8)


def flip(folder: Path, flips: list[tuple[int, int]]) -> None:
    size = OPTIONS.commit_log_file_bytes
    for at, bit in flips:
        with (folder / "commitlog" / f"{at // size * size:020d}").open("r+b") as file:
            file.seek(at % size)
            byte = file.read(1)[0]
            file.seek(at % size)
            file.write(bytes([byte ^ 1 << bit]))


def problems_of(template: Template, found: Outcome, flips: list[tuple[int, int]]) -> list[str]:
    """What a case lost, delivered twice, or made unreachable beyond the messages that were hit."""
    hit = template.hit_by([at for at, _ in flips])
    problems = []
    for key, expected in template.fates.items():
        if key in hit:
            continue
        got = found.fates.get(key, Counter())
        if key in found.unreachable:
            problems.append(f"{key} is unreachable")
        elif expected - got:
            problems.append(f"{key} is lost: {dict(expected)} expected, {dict(got)} found")
        elif got - expected:
            problems.append(f"{key} is duplicated: {dict(expected)} expected, {dict(got)} found")
    problems += [
        f"{key} was rolled back and is seen" for key in found.fates if key not in template.fates and key not in hit
    ]
    # Of two records that claim one place, nothing may tell which one was hit: the other one moves.
    claimed = [found.numbers.get(record.at) for record in template.records if template.owners[record.at] in hit]
    for record in template.records:
        if record.in_queue and template.owners[record.at] not in hit:
            place = found.numbers.get(record.at)
            if place != record.place and (place is None or record.place not in claimed):
                problems.append(f"the record at {record.at} moved to {place} from {record.topic} {record.number}")
    if found.blanks > 64:
        problems.append(f"{found.blanks} blank queue entries")
    return problems


def run_case(template: Template, folder: Path, files: Any, flips: list[tuple[int, int]]) -> list[str]:
    """One damaged store from its template to its problems."""
    template.write(folder)
    flip(folder, flips)
    return problems_of(template, outcome(folder, files, template.end_ms, template.owners), flips)
