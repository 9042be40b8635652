"""Topics, groups and the cluster: commands against a running broker."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from delaymq.client import Client, ConsumeFrom, PushConsumer, PushConsumerOptions, ReceivedMessage
from delaymq_testing.cli_running import Done, Standalone, called

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    broker = Standalone(tmp_path_factory.mktemp("broker"))
    with broker.running():
        yield broker


@pytest.fixture
def ask(standalone: Standalone) -> "Ask":
    return Ask(standalone)


class Ask:
    """Runs commands against the broker."""

    def __init__(self, standalone: Standalone) -> None:
        self.environment = standalone.environment

    def __call__(self, *words: str, given: str = "") -> Done:
        return called(*words, environment=self.environment, given=given)

    def json(self, *words: str) -> list[dict[str, object]]:
        done = self(*words, "--json")
        assert (done.code, done.err) == (0, "")
        return [json.loads(line) for line in done.lines]


@contextmanager
def member(standalone: Standalone, group: str, topic: str) -> Iterator[list[bytes]]:
    """A consumer that runs in a thread of its own; gives the bodies that it gets."""
    bodies: list[bytes] = []
    there, stop, loops = threading.Event(), asyncio.Event(), []

    async def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)

    async def consume() -> None:
        loops.append(asyncio.get_running_loop())
        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=50)
        async with Client(standalone.environment["DELAYMQ_NAMESRV"]) as client:
            consumer = PushConsumer(client, group, handle, options)
            consumer.subscribe(topic)
            async with consumer:
                there.set()
                await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(consume(),))
    thread.start()
    try:
        assert there.wait(LIMIT_S)
        yield bodies
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)


def until(is_so: object) -> None:
    """Waits for what another thread or the broker does, within a limit."""
    assert callable(is_so)
    import time

    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_topic_is_created_shown_changed_and_deleted(ask: Ask) -> None:
    made = ask.json("topic", "create", "Made", "--queues", "3", "--permission", "rw")
    brokers = [{"brokerName": "broker-a", "readQueues": 3, "writeQueues": 3, "permission": "rw"}]
    assert made == [{"topic": "Made", "brokers": brokers}]
    again = ask("topic", "create", "Made")
    assert (again.code, "change it with `delaymq topic update`" in again.err) == (1, True)
    ask("send", "Made", "a", "b")
    [shown] = ask.json("topic", "show", "Made")
    assert list(shown) == [
        "topic", "kind", "permission", "brokers", "readQueues", "writeQueues", "messages", "lastStoredMs", "queues",
        "groups",
    ]  # fmt: skip
    assert (shown["kind"], shown["permission"], shown["messages"], shown["groups"]) == ("normal", "rw", 2, [])
    assert sum(queue["maxOffset"] for queue in shown["queues"]) == 2  # type: ignore[attr-defined]
    assert "Made: normal, 2 messages" in ask("topic", "show", "Made").out
    [changed] = ask.json("topic", "update", "Made", "--write-queues", "1", "--permission", "r")
    assert changed["brokers"] == [{"brokerName": "broker-a", "readQueues": 3, "writeQueues": 1, "permission": "r"}]
    assert "is changed on broker-a" in ask("topic", "update", "Made", "--queues", "2").out
    refused = ask("topic", "delete", "Made")
    assert (refused.code, "add --yes to proceed" in refused.err) == (2, True)
    assert ask("topic", "delete", "Made", "--yes").code == 0
    gone = ask("topic", "delete", "Made", "--yes")
    assert (gone.code, "no broker has topic Made" in gone.err) == (1, True)


def test_topics_are_listed_by_kind_and_name(ask: Ask) -> None:
    ask("send", "Listed", "x")
    [row] = ask.json("topic", "list", "--contains", "Liste")
    assert list(row) == [
        "topic", "kind", "permission", "brokers", "readQueues", "writeQueues", "messages", "lastStoredMs",
    ]  # fmt: skip
    assert (row["topic"], row["messages"], row["brokers"]) == ("Listed", 1, ["broker-a"])
    assert ask.json("topic", "list", "--names", "--contains", "Liste") == [{"topic": "Listed"}]
    assert "Listed" in ask("topic", "list").out
    assert "Listed" in ask("topic", "list", "--names").lines
    system = {row["topic"] for row in ask.json("topic", "list", "--kind", "system")}
    assert {"TBW102", "broker-a", "DefaultCluster"} <= system
    assert "no normal topics with Nothing" in ask("topic", "list", "--contains", "Nothing").out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("topic", "list", "--kind", "odd"), 2, "use one of normal, retry"),
        (("topic", "create", "T", "--permission", "x"), 2, "use rw, r or w"),
        (("topic", "create", "no good"), 2, "illegal"),
        (("topic", "create", "TBW102"), 1, "already"),
        (("topic", "create", "T", "--cluster", "Nowhere"), 1, "in cluster Nowhere"),
        (("topic", "update", "Near"), 2, "give at least one of"),
        (("topic", "update", "Near", "--queues", "1", "--read-queues", "1"), 2, "use either --queues, or"),
        (("topic", "show", "Neer"), 1, "did you mean Near?"),
        (("topic", "update", "neer", "--queues", "1"), 1, "did you mean Near?"),
        (("topic", "delete", "Neer", "--yes"), 1, "did you mean Near?"),
        (("receive", "Neer", "--tail", "1"), 1, "did you mean Near?"),
        (("message", "find", "Neer", "--key", "k"), 1, "did you mean Near?"),
        (("group", "show", "reders"), 1, "did you mean readers?"),
        (("group", "members", "nobody-knows"), 1, "`delaymq group create`"),
        (("group", "delete", "TOOLS_CONSUMER", "--yes"), 2, "is a system group"),
        (("group", "delete", "reders", "--yes"), 1, "did you mean readers?"),
        (("group", "create", "no good"), 2, "illegal"),
        (("group", "create", "readers"), 1, "change it with --replace"),
        (("group", "reset", "reders", "--topic", "Near", "--to", "latest", "--yes"), 1, "did you mean readers?"),
        (("group", "reset", "readers", "--topic", "Neer", "--to", "latest", "--yes"), 1, "did you mean Near?"),
        (("group", "reset", "readers", "--topic", "Near"), 2, "give the new position"),
        (("group", "reset", "readers", "--topic", "Near", "--to", "soon"), 2, "is not a time"),
        (("group", "reset", "readers", "--topic", "Near", "--offset", "1"), 2, "require each other"),
        (("group", "reset", "readers", "--topic", "Near", "--to", "latest"), 2, "add --yes"),
        (("group", "reset", "readers", "--topic", "Near", "--offset", "1", "--queue", "99", "--yes"), 1, "no queue 99"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_errors_state_the_possible_alternatives(ask: Ask, words: tuple[str, ...], code: int, told: str) -> None:
    ask("topic", "create", "Near", "--queues", "2")
    ask("send", "Near", "x")
    ask("receive", "Near", "--group", "readers", "--count", "1")
    done = ask(*words)
    assert (done.code, done.out) == (code, "")
    assert told in done.err


def test_group_is_created_replaced_listed_and_deleted(ask: Ask) -> None:
    assert ask.json("group", "create", "made", "--retries", "5") == [{"group": "made", "brokers": ["broker-a"]}]
    assert "is set on broker-a" in ask("group", "create", "made", "--no-consume", "--replace").out
    [shown] = ask.json("group", "show", "made")
    assert list(shown) == [
        "group", "model", "consumeType", "members", "topics", "lag", "deadLetters", "subscriptions", "progress",
        "settings",
    ]  # fmt: skip
    settings = {"broker": "broker-a", "consume": False, "broadcast": True, "retryQueues": 1, "retryMaxTimes": 16}
    assert shown["settings"] == [settings]
    assert "consumption disabled" in ask("group", "show", "made").out
    assert "group made has no members" in ask("group", "members", "made").out
    listed = ask.json("group", "list", "--contains", "made")
    assert listed == [
        {
            "group": "made", "model": None, "consumeType": None, "members": 0, "topics": [], "lag": 0,
            "deadLetters": 0,
        }
    ]  # fmt: skip
    assert "made" in ask("group", "list").out
    assert "made" in ask("group", "list", "--names").lines
    assert {"group": "TOOLS_CONSUMER"} in ask.json("group", "list", "--names", "--all")
    assert "TOOLS_CONSUMER" not in ask("group", "list", "--names").lines
    assert ask("group", "delete", "made").code == 2
    assert ask("group", "delete", "made", "--yes").code == 0
    assert ask("group", "show", "made").code == 1


def test_group_without_members_is_reset_by_its_offsets(ask: Ask) -> None:
    ask("topic", "create", "Reset", "--queues", "1")
    ask("send", "Reset", *"abcde")
    ask("receive", "Reset", "--group", "resetting", "--count", "5")
    words = ("group", "reset", "resetting", "--topic", "Reset", "--yes")
    [done] = ask.json(*words, "--to", "earliest")
    queues = [{"broker": "broker-a", "queueId": 0, "oldOffset": 5, "newOffset": 0}]
    assert done == {"group": "resetting", "toldMembers": 0, "queues": queues}
    [shown] = ask.json("group", "show", "resetting")
    assert (shown["lag"], shown["topics"]) == (5, ["Reset"])
    shown_reset = ask(*words, "--to", "latest")
    assert shown_reset.code == 0
    assert shown_reset.out.split()[-5:] == ["broker-a", "0", "0", "5", "+5"]
    stored_ms = ask.json("message", "find", "Reset", "--from", "1h ago")[2]["storedMs"]
    [by_time] = ask.json(*words, "--to", str(stored_ms))
    assert by_time["queues"][0]["newOffset"] <= 2  # type: ignore[index]
    [exact] = ask.json(*words, "--offset", "3", "--queue", "0")
    assert exact["queues"][0]["newOffset"] == 3  # type: ignore[index]
    got = ask("receive", "Reset", "--group", "resetting", "--count", "2", "--json")
    assert [json.loads(line)["body"] for line in got.lines] == ["d", "e"]


def test_connected_members_receive_a_reset_and_prevent_exact_offsets_and_deletion(
    ask: Ask, standalone: Standalone
) -> None:
    ask("topic", "create", "Live", "--queues", "1")
    ask("send", "Live", *"abc")
    with member(standalone, "living", "Live") as bodies:
        until(lambda: bodies == [b"a", b"b", b"c"])
        until(lambda: ask.json("group", "show", "living")[0]["lag"] == 0)
        [row] = ask.json("group", "members", "living")
        assert list(row) == ["clientId", "address", "language", "version"]
        assert row["language"] == "PYTHON" or row["language"]
        assert str(row["clientId"]) in ask("group", "members", "living").out
        [listed] = ask.json("group", "list", "--contains", "living")
        assert (listed["members"], listed["model"], listed["topics"]) == (1, "CLUSTERING", ["Live"])
        assert ask.json("topic", "show", "Live")[0]["groups"] == ["living"]
        words = ("group", "reset", "living", "--topic", "Live", "--yes")
        exact = ask(*words, "--offset", "1", "--queue", "0")
        assert exact.code == 1
        assert "stop them first, or use --to" in exact.err
        deleted = ask("group", "delete", "living", "--yes")
        assert (deleted.code, "stop them first" in deleted.err) == (1, True)
        reset = ask(*words, "--to", "earliest")
        assert reset.code == 0
        assert "notified 1 member: they continue from there" in reset.out
        until(lambda: bodies == [b"a", b"b", b"c"] * 2)


def test_cluster_shows_unresponsive_servers(ask: Ask, standalone: Standalone) -> None:
    [shown] = ask.json("cluster", "show")
    brokers: Any = shown["brokers"]
    [broker] = brokers
    assert (broker["cluster"], broker["brokerName"], broker["brokerId"]) == ("DefaultCluster", "broker-a", 0)
    assert broker["address"] == f"127.0.0.1:{standalone.listen_port}"
    assert broker["problem"] is None
    assert broker["pendingDelays"] >= 0
    assert shown["nameServers"] == [{"address": standalone.environment["DELAYMQ_NAMESRV"], "problem": None}]
    assert "broker-a" in ask("cluster", "show").out
    with_dead = ask("cluster", "show", "--namesrv", f"{standalone.environment['DELAYMQ_NAMESRV']};127.0.0.1:1")
    assert with_dead.code == 1
    assert "NameServer 127.0.0.1:1: no response" in with_dead.out
