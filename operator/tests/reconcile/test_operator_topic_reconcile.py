"""A Topic is kept on every group of its Broker as its spec names it, and what it does not name is left alone."""

import asyncio

import pytest
from delaymq_operator.api import SpecError, parse_topic
from delaymq_operator.reconcile.context import Key, Outcome
from delaymq_operator.reconcile.ports import TopicConfig
from delaymq_operator.reconcile.topic import reconcile_topic
from delaymq_operator.reconcile.topic.shared_reads import ParsedBroker
from delaymq_operator_testing.worlds.topic import NAMESPACE, TopicWorld
from delaymq_operator_testing.worlds.topic_reconciling import run, settle


def test_a_new_topic_is_made_on_every_group_with_eight_queues() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders")
    settle(world, key)
    for number in (0, 1):
        assert world.on(number, "orders") == TopicConfig(topic="orders", read_queues=8, write_queues=8, permission=6)
    assert world.condition(key) == ("True", "InEveryGroup", "Topic orders is in demo-0, demo-1.")
    assert world.status(key)["topicName"] == "orders"
    assert world.status(key)["observedGeneration"] == 1
    here = world.kube.objects["Broker", NAMESPACE, "demo"]["metadata"]["uid"]
    assert world.status(key)["groups"] == [
        {"name": "demo-0", "writeQueues": 8, "readQueues": 8, "permission": "ReadWrite", "brokerUid": here},
        {"name": "demo-1", "writeQueues": 8, "readQueues": 8, "permission": "ReadWrite", "brokerUid": here},
    ]
    assert [event[:2] for event in world.kube.events] == [("Normal", "Applied")]


def test_what_the_spec_names_is_what_the_brokers_get() -> None:
    world = TopicWorld(groups=1)
    settle(world, world.add_topic("a", topicName="ORDERS", queues=3, permission="WriteOnly"))
    assert world.on(0, "ORDERS") == TopicConfig(topic="ORDERS", read_queues=3, write_queues=3, permission=2)


def test_a_settled_topic_makes_no_request_and_asks_each_group_once_a_poll() -> None:
    world = TopicWorld(groups=2)
    keys = [world.add_topic(f"t{number}") for number in range(20)]
    settle(world, *keys)
    world.later()
    settle(world, *keys)
    world.kube.requests.clear()
    world.brokers.calls.clear()
    for _ in range(3):
        world.later()
        assert settle(world, *keys).requeue_after_s == world.settings.poll_interval_s
    assert not world.kube.requests
    assert [call[0] for call in world.brokers.calls] == ["topics"] * 3 * 2


def test_topics_that_are_looked_at_together_share_one_answer() -> None:
    world = TopicWorld(groups=1)
    keys = [world.add_topic(f"t{number}") for number in range(20)]
    settle(world, *keys)
    world.later()
    world.brokers.calls.clear()
    world.brokers.slow = True

    async def together() -> None:
        await asyncio.gather(*(reconcile_topic(key, world.world) for key in keys))

    run(together())
    assert world.brokers.asked("topics") == 1


def test_a_pass_that_is_cancelled_while_it_asks_holds_up_no_other() -> None:
    world = TopicWorld(groups=1)
    keys = [world.add_topic(f"t{number}") for number in range(3)]
    world.brokers.slow = True

    async def cancel_the_first() -> None:
        first, *others = (asyncio.create_task(reconcile_topic(key, world.world)) for key in keys)
        while not world.brokers.asked("topics"):  # noqa: ASYNC110  (the loop's other tasks run meanwhile)
            await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*others)

    run(cancel_the_first())
    assert [world.condition(key)[1] for key in keys[1:]] == ["InEveryGroup"] * 2


def test_a_named_field_that_somebody_changes_is_put_right() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders", queues=4, permission="ReadWrite")
    settle(world, key)
    world.put_by_hand(1, "orders", write_queues=16, read_queues=16, permission=4)
    world.later()
    settle(world, key)
    assert world.on(1, "orders") == TopicConfig(topic="orders", read_queues=16, write_queues=4, permission=6)
    assert world.kube.events[-1] == ("Normal", "PutRight", "demo-1: write queues 16 → 4, permission 4 → 6")


