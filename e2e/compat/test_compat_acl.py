"""Access control: RocketMQ's clients and tools with and without accounts of a plain_acl.yml, with either broker."""

import base64
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from compat.accounts import ADMIN, APP, LIMIT_S, asked, shown, wait_for
from compat.python_scenario import FROM_FIRST, Collected, new_name, until
from compat.timed_sends import HOUR_MS, act, places
from delaymq.client import (
    AccessDeniedError,
    Admin,
    Client,
    Message,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    SendError,
)
from delaymq.protocol.command import decode_command, encode_command, request_command
from delaymq.protocol.signatures import Signer
from harness.brokers import Cluster
from harness.clients import Workbench, message
from harness.driver import ClientError, Driver

RULES = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.{1,2}
accounts:
- accessKey: operators
  secretKey: operators-secret
  admin: true
- accessKey: application
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - AclOrders=PUB|SUB
  - AclAsk=PUB|SUB
  - AclRead=SUB
  - AclWrite=PUB
  groupPerms:
  - AclReaders=SUB
  - AclPollers=SUB
- accessKey: neighbours
  secretKey: neighbours-secret
  whiteRemoteAddress: 127.0.0.*
"""


@pytest.fixture(scope="module")
def guarded(new_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """Provide a broker whose rules no test changes."""
    with new_cluster(rules=RULES, traceTopicEnable="true") as cluster:
        yield cluster


@pytest.fixture
def operators(guarded: Cluster, new_workbench: Callable[..., Workbench]) -> Workbench:
    """Provide clients of an administrator, and the topics of the rules."""
    bench = new_workbench(guarded, credentials=ADMIN)
    for topic in ("AclOrders", "AclAsk", "AclRead", "AclWrite", "AclOther"):
        bench.admin.update_topic(topic, broker=guarded.broker_address, queues=1)
        bench.wait_for_route(topic, queues=1)
    return bench


@pytest.fixture
def clients(guarded: Cluster, operators: Workbench, new_workbench: Callable[..., Workbench]) -> Workbench:
    """Provide clients of an ordinary account."""
    return new_workbench(guarded, credentials=APP)


def refusal_of(work: Callable[[], object]) -> str:
    """Return the client's text of a rejection by access control."""
    with pytest.raises(ClientError) as caught:
        work()
    text = shown(caught.value)
    assert "org.apache.rocketmq.acl.common.AclException: " in text, text
    return text.partition("AclException: ")[2]


def test_java_client_with_account_sends_in_every_way_and_consumes(clients: Workbench) -> None:
    inbox = clients.push("AclOrders", group="AclReaders", **{"from": "CONSUME_FROM_FIRST_OFFSET"}).inbox
    producer = clients.producer
    producer.send("AclOrders", "größer", tags="TagA", keys="k1", properties={"colour": "grün"})
    producer.send_async("AclOrders", "async")
    producer.send_oneway("AclOrders", "oneway")
    producer.send("AclOrders", 10_000)
    producer.send_batch([message("AclOrders", "first"), message("AclOrders", "second")])
    bodies = [each.body for each in inbox.wait_count(6, timeout_s=LIMIT_S)]
    texts = {body for body in bodies if len(body) < 10_000}
    assert texts == {"größer".encode(), b"async", b"oneway", b"first", b"second"}


def test_failed_message_is_redelivered_to_account_with_permission_for_its_group(clients: Workbench) -> None:
    options = {"failTimes": 1, "from": "CONSUME_FROM_FIRST_OFFSET", "pollNamesrvMs": 1_000}
    inbox = clients.push("AclOrders", group="AclReaders", expression="Retried", **options).inbox
    clients.producer.send("AclOrders", "again", tags="Retried")
    got = inbox.wait_for(lambda found: any(each.reconsume_times == 1 for each in found), timeout_s=LIMIT_S)
    assert got[-1].topic == "AclOrders"


