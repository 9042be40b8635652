"""A group whose tables change at random: a model states what each new master must have, and what it may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from delaymq.api_types.delay_settings import TopicDelaySettings
from delaymq.broker.broker import Broker
from delaymq.broker.requests.results import Deferred
from delaymq.broker.tables.followed import FollowedTables
from delaymq.protocol.bodies import LockResponse, SubscriptionGroupConfig
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.server.replication.tables import ReceivedTables, SentTables
from delaymq_testing.broker.harness import FakeSession, send_fields
from delaymq_testing.repetitions import SEED
from delaymq_testing.table_groups import Node, TableGroup

TOPICS: Final = ("T0", "T1", "T2")
BASE: Final = "Base"
"""A topic that is never deleted, so that offsets in it remain."""
QUEUE: Final = b'{"brokerName":"broker-a","queueId":0,"topic":"Base"}'
STEPS: Final = 160
ALL_TABLES: Final = 0.5
"""Number of what a new master has at first; those of its changes are higher."""


class Model:
    """Values that each entry may have: the newest one that all members in sync have, and those that followed it."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[tuple[float, Any]]] = {}
        """By kind and name: number of the change, and value."""
        self.commits: list[tuple[int, int]] = [(0, -1)]
        """Offsets that were committed without a response, with the interval."""

    def change(self, kind: str, name: str, value: Any, number: int) -> None:
        self.values.setdefault((kind, name), [(0, None)]).append((number, value))

    def reached(self, number: float) -> None:
        """Forget what all members in sync have replaced."""
        for changes in self.values.values():
            while len(changes) > 1 and changes[1][0] <= number:
                del changes[0]

    def check(self, node: Node, interval: int) -> None:
        """Check a new master, whose values are the newest ones. Other members may not have them yet."""
        for key, changes in self.values.items():
            value, allowed = value_of(node.broker, *key), [each for _, each in changes]
            # Locks are not in files: a process that has just been started lacks them.
            assert value in allowed or (key[0] == "lock" and not node.seen), f"{key} is {value}, not one of {allowed}"
            self.values[key] = [(ALL_TABLES, each) for each in [*allowed, value]]
        self.check_offset(node, interval)

    def check_offset(self, node: Node, interval: int) -> None:
        value = node.broker.offsets.table.get(f"{BASE}@G", {}).get(0, -1)
        newest = max((at for at, (interval, _) in enumerate(self.commits) if interval < node.seen), default=0)
        allowed = {min(offset, node.broker.store.next_queue_offset(BASE, 0)) for _, offset in self.commits[newest:]}
        assert value in allowed, f"the offset went back to {value}, not one of {sorted(allowed)}"
        self.commits.append((interval, value))


def value_of(broker: Broker, kind: str, name: str) -> Any:
    """Value of an entry; None if it does not exist."""
    match kind:
        case "topic":
            topic = broker.topics.table.get(name)
            store = broker.store
            assert topic is not None or not any(
                store.next_queue_offset(*queue) for queue in store.queues() if queue[0] == name
            ), f"deleted topic {name} has entries"
            return None if topic is None else topic.read_queue_nums
        case "group":
            group = broker.groups.table.get(name)
            return None if group is None else group.retry_max_times
        case "settings":
            return broker.delay_settings.of_topic(name).max_pending_messages
        case "lock":
            return next((client for _, client in broker.locks.holders()), None)
        case _:
            policy = broker.delivery.control.policy
            return None if policy is None else policy.mode.value