def test_a_field_that_the_spec_does_not_name_is_left_to_whoever_set_it() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders", permission="ReadWrite")
    settle(world, key)
    world.put_by_hand(0, "orders", write_queues=16, read_queues=20, filter_type="MULTI_TAG", sys_flag=1)
    world.later()
    settle(world, key)
    assert world.on(0, "orders") == TopicConfig(
        topic="orders", read_queues=20, write_queues=16, filter_type="MULTI_TAG", sys_flag=1
    )
    assert world.status(key)["groups"][0]["writeQueues"] == 16
    assert world.condition(key)[1] == "InEveryGroup"


def test_putting_a_named_field_right_hands_back_the_others_as_they_were() -> None:
    world = TopicWorld(groups=1)
    world.put_by_hand(0, "orders", filter_type="MULTI_TAG", sys_flag=1, permission=7, order=True)
    settle(world, world.add_topic("orders", permission="ReadOnly", queues=8))
    assert world.on(0, "orders") == TopicConfig(
        topic="orders", read_queues=8, write_queues=8, permission=5, order=True, filter_type="MULTI_TAG", sys_flag=1
    )


def test_fewer_queues_take_write_queues_away_and_keep_read_queues() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", queues=8)
    settle(world, key)
    world.kube.change("Topic", "orders", queues=2)
    settle(world, key)
    assert world.on(0, "orders") == TopicConfig(topic="orders", read_queues=8, write_queues=2)
    status, reason, message = world.condition(key)
    assert (status, reason) == ("True", "InEveryGroup")
    assert "surplus read queues are kept in demo-0" in message
    world.kube.change("Topic", "orders", queues=10)
    settle(world, key)
    assert world.on(0, "orders") == TopicConfig(topic="orders", read_queues=10, write_queues=10)


def test_a_topic_that_exists_already_is_taken_over_as_it_is() -> None:
    world = TopicWorld(groups=2)
    world.put_by_hand(0, "orders", read_queues=16, write_queues=12, permission=4)
    key = world.add_topic("orders")
    settle(world, key)
    assert world.on(0, "orders") == TopicConfig(topic="orders", read_queues=16, write_queues=12, permission=4)
    assert world.on(1, "orders") == TopicConfig(topic="orders", read_queues=12, write_queues=12, permission=4)
    assert not world.brokers.asked("delete_topic")


def test_a_topic_that_a_producer_made_a_moment_ago_is_not_made_smaller() -> None:
    world = TopicWorld(groups=1)
    settle(world, world.add_topic("first"))
    world.put_by_hand(0, "orders", read_queues=32, write_queues=32)
    world.later(2)
    settle(world, world.add_topic("orders"))
    assert world.on(0, "orders") == TopicConfig(topic="orders", read_queues=32, write_queues=32)


def test_a_group_that_appears_later_gets_the_topic() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    settle(world, key)
    world.kube.change("Broker", "demo", size=2)
    settle(world, key)
    status, reason, message = world.condition(key)
    assert (status, reason) == ("False", "GroupsUnreachable")
    assert "demo-1 (its broker is not ready)" in message
    world.start_group(1)
    settle(world, key)
    assert world.on(1, "orders") == world.on(0, "orders")
    assert world.condition(key)[1] == "InEveryGroup"


def test_a_topic_for_a_broker_that_appears_later_waits_for_it() -> None:
    world = TopicWorld(groups=0)
    key = world.add_topic("orders")
    assert settle(world, key).requeue_after_s == world.settings.poll_interval_s
    status, reason, message = world.condition(key)
    assert (status, reason) == ("False", "BrokerMissing")
    assert "Broker demo does not exist" in message
    assert "topicName" not in world.status(key)
    world.kube.add("Broker", "demo", {"size": 1})
    settle(world, key)
    assert world.condition(key)[1] == "Creating"
    world.start_group(0)
    settle(world, key)
    assert world.condition(key)[1] == "InEveryGroup"


