"""Kills among pipelined sends: no acknowledged message is lost or moved, and none is stored or delivered twice."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import crashes
from delaymq.message.properties import format_properties
from delaymq.message.record import decode_record
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, decode_command, encode_command, request_command
from delaymq.transport import connect
from delaymq_testing.repetitions import SEED
from harness.brokers import Cluster, OurCluster
from harness.suite import enter_isolated

TOPIC, QUEUES = "PlainTopic", 4
PRODUCERS, WINDOW = 3, 48
MESSAGES, MESSAGES_AFTER = 100_000, 2_000
"""Each producer sends this many messages, and has a window of them in flight. None has enough time before the kill."""
LIMIT_S = 120.0
LEVELS, TIMED_MS = 3, 2_500
"""Delays of the messages that are delayed."""
CONFIG = {
    "messageDelayLevel": "1s 2s 3s",
    "mappedFileSizeCommitLog": str(1 << 20),
    "flushConsumerOffsetInterval": "1000",
}
pytestmark = pytest.mark.timeout(400)

Place = tuple[int, int]
"""Queue and queue offset."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    enter_isolated()
    cluster = OurCluster(config=CONFIG)
    yield cluster
    cluster.close()


class Producer(threading.Thread):
    """Sends until all messages were sent or the connection ends. No message is sent twice."""

    def __init__(self, port: int, first: int, messages: int, *, delayed: bool) -> None:
        super().__init__(daemon=True)
        self._delayed = delayed
        self._port = port
        self._sent = self._first = first
        self._end = first + messages
        self.acknowledged: dict[str, Place] = {}

    def run(self) -> None:
        end = self._end
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=LIMIT_S) as connection:
                answered, rest = self._first, b""
                while answered < end:
                    while self._sent < min(answered + WINDOW, end):
                        connection.sendall(_frame(self._sent, delayed=self._delayed))
                        self._sent += 1
                    received = connection.recv(1 << 16)
                    if not received:
                        return
                    found, rest = _frames(rest + received)
                    for response in found:
                        assert response.code == 0, response.remark
                        place = int(response.fields["queueId"]), int(response.fields["queueOffset"])
                        self.acknowledged[f"K{response.opaque}"] = place
                    answered += len(found)
        except OSError:
            pass  # the broker was killed


def _frame(number: int, *, delayed: bool) -> bytes:
    kind = number // QUEUES % (LEVELS + 1)
    delay = {"DELAY": str(kind)} if kind else {"TIMER_DELAY_MS": str(TIMED_MS)}
    properties = format_properties({"UNIQ_KEY": f"K{number}", "WAIT": "true", **(delay if delayed else {})})
    fields = {
        "a": "P", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES), "f": "0",
        "g": "1700000000000", "h": "0", "i": properties,
    }  # fmt: skip
    return encode_command(Command(RequestCode.SEND_MESSAGE_V2, number, fields=fields, body=bytes(number % 600)))


def _frames(data: bytes) -> tuple[list[Command], bytes]:
    found, at = [], 0
    while len(data) - at >= 4 and len(data) - at >= 4 + (length := int.from_bytes(data[at : at + 4])):
        found.append(decode_command(data[at + 4 : at + 4 + length]))
        at += 4 + length
    return found, data[at:]


def _send(cluster: Cluster, start: int, messages: int, *, delayed: bool) -> list[Producer]:
    firsts = [start + number * messages for number in range(PRODUCERS)]
    producers = [Producer(cluster.listen_port, first, messages, delayed=delayed) for first in firsts]
    for producer in producers:
        producer.start()
    return producers


async def _stored(port: int) -> tuple[Counter[str], dict[str, Place]]:
    """Return how often each message is stored, and where."""
    connection = await connect("127.0.0.1", port)
    counts: Counter[str] = Counter()
    places: dict[str, Place] = {}
    for queue_id in range(QUEUES):
        offset = 0
        while True:
            fields = {
                "consumerGroup": "fresh", "topic": TOPIC, "queueId": str(queue_id), "queueOffset": str(offset),
                "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*", "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
            answer = await connection.request(request_command(RequestCode.PULL_MESSAGE, fields), 10_000)
            if answer.code != 0:
                break
            position = 0
            while position < len(answer.body):
                record = decode_record(answer.body, position)
                key = record.properties["UNIQ_KEY"]
                assert record.body == bytes(int(key[1:]) % 600)
                counts[key] += 1
                places[key] = queue_id, record.queue_offset
                position += record.size
            offset = int(answer.fields["nextBeginOffset"])
    connection.close()
    return counts, places


def _delivered(port: int, expected: set[str]) -> Counter[str]:
    """Wait until the messages are delivered, and longer than the longest delay; return how often each of all is."""
    deadline = time.monotonic() + LIMIT_S
    while expected - asyncio.run(_stored(port))[0].keys() and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(LEVELS + 1)
    return asyncio.run(_stored(port))[0]


def _check(cluster: Cluster, crash: crashes.Crash, evidence_path: Path, *, delayed: bool = False) -> None:
    cluster.start()
    before = _send(cluster, 0, MESSAGES, delayed=delayed)
    crash()
    after = _send(cluster, PRODUCERS * MESSAGES, MESSAGES_AFTER, delayed=delayed)
    for producer in before + after:
        producer.join(LIMIT_S)
        assert not producer.is_alive()
    acknowledged = {key: place for producer in before + after for key, place in producer.acknowledged.items()}
    if delayed:  # responses name the place of the pending message
        counts = _delivered(cluster.listen_port, set(acknowledged))
        wrong = {key: place for key, place in acknowledged.items() if counts[key] != 1}
    else:
        counts, places = asyncio.run(_stored(cluster.listen_port))
        wrong = {key: place for key, place in acknowledged.items() if places.get(key) != place or counts[key] != 1}
    cluster.stop()
    if wrong or max(counts.values()) > 1:
        shutil.copytree(cluster.store_path, evidence_path / "store")
        shutil.copy(cluster.broker.log_path, evidence_path)
    assert not wrong, f"{len(wrong)} acknowledged messages are lost or elsewhere; store and log: {evidence_path}"
    assert max(counts.values()) == 1
    assert all(len(producer.acknowledged) == MESSAGES_AFTER for producer in after)
    assert all(0 < len(producer.acknowledged) < MESSAGES for producer in before)


def test_kill_among_plain_sends_keeps_all_acknowledged_messages(cluster: Cluster, tmp_path: Path) -> None:
    _check(cluster, crashes.at_an_instant(cluster, SEED, 0.3, 1.0), tmp_path)


@pytest.mark.parametrize("point", ["sends-appended:9000", "segment-roll:3", "queue-flush:3"])
def test_kill_at_a_named_point_keeps_all_acknowledged_messages(cluster: Cluster, point: str, tmp_path: Path) -> None:
    _check(cluster, crashes.at_a_point(cluster, point, LIMIT_S), tmp_path)


def test_kill_among_delayed_sends_delivers_all_acknowledged_messages_once(cluster: Cluster, tmp_path: Path) -> None:
    _check(cluster, crashes.at_an_instant(cluster, SEED, 0.3, 4.0), tmp_path, delayed=True)


@pytest.mark.parametrize("point", ["sends-appended:9000", "copy-appended:3000", "segment-roll:3"])
def test_kill_at_a_named_point_delivers_all_acknowledged_messages_once(
    cluster: Cluster, point: str, tmp_path: Path
) -> None:
    _check(cluster, crashes.at_a_point(cluster, point, LIMIT_S), tmp_path, delayed=True)