def test_orderly_and_lite_pull_consumers_need_permission_for_topic_and_group_only(clients: Workbench) -> None:
    options = {"orderly": True, "from": "CONSUME_FROM_FIRST_OFFSET"}
    inbox = clients.push("AclOrders", group="AclReaders", expression="Ordered", **options).inbox
    for number in range(3):
        clients.producer.send("AclOrders", f"{number}", tags="Ordered", queue_id=0)
    assert [each.body for each in inbox.wait_count(3, timeout_s=LIMIT_S)] == [b"0", b"1", b"2"]
    poller = clients.lite_pull("AclRead", group="AclPollers", **{"from": "CONSUME_FROM_FIRST_OFFSET"})
    clients.new_producer(credentials=ADMIN).send("AclRead", "polled")
    assert b"polled" in [each.body for each in poller.poll_until(1, timeout_s=LIMIT_S)]
    poller.commit()


def test_transaction_requires_permission_to_send(clients: Workbench, operators: Workbench) -> None:
    inbox = clients.push("AclOrders", group="AclReaders", expression="Paid").inbox
    clients.transactions().send("AclOrders", "committed", "C", tags="Paid")
    assert [each.body for each in inbox.wait_count(1, timeout_s=LIMIT_S)] == [b"committed"]
    said = refusal_of(lambda: clients.transactions().send("AclRead", "x", "C"))
    assert said.startswith("No default permission for topic:AclRead")


def test_account_that_may_consume_a_request_may_reply(clients: Workbench) -> None:
    clients.replier("AclAsk", group="AclReaders")
    assert clients.new_producer().request("AclAsk", "what?", timeout_ms=30_000).body == b"re: what?"


def test_every_account_may_send_message_traces(clients: Workbench, operators: Workbench) -> None:
    traced = clients.new_producer(trace=True).send("AclOrders", "traced")
    reader = operators.pull(group="AclTraceReaders")
    wait_for(lambda: any(
        traced.message_id.encode() in each.body
        for each in reader.pull("RMQ_SYS_TRACE_TOPIC", 0, 0).messages
    ))  # fmt: skip


def test_pulls_and_offset_commits_require_permission_of_the_account(clients: Workbench) -> None:
    sent = clients.producer.send("AclOrders", "pulled", queue_id=0)
    pull = clients.pull(group="AclReaders")
    assert [each.body for each in pull.pull("AclOrders", 0, sent.queue_offset, max_count=1).messages] == [b"pulled"]
    pull.commit("AclOrders", 0, sent.queue_offset + 1)
    stranger = clients.pull(group="AclStrangers")
    said = refusal_of(lambda: stranger.pull("AclOrders", 0, sent.queue_offset, max_count=1))
    assert said.startswith("No default permission for group:AclStrangers")


@pytest.mark.parametrize(
    ("credentials", "said"),
    [
        (None, "No accessKey is configured"),
        ({"accessKey": "unknown", "secretKey": "12345678"}, "No acl config for unknown"),
        ({"accessKey": "application", "secretKey": "87654321"}, "Check signature failed for accessKey=application"),
    ],
)
def test_request_of_unknown_account_is_rejected_with_reason(
    clients: Workbench, credentials: dict[str, str] | None, said: str
) -> None:
    producer = clients.new_producer(credentials=credentials, retries=0)
    assert refusal_of(lambda: producer.send("AclOrders", "x")).startswith(said)


def test_read_and_write_permissions_are_independent(clients: Workbench, operators: Workbench) -> None:
    offset = operators.producer.send("AclRead", "readable", queue_id=0).queue_offset
    producer, pull = clients.new_producer(retries=0), clients.pull(group="AclReaders")
    assert pull.pull("AclRead", 0, offset, max_count=1).messages[0].body == b"readable"
    producer.send("AclWrite", "written")
    for topic in ("AclRead", "AclOther"):
        said = refusal_of(lambda topic=topic: producer.send(topic, "x"))
        assert said.startswith(f"No default permission for topic:{topic}")
    said = refusal_of(lambda: pull.pull("AclWrite", 0, 0, max_count=1))
    assert said.startswith("No default permission for topic:AclWrite")


