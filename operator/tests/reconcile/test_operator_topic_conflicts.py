"""Two Topics with one topic name: the older owns it, the younger reports that and takes over."""

import asyncio
from typing import Any

import pytest
from delaymq_operator.reconcile.context import Key, Waiting
from delaymq_operator.reconcile.ports import Endpoint, TopicConfig
from delaymq_operator.reconcile.topic import reconcile_topic, release_topic
from delaymq_operator_testing.worlds.topic import NAMESPACE, TopicWorld

SAME_SECOND = "2026-02-01T00:00:00Z"


def settle(world: TopicWorld, *keys: Key) -> None:
    async def all_of_them() -> None:
        for key in keys:
            await reconcile_topic(key, world.world)

    asyncio.run(all_of_them())


def release(world: TopicWorld, key: Key) -> Waiting | None:
    return asyncio.run(release_topic(key, world.world))


def delete(world: TopicWorld, key: Key) -> Waiting | None:
    """Delete a Topic as kubectl and the finalizer do: mark it as deleted, release it, then remove it."""
    world.kube.mark_deleted("Topic", key.name)
    waiting = release(world, key)
    if waiting is None:
        world.kube.remove("Topic", key.name)
    return waiting


def deleted(world: TopicWorld) -> list[tuple[str, ...]]:
    return [call for call in world.brokers.calls if call[0] in ("delete_topic", "delete_route")]


# Conflicts


def test_younger_topic_reports_older_one_and_remedy() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders", queues=4)
    younger = world.add_topic("b", topicName="orders", queues=2)
    settle(world, younger, older, younger)
    assert world.on(0, "orders") == TopicConfig(topic="orders", read_queues=4, write_queues=4)
    status, reason, message = world.condition(younger)
    assert (status, reason) == ("False", "Conflict")
    assert "Topic a is older" in message
    assert "delete this Topic" in message
    assert world.condition(older)[1] == "InEveryGroup"
    assert ("Warning", "Conflict") in [event[:2] for event in world.kube.events]


def test_smaller_uid_wins_if_creation_times_are_equal() -> None:
    world = TopicWorld(groups=1)
    first = world.add_topic("a", topicName="orders", queues=4)
    second = world.add_topic("b", topicName="orders", queues=2)
    for key, uid in ((first, "2"), (second, "1")):
        world.kube.objects[key]["metadata"] |= {"creationTimestamp": SAME_SECOND, "uid": uid}
    kept = world.kube.objects.pop(second)
    settle(world, first)
    assert world.status(first)["topicName"] == "orders"
    world.kube.objects[second] = kept
    settle(world, second, first)
    assert world.condition(first)[1] == "Conflict"
    assert world.condition(second)[1] == "InEveryGroup"
    # The topic now belongs to the other Topic, so this one never deletes it.
    assert "topicName" not in world.status(first)
    assert "groups" not in world.status(first) or not world.status(first)["groups"]


def test_same_name_on_different_brokers_is_not_a_conflict() -> None:
    world = TopicWorld(groups=1)
    world.add_broker("other", groups=1)
    keys = [
        world.add_topic("a", topicName="orders"),
        world.add_topic("b", topicName="orders", broker="other"),
        world.add_topic("orders", topicName="invoices"),
    ]
    settle(world, *keys)
    assert [world.condition(key)[1] for key in keys] == ["InEveryGroup"] * 3


def test_settled_conflict_sends_no_requests() -> None:
    world = TopicWorld(groups=1)
    keys = [world.add_topic(name, topicName="orders") for name in ("a", "b")]
    settle(world, *keys)
    world.kube.requests.clear()
    world.later()
    settle(world, *keys)
    assert not world.kube.requests


def test_younger_topic_takes_over_after_older_is_deleted_with_retain() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders", queues=4, deletionPolicy="Retain")
    younger = world.add_topic("b", topicName="orders", queues=2)
    settle(world, older, younger)
    assert delete(world, older) is None
    settle(world, younger)
    assert world.condition(younger)[1] == "InEveryGroup"
    assert world.on(0, "orders") == TopicConfig(topic="orders", read_queues=4, write_queues=2)


