"""A backup made under load is restored after the loss of a broker: its messages exist once and are delivered once."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from delaymq.client import Client, Message, Producer
from harness.brokers import OurCluster
from harness.commitlog import Record, records

LEVELS = "1s 2s 4s 60m"
"""Messages of the last level stay pending during the tests; all others are overdue when the store is restored."""
SHORT_DELAYS_S = 4
SEGMENT_BYTES = 256 << 10
CONFIG = {"messageDelayLevel": LEVELS, "mappedFileSizeCommitLog": str(SEGMENT_BYTES)}
TOPIC = "Backed"
LIMIT_S = 90.0
SPREAD_MS = 3_000
pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A broker that was backed up under load, killed and discarded; its log is kept for comparison."""

    log: Path
    backup: Path
    end: int
    first: dict[str, Any]
    second: dict[str, Any]

    def records(self) -> list[Record]:
        """Return the original's records below the end of the backup."""
        return [each for each in records(self.log, with_bodies=True) if each.physical_offset < self.end]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    base = tmp_path_factory.mktemp("lost")
    cluster = OurCluster(config=CONFIG)
    try:
        cluster.start()
        with Load(cluster.namesrv_address) as load:
            load.wait_for(1_500)
            first = delaymq("backup", f"http://{cluster.http_address}", str(base / "backup"))
            load.wait_for(load.acknowledged + 1_500)
            second = delaymq("backup", f"http://{cluster.http_address}", str(base / "backup"))
            load.wait_for(load.acknowledged + 300)
            cluster.kill()
        shutil.copytree(cluster.store_path / "commitlog", base / "log" / "commitlog")
    finally:
        cluster.close()
    time.sleep(SHORT_DELAYS_S)
    return Lost(log=base / "log", backup=base / "backup", end=second["endOffset"], first=first, second=second)