def test_nothing_is_changed_while_the_broker_is_paused() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    world.kube.change("Broker", "demo", paused=True)
    settle(world, key)
    assert world.condition(key)[1] == "BrokerPaused"
    assert not world.brokers.calls
    world.kube.change("Broker", "demo", paused=False)
    settle(world, key)
    assert world.condition(key)[1] == "InEveryGroup"


def test_nothing_is_made_in_a_broker_that_is_being_deleted() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    world.kube.mark_deleted("Broker", "demo")
    settle(world, key)
    assert world.condition(key)[1] == "BrokerMissing"
    assert not world.brokers.calls


def test_a_surplus_group_is_left_as_it_is() -> None:
    world = TopicWorld(groups=2)
    old = world.add_topic("old")
    settle(world, old)
    world.kube.change("Broker", "demo", size=1)
    new = world.add_topic("new")
    world.kube.change("Topic", "old", queues=2)
    settle(world, old, new)
    assert world.on(1, "new") is None
    assert world.on(1, "old").write_queues == 8  # type: ignore[union-attr]
    assert world.condition(new)[2] == "Topic new is in demo-0."
    assert [group["name"] for group in world.status(old)["groups"]] == ["demo-0", "demo-1"]


@pytest.mark.parametrize(
    "name", ["demo", "demo-1", "demo_REPLY_TOPIC", "BenchmarkTest", "rmq_sys_x", "TBW102", "%RETRY%g", "%DLQ%g"]
)
def test_a_topic_of_the_brokers_own_is_never_adopted(name: str) -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("mine", topicName=name)
    assert settle(world, key).requeue_after_s is None
    assert world.condition(key)[1] == "InvalidSpec"
    assert "topicName" not in world.status(key)
    assert not world.brokers.calls


def test_a_spec_that_cannot_be_used_waits_for_a_new_one() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", queues="many")
    assert settle(world, key).requeue_after_s is None
    assert world.condition(key)[1] == "InvalidSpec"
    with pytest.raises(SpecError):
        parse_topic(world.kube.objects[key])
    world.kube.change("Topic", "orders", queues=2)
    settle(world, key)
    assert world.condition(key)[1] == "InEveryGroup"


def test_the_clock_that_is_set_back_does_not_stop_the_polls() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", queues=4)
    settle(world, key)
    world.later(-86_400)
    world.put_by_hand(0, "orders", write_queues=1)
    settle(world, key)
    assert world.on(0, "orders").write_queues == 4  # type: ignore[union-attr]


def test_nothing_is_made_for_a_topic_that_could_vanish_unnoticed() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    finalizers = world.kube.objects[key]["metadata"].pop("finalizers")
    again_s = settle(world, key).requeue_after_s
    assert again_s is not None
    assert again_s < 1
    assert not world.brokers.calls
    assert not world.kube.requests
    world.kube.objects[key]["metadata"]["finalizers"] = finalizers
    settle(world, key)
    assert world.condition(key)[1] == "InEveryGroup"


def test_a_deleted_resource_and_one_under_deletion_are_left_to_the_release() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    world.kube.mark_deleted("Topic", "orders")
    assert settle(world, key, Key("Topic", NAMESPACE, "never")) == Outcome()
    assert not world.brokers.calls


def test_a_broker_is_parsed_once_for_all_its_topics_and_anew_when_it_changed() -> None:
    body = {"kind": "Broker", "metadata": {"name": "demo", "namespace": NAMESPACE}, "spec": {"size": 2}}
    parsed = ParsedBroker()
    assert parsed.of(body) is parsed.of(body)
    assert parsed.of(body).spec.size == 2
    assert parsed.of(body | {"spec": {"size": 3}}).spec.size == 3
    with pytest.raises(SpecError):
        parsed.of(body | {"spec": {"size": 0}})
    assert parsed.of(body).spec.size == 2