class Life:
    """Random changes, and their numbers."""

    def __init__(self, group: TableGroup, model: Model, rng: Random) -> None:
        self.group, self.model, self.rng = group, model, rng
        self.sends = 0

    @property
    def broker(self) -> Broker:
        return self.group.leader.broker

    def ask(self, code: RequestCode, body: bytes = b"", **fields: object) -> Any:
        command = request_command(code, {name: str(value) for name, value in fields.items()}, body)
        return self.broker.handle(FakeSession(), command)

    def note(self, kind: str, name: str, value: Any) -> None:
        assert self.broker.table_changes is not None
        self.model.change(kind, name, value, self.broker.table_changes(False))

    def put_topic(self, name: str = "") -> None:
        name, queues = name or self.rng.choice(TOPICS), self.rng.randrange(1, 5)
        result = self.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=name, defaultTopic="TBW102", readQueueNums=queues, writeQueueNums=4, perm=6,
            topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
        )  # fmt: skip
        assert isinstance(result, Deferred)
        self.note("topic", name, queues)

    def delete_topic(self) -> None:
        name = self.rng.choice(TOPICS)
        self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
        self.note("topic", name, None)
        self.note("settings", name, None)

    def put_group(self) -> None:
        retries = self.rng.randrange(1, 9)
        body = SubscriptionGroupConfig("G1", retry_max_times=retries).encode()
        self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        self.note("group", "G1", retries)

    def delete_group(self) -> None:
        self.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G1", cleanOffset="true")
        self.note("group", "G1", None)

    def put_settings(self) -> None:
        name = self.rng.choice(TOPICS)
        if name in self.broker.topics.table:
            most = self.rng.choice([None, 5, 6])
            self.broker.delay_settings.put_topic(name, TopicDelaySettings(max_pending_messages=most))
            self.note("settings", name, most)

    def lock(self) -> None:
        client = self.rng.choice(["c1", "c2"])
        body = b'{"consumerGroup":"G","clientId":"%b","mqSet":[%b]}' % (client.encode(), QUEUE)
        if self.rng.random() < 0.3:
            held = value_of(self.broker, "lock", "")
            self.ask(RequestCode.UNLOCK_BATCH_MQ, body)
            if held == client:
                self.note("lock", "", None)
            return
        result = self.ask(RequestCode.LOCK_BATCH_MQ, body)
        if LockResponse.decode(result.response.body).lock_ok_mq_set:
            self.note("lock", "", client)

    def set_policy(self) -> None:
        control = self.broker.delivery.control
        if self.rng.random() < 0.5:
            control.pause_locally()
            self.note("policy", "", "paused")
        else:
            control.resume()
            self.note("policy", "", None)

    def commit(self) -> None:
        end = self.broker.store.next_queue_offset(BASE, 0)
        offset = self.rng.randrange(end + 1)
        self.broker.offsets.commit(BASE, "G", 0, offset)
        self.model.commits.append((self.group.intervals, offset))

    def send(self) -> None:
        topic = self.rng.choice([BASE, *TOPICS])
        if topic in self.broker.topics.table:
            self.sends += 1
            body = b"%d " % self.sends + bytes(self.rng.choice([10, 300, 3_000]))
            self.ask(RequestCode.SEND_MESSAGE_V2, body, **(send_fields(topic) | {"e": 0}))


def random_change(life: Life) -> None:
    changes: list[tuple[int, Callable[[], None]]] = [
        (8, life.send), (3, life.put_topic), (3, life.delete_topic), (2, life.put_group), (1, life.delete_group),
        (2, life.put_settings), (2, life.lock), (1, life.set_policy), (4, life.commit),
    ]  # fmt: skip
    life.rng.choices([each for _, each in changes], [weight for weight, _ in changes])[0]()


async def random_event(group: TableGroup, life: Life, rng: Random) -> None:
    """A failure, a promotion, or progress of one link."""
    name, choice = rng.choice(group.replicas()), rng.random()
    if choice < 0.02:
        group.disconnect(name)
    elif choice < 0.10 and name not in group.links:
        group.connect(name)
    elif choice < 0.12 and name not in group.links and len(group.in_sync) > 2:
        group.remove(name)
    elif choice < 0.13 and name not in group.in_sync:
        group.wipe(name)
    elif choice < 0.15:
        group.trim()
    elif choice < 0.17 and name in group.in_sync:
        life.model.reached(reached(group))
        group.promote(name)
        life.model.check(group.leader, group.intervals)
    elif choice < 0.25:
        await group.tick()
    else:
        group.pump(name)
        group.deliver(name)
        group.join()
    await group.work()
    life.model.reached(reached(group))


def reached(group: TableGroup) -> float:
    """Number of the newest change that all members in sync have."""
    has_all = all(group.is_complete(name) for name in group.in_sync - {group.master})
    return max(group.reached, ALL_TABLES if has_all else 0)