def test_only_administrators_change_topics(clients: Workbench) -> None:
    said = refusal_of(lambda: clients.admin.update_topic("AclNew", broker=clients.broker_address))
    assert said.startswith("Need admin permission for request code=17, but accessKey=application is not")


def test_white_listed_address_of_an_account_needs_no_signature(clients: Workbench) -> None:
    neighbour = {"accessKey": "neighbours", "secretKey": "not-the-secret"}
    clients.new_producer(credentials=neighbour).send("AclOther", "from a white address")


def test_message_is_found_by_its_keys(clients: Workbench, against: str) -> None:
    sent = clients.producer.send("AclOrders", "findable", keys="acl-key")
    if against == "real":
        # The client signs a field that its own broker omits from the check, and hides the rejection.
        with pytest.raises(ClientError, match="query message by key finished, but no message"):
            clients.admin.query("AclOrders", "acl-key")
        return
    admin = clients.admin
    wait_for(lambda: [each.message_id for each in admin.query("AclOrders", "acl-key")] == [sent.message_id])


def test_security_token_is_signed(clients: Workbench) -> None:
    clients.new_producer(credentials={**APP, "securityToken": "token-ü"}).send("AclOrders", "with a token")


@pytest.mark.ours_only  # RocketMQ's broker does not check these requests
def test_batch_and_view_by_id_cannot_bypass_topic_permissions(clients: Workbench, operators: Workbench) -> None:
    producer = clients.new_producer(retries=0)
    said = refusal_of(lambda: producer.send_batch([message("AclRead", "a"), message("AclRead", "b")]))
    assert said.startswith("No default permission for topic:AclRead")
    other = operators.producer.send("AclOther", "not for everybody")
    said = refusal_of(lambda: clients.admin.view(other.offset_message_id))
    assert said.startswith("No default permission for topic:AclOther")
    assert operators.admin.view(other.offset_message_id).body == b"not for everybody"


@pytest.mark.ours_only  # RocketMQ's broker has no groups of messages
def test_only_accounts_that_may_send_to_a_topic_change_groups_of_its_messages(
    clients: Workbench, operators: Workbench
) -> None:
    topic, own, group = "AclRead", "AclOrders", new_name("group")
    fields: dict[str, Any] = {"delayTimeMs": HOUR_MS, "properties": {"DELAY_GROUP": group, "DELAY_KEY": group}}
    for each in (topic, own):
        operators.producer.send(each, group, **fields)
    producer, before = clients.new_producer(retries=0), places(operators, topic)
    changes = [(action, group) for action in ("cancel", "move", "fire", "pause", "resume")]
    for action, name in (*changes, ("pause", ""), ("resume", "")):
        said = refusal_of(partial(act, producer, topic, action, group=name, delayTimeMs=1))  # the time is for the move
        assert said.startswith(f"No default permission for topic:{topic}")
    producer.send_oneway(topic, "x", properties={"DELAY_ACTION": "cancel", "DELAY_GROUP": group})
    with pytest.raises(ClientError):  # its connection has handled the one-way request by now
        producer.send(topic, "x")
    assert places(operators, topic) == before
    # The account of the cancel is part of the answer to others.
    assert act(producer, own, "cancel", group=group).status == "SEND_OK"
    with pytest.raises(ClientError) as caught:
        act(operators.producer, own, "fire", group)
    assert caught.value.remark.endswith(" by application (127.0.0.1)")
    assert act(operators.producer, topic, "fire", group=group).status == "SEND_OK"
    wait_for(lambda: places(operators, topic)[0] == before[0] + 1)
    pulled = clients.pull(group="AclReaders").pull(topic, 0, before[0])
    assert [each.body for each in pulled.messages] == [group.encode()]


# The Python client


