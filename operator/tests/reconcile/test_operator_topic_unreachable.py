"""A Topic whose Broker restarts, is recreated, rejects requests or does not respond: the observed status."""

from delaymq_operator_testing.trees import copied
from delaymq_operator_testing.worlds.topic import NAMESPACE, TopicWorld
from delaymq_operator_testing.worlds.topic_reconciling import settle


def test_restarting_broker_does_not_make_settled_topic_unready() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders", queues=4)
    settle(world, key)
    before = world.status(key)
    world.set_ready(1, False)
    world.kube.requests.clear()
    world.later()
    settle(world, key)
    assert world.status(key) == before
    assert not world.kube.requests
    world.kube.change("Topic", "orders", queues=6)
    settle(world, key)
    assert world.on(0, "orders").write_queues == 6  # type: ignore[union-attr]
    assert world.condition(key)[:2] == ("False", "GroupsUnreachable")
    world.set_ready(1, True)
    settle(world, key)
    assert world.on(1, "orders").write_queues == 6  # type: ignore[union-attr]
    assert world.condition(key)[:2] == ("True", "InEveryGroup")


def test_topic_in_recreated_broker_is_unready_until_every_group_is_reached() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders")
    settle(world, key)
    world.kill_broker()
    world.later()
    settle(world, key)
    assert world.condition(key)[:2] == ("False", "BrokerMissing")

    world.kube.add("Broker", "demo", {"size": 2, "nameServers": {"replicas": 1}})
    world.later()
    settle(world, key)
    assert world.condition(key)[:2] == ("False", "Creating")
    world.brokers.topics_by_host.clear()
    world.start_group(0)
    world.later()
    settle(world, key)
    status, reason, message = world.condition(key)
    assert (status, reason) == ("False", "GroupsUnreachable")
    assert "demo-1 (its broker is not ready)" in message
    world.start_group(1)
    world.later()
    settle(world, key)
    assert world.condition(key)[:2] == ("True", "InEveryGroup")
    assert world.on(1, "orders") is not None
    world.set_ready(1, False)
    world.later()
    settle(world, key)
    assert world.condition(key)[:2] == ("True", "InEveryGroup")


def test_groups_recorded_by_older_operator_belong_to_current_broker() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    settle(world, key)
    body = copied(world.kube.objects[key])
    del body["status"]["groups"][0]["brokerUid"]
    world.kube.objects[key] = body
    world.set_ready(0, False)
    world.later()
    settle(world, key)
    assert world.condition(key)[:2] == ("True", "InEveryGroup")


def test_modified_status_is_restored_by_next_reconciliation() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders")
    settle(world, key)
    before = world.status(key)
    body = copied(world.kube.objects[key])
    ready = body["status"]["conditions"][0]
    body["status"] |= {"topicName": "theirs", "groups": [], "observedGeneration": 0}
    body["status"]["conditions"] = [ready | {"reason": "Theirs", "message": "-"}, ready | {"type": "Theirs"}]
    world.kube.objects[key] = body
    world.later()
    settle(world, key)
    assert world.status(key) == before


def test_unresponsive_broker_is_queried_with_shared_backoff() -> None:
    world = TopicWorld(groups=2)
    keys = [world.add_topic(f"t{number}") for number in range(10)]
    world.brokers.down.add(world.host(1))
    settle(world, *keys)
    status, reason, message = world.condition(keys[-1])
    assert (status, reason) == ("False", "GroupsUnreachable")
    assert "demo-1 (its broker does not respond (connection refused))" in message
    for _ in range(300):
        world.later(1)
        settle(world, *keys)
    assert sum(call == ("topics", world.host(1)) for call in world.brokers.calls) < 15
    world.brokers.down.clear()
    world.later(60)
    settle(world, *keys)
    assert all(world.condition(key)[1] == "InEveryGroup" for key in keys)


def test_broker_failure_in_one_topic_suspends_requests_for_others() -> None:
    world = TopicWorld(groups=1)
    keys = [world.add_topic(f"t{number}", queues=4) for number in range(5)]
    settle(world, *keys)
    for key in keys:
        world.kube.change("Topic", key.name, queues=5)
    world.brokers.down.add(world.host(0))
    world.brokers.calls.clear()
    settle(world, *keys)
    assert [call[0] for call in world.brokers.calls] == ["put_topic"]
    world.brokers.down.clear()
    world.later(-3600)
    settle(world, *keys)
    assert world.condition(keys[-1])[1] == "InEveryGroup"


def test_broker_in_new_pod_is_queried_immediately() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    world.brokers.down.add(world.host(0))
    for _ in range(20):
        settle(world, key)
        world.later(20)
    topics = world.brokers.topics_by_host[world.host(0)]
    world.brokers.topics_by_host["10.0.0.9"] = topics
    world.kube.objects["Pod", NAMESPACE, "demo-broker-0-0"] = {"status": {"podIP": "10.0.0.9"}}
    settle(world, key)
    assert world.condition(key)[1] == "InEveryGroup"


def test_rejection_is_reported_with_message_of_broker() -> None:
    world = TopicWorld(groups=2)
    world.brokers.refusing[world.host(1)] = "the broker has 20000 topics already: delete some."
    key = world.add_topic("orders")
    settle(world, key)
    status, reason, message = world.condition(key)
    assert (status, reason) == ("False", "ApplyFailed")
    assert "demo-1 (its broker rejects the request: the broker has 20000 topics already: delete some)" in message
    assert world.kube.events[-1][:2] == ("Warning", "ApplyFailed")
    events = len(world.kube.events)
    world.later()
    assert settle(world, key).requeue_after_s == world.settings.status_interval_s
    assert len(world.kube.events) == events