def test_takeover_keeps_messages_until_last_owner_is_deleted() -> None:
    world = TopicWorld(groups=2)
    older = world.add_topic("a", topicName="orders")
    heir = world.add_topic("b", topicName="orders")
    settle(world, older, heir)
    assert delete(world, older) is None
    assert not deleted(world)
    settle(world, heir)
    assert world.condition(heir)[1] == "InEveryGroup"
    assert delete(world, heir) is None
    assert world.on(0, "orders") is None


def test_successor_missing_from_cache_is_found() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders")
    settle(world, older)
    world.kube.frozen = dict(world.kube.objects)
    world.add_topic("b", topicName="orders")
    assert delete(world, older) is None
    assert not deleted(world)


def test_younger_topic_takes_over_while_older_is_being_deleted() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders")
    younger = world.add_topic("b", topicName="orders")
    settle(world, older, younger)
    world.kube.mark_deleted("Topic", "a")
    settle(world, younger)
    assert world.condition(younger)[1] == "InEveryGroup"
    assert release(world, older) is None
    assert not deleted(world)


def test_concurrent_deletion_of_both_deletes_topic_once() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders")
    younger = world.add_topic("b", topicName="orders")
    settle(world, older, younger)
    for name in ("a", "b"):
        world.kube.mark_deleted("Topic", name)
    assert release(world, younger) is None
    assert world.on(0, "orders") is not None
    assert release(world, older) is None
    assert world.on(0, "orders") is None


def test_topics_that_swap_names_keep_messages() -> None:
    world = TopicWorld(groups=1)
    first, second = world.add_topic("a", topicName="x", queues=1), world.add_topic("b", topicName="y", queues=2)
    settle(world, first, second)
    # topicName is immutable: the swap creates two new resources and then deletes the old ones.
    third, fourth = world.add_topic("c", topicName="y", queues=3), world.add_topic("d", topicName="x", queues=4)
    settle(world, third, fourth)
    assert world.condition(third)[1] == world.condition(fourth)[1] == "Conflict"
    assert delete(world, first) is None
    assert delete(world, second) is None
    settle(world, third, fourth)
    assert not deleted(world)
    assert world.on(0, "y") == TopicConfig(topic="y", read_queues=3, write_queues=3)
    assert world.on(0, "x") == TopicConfig(topic="x", read_queues=4, write_queues=4)


def test_restarted_operator_finds_same_owner() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders", queues=4)
    younger = world.add_topic("b", topicName="orders", queues=2)
    settle(world, older, younger)
    world.restart_operator()
    world.kube.requests.clear()
    settle(world, younger, older)
    assert world.kube.requests == {"get": 1}  # the Secret with the brokers' token
    assert world.on(0, "orders").write_queues == 4  # type: ignore[union-attr]


# Deletion


def test_deletion_removes_topic_from_groups_routes_and_order_settings() -> None:
    world = TopicWorld(groups=2, name_servers=2)
    key = world.add_topic("orders", order=True)
    settle(world, key)
    assert delete(world, key) is None
    assert deleted(world) == [
        ("delete_topic", world.host(0), "orders"),
        ("delete_topic", world.host(1), "orders"),
        ("delete_route", world.name_server(0), "orders", "demo"),
        ("delete_route", world.name_server(1), "orders", "demo"),
    ]
    assert world.brokers.orders_by_address == {world.name_server(0): {}, world.name_server(1): {}}


def test_topic_recreated_immediately_after_deletion_is_created() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", queues=4)
    settle(world, key)
    assert delete(world, key) is None
    settle(world, world.add_topic("orders", queues=4))
    assert world.on(0, "orders") is not None


def test_retain_leaves_topic_unchanged() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", deletionPolicy="Retain", order=True)
    settle(world, key)
    calls = len(world.brokers.calls)
    assert delete(world, key) is None
    assert len(world.brokers.calls) == calls


def test_deletion_of_losing_topic_deletes_nothing() -> None:
    world = TopicWorld(groups=1)
    older, younger = (world.add_topic(name, topicName="orders") for name in ("a", "b"))
    settle(world, older, younger)
    assert delete(world, younger) is None
    assert not deleted(world)


def test_deletion_of_unreconciled_topic_deletes_nothing() -> None:
    world = TopicWorld(groups=1)
    world.put_by_hand(0, "orders")
    assert delete(world, world.add_topic("orders")) is None
    assert not deleted(world)


