"""TLS on the ports of plaintext connections, with RocketMQ's clients and tools."""

# ruff: noqa: F811 - imported fixtures are requested by name

from pathlib import Path

import pytest
from compat.python_scenario import Collected, new_name, until
from compat.tls_clusters import (  # noqa: F401
    Files,
    enforcing,
    files,
    insecure,
    java,
    permissive,
    run_python,
    start,
    verifying,
    workbench,
)
from delaymq.client import (
    Client,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    UnreachableError,
)
from delaymq_testing.certificates import Authority
from harness.brokers import (
    Cluster,
    OurCluster,
)
from harness.driver import ClientError, Driver


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
@pytest.mark.parametrize("kind", ["insecure", "verifying"])
def test_java_clients_send_and_receive_over_tls(request: pytest.FixtureRequest, mode: str, kind: str) -> None:
    cluster: Cluster = request.getfixturevalue(mode)
    with workbench(request.getfixturevalue(kind), cluster) as clients:
        topic = clients.topic(queues=2)
        consumer = clients.push(topic, group=clients.group(), **{"from": "CONSUME_FROM_FIRST_OFFSET"})
        producer = clients.producer
        bodies = [b"x" * 20_000, *(b"%d" % n for n in range(20))]
        for body in bodies:
            assert producer.send(topic, body).status == "SEND_OK"
        got = consumer.inbox.wait_count(len(bodies), timeout_s=60)
        assert sorted(message.body for message in got) == sorted(bodies)


def test_plaintext_and_tls_clients_share_a_permissive_broker(
    permissive: Cluster, driver: Driver, verifying: Driver, files: Files
) -> None:
    with workbench(driver, permissive) as plain, workbench(verifying, permissive) as secure:
        topic = plain.topic(queues=2)
        consumers = [
            each.push(topic, group=each.group(), **{"from": "CONSUME_FROM_FIRST_OFFSET"}) for each in (plain, secure)
        ]
        plain.producer.send(topic, b"plain")
        secure.producer.send(topic, b"secure")

        async def scenario(client: Client) -> None:
            got = Collected()
            consumer = PushConsumer(client, new_name("Group"), got, PushConsumerOptions(consume_from=ConsumeFrom.FIRST))
            consumer.subscribe(topic)
            async with Producer(client) as producer, consumer:
                await producer.send(Message(topic=topic, body=b"python"))
                await until(lambda: len(got.messages) == 3)

        run_python(permissive, files.options(), scenario)
        for consumer in consumers:
            got = consumer.inbox.wait_count(3, timeout_s=60)
            assert {message.body for message in got} == {b"plain", b"secure", b"python"}


def test_plaintext_clients_are_disconnected_if_tls_is_required(
    enforcing: Cluster, driver: Driver, files: Files
) -> None:
    with workbench(driver, enforcing) as clients, pytest.raises(ClientError):
        clients.producer.send("Refused", b"x")

    async def refused(client: Client) -> None:
        with pytest.raises(UnreachableError, match="accepts only TLS"):
            await client.route("T")

    run_python(enforcing, None, refused)

    async def served(client: Client) -> None:
        async with Producer(client) as producer:
            assert (await producer.send(Message(topic=new_name("Topic"), body=b"y"))).queue_offset == 0

    run_python(enforcing, files.options(), served)


def test_mqadmin_works_over_tls(enforcing: Cluster, verifying: Driver, insecure: Driver) -> None:
    for driver in (verifying, insecure):
        shown = driver.mqadmin("clusterList", "-n", enforcing.namesrv_address)
        assert enforcing.broker_address in shown
        route = driver.mqadmin("brokerStatus", "-n", enforcing.namesrv_address, "-b", enforcing.broker_address)
        assert "bootTimestamp" in route


def test_verifying_client_rejects_an_unknown_certificate(
    permissive: Cluster, tmp_path: Path, isolated_network: None
) -> None:
    stranger = Authority(tmp_path, "stranger")
    keys = {"tls.test.mode.enable": "false", "tls.client.authServer": "true"}
    with (
        java({**keys, "tls.client.trustCertPath": str(stranger.certificate)}) as driver,
        workbench(driver, permissive) as clients,
        pytest.raises(ClientError),
    ):
        clients.producer.send("Refused", b"x")


@pytest.mark.ours_only
def test_certificate_is_the_account_of_clients_that_do_not_sign(
    files: Files, verifying: Driver, insecure: Driver, isolated_network: None
) -> None:
    """Without an AclClientRPCHook, where every connection must have a client certificate."""
    config = {
        "tls.server.mode": "enforcing",
        "tls.server.authClient": "true",
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": str(files.authority.certificate),
        "aclCertificateAccounts": "true",
        "aclAdminNeedsTls": "true",
        **files.server_keys(),
        **files.client_keys(own=True),
    }
    rules = "accounts:\n- {accessKey: client.example, certificateOnly: true, admin: true}\n"
    with OurCluster(config=config, rules=rules) as cluster:
        with workbench(verifying, cluster) as clients:
            topic = clients.topic(queues=1)
            consumer = clients.push(topic, group=clients.group(), **{"from": "CONSUME_FROM_FIRST_OFFSET"})
            assert clients.producer.send(topic, b"java").status == "SEND_OK"

            async def scenario(client: Client) -> None:
                async with Producer(client) as producer:
                    await producer.send(Message(topic=topic, body=b"python"))

            run_python(cluster, files.options(own=True), scenario)
            got = consumer.inbox.wait_count(2, timeout_s=60)
            assert {message.body for message in got} == {b"java", b"python"}
            shown = verifying.mqadmin("clusterList", "-n", cluster.namesrv_address)
            assert cluster.broker_address in shown
        with workbench(insecure, cluster) as clients, pytest.raises(ClientError):
            clients.producer.send("Refused", b"x")


def test_client_with_only_tls_enabled_connects_to_a_broker_without_tls_settings(
    insecure: Driver, cluster: Cluster
) -> None:
    """As in test environments of RocketMQ: the server generates a certificate, which nobody verifies."""
    with workbench(insecure, cluster) as clients:
        assert clients.producer.send(clients.topic(), b"x").status == "SEND_OK"
