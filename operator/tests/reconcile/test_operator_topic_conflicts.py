"""Two Topics for one topic: the older owns it, the younger reports that and inherits; effects of a deletion."""

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
    """kubectl delete with the finalizer: marked, released, gone."""
    world.kube.mark_deleted("Topic", key.name)
    waiting = release(world, key)
    if waiting is None:
        world.kube.remove("Topic", key.name)
    return waiting


def deleted(world: TopicWorld) -> list[tuple[str, ...]]:
    return [call for call in world.brokers.calls if call[0] in ("delete_topic", "delete_route")]


# Conflicts


def test_the_younger_names_the_older_and_says_what_to_do() -> None:
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


def test_of_two_made_in_the_same_second_the_smaller_uid_wins() -> None:
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
    # What it had is another's now: whatever becomes of that one, this one deletes nothing any more.
    assert "topicName" not in world.status(first)
    assert "groups" not in world.status(first) or not world.status(first)["groups"]


def test_the_same_name_on_two_brokers_or_as_another_topic_is_no_conflict() -> None:
    world = TopicWorld(groups=1)
    world.add_broker("other", groups=1)
    keys = [
        world.add_topic("a", topicName="orders"),
        world.add_topic("b", topicName="orders", broker="other"),
        world.add_topic("orders", topicName="invoices"),
    ]
    settle(world, *keys)
    assert [world.condition(key)[1] for key in keys] == ["InEveryGroup"] * 3


def test_a_settled_conflict_makes_no_request() -> None:
    world = TopicWorld(groups=1)
    keys = [world.add_topic(name, topicName="orders") for name in ("a", "b")]
    settle(world, *keys)
    world.kube.requests.clear()
    world.later()
    settle(world, *keys)
    assert not world.kube.requests


def test_the_younger_takes_over_when_the_older_is_retained_and_gone() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders", queues=4, deletionPolicy="Retain")
    younger = world.add_topic("b", topicName="orders", queues=2)
    settle(world, older, younger)
    assert delete(world, older) is None
    settle(world, younger)
    assert world.condition(younger)[1] == "InEveryGroup"
    assert world.on(0, "orders") == TopicConfig(topic="orders", read_queues=4, write_queues=2)


def test_an_heir_keeps_the_messages_that_a_deletion_would_take() -> None:
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


def test_an_heir_that_the_cache_does_not_show_yet_is_found() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders")
    settle(world, older)
    world.kube.frozen = dict(world.kube.objects)
    world.add_topic("b", topicName="orders")
    assert delete(world, older) is None
    assert not deleted(world)


def test_the_younger_takes_over_while_the_older_is_being_deleted() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders")
    younger = world.add_topic("b", topicName="orders")
    settle(world, older, younger)
    world.kube.mark_deleted("Topic", "a")
    settle(world, younger)
    assert world.condition(younger)[1] == "InEveryGroup"
    assert release(world, older) is None
    assert not deleted(world)


def test_both_deleted_at_once_delete_the_topic_once() -> None:
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


def test_two_topics_that_swap_names_keep_their_messages() -> None:
    world = TopicWorld(groups=1)
    first, second = world.add_topic("a", topicName="x", queues=1), world.add_topic("b", topicName="y", queues=2)
    settle(world, first, second)
    # topicName cannot be changed: the swap creates two new resources and then deletes the old ones.
    third, fourth = world.add_topic("c", topicName="y", queues=3), world.add_topic("d", topicName="x", queues=4)
    settle(world, third, fourth)
    assert world.condition(third)[1] == world.condition(fourth)[1] == "Conflict"
    assert delete(world, first) is None
    assert delete(world, second) is None
    settle(world, third, fourth)
    assert not deleted(world)
    assert world.on(0, "y") == TopicConfig(topic="y", read_queues=3, write_queues=3)
    assert world.on(0, "x") == TopicConfig(topic="x", read_queues=4, write_queues=4)