def test_ownership_is_recorded_before_creation() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")

    async def crash(*_: Any) -> None:
        raise RuntimeError("the operator is killed")

    put = world.brokers.put_topic

    async def put_and_crash(endpoint: Endpoint, config: TopicConfig) -> None:
        await put(endpoint, config)
        await crash()

    world.brokers.put_topic = put_and_crash
    with pytest.raises(RuntimeError, match="killed"):
        settle(world, key)
    world.restart_operator()
    assert world.on(0, "orders") is not None
    assert delete(world, key) is None
    assert world.on(0, "orders") is None


def test_deletion_waits_for_unready_group_and_names_it() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders")
    settle(world, key)
    world.set_ready(1, False)
    waiting = delete(world, key)
    assert waiting is not None
    assert "demo-1: its broker is not ready" in waiting.message
    assert "set spec.deletionPolicy to Retain" in waiting.message
    assert world.condition(key) == ("False", "Deleting", waiting.message)
    assert world.kube.events[-1] == ("Warning", "Deleting", waiting.message)
    events = len(world.kube.events)
    assert release(world, key) is not None
    assert len(world.kube.events) == events
    world.set_ready(1, True)
    assert release(world, key) is None
    assert world.on(1, "orders") is None


def test_deletion_waits_for_unresponsive_broker() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    settle(world, key)
    world.brokers.down.add(world.host(0))
    waiting = delete(world, key)
    assert waiting is not None
    assert "does not respond" in waiting.message
    world.brokers.down.clear()
    assert release(world, key) is None


def test_deletion_does_not_wait_for_group_without_topic() -> None:
    world = TopicWorld(groups=1)
    world.kube.change("Broker", "demo", size=2)
    key = world.add_topic("orders")
    settle(world, key)
    assert delete(world, key) is None
    assert world.on(0, "orders") is None


def test_deletion_covers_surplus_groups() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders")
    settle(world, key)
    world.kube.change("Broker", "demo", size=1)
    settle(world, key)
    assert delete(world, key) is None
    assert world.on(1, "orders") is None


def test_deletion_is_not_blocked_by_deleted_or_terminating_broker() -> None:
    for end in (TopicWorld.kill_broker, TopicWorld.begin_deletion_of_broker):
        world = TopicWorld(groups=1)
        key = world.add_topic("orders")
        settle(world, key)
        world.brokers.down.add(world.host(0))
        assert delete(world, key) is not None
        end(world)
        assert release(world, key) is None


def test_broker_missing_only_from_cache_still_blocks_deletion() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    settle(world, key)
    world.kube.frozen = {}
    world.kube.mark_deleted("Topic", "orders")
    waiting = release(world, key)
    assert waiting is not None  # without the address of its pod, the broker cannot be reached
    world.kube.frozen = None
    assert release(world, key) is None
    assert world.on(0, "orders") is None


def test_deletion_waits_for_paused_broker_unless_retain_is_set() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    settle(world, key)
    world.kube.change("Broker", "demo", paused=True)
    waiting = delete(world, key)
    assert waiting is not None
    assert "is paused" in waiting.message
    world.kube.change("Topic", "orders", deletionPolicy="Retain")
    assert release(world, key) is None
    assert world.on(0, "orders") is not None


def test_deletion_waits_for_external_but_not_own_name_servers() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    settle(world, key)
    world.brokers.down |= {"ns.ns:9876", world.name_server()}
    world.kube.change("Broker", "demo", nameServers={"addresses": ["ns.ns:9876"]})
    waiting = delete(world, key)
    assert waiting is not None
    assert "ns.ns:9876" in waiting.message
    world.kube.change("Broker", "demo", nameServers={"replicas": 1})
    assert release(world, key) is None


def test_deletion_of_topic_of_former_broker_keeps_topic_of_new_one() -> None:
    world = TopicWorld(groups=1)
    old = world.add_topic("orders")
    settle(world, old)
    # A Broker cannot be renamed: it is deleted, and recreated under another name.
    world.kill_broker()
    world.add_broker("renamed", groups=1)
    settle(world, old)
    assert world.condition(old)[1] == "BrokerMissing"
    new = world.add_topic("orders-renamed", topicName="orders", broker="renamed")
    settle(world, new)
    assert world.condition(new)[1] == "InEveryGroup"
    assert delete(world, old) is None
    assert world.on(0, "orders", "renamed") is not None


def test_release_of_absent_topic_succeeds() -> None:
    assert release(TopicWorld(), Key("Topic", NAMESPACE, "never")) is None
