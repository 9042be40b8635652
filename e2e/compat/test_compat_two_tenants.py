"""RocketMQ's client and tools as two tenants that see neither topics nor groups of each other (`aclMetadata=own`)."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from compat.accounts import LIMIT_S, wait_for
from compat.guarded_clusters import Guarded, guarded
from harness.clients import Workbench, message
from harness.driver import ClientError, Driver

pytestmark = pytest.mark.ours_only  # RocketMQ's servers show metadata to every account

ADMIN = {"accessKey": "operators", "secretKey": "operators-secret"}
TENANTS = {word: {"accessKey": f"{word}-account", "secretKey": f"{word}-secret"} for word in ("alpha", "bravo")}
RULES = """
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- {accessKey: broker-a-account, secretKey: broker-a-secret, brokerNames: [broker-a], requireSecondSignature: true}
""" + "".join(
    f"- {{accessKey: {word}-account, secretKey: {word}-secret,"
    f" topicPerms: [{word}Orders=PUB|SUB, {word}Questions=PUB|SUB, {word}New=PUB],"
    f" groupPerms: [{word}Readers=SUB, {word}Everyone=SUB, {word}Repliers=SUB, {word}Pollers=SUB]}}\n"
    for word in TENANTS
)
FROM_FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}


@pytest.fixture(scope="module")
def cluster(isolated_network: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("tenants"), {}, metadata="own", rules=RULES, creates=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tenants(driver: Driver, cluster: Guarded) -> Iterator[dict[str, Workbench]]:
    """Provide clients of both tenants. An administrator has created some of their topics."""
    addresses = {"namesrv_address": cluster.namesrv_address, "broker_address": cluster.broker_address}
    with ExitStack() as stack:
        benches = {}
        for word, account in {"operators": ADMIN, **TENANTS}.items():
            benches[word] = Workbench(driver, **addresses, credentials=account)
            stack.callback(benches[word].close)
        for word in TENANTS:
            for topic in (f"{word}Orders", f"{word}Questions"):
                benches["operators"].admin.update_topic(topic, broker=cluster.broker_address, queues=2)
                benches["operators"].wait_for_route(topic, queues=2)
        yield benches


@pytest.mark.parametrize("word", TENANTS)
def test_clients_of_a_tenant_work_and_log_no_refusal(tenants: dict[str, Workbench], driver: Driver, word: str) -> None:
    log = driver.home_path / "logs" / "rocketmqlogs" / "rocketmq_client.log"
    before = log.stat().st_size if log.exists() else 0
    clients, topic = tenants[word], f"{word}Orders"
    inbox = clients.push(topic, group=f"{word}Readers", failTimes=1, pollNamesrvMs=1_000, **FROM_FIRST).inbox
    everyone = clients.push(topic, group=f"{word}Everyone", broadcasting=True, **FROM_FIRST).inbox
    producer = clients.new_producer(trace=True)
    producer.send(topic, "plain", keys="a-key")
    producer.send(topic, "late", delayLevel=1)
    producer.send_batch([message(topic, "first"), message(topic, "second")])
    clients.transactions().send(topic, "committed", "C")
    bodies = {b"plain", b"late", b"first", b"second", b"committed"}
    for each in (everyone, inbox):
        each.wait_for(lambda got: bodies <= {each.body for each in got}, timeout_s=LIMIT_S)
    inbox.wait_for(lambda got: any(each.reconsume_times == 1 for each in got), timeout_s=LIMIT_S)
    assert producer.send(f"{word}New", "creates its topic").queue_offset == 0
    poller = clients.lite_pull(topic, group=f"{word}Pollers", **FROM_FIRST)
    polled: list[bytes] = []

    def has_all() -> bool:
        polled.extend(each.body for each in poller.poll_until(1, timeout_s=LIMIT_S))
        return bodies <= set(polled)

    wait_for(has_all)
    poller.commit()
    clients.replier(f"{word}Questions", group=f"{word}Repliers")
    assert clients.new_producer().request(f"{word}Questions", "what?", timeout_ms=30_000).body == b"re: what?"
    logged = log.read_bytes()[before:]
    assert b"WARN" in logged  # as always: retry topics of new groups have no routes yet
    assert b"AclException" not in logged


@pytest.mark.parametrize(("word", "other"), [("alpha", "bravo"), ("bravo", "alpha")])
def test_tools_of_a_tenant_show_only_its_own_names(tenants: dict[str, Workbench], word: str, other: str) -> None:
    admin = tenants[word].admin
    assert [each for each in admin.ask("fetchAllTopicList")["topicList"] if "Orders" in each] == [f"{word}Orders"]
    groups = admin.ask("getAllSubscriptionGroup", tenants[word].broker_address, 5_000)
    assert other not in str(groups)
    for method, argument in (("examineTopicRouteInfo", f"{other}Orders"), ("examineTopicRouteInfo", "NobodyOrders")):
        with pytest.raises(ClientError, match="No default permission for topic"):
            admin.ask(method, argument)
