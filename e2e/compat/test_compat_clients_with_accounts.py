"""RocketMQ 4.9 and 5.3 clients and tools with brokers and NameServers that use access control, plaintext and TLS."""

# ruff: noqa: F811 - imported fixtures are requested by name

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from compat.accounts import APP, LIMIT_S, shown
from compat.guarded_clusters import FIRST_LEVEL_MS, Guarded, Side, Transport, guarded
from compat.tls_clusters import Files, files, java  # noqa: F401
from harness.clients import message
from harness.driver import ClientError, Driver
from harness.java import ClientProfile
from harness.waiting import until

# RocketMQ 4.9's NameServer has no access control, and its broker does not support the additional requests of 5.3.
pytestmark = pytest.mark.ours_only

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
PROFILES: dict[str, ClientProfile] = {"4.9": "client", "5.3": "client5"}
FROM_FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}


@pytest.fixture(scope="module", params=["plain", "tls"])
def transport(request: pytest.FixtureRequest) -> Transport:
    return request.param


@pytest.fixture(scope="module")
def cluster(
    transport: Transport, files: Files, isolated_network: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    """Provide a cluster that shows metadata to every account, and with TLS, one that hides that of others."""
    keys = files.server_keys() | files.client_keys() if transport == "tls" else {}
    with guarded(tmp_path_factory.mktemp("guarded"), keys, metadata="own" if keys else "open") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=PROFILES)
def side(
    request: pytest.FixtureRequest, transport: Transport, cluster: Guarded, files: Files, isolated_network: None
) -> Iterator[Side]:
    """Provide one JVM for all tests of a version and a transport."""
    profile = PROFILES[request.param]
    with ExitStack() as stack:
        if transport == "tls":
            driver = stack.enter_context(java(files.client_keys(), profile))
        elif profile == "client":
            driver = request.getfixturevalue("driver")
        else:
            driver = stack.enter_context(Driver(profile=profile))
        side = Side(cluster, driver, request.param)
        stack.callback(side.clients.close)
        side.make_topics_and_groups()
        yield side


def test_application_sends_in_every_way_and_consumes(side: Side) -> None:
    topic, clients = side.orders, side.clients
    inbox = clients.push(topic, group=side.readers, **FROM_FIRST).inbox
    producer = clients.producer
    late = producer.send(topic, "late", delayLevel=1)
    producer.send(topic, "größer", tags="TagA", properties={"colour": "grün"})
    producer.send_async(topic, "async")
    producer.send_oneway(topic, "oneway")
    producer.send(topic, 10_000)
    producer.send_batch([message(topic, "first"), message(topic, "second")])
    payers = clients.transactions()
    payers.send(topic, "rolled back", "R")
    payers.send(topic, "committed", "C")
    got = inbox.wait_count(8, timeout_s=LIMIT_S)
    texts = sorted(each.body for each in got if len(each.body) < 10_000)
    expected = ["late", "größer", "async", "oneway", "first", "second", "committed"]
    assert texts == sorted(text.encode() for text in expected)
    (delayed,) = [each for each in got if each.body == b"late"]
    assert delayed.message_id == late.message_id
    assert delayed.arrival_timestamp_ms - delayed.born_timestamp_ms >= FIRST_LEVEL_MS


def test_lite_pull_consumer_commits_and_its_group_is_reset(side: Side) -> None:
    topic, clients = side.orders, side.clients
    ends = {queue_id: clients.producer.send(topic, "polled", queue_id=queue_id).queue_offset + 1 for queue_id in (0, 1)}
    poller = clients.lite_pull(topic, group=side.pollers, persistOffsetMs=500, **FROM_FIRST)
    polled: list[bytes] = []

    def has_all() -> bool:
        polled.extend(each.body for each in poller.poll_until(1, timeout_s=LIMIT_S))
        return polled.count(b"polled") == len(ends)

    until(has_all, "both messages")
    poller.commit()
    until(lambda: {queue_id: poller.committed(topic, queue_id) for queue_id in ends} == ends, "its commit")
    until(lambda: topic in side.mqadmin(f"consumerProgress -g {side.pollers}"), "its progress")
    clients.stop(poller)
    said = side.mqadmin(f"resetOffsetByTime -g {side.pollers} -t {topic} -s 0")
    assert "Exception" not in said, said
    with closing(side.bench(APP)) as after:
        again = after.lite_pull(topic, group=side.pollers, **FROM_FIRST)
        until(lambda: b"polled" in [each.body for each in again.poll_until(1, timeout_s=LIMIT_S)], "the redelivery")


