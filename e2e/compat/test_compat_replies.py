"""Requests and replies between RocketMQ's Java client and ours, in all four combinations, on either broker."""

import pytest
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError

REPLY_TIMEOUT_MS = 20_000


def test_a_java_producer_gets_the_reply_of_a_java_consumer(cluster: Cluster, clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    replier = clients.replier(topic, group=clients.group(retry_topic=True))
    producer = clients.new_producer()
    reply = producer.request(topic, "what?", timeout_ms=REPLY_TIMEOUT_MS, keys="k")
    assert reply.body == b"re: what?"
    assert reply.topic == "DefaultCluster_REPLY_TOPIC"
    (asked,) = replier.inbox.messages()
    assert asked.properties["REPLY_TO_CLIENT"] == producer.client_id == reply.properties["REPLY_TO_CLIENT"]
    assert asked.properties["CORRELATION_ID"] == reply.properties["CORRELATION_ID"]
    assert int(reply.properties["PUSH_REPLY_TIME"]) > 0
    assert producer.request(topic, "and?", timeout_ms=REPLY_TIMEOUT_MS, callback=True).body == b"re: and?"


def test_a_java_replier_is_told_that_the_producer_is_gone(cluster: Cluster, clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.new_producer()
    with pytest.raises(ClientError, match="timeout"):
        producer.request(topic, "nobody is there", timeout_ms=300)
    gone = producer.client_id
    clients.stop(producer)
    replier = clients.replier(topic, group=clients.group(retry_topic=True))
    replier.inbox.wait_for(len, timeout_s=60)
    while not (outcomes := replier.outcomes()):
        pass
    assert f"push reply message fail, channel of <{gone}> not found." in outcomes[0]["error"]
