"""Accounts and certificates from Secrets: missing ones are reported, clients without one rejected, changes restart
nothing.
"""

import base64
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.errors import ClusterError
from delaymq_testing.certificates import Authority, Pair
from kind import objects
from kind.lab import REPOSITORY_PATH
from kind.space import Space
from kind.verdict import Sent
from kind.waiting import NotYetError, stays, wait_until

pytestmark = pytest.mark.timeout(420)

EXAMPLE_PATH = REPOSITORY_PATH / "examples" / "kubernetes" / "broker-secured.yaml"
BROKER, TOPIC = "broker.delaymq.io", "topic.delaymq.io"
NAME = "shop"
SERVER_NAME = f"{NAME}-namesrv"
# Accounts of the example, of which the second may send to and consume from `orders`, for the group `billing`:
OPERATOR = {"accessKey": "delaymq-operator", "secretKey": "write-another-one"}
ACCOUNT: dict[str, Any] = {"access_key": "orders-service", "secret_key": "and-another-one"}

LATER = {"access_key": "later-account", "secret_key": "later-secret"}
PROJECTED_S = 150.0
"""Kubelet updates a changed Secret when it next synchronises the pod, about once a minute."""
CA_PATH = "/tmp/ca.crt"
TLS = {"tls_ca": CA_PATH, "tls_server_name": SERVER_NAME}


def test_broker_with_accounts_and_certificate_serves_only_clients_that_have_them(
    spaces: Callable[..., Space], note: Callable[..., None], tmp_path: Path
) -> None:
    space = spaces("secured")
    rules, broker = _example()
    space.apply(broker, objects.topic("orders", broker=NAME, queues=4))
    # First all Secrets are missing, then some: each is reported, and no pod is created that could not start.
    state = space.wait_condition(BROKER, NAME, "Degraded", reason="SecretMissing")
    assert "Secret shop-rules does not exist" in state["message"], state["message"]
    space.apply(_without_account(rules))
    _wait_message(space, "Secret shop-tls does not exist")
    assert not space.list("pods", f"app.kubernetes.io/instance={NAME}")
    authority = Authority(tmp_path)
    began = time.monotonic()
    space.apply(_certificate(authority.issue(SERVER_NAME)))
    state = space.wait_condition(BROKER, NAME, "Degraded", reason="AccountMissing")
    assert "accessKey" in state["message"], state["message"]
    space.apply(rules)
    space.wait_broker_ready(NAME)
    space.wait_condition(BROKER, NAME, "Degraded", reason="AsExpected")
    # The operator created the topic with its account.
    space.wait_condition(TOPIC, "orders", "Ready", reason="InEveryGroup")
    ready_s = time.monotonic() - began
    before = space.pod_uids(f"app.kubernetes.io/instance={NAME}")
    space.wait_client()
    _put_file(space, CA_PATH, authority.certificate.read_text())
    sent = _send_and_receive(space, "plain", ACCOUNT)
    sent += _send_and_receive(space, "tls", {**ACCOUNT, **TLS})
    assert "No accessKey is configured" in _refusal(space)
    assert "No acl config for later-account" in _refusal(space, **LATER)
    assert "not trusted" in _refusal(space, **ACCOUNT, **TLS | {"tls_ca": _stranger(space, tmp_path)})
    # Both Secrets change at the same time.
    before_renewal = _shown_certificate(space)
    began = time.monotonic()
    space.apply(
        _secret("shop-rules", {"plain_acl.yml": _rules(ACCOUNT, LATER), **OPERATOR}),
        _certificate(authority.issue(SERVER_NAME, file="renewed")),
    )
    wait_until("the new account is served", lambda: _served(space, **LATER), timeout_s=PROJECTED_S, every_s=2)
    account_s = time.monotonic() - began
    wait_until(
        "the new certificate is shown",
        lambda: _shown_certificate(space) != before_renewal,
        timeout_s=PROJECTED_S,
        every_s=2,
    )
    certificate_s = time.monotonic() - began
    sent += _send_and_receive(space, "later", {**LATER, **TLS})
    verdict = space.judge_when_done("orders", sent, NAME)
    verdict.assert_clean()
    space.patch(BROKER, NAME, {"spec": {"config": {"fileReservedTime": "50"}}})
    wait_until("the operator changes settings with its account", lambda: _reserved(space) == "50", timeout_s=60)
    stays("no pod restarts", lambda: space.pod_uids(f"app.kubernetes.io/instance={NAME}") == before, for_s=3)
    note(ready_s=ready_s, new_account_s=account_s, new_certificate_s=certificate_s, restarts=0, **verdict.figures())