class Load:
    """Sends messages, most of them delayed, until its block ends."""

    def __init__(self, address: str) -> None:
        self.acknowledged = 0
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send()))

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)

    def wait_for(self, count: int) -> None:
        give_up_at = time.monotonic() + LIMIT_S
        while self.acknowledged < count:
            assert self._thread.is_alive()
            assert time.monotonic() < give_up_at, f"only {self.acknowledged} of {count} messages were acknowledged"
            time.sleep(0.02)

    async def _send(self) -> None:
        async with Client(self._address) as client, Producer(client, "backup_senders") as producer:
            await asyncio.gather(*(self._sender(producer, number) for number in range(8)))

    async def _sender(self, producer: Producer, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            level = (count + number) % 5
            body = f"{number}-{count}".encode() + b"." * 300
            try:
                await producer.send(Message(topic=TOPIC, body=body, keys=(f"{number}-{count}",), delay_level=level))
            except Exception:
                if self._stop.is_set():
                    return
                await asyncio.sleep(0.05)
            else:
                self.acknowledged += 1


def delaymq(command: str, *words: str) -> dict[str, Any]:
    """Return the JSON output of a store command."""
    done = subprocess.run(
        [sys.executable, "-m", "delaymq", "store", command, *words, "--json"],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(command, done.stdout.strip())
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def settled_by(log: list[Record]) -> dict[int, list[tuple[str, Record]]]:
    """Return physical offset of a delayed record → marks that refer to it, with the records that contain them."""
    found: dict[int, list[tuple[str, Record]]] = {}
    for each in log:
        if "__DMQ_MARK" in each.properties:
            kind, _, _, offset = each.properties["__DMQ_MARK"].split(":")
            found.setdefault(int(offset), []).append((kind, each))
    return found


def due_ms(record: Record) -> int:
    return int(record.properties["__DMQ_DUE"].split(":")[0])


def get(cluster: OurCluster, path: str, body: object = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{cluster.http_address}{path}", data=data, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        result: dict[str, Any] = json.loads(answer.read())
        return result


def pending(cluster: OurCluster) -> int:
    return sum(level["pending"] for level in get(cluster, "/api/v1/delay")["levels"])


def run_to_the_end(cluster: OurCluster, left: int) -> None:
    """Wait until only `left` messages are pending, then stop the broker."""
    give_up_at = time.monotonic() + LIMIT_S
    while pending(cluster) > left:
        assert time.monotonic() < give_up_at, "delayed messages are still pending"
        time.sleep(0.1)
    cluster.stop()


def assert_same_below_the_end(lost: Lost, store: Path) -> None:
    original = {each.physical_offset: (each.unique_key, each.body, each.stored_ms) for each in lost.records()}
    restored = {
        each.physical_offset: (each.unique_key, each.body, each.stored_ms)
        for each in records(store, with_bodies=True)
        if each.physical_offset < lost.end
    }
    assert restored == original


def test_second_backup_copies_only_new_data(lost: Lost) -> None:
    first, second = lost.first, lost.second
    assert second["endOffset"] > first["endOffset"] > 2 * SEGMENT_BYTES
    assert second["copiedBytes"] == second["endOffset"] - first["endOffset"]
    assert second["keptSegments"] == first["endOffset"] // SEGMENT_BYTES
    assert delaymq("verify", str(lost.backup))["exit_code"] == 0


@pytest.mark.parametrize("overdue", ["deliver", f"spread={SPREAD_MS}ms", "drop", "pause"])
def test_every_message_up_to_end_of_backup_exists_once_and_is_settled_once(
    lost: Lost, tmp_path: Path, overdue: str
) -> None:
    store = tmp_path / "store"
    restored_at_ms = time.time() * 1000
    told = delaymq("restore", str(lost.backup), str(store), "--overdue", overdue, "--yes")
    assert_same_below_the_end(lost, store)
    before = lost.records()
    settled_before = settled_by(before)
    waiting = [each for each in before if each.is_scheduled and each.physical_offset not in settled_before]
    is_overdue = {each.physical_offset: due_ms(each) <= restored_at_ms for each in waiting}
    assert set(is_overdue.values()) == {True, False}
    assert told["dropped"] == (told["overdue"] if overdue == "drop" else 0)
    assert told["pending"] + told["dropped"] == len(waiting)

    started_ms = time.time() * 1000
    cluster = OurCluster(config=CONFIG, store_path=store)
    try:
        cluster.start()
        if overdue == "pause":
            assert get(cluster, "/api/v1/delay")["held"]["mode"] == "paused"
            assert pending(cluster) == len(waiting)
            started_ms = time.time() * 1000
            get(cluster, "/api/v1/delay/resume", {"overdue": "deliver"})
        run_to_the_end(cluster, left=sum(not each for each in is_overdue.values()))
    finally:
        cluster.close()

    settled = settled_by(list(records(store, with_bodies=True)))
    delivered_ms = []
    for each in (each for each in before if each.is_scheduled):
        if is_overdue.get(each.physical_offset) is False:
            assert each.physical_offset not in settled, "settled before it was due"
            continue
        (kind, by), *more = settled[each.physical_offset]
        assert not more, f"settled {1 + len(more)} times"
        assert by.unique_key == each.unique_key
        if kind == "delivered":
            assert by.stored_ms >= due_ms(each), "delivered early"
            if is_overdue.get(each.physical_offset):
                delivered_ms.append(by.stored_ms)
        else:
            assert (kind, overdue) == ("dropped", "drop")
    dropped = sum(kind == "dropped" for marks in settled.values() for kind, _ in marks)
    assert dropped == told["dropped"]
    if overdue == "drop":
        assert dropped == sum(is_overdue.values())
    else:
        assert len(delivered_ms) == sum(is_overdue.values())
        assert min(delivered_ms) >= started_ms - 1
    if overdue.startswith("spread"):
        assert max(delivered_ms) - min(delivered_ms) > SPREAD_MS / 2
    print(overdue, Counter(is_overdue.values()), "dropped", dropped)
