"""Tables of a replicated group: whatever the master acknowledged, its successor has."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from delaymq.api_types.delay_settings import TopicDelaySettings
from delaymq.broker.delivery.settings.overdue import Treatment
from delaymq.broker.tables.entries import Table
from delaymq.protocol.bodies import SubscriptionGroupConfig
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, encode_command, request_command
from delaymq.replication import Settings
from delaymq.replication.events import SwitchOver
from delaymq.server.replication.table_messages import TablePart
from delaymq_testing.replicated_group import Group, GroupMember, delete_old_segments, replicated
from delaymq_testing.running_server import HOST, BrokerPeer, run, until

STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
QUICK = Settings(replica_timeout_ms=1_000, renew_ms=300, lease_ms=2_500)


async def ask(peer: BrokerPeer, code: RequestCode, body: bytes = b"", **fields: Any) -> Command:
    return await peer.connection.request(
        request_command(code, {key: str(value) for key, value in fields.items()}, body)
    )


async def put_topic(peer: BrokerPeer, name: str, queues: int, perm: int = 6) -> Command:
    return await ask(
        peer, RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=name, defaultTopic="TBW102", readQueueNums=queues, writeQueueNums=queues, perm=perm,
        topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
    )  # fmt: skip


async def put_group(peer: BrokerPeer, name: str, retries: int) -> Command:
    body = SubscriptionGroupConfig(name, retry_max_times=retries).encode()
    return await ask(peer, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


async def commit(peer: BrokerPeer, topic: str, group: str, queue_id: int, offset: int) -> Command:
    return await ask(
        peer, RequestCode.UPDATE_CONSUMER_OFFSET,
        topic=topic, consumerGroup=group, queueId=queue_id, commitOffset=offset,
    )  # fmt: skip


async def succeed(*responses: Command) -> None:
    assert [each.code for each in responses] == [ResponseCode.SUCCESS] * len(responses), responses


async def hand_over(group: Group, target: str) -> BrokerPeer:
    """Let a member take over by order, and connect to it."""
    master = group.master
    assert master is not None
    count = len(master.restarts)
    while master.is_master:  # the order is refused while the target is not in sync, as after a stall of the machine
        driver = master.replica.driver
        driver.handle(SwitchOver(target, driver.member.epoch))
        await asyncio.sleep(0.3)
    await until(lambda: group[target].is_master and len(master.restarts) > count and master.server is not None)
    await group.in_sync(*group.members)
    return await BrokerPeer.connect(group[target].port)


async def next_master(group: Group) -> GroupMember:
    await until(lambda: group.master is not None)
    assert group.master is not None
    return group.master


def test_topics_groups_and_offsets_exist_after_a_switchover(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await succeed(await put_topic(peer, "Orders", 3, 4), await put_group(peer, "G", 7))
            await succeed(await peer.send("T", b"x", queue_id=1), await commit(peer, "T", "G", 1, 1))
            await hand_over(group, "b")
            broker = group["b"].running.broker
            orders = broker.topics.table["Orders"]
            assert (orders.read_queue_nums, orders.perm) == (3, 4)
            assert broker.topics.table["T"].write_queue_nums == 4
            assert broker.groups.table["G"].retry_max_times == 7
            assert broker.offsets.get("T", "G", 1) == 1

    run(scenario)


def test_commits_without_a_response_reach_replicas(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await succeed(await peer.send("T", b"x", queue_id=0), await put_group(peer, "G", 1))
            fields = {"topic": "T", "consumerGroup": "G", "queueId": "0", "commitOffset": "1"}
            peer.connection.send(
                encode_command(request_command(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True))
            )
            await until(lambda: group["b"].running.broker.offsets.get("T", "G", 0) == 1)

    run(scenario)


def test_offsets_behind_the_end_of_the_log_are_set_to_the_end_of_their_queue(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await succeed(await peer.send("T", b"x", queue_id=0), await commit(peer, "T", "G", 0, 5))
            await hand_over(group, "b")
            assert group["b"].running.broker.offsets.get("T", "G", 0) == 1

    run(scenario)


def test_deleted_topic_counts_from_zero_on_every_member(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["a"].port)
            for number in range(5):
                await succeed(await peer.send("T", b"%d" % number, queue_id=0))
            await succeed(await ask(peer, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"))
            assert "T" not in group["b"].running.broker.topics.table
            for number in range(2):
                await succeed(await peer.send("T", b"new %d" % number, queue_id=0))
            stores = [group[name].running.broker.store for name in "ab"]
            await until(lambda: stores[0].end_offset == stores[1].end_offset)
            assert stores[0].deleted_topics == stores[1].deleted_topics
            assert [each.stored_bounds("T", 0) for each in stores] == [(0, 2), (0, 2)]
            peer = await hand_over(group, "b")
            await succeed(await peer.send("T", b"new 2", queue_id=0))
            assert stores[1].queue_bounds("T", 0) == (0, 3)

    run(scenario)


def test_delay_settings_and_locks_exist_after_a_switchover(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await succeed(await put_topic(peer, "T", 1))
            broker = group["a"].running.broker
            broker.delay_settings.put_topic("T", TopicDelaySettings(max_pending_messages=3))
            queue = b'{"brokerName":"broker-a","queueId":0,"topic":"T"}'
            lock = b'{"consumerGroup":"G","clientId":"%b","mqSet":[' + queue + b"]}"
            first = await ask(peer, RequestCode.LOCK_BATCH_MQ, lock % b"first")
            assert b'"T"' in first.body
            peer = await hand_over(group, "b")
            broker = group["b"].running.broker
            assert broker.delay_settings.of_topic("T").max_pending_messages == 3
            assert b'"T"' not in (await ask(peer, RequestCode.LOCK_BATCH_MQ, lock % b"second")).body
            assert b'"T"' in (await ask(peer, RequestCode.LOCK_BATCH_MQ, lock % b"first")).body

    run(scenario)


def test_queue_whose_records_were_deleted_continues_at_its_number(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", file_reserved_time=1) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            for _ in range(5):
                await succeed(await peer.send("Old", b"x", queue_id=1))
            for _ in range(1_000):
                assert (await peer.send("T", bytes(700), queue_id=0)).code in STORED
            await group["b"].stop()
            await delete_old_segments(group["a"])
            assert group["a"].running.broker.store.queue_bounds("Old", 1) == (5, 5)
            rmtree(group["b"].path)
            await group["b"].start()
            await group.in_sync("a", "b")
            peer = await hand_over(group, "b")
            assert (await peer.send("Old", b"x", queue_id=1)).fields["queueOffset"] == "5"
            assert group["b"].running.broker.store.stored_bounds("Old", 1) == (5, 6)

    run(scenario)


def test_policy_and_treatments_of_overdue_messages_continue_after_a_switchover(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            control = group["a"].running.broker.delivery.control
            control.pause_locally()
            treatment = Treatment(treatment="drop", after_ms=1, up_to_ms=2, until_ms=0)
            control.treatments._save({"T": treatment})
            follower = group["b"].running.broker.delivery.control
            await until(lambda: follower.treatments.stored == {"T": treatment})
            await hand_over(group, "b")
            assert group["b"].running.broker.delivery.control.is_paused
            assert (group["b"].path / "store" / "delaymq" / "delivery.json").exists()

    run(scenario)


def test_change_is_not_acknowledged_before_replicas_in_sync_have_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", Settings(replica_timeout_ms=60_000), slave_timeout=1_500) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await succeed(await put_topic(peer, "Before", 1))
            await group["b"].abandon()
            response = await put_topic(peer, "After", 1)
            assert response.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert "After" in group["a"].running.broker.topics.table
            await group["b"].start()
            await until(lambda: "After" in group["b"].running.broker.topics.table)
            await succeed(await put_topic(peer, "After", 1))

    run(scenario)


def test_replica_refuses_changes_of_tables(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["b"].port)
            for response in (await put_topic(peer, "T", 1), await put_group(peer, "G", 1)):
                assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert f"the group's master, member a at {HOST}:{group['a'].port}" in (response.remark or "")
            assert not {"T", "G"} & (
                group["b"].running.broker.topics.table.keys() | group["b"].running.broker.groups.table
            )

    run(scenario)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"T":7}', b'{"a b":{"topicName":"a b"}}', b'{"T":{"topicName":"T","perm":99}}', b"\xff" * 20],
)
def test_damaged_part_is_not_applied_and_the_session_begins_again(tmp_path: Path, data: bytes) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await succeed(await put_topic(peer, "Kept", 1))
            receiving = group["b"].replica._tables._receiving
            (epoch, session), serial = receiving._session, receiving._serial
            receiving.take("a", TablePart(epoch, session, serial + 1, Table.TOPICS, 0, data))
            assert receiving._session == (0, 0)
            await until(lambda: receiving._session not in ((0, 0), (epoch, session)))
            await group.in_sync("a", "b")
            await succeed(await put_topic(peer, "New", 2))
            assert {"Kept", "New"} <= group["b"].running.broker.topics.table.keys()

    run(scenario)


def test_parts_of_other_sessions_epochs_and_members_are_ignored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await succeed(await put_topic(peer, "Kept", 1))
            receiving = group["b"].replica._tables._receiving
            (epoch, session), serial = receiving._session, receiving._serial
            foreign = b'{"Foreign":{"topicName":"Foreign"}}'
            for sender, of_epoch, of_session in (
                ("a", epoch - 1, session), ("a", epoch + 1, session), ("a", epoch, session + 1), ("c", epoch, session),
            ):  # fmt: skip
                receiving.take(sender, TablePart(of_epoch, of_session, serial + 1, Table.TOPICS, 0, foreign))
            assert receiving._session == (epoch, session)
            assert "Foreign" not in group["b"].running.broker.topics.table
            await succeed(await put_topic(peer, "New", 1))

    run(scenario)


class Model:
    """What the masters acknowledged, and what they may have in addition because a response was not a success."""

    def __init__(self) -> None:
        self.topics: dict[str, set[int | None]] = {}
        self.groups: dict[str, set[int | None]] = {}

    @staticmethod
    def note(table: dict[str, set[int | None]], name: str, value: int | None, response: Command) -> None:
        if response.code == ResponseCode.SUCCESS:
            table[name] = {value}
        else:
            table.setdefault(name, {None}).add(value)

    def check(self, member: GroupMember) -> None:
        broker = member.running.broker
        for name, values in self.topics.items():
            topic = broker.topics.table.get(name)
            assert (None if topic is None else topic.read_queue_nums) in values, name
        for name, values in self.groups.items():
            group = broker.groups.table.get(name)
            assert (None if group is None else group.retry_max_times) in values, name


async def change(peer: BrokerPeer, model: Model, rng: random.Random) -> None:
    """Make a random change."""
    name, value = f"N{rng.randrange(6)}", rng.randrange(1, 9)
    match rng.randrange(4):
        case 0:
            model.note(model.topics, name, value, await put_topic(peer, name, value))
        case 1:
            response = await ask(peer, RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
            model.note(model.topics, name, None, response)
        case 2:
            model.note(model.groups, name, value, await put_group(peer, name, value))
        case _:
            response = await ask(
                peer, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=name, cleanOffset="true", removeOffset="true"
            )
            model.note(model.groups, name, None, response)


@pytest.mark.parametrize("seed", range(3))
def test_each_new_master_has_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        rng, model = random.Random(seed), Model()
        async with replicated(tmp_path / "g", "abc", QUICK) as group:
            for _ in range(3):
                master = await next_master(group)
                peer = await BrokerPeer.connect(master.port)
                for _ in range(rng.randrange(1, 25)):
                    await change(peer, model, rng)
                    if rng.random() < 0.3:
                        await peer.send("Log", b"x")
                if rng.random() < 0.3:
                    target = rng.choice([name for name in group.members if name != master.name])
                    await hand_over(group, target)
                else:
                    await master.abandon()
                    await until(lambda: group.master is not None)
                    await master.start()
                    await group.in_sync("a", "b", "c")
                model.check(await next_master(group))
            assert any(len(values) == 1 for values in model.topics.values())

    run(scenario)