def tables_of(node: Node, begin: int) -> dict[str, object]:
    """Everything that all members must have in common."""
    broker, store = node.broker, node.broker.store
    queues = {}
    for topic, queue_id in sorted(store.queues()):
        low, high = store.stored_bounds(topic, queue_id)
        if not high:
            continue  # the rest of a queue that was cut
        entries = b""
        while (at := low + len(entries) // 20) < high:
            entries += store.read_entries(topic, queue_id, at, high - at)
        queues[topic, queue_id] = low, high, entries
    return {
        "queues": queues,
        "deletions": {topic: end for topic, end in store.deleted_topics.items() if end > begin},
        "topics": {name: each for name, each in broker.topics.table.items() if not broker.topics.is_system(name)},
        "groups": dict(broker.groups.table),
        "settings": dict(broker.delay_settings.topics),
        "offsets": {key: queues for key, queues in broker.offsets.table.items() if key.endswith("@G")},
        "locks": sorted(broker.locks.holders()),
        "policy": broker.delivery.control.policy,
    }


def check_equal(group: TableGroup) -> None:
    begin = max(node.broker.store.min_offset for node in group.nodes.values())
    expected = tables_of(group.leader, begin)
    for name in group.replicas():
        for table, entries in tables_of(group.nodes[name], begin).items():
            if table != "queues":
                assert entries == expected[table], f"{table} of {name} differ from those of {group.master}"
        check_queues(tables_of(group.nodes[name], begin)["queues"], expected["queues"])


def check_queues(found: Any, expected: Any) -> None:
    """Compare queues, whose members may still have older entries than each other."""
    assert found.keys() == expected.keys()
    for queue, (low, high, entries) in found.items():
        other_low, other_high, other_entries = expected[queue]
        first = max(low, other_low)
        assert high == other_high, f"{queue} ends at {high}, not at {other_high}"
        assert entries[(first - low) * 20 :] == other_entries[(first - other_low) * 20 :], f"entries of {queue} differ"


def live(path: Path, seed: int) -> None:
    async def scenario() -> None:
        rng = Random(SEED * 1_000 + seed)
        group, model = TableGroup(path, "abc", rng), Model()
        life = Life(group, model, rng)
        try:
            life.put_topic(BASE)
            await group.settle()
            for _ in range(STEPS):
                if rng.random() < 0.3:
                    random_change(life)
                for _ in range(rng.randrange(4)):
                    await random_event(group, life, rng)
                if rng.random() < 0.02:
                    await group.settle()
                    check_equal(group)
            await group.settle()
            check_equal(group)
            model.reached(reached(group))
            group.promote(rng.choice(sorted(group.in_sync - {group.master})))
            model.check(group.leader, group.intervals)
        finally:
            group.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(12))
def test_each_new_master_has_what_was_acknowledged_and_nothing_that_was_deleted(tmp_path: Path, seed: int) -> None:
    live(tmp_path / "g", seed)


@pytest.mark.parametrize("is_rebuilt", [True, False])
def test_deletion_that_the_next_master_does_not_know_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rebuilt: bool
) -> None:
    if not is_rebuilt:
        monkeypatch.setattr(Node, "_rebuild", lambda self, deleted: None)

    async def scenario() -> None:
        group = TableGroup(tmp_path / "g", "abc", Random(SEED))
        life = Life(group, Model(), Random(SEED))
        try:
            life.put_topic("T0")
            for _ in range(5):
                life.ask(RequestCode.SEND_MESSAGE_V2, b"x", **(send_fields("T0") | {"e": 0}))
            await group.settle()
            group.disconnect("c")
            life.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T0")
            await group.work()
            while group.deliver("b"):
                await group.work()
            assert group.nodes["b"].broker.store.deleted_topics.keys() == {"T0"}
            group.promote("c")
            life.ask(RequestCode.SEND_MESSAGE_V2, b"y", **(send_fields("T0") | {"e": 0}))
            await group.settle()
            if is_rebuilt:
                check_equal(group)
                assert group.nodes["b"].broker.store.stored_bounds("T0", 0) == (0, 6)
            else:
                with pytest.raises(AssertionError):
                    check_equal(group)
        finally:
            group.close()

    asyncio.run(scenario())


def _without_sweep(self: FollowedTables, received: object) -> Iterator[None]:
    yield


def _without_waiting(self: SentTables) -> None:
    self._reached = self._number


def _without_applying(self: ReceivedTables) -> None:
    while self._work:
        sender, part, _ = self._work.popleft()
        self._applied(sender, part)


BUGS: Final[dict[str, tuple[type, str, Callable[..., object]]]] = {
    "entries that the master does not have remain": (FollowedTables, "_sweep", _without_sweep),
    "responses do not wait": (SentTables, "_settle", _without_waiting),
    "parts are acknowledged, but not applied": (ReceivedTables, "_apply", _without_applying),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    owner, name, replacement = BUGS[bug]
    monkeypatch.setattr(owner, name, replacement)
    for seed in range(40):
        try:
            live(tmp_path / str(seed), seed)
        except AssertionError:
            return
    raise ValueError(f"no run found that {bug}")