def test_an_operator_that_restarts_finds_the_same_owner() -> None:
    world = TopicWorld(groups=1)
    older = world.add_topic("a", topicName="orders", queues=4)
    younger = world.add_topic("b", topicName="orders", queues=2)
    settle(world, older, younger)
    world.restart_operator()
    world.kube.requests.clear()
    settle(world, younger, older)
    assert not world.kube.requests
    assert world.on(0, "orders").write_queues == 4  # type: ignore[union-attr]


# Deletion


def test_a_deletion_removes_the_topic_from_groups_routes_and_order_settings() -> None:
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


def test_a_topic_that_is_deleted_and_made_anew_at_once_is_made() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", queues=4)
    settle(world, key)
    assert delete(world, key) is None
    settle(world, world.add_topic("orders", queues=4))
    assert world.on(0, "orders") is not None


def test_retain_leaves_everything() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", deletionPolicy="Retain", order=True)
    settle(world, key)
    calls = len(world.brokers.calls)
    assert delete(world, key) is None
    assert len(world.brokers.calls) == calls


def test_a_loser_deletes_nothing() -> None:
    world = TopicWorld(groups=1)
    older, younger = (world.add_topic(name, topicName="orders") for name in ("a", "b"))
    settle(world, older, younger)
    assert delete(world, younger) is None
    assert not deleted(world)


def test_a_topic_that_was_never_looked_at_deletes_nothing() -> None:
    world = TopicWorld(groups=1)
    world.put_by_hand(0, "orders")
    assert delete(world, world.add_topic("orders")) is None
    assert not deleted(world)


def test_a_topic_is_owned_before_it_is_made_so_that_a_crash_leaves_nothing_behind() -> None:
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


def test_a_group_that_cannot_be_reached_is_waited_for_and_named() -> None:
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


def test_a_broker_that_does_not_answer_is_waited_for() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    settle(world, key)
    world.brokers.down.add(world.host(0))
    waiting = delete(world, key)
    assert waiting is not None
    assert "does not respond" in waiting.message
    world.brokers.down.clear()
    assert release(world, key) is None


def test_a_group_that_never_had_the_topic_is_not_waited_for() -> None:
    world = TopicWorld(groups=1)
    world.kube.change("Broker", "demo", size=2)
    key = world.add_topic("orders")
    settle(world, key)
    assert delete(world, key) is None
    assert world.on(0, "orders") is None


def test_a_surplus_group_loses_the_topic_too() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders")
    settle(world, key)
    world.kube.change("Broker", "demo", size=1)
    settle(world, key)
    assert delete(world, key) is None
    assert world.on(1, "orders") is None


def test_a_broker_that_is_gone_or_going_lets_its_topics_go() -> None:
    for end in (TopicWorld.kill_broker, TopicWorld.begin_deletion_of_broker):
        world = TopicWorld(groups=1)
        key = world.add_topic("orders")
        settle(world, key)
        world.brokers.down.add(world.host(0))
        assert delete(world, key) is not None
        end(world)
        assert release(world, key) is None


def test_a_broker_that_only_the_cache_misses_is_no_reason_to_let_go() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    settle(world, key)
    world.kube.frozen = {}
    world.kube.mark_deleted("Topic", "orders")
    waiting = release(world, key)
    assert waiting is not None  # without its pod's address the broker cannot be reached yet
    world.kube.frozen = None
    assert release(world, key) is None
    assert world.on(0, "orders") is None


def test_a_paused_broker_is_waited_for_and_retain_is_the_way_out() -> None:
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


def test_external_name_servers_are_waited_for_and_own_ones_are_not() -> None:
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


def test_a_topic_of_a_broker_by_another_name_stays_its_own() -> None:
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


def test_a_resource_that_is_gone_is_let_go() -> None:
    assert release(TopicWorld(), Key("Topic", NAMESPACE, "never")) is None
