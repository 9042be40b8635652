"""Reconciliation of a Topic with every group of its Broker; fields absent from its spec are kept."""

import asyncio

import pytest
from delaymq_operator.api import SpecError, parse_topic
from delaymq_operator.reconcile.context import Key, Outcome
from delaymq_operator.reconcile.ports import TopicConfig
from delaymq_operator.reconcile.topic import reconcile_topic
from delaymq_operator.reconcile.topic.shared_reads import ParsedBroker
from delaymq_operator_testing.worlds.topic import NAMESPACE, TopicWorld
from delaymq_operator_testing.worlds.topic_reconciling import run, settle


def test_new_topic_is_created_in_every_group_with_eight_queues() -> None:
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


def test_specified_fields_are_sent_to_brokers() -> None:
    world = TopicWorld(groups=1)
    settle(world, world.add_topic("a", topicName="ORDERS", queues=3, permission="WriteOnly"))
    assert world.on(0, "ORDERS") == TopicConfig(topic="ORDERS", read_queues=3, write_queues=3, permission=2)


def test_settled_topics_write_nothing_and_read_each_group_once_per_poll() -> None:
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


def test_concurrent_reconciliations_share_one_topic_list() -> None:
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


def test_cancelled_reconciliation_does_not_block_others() -> None:
    world = TopicWorld(groups=1)
    keys = [world.add_topic(f"t{number}") for number in range(3)]
    world.brokers.slow = True

    async def cancel_the_first() -> None:
        first, *others = (asyncio.create_task(reconcile_topic(key, world.world)) for key in keys)
        while not world.brokers.asked("topics"):  # noqa: ASYNC110  (lets the other tasks run)
            await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*others)

    run(cancel_the_first())
    assert [world.condition(key)[1] for key in keys[1:]] == ["InEveryGroup"] * 2


def test_modified_specified_field_is_corrected() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders", queues=4, permission="ReadWrite")
    settle(world, key)
    world.put_by_hand(1, "orders", write_queues=16, read_queues=16, permission=4)
    world.later()
    settle(world, key)
    assert world.on(1, "orders") == TopicConfig(topic="orders", read_queues=16, write_queues=4, permission=6)
    assert world.kube.events[-1] == ("Normal", "PutRight", "demo-1: write queues 16 → 4, permission 4 → 6")


def test_unspecified_field_keeps_foreign_value() -> None:
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


def test_correction_of_one_field_keeps_others() -> None:
    world = TopicWorld(groups=1)
    world.put_by_hand(0, "orders", filter_type="MULTI_TAG", sys_flag=1, permission=7, order=True)
    settle(world, world.add_topic("orders", permission="ReadOnly", queues=8))
    assert world.on(0, "orders") == TopicConfig(
        topic="orders", read_queues=8, write_queues=8, permission=5, order=True, filter_type="MULTI_TAG", sys_flag=1
    )


def test_reducing_queues_removes_write_queues_and_keeps_read_queues() -> None:
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


def test_existing_topic_is_adopted_unchanged() -> None:
    world = TopicWorld(groups=2)
    world.put_by_hand(0, "orders", read_queues=16, write_queues=12, permission=4)
    key = world.add_topic("orders")
    settle(world, key)
    assert world.on(0, "orders") == TopicConfig(topic="orders", read_queues=16, write_queues=12, permission=4)
    assert world.on(1, "orders") == TopicConfig(topic="orders", read_queues=12, write_queues=12, permission=4)
    assert not world.brokers.asked("delete_topic")


def test_topic_created_recently_by_producer_is_not_reduced() -> None:
    world = TopicWorld(groups=1)
    settle(world, world.add_topic("first"))
    world.put_by_hand(0, "orders", read_queues=32, write_queues=32)
    world.later(2)
    settle(world, world.add_topic("orders"))
    assert world.on(0, "orders") == TopicConfig(topic="orders", read_queues=32, write_queues=32)


def test_new_group_gets_topic() -> None:
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


def test_topic_waits_for_missing_broker() -> None:
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


def test_nothing_is_changed_while_broker_is_paused() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    world.kube.change("Broker", "demo", paused=True)
    settle(world, key)
    assert world.condition(key)[1] == "BrokerPaused"
    assert not world.brokers.calls
    world.kube.change("Broker", "demo", paused=False)
    settle(world, key)
    assert world.condition(key)[1] == "InEveryGroup"


def test_nothing_is_created_in_terminating_broker() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    world.kube.mark_deleted("Broker", "demo")
    settle(world, key)
    assert world.condition(key)[1] == "BrokerMissing"
    assert not world.brokers.calls


def test_surplus_group_is_left_unchanged() -> None:
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
def test_system_topic_is_never_adopted(name: str) -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("mine", topicName=name)
    assert settle(world, key).requeue_after_s is None
    assert world.condition(key)[1] == "InvalidSpec"
    assert "topicName" not in world.status(key)
    assert not world.brokers.calls


def test_invalid_spec_is_not_requeued_until_corrected() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", queues="many")
    assert settle(world, key).requeue_after_s is None
    assert world.condition(key)[1] == "InvalidSpec"
    with pytest.raises(SpecError):
        parse_topic(world.kube.objects[key])
    world.kube.change("Topic", "orders", queues=2)
    settle(world, key)
    assert world.condition(key)[1] == "InEveryGroup"


def test_clock_set_back_does_not_stop_polling() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", queues=4)
    settle(world, key)
    world.later(-86_400)
    world.put_by_hand(0, "orders", write_queues=1)
    settle(world, key)
    assert world.on(0, "orders").write_queues == 4  # type: ignore[union-attr]


def test_nothing_is_created_before_finalizer_is_set() -> None:
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


def test_deleted_and_terminating_topics_are_not_reconciled() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    world.kube.mark_deleted("Topic", "orders")
    assert settle(world, key, Key("Topic", NAMESPACE, "never")) == Outcome()
    assert not world.brokers.calls


def test_broker_is_parsed_once_for_all_topics_until_it_changes() -> None:
    body = {"kind": "Broker", "metadata": {"name": "demo", "namespace": NAMESPACE}, "spec": {"size": 2}}
    parsed = ParsedBroker()
    assert parsed.of(body) is parsed.of(body)
    assert parsed.of(body).spec.size == 2
    assert parsed.of(body | {"spec": {"size": 3}}).spec.size == 3
    with pytest.raises(SpecError):
        parsed.of(body | {"spec": {"size": 0}})
    assert parsed.of(body).spec.size == 2