def test_python_client_signs_sends_and_consumption(guarded: Cluster, operators: Workbench) -> None:
    tag = new_name("Tag")

    async def scenario(client: Client) -> None:
        got = Collected()
        consumer = PushConsumer(client, "AclReaders", got, FROM_FIRST)
        consumer.subscribe("AclOrders", tag)
        async with consumer, Producer(client) as producer:
            await producer.send(Message(topic="AclOrders", body="größer".encode(), tags=tag))
            await producer.send_oneway(Message(topic="AclOrders", body=b"oneway", tags=tag))
            await producer.send_batch([Message(topic="AclOrders", body=b"batch", tags=tag)] * 2)
            await until(lambda: len(got.messages) >= 4)
        assert sorted(got.bodies) == sorted(["größer".encode(), b"oneway", b"batch", b"batch"])

    asked(guarded, APP, scenario)


def test_python_client_reports_what_is_missing(guarded: Cluster, operators: Workbench) -> None:
    async def unsigned(client: Client) -> None:
        with pytest.raises(SendError, match=r"No accessKey is configured.*ClientOptions\(credentials="):
            async with Producer(client) as producer:
                await producer.send(Message(topic="AclOrders", body=b"x"))

    async def not_permitted(client: Client) -> None:
        with pytest.raises(AccessDeniedError, match="Need admin permission for request code=17"):
            await Admin(client).create_topic("AclNew", queues=1)

    async def wrong_secret(client: Client) -> None:
        with pytest.raises(AccessDeniedError, match=r"Check signature failed.*the secret key does not match"):
            await Admin(client).broker_config(guarded.broker_address)

    asked(guarded, None, unsigned)
    asked(guarded, APP, not_permitted)
    asked(guarded, {**APP, "secretKey": "87654321"}, wrong_secret)


def test_python_administrator_creates_topics_and_sends_while_applications_pull(
    guarded: Cluster, operators: Workbench
) -> None:
    async def make(client: Client) -> None:
        await Admin(client).create_topic(new_name("Made"), queues=1)
        async with Producer(client) as producer:
            await producer.send(Message(topic="AclRead", body=b"for all who may"))

    async def pull(client: Client) -> None:
        async with PullConsumer(client, "AclReaders") as consumer:
            [queue] = await consumer.queues("AclRead")
            result = await consumer.pull(queue, 0)
            assert result.status is PullStatus.FOUND
            assert b"for all who may" in [each.body for each in result.messages]

    asked(guarded, ADMIN, make)
    asked(guarded, APP, pull)


# Signatures

FRAMES = [
    {"code": 310, "fields": {"a": "group", "b": "Topic", "i": "größer\x01€😀", "g": "1"}, "body": b"body \x00\xff"},
    {"code": 34, "fields": {}, "body": b'{"clientID":"x"}'},
    {"code": 11, "fields": {"topic": "T", "Zulu": "1", "alpha": "2", "Alpha": "3", "_u": "4"}, "body": b""},
]


@pytest.mark.parametrize("token", [None, "a-token"])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: str(frame["code"]))
def test_signature_equals_that_of_rocketmq_hook(
    driver: Driver, frame: dict[str, object], binary: bool, token: str | None
) -> None:
    credentials = {**APP, **({} if token is None else {"securityToken": token})}
    body = frame["body"]
    assert isinstance(body, bytes)
    asked_for = {**frame, "body": base64.b64encode(body).decode(), "binary": binary, "opaque": 7}
    answer = driver.call("acl.sign", credentials=credentials, **asked_for)
    theirs = decode_command(base64.b64decode(answer["frame"])[4:])
    assert isinstance(frame["fields"], dict)
    ours = request_command(int(str(frame["code"])), dict(frame["fields"]), body)
    Signer(APP["secretKey"]).sign(ours, APP["accessKey"], token)
    ours.binary = binary
    assert ours.fields == theirs.fields
    assert theirs.binary is binary
    read = decode_command(encode_command(ours)[4:])
    assert Signer(APP["secretKey"]).signed(theirs.fields, theirs.body)
    assert Signer(APP["secretKey"]).signed(read.fields, read.body)