def test_request_gets_a_reply(side: Side) -> None:
    """By callback: 5.3.3's synchronous request times out as soon as the request message is sent."""
    side.clients.replier(side.questions, group=side.repliers)
    reply = side.clients.new_producer().request(side.questions, "what?", timeout_ms=30_000, callback=True)
    assert reply.body == b"re: what?"


def test_message_is_found_by_its_keys_and_ids(side: Side) -> None:
    topic, admin = side.orders, side.clients.admin
    sent = side.clients.producer.send(topic, "findable", keys="a-key")
    until(lambda: [each.message_id for each in admin.query(topic, "a-key")] == [sent.message_id], "by its key")
    assert admin.view(sent.message_id, topic=topic).body == b"findable"
    assert admin.view(sent.offset_message_id).body == b"findable"
    assert sent.message_id in side.mqadmin(f"queryMsgByKey -t {topic} -k a-key")
    of_topic = f"-t {topic} " if side.version == "5.3" else ""
    assert sent.offset_message_id in side.mqadmin(f"queryMsgById {of_topic}-i {sent.offset_message_id}")
    assert sent.message_id in side.mqadmin(f"queryMsgByUniqueKey -t {topic} -i {sent.message_id}")


@pytest.mark.parametrize(
    ("account", "said"),
    [
        (None, "No accessKey is configured"),
        ({"accessKey": "unknown", "secretKey": "12345678"}, "No acl config for unknown"),
        ({**APP, "secretKey": "87654321"}, "Check signature failed for accessKey=application"),
    ],
)
def test_request_of_unknown_account_is_rejected_with_reason(
    side: Side, account: dict[str, str] | None, said: str
) -> None:
    producer = side.clients.new_producer(credentials=account, retries=0)
    with pytest.raises(ClientError) as caught:
        producer.send(side.orders, "x")
    if side.cluster.metadata == "own":
        # RocketMQ's clients log the NameServer's reason, but it is not a part of the exception.
        assert "No route info of this topic" in shown(caught.value)
    else:
        assert f"org.apache.rocketmq.acl.common.AclException: {said}" in shown(caught.value)


def test_application_cannot_change_topics_or_read_topics_of_others(side: Side) -> None:
    with pytest.raises(ClientError) as caught:
        side.clients.admin.update_topic("AclNew", broker=side.cluster.broker_address)
    assert "Need admin permission for request code=17" in shown(caught.value)
    with pytest.raises(ClientError) as caught:
        side.clients.pull(group=side.pollers).pull("BenchmarkTest", 0, 0)
    own = side.cluster.metadata == "own"  # then there is no route either
    assert ("not exist" if own else "No default permission for topic:BenchmarkTest") in shown(caught.value)


