"""The order setting of a Topic on every NameServer of its Broker."""

from delaymq_operator.api.topic import BrokerRef, TopicGroupStatus, TopicSpec
from delaymq_operator.reconcile.topic.desired import order_text, satisfied
from delaymq_operator_testing.worlds.topic import NAMESPACE, TopicWorld
from delaymq_operator_testing.worlds.topic_reconciling import settle
from msgspec import structs


def test_order_is_set_on_every_name_server() -> None:
    world = TopicWorld(groups=2, name_servers=2)
    key = world.add_topic("orders", order=True, queues=4)
    settle(world, key)
    for number in (0, 1):
        assert world.brokers.orders_by_address[world.name_server(number)] == {"orders": "demo-0:4;demo-1:4"}
    assert world.condition(key)[1] == "InEveryGroup"


def test_name_server_addresses_use_configured_cluster_domain() -> None:
    world = TopicWorld(groups=1, name_servers=2, cluster_domain="svc.cluster.example")
    key = world.add_topic("orders", order=True)
    settle(world, key)
    assert set(world.brokers.orders_by_address) == {
        f"demo-namesrv-{number}.demo-namesrv-pods.{NAMESPACE}.svc.cluster.example:9876" for number in (0, 1)
    }
    assert world.condition(key)[1] == "InEveryGroup"


def test_lost_order_is_restored_on_name_server() -> None:
    world = TopicWorld(groups=1, name_servers=2)
    key = world.add_topic("orders", order=True)
    settle(world, key)
    world.brokers.orders_by_address[world.name_server(1)].clear()
    world.later()
    settle(world, key)
    assert world.brokers.orders_by_address[world.name_server(1)] == {"orders": "demo-0:8"}
    assert [call[1] for call in world.brokers.calls if call[0] == "put_order"].count(world.name_server(0)) == 1


def test_order_follows_queues_and_groups() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", order=True, queues=4)
    settle(world, key)
    world.kube.change("Broker", "demo", size=2)
    world.start_group(1)
    world.kube.change("Topic", "orders", queues=2)
    settle(world, key)
    assert world.brokers.orders_by_address[world.name_server()] == {"orders": "demo-0:2;demo-1:2"}
    world.kube.change("Broker", "demo", size=1)
    settle(world, key)
    assert world.brokers.orders_by_address[world.name_server()] == {"orders": "demo-0:2"}


def test_order_false_removes_setting_and_unset_order_keeps_it() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders")
    world.brokers.orders_by_address[world.name_server()] = {"orders": "demo-0:8", "other": "demo-0:1"}
    settle(world, key)
    assert "orders" in world.brokers.orders_by_address[world.name_server()]
    world.kube.change("Topic", "orders", order=False)
    settle(world, key)
    assert world.brokers.orders_by_address[world.name_server()] == {"other": "demo-0:1"}


def test_unready_groups_do_not_remove_order() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", order=True)
    world.brokers.orders_by_address[world.name_server()] = {"orders": "demo-0:8"}
    world.set_ready(0, False)
    settle(world, key)
    assert world.brokers.orders_by_address[world.name_server()] == {"orders": "demo-0:8"}


def test_removed_order_is_not_removed_again() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", order=False)
    world.brokers.orders_by_address[world.name_server()] = {"orders": "demo-0:8"}
    settle(world, key)
    settle(world, key)
    assert world.brokers.asked("put_order") == 1


def test_unresponsive_name_server_is_reported() -> None:
    world = TopicWorld(groups=1, name_servers=2)
    world.brokers.down.add(world.name_server(1))
    key = world.add_topic("orders", order=True)
    settle(world, key)
    status, reason, message = world.condition(key)
    assert (status, reason) == ("False", "NameServersNotReady")
    assert world.name_server(1) in message
    assert world.brokers.orders_by_address[world.name_server(0)] == {"orders": "demo-0:8"}
    world.brokers.down.clear()
    world.later()
    settle(world, key)
    assert world.condition(key)[1] == "InEveryGroup"


def test_topic_is_satisfied_only_by_matching_queues_permission_and_broker() -> None:
    spec = TopicSpec(broker_ref=BrokerRef(name="demo"), queues=4, permission="ReadWrite")
    seen = TopicGroupStatus(name="demo-0", write_queues=4, read_queues=4, permission="ReadWrite")
    assert satisfied(spec, seen, "uid")
    assert not satisfied(spec, None, "uid")
    assert not satisfied(spec, structs.replace(seen, broker_uid="former"), "uid")
    for wrong in ({"read_queues": 3}, {"write_queues": 5}, {"permission": "ReadOnly"}):
        assert not satisfied(spec, structs.replace(seen, **wrong), "uid")


def test_orders_of_other_clusters_keep_their_position() -> None:
    assert order_text("broker-a:4;demo-0:1;demo-1-0:3", "demo", {"demo-0": 8}) == "broker-a:4;demo-1-0:3;demo-0:8"
    assert order_text("broker-a:4;demo-0:1", "demo", {}) == "broker-a:4"
    assert order_text("demo-0:1;demo-7:2", "demo", {}) is None
    assert order_text(None, "demo", {}) is None