def test_running_broker_is_unchanged_until_its_secrets_exist(
    spare: Callable[[], Space], note: Callable[..., None], tmp_path: Path
) -> None:
    space = spare()
    before = space.pod_uids()
    space.apply_broker(accessControl={"secretName": "rules"}, tls={"secretName": "certificate"})
    state = space.wait_condition(BROKER, "demo", "Degraded", reason="SecretMissing")
    assert "Secret rules does not exist" in state["message"], state["message"]
    stays("no pod restarts", lambda: space.pod_uids() == before, for_s=3, every_s=0.5)
    began = time.monotonic()
    space.apply(
        _secret("rules", {"plain_acl.yml": _rules(ACCOUNT), **OPERATOR}),
        _certificate(Authority(tmp_path).issue(SERVER_NAME), name="certificate"),
    )
    space.wait_condition(BROKER, "demo", "Degraded", reason="AsExpected")
    wait_until(
        "the pods were restarted", lambda: not set(before.values()) & set(space.pod_uids().values()), timeout_s=90
    )
    space.wait_broker_ready()
    name_servers = space.name_servers()
    assert "No accessKey is configured" in _refusal(space, broker="demo")
    assert space.client.ask("stats", "orders", name_servers=name_servers, **ACCOUNT)
    note(sentence=state["message"], secured_after_s=time.monotonic() - began)


@pytest.mark.long
def test_group_with_replicas_fails_over_with_accounts_certificates_and_policies(
    spaces: Callable[..., Space], note: Callable[..., None], tmp_path: Path
) -> None:
    space, authority = spaces("secured-group"), Authority(tmp_path)
    rules, broker = _example()
    pods = [f"{NAME}-broker-0-0", f"{NAME}-broker-0-1"]
    space.apply(rules, _certificate(authority.issue(SERVER_NAME)))
    space.apply({**broker, "spec": broker["spec"] | {"replicasPerGroup": 2}}, objects.topic("orders", broker=NAME))
    space.wait_broker_ready(NAME)
    space.wait_condition(TOPIC, "orders", "Ready", reason="InEveryGroup")
    space.get("networkpolicy", f"{NAME}-broker")
    space.wait_client()
    _put_file(space, CA_PATH, authority.certificate.read_text())
    sent, masters = _send_and_receive(space, "first", {**ACCOUNT, **TLS}), [_master(space)]
    master, replica = sorted(pods, key=lambda pod: pod != masters[0])
    space.kubectl("exec", master, "--", "delaymq", "replica", "switchover", replica)
    masters.append(_wait_other_master(space, master))
    sent += _send_and_receive(space, "switched", {**ACCOUNT, **TLS})
    # The links continue with the old certificate, and the next ones use the new one.
    before_renewal = _shown_certificate(space)
    space.apply(_certificate(authority.issue(SERVER_NAME, file="renewed")))
    wait_until(
        "the new certificate is shown",
        lambda: _shown_certificate(space) != before_renewal,
        timeout_s=PROJECTED_S,
        every_s=2,
    )
    space.wait_broker_ready(NAME)
    space.kill_broker_process(masters[-1])
    masters.append(_wait_other_master(space, masters[-1]))
    space.wait_broker_ready(NAME)
    sent += _send_and_receive(space, "killed", {**ACCOUNT, **TLS})
    assert "No accessKey is configured" in _refusal(space)
    verdict = space.judge_when_done("orders", sent, NAME)
    verdict.assert_clean()
    note(masters=masters, **verdict.figures())


def _master(space: Space) -> str:
    group = space.broker(NAME)["status"]["groups"][0]
    return str(group.get("master", ""))


def _wait_other_master(space: Space, former: str) -> str:
    def ask() -> str:
        now = _master(space)
        if now and now != former:
            return now
        raise NotYetError(f"the master is {now}")

    return wait_until("another member is the master", ask, timeout_s=90)