COMMANDS = {
    "clusterList": "V4_9_7",
    "clusterList -m": "DefaultCluster",
    "topicList": "{topic}",
    "topicClusterList -t {topic}": "DefaultCluster",
    "topicRoute -t {topic}": '"brokerName":"broker-a"',
    "topicStatus -t {topic}": "broker-a",
    "updateTopicPerm -t {topic} -b {{broker}} -p 4": "update topic perm from 6 to 4",
    "updateTopicPerm -t {topic} -c DefaultCluster -p 6": "update topic perm from 4 to 6",
    "updateOrderConf -t {topic} -m put -v broker-a:2": "update orderConf success",
    "producer -b {{broker}}": "127.0.0.1",
    "consumerProgress": "{readers}",
    "consumerProgress -g {readers}": "{topic}",
    "consumerConnection -g {readers}": "{topic}",
    "getConsumerConfig -g {readers}": "{readers}",
    "skipAccumulatedMessage -g {pollers} -t {topic}": "broker-a",
    "sendMessage -t {topic} -p hello": "SEND_OK",
    "consumeMessage -t {topic} -b broker-a -i 0 -o 0 -c 1": "Consume ok",
    "queryMsgByOffset -t {topic} -b broker-a -i 0 -o 0": "CommitLog Offset:",
    "queryCq -t {topic} -q 0 -i 0 -c 1 -b {{broker}}": "physicOffset=",
    "brokerStatus -b {{broker}}": "bootTimestamp",
    "brokerConsumeStats -b {{broker}}": "{readers}",
    "statsAll -t {topic}": "{readers}",
    "getBrokerConfig -b {{broker}}": "aclAdminNeedsTls",
    "updateBrokerConfig -b {{broker}} -k fileReservedTime -v 24": "update broker config success",
    "cleanExpiredCQ -b {{broker}}": "success",
    "cleanUnusedTopic -b {{broker}}": "success",
    "deleteExpiredCommitLog -b {{broker}}": "success",
    "exportMetadata -c DefaultCluster -f {folder}": "success",
    "exportConfigs -c DefaultCluster -f {folder}": "success",
    "exportMetrics -c DefaultCluster -f {folder}": "success",
    "getNamesrvConfig": "namesrvAclConfigPath",
    "updateNamesrvConfig -k orderMessageEnable -v true": "update name server config success",
    "updateKvConfig -s Space -k colour -v blue": "create or update kv config to namespace success",
    "deleteKvConfig -s Space -k colour": "delete kv config from namespace success",
    "wipeWritePerm -b broker-a": "OK",
    "addWritePerm -b broker-a": "OK",
    "cloneGroupOffset -s {pollers} -d Clones -t {topic}": "success. srcGroup[{pollers}]",
    "deleteSubGroup -g Clones -b {{broker}}": "success",
}
"""Commands with part of their output; {topic} has messages, {readers} a member, {pollers} only offsets."""
REFUSED = (
    "updateTopic -t Refused -b {broker}",
    "updateSubGroup -g Refused -b {broker}",
    "deleteTopic -t Orders49 -c DefaultCluster",
    "updateBrokerConfig -b {broker} -k fileReservedTime -v 1",
    "brokerStatus -b {broker}",
    "updateKvConfig -s Space -k colour -v red",
    "wipeWritePerm -b broker-a",
)


def wait_for_permission(side: Side, permission: str) -> None:
    """Until the NameServer has the permission: mqadmin compares the one it finds there with the new one."""

    def has_it() -> bool:
        return bool(re.search(rf'"perm": *{permission}\b', side.mqadmin(f"topicRoute -t {side.orders}")))

    until(has_it, f"permission {permission} in the route")


def test_mqadmin_works_with_account_of_administrator(side: Side, tmp_path: Path) -> None:
    names = {"topic": side.orders, "readers": side.readers, "pollers": side.pollers, "folder": str(tmp_path)}
    wrong = {}
    for words, expected in COMMANDS.items():
        said = side.mqadmin(words.format(**names))
        if words.startswith("updateTopicPerm"):
            wait_for_permission(side, words.rpartition(" ")[2])
        if expected.format(**names) not in said or "Exception" in said:
            wrong[words] = said
    assert not wrong, "\n".join(f"--- {words}\n{said}" for words, said in wrong.items())


def test_mqadmin_without_account_changes_nothing(side: Side) -> None:
    for words in REFUSED:
        assert "No accessKey is configured" in side.mqadmin(words, signed=False), words


def test_topic_deleted_by_administrator_disappears_from_routes(side: Side) -> None:
    with closing(side.bench(APP if side.cluster.metadata == "own" else None)) as anybody:
        assert anybody.admin.route(side.questions)["brokerDatas"][0]["brokerName"] == "broker-a"
        said = side.mqadmin(f"deleteTopic -t {side.questions} -c DefaultCluster")
        assert "success" in said, said
        with pytest.raises(ClientError) as caught:
            anybody.admin.route(side.questions)
        assert caught.value.code == 17


def test_document_lists_commands_that_differ_between_tool_versions(side: Side) -> None:
    text = DOCUMENT.read_text()
    works = set(re.findall(r"^\| `(\w+)` \| works", text, re.MULTILINE))
    section = text.partition("\n## RocketMQ 5.3")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`\w+`[^|]*) \|", section, re.MULTILINE)
    gone, *newer = (set(re.findall(r"`(\w+)`", row)) for row in rows)
    expected = works if side.version == "4.9" else works - gone | set().union(*newer)
    assert set(side.driver.call("mqadmin.names")) == expected
    if side.version == "5.3":
        assert "CODE: 3  DESC:  request type 3005 not supported" in side.mqadmin("listUser -b {broker}")
