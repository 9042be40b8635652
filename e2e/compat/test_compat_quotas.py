"""Quotas of accounts with RocketMQ's Java clients: delays first, then rejections that say why."""

import time
from collections.abc import Callable, Iterator

import pytest
from compat.accounts import ADMIN, LIMIT_S
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError

# RocketMQ's broker has no quotas.
pytestmark = pytest.mark.ours_only

SLOW = {"accessKey": "slow-sender", "secretKey": "slow-secret"}
SMALL = {"accessKey": "small-sender", "secretKey": "small-secret"}
READER = {"accessKey": "slow-reader", "secretKey": "reader-secret"}
UNCOMPRESSED = 3_900
"""Size of a body, just below that from which RocketMQ's clients compress."""
RULES = """
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- accessKey: slow-sender
  secretKey: slow-secret
  topicPerms: [Metered=PUB|SUB]
  quotas: {sendRequestsPerSecond: 20}
- accessKey: small-sender
  secretKey: small-secret
  topicPerms: [Metered=PUB|SUB]
  quotas: {sendBytesPerSecond: 1000, maxDelayMs: 500}
- accessKey: slow-reader
  secretKey: reader-secret
  topicPerms: [Metered=SUB]
  groupPerms: [MeteredReaders=SUB]
  quotas: {pullBytesPerSecond: 1000, maxDelayMs: 500}
"""


@pytest.fixture(scope="module")
def limited(new_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    with new_cluster(rules=RULES) as cluster:
        yield cluster


@pytest.fixture
def operators(limited: Cluster, new_workbench: Callable[..., Workbench]) -> Workbench:
    bench = new_workbench(limited, credentials=ADMIN)
    bench.admin.update_topic("Metered", broker=limited.broker_address, queues=1)
    bench.wait_for_route("Metered", queues=1)
    return bench


def test_producer_beyond_its_quota_is_slowed_and_none_of_its_sends_fails(
    limited: Cluster, operators: Workbench, new_workbench: Callable[..., Workbench]
) -> None:
    producer = new_workbench(limited, credentials=SLOW).producer
    began = time.monotonic()
    offsets = [producer.send("Metered", f"{number}").queue_offset for number in range(50)]
    assert len(set(offsets)) == 50
    assert time.monotonic() - began > 1.0, "20 of 50 sends are the burst"


def test_producer_far_beyond_its_quota_gets_an_error_that_names_the_quota(
    limited: Cluster, operators: Workbench, new_workbench: Callable[..., Workbench]
) -> None:
    producer = new_workbench(limited, credentials=SMALL).producer
    producer.send("Metered", UNCOMPRESSED)
    with pytest.raises(ClientError) as refused:
        producer.send("Metered", 10)
    assert refused.value.code == 2
    said = str(refused.value.remark)
    assert said.startswith("[QUOTA]system busy, start flow control for a while: account small-sender has used its")
    assert "sendBytesPerSecond (1000)" in said


def test_consumer_beyond_its_quota_receives_every_message(
    limited: Cluster, operators: Workbench, new_workbench: Callable[..., Workbench]
) -> None:
    """Its second pull is rejected, and repeated after 3 s."""
    consumer = new_workbench(limited, credentials=READER).push("Metered", group="MeteredReaders", expression="Large")
    for number in range(2):
        operators.producer.send("Metered", UNCOMPRESSED, tags="Large")
        assert len(consumer.inbox.wait_count(number + 1, timeout_s=LIMIT_S)) == number + 1