def _example() -> list[dict[str, Any]]:
    """Return the example, its Broker with the small sizes of the tests and one group."""
    rules, broker = yaml.safe_load_all(EXAMPLE_PATH.read_text())
    small = objects.broker(NAME)["spec"]
    return [rules, {**broker, "spec": small | broker["spec"] | {"size": 1}}]


def _without_account(secret: dict[str, Any]) -> dict[str, Any]:
    texts = {key: text for key, text in secret["stringData"].items() if key not in OPERATOR}
    return {**secret, "stringData": texts}


def _rules(*accounts: dict[str, str]) -> str:
    rules: list[dict[str, Any]] = [{**OPERATOR, "admin": True}]
    for each in accounts:
        named = {"accessKey": each["access_key"], "secretKey": each["secret_key"]}
        rules.append({**named, "defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "SUB"})
    return yaml.safe_dump({"accounts": rules})


def _secret(name: str, texts: dict[str, str], *, kind: str = "Opaque") -> dict[str, Any]:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name}, "data": data}


def _certificate(pair: Pair, *, name: str = f"{NAME}-tls") -> dict[str, Any]:
    texts = {"tls.crt": pair.certificate.read_text(), "tls.key": pair.key.read_text()}
    return _secret(name, texts, kind="kubernetes.io/tls")


def _put_file(space: Space, path: str, text: str) -> None:
    space.kubectl("exec", "-i", space.client.name, "--", "sh", "-c", f"cat > {path}", input=text)


def _stranger(space: Space, folder: Path) -> str:
    """Return the client's path of a CA certificate that signed nothing."""
    path = "/tmp/stranger.crt"
    _put_file(space, path, Authority(folder / "stranger", "stranger").certificate.read_text())
    return path


def _wait_message(space: Space, sentence: str) -> None:
    def ask() -> bool:
        message = space.condition(BROKER, NAME, "Degraded").get("message", "")
        if sentence in message:
            return True
        raise NotYetError(message)

    wait_until(f"Degraded says: {sentence}", ask, timeout_s=60)


def _send_and_receive(space: Space, run: str, options: dict[str, str]) -> list[Sent]:
    """Return the sends, once all messages have arrived."""
    name_servers = space.name_servers(NAME)
    level = objects.LEVEL_OF["1s"]
    producer = space.client.produce(
        topic="orders", name_servers=name_servers, run=run, count=10, rate=50, levels=level, **options
    )
    assert producer.result() == {"acknowledged": 10, "failed": 0}
    consumer = space.client.consume(topic="orders", group="billing", name_servers=name_servers, at_most_s=60, **options)
    wait_until(
        f"messages of {run} arrive",
        lambda: len({line[0] for line in consumer.lines("got") if line[0].startswith(f"{run}-")}) == 10,
        timeout_s=60,
    )
    consumer.stop()
    return producer.sends()


def _refusal(space: Space, *, broker: str = NAME, **options: Any) -> str:
    """The remark to a rejected client; AssertionError if it is served."""
    with pytest.raises(AssertionError, match="ask stats failed") as refused:
        space.client.ask("stats", "orders", name_servers=space.name_servers(broker), **options)
    return str(refused.value)


def _served(space: Space, **options: Any) -> bool:
    try:
        return bool(space.client.ask("stats", "orders", name_servers=space.name_servers(NAME), **options))
    except AssertionError as error:
        raise NotYetError(str(error)) from None


def _shown_certificate(space: Space) -> str:
    """Of the certificate that the broker shows."""
    program = "import ssl,sys;print(ssl.get_server_certificate(('127.0.0.1',10911),timeout=10))"
    try:
        text = str(space.kubectl("exec", f"{NAME}-broker-0-0", "--", "python3.11", "-c", program).stdout)
    except ClusterError as error:
        raise NotYetError(str(error)) from None
    return ssl.PEM_cert_to_DER_cert(text.strip()).hex()


def _reserved(space: Space) -> str:
    settings = space.http(f"{NAME}-broker-0-0", "/api/v1/broker")["settings"]
    return str(settings.get("fileReservedTime", ""))
