"""Access control of a Broker: the operator's account for requests to brokers, and TLS for administrators."""

import asyncio
import base64
import copy
from collections.abc import Mapping
from typing import Any

import pytest
from delaymq_operator.api.broker import parse_broker
from delaymq_operator.manifests import Context, GroupContext, broker_stateful_set
from delaymq_operator.reconcile.endpoints import broker_endpoint
from delaymq_operator.reconcile.ports import AdminAccount, Endpoint, Manifest
from delaymq_operator.reconcile.secrets import MAX_AGE_MS, operator_account, parse_secret
from delaymq_operator.reconcile.topic.targets import groups_of
from delaymq_operator_testing.fakes.kube import FakeKube
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.settled import settled
from delaymq_operator_testing.worlds.topic import TopicWorld

ACCOUNT = AdminAccount(access_key="operators", secret_key="operators-secret")
RULES = {"plain_acl.yml": "accounts: []"}


def encoded(**texts: str) -> dict[str, dict[str, str]]:
    return {"data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}}


def put_secret(kube: FakeKube, **texts: str) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "rules", "namespace": NAMESPACE}}
    kube.put(secret | encoded(**texts))


def test_account_is_read_from_secret() -> None:
    assert parse_secret(encoded(accessKey="operators\n", secretKey="operators-secret")).account == ACCOUNT
    assert "operators-secret" not in repr(ACCOUNT)


@pytest.mark.parametrize(
    "secret",
    [
        None,
        {},
        {"data": None},
        encoded(accessKey="operators"),
        encoded(accessKey="operators", secretKey=" "),
        encoded(accessKey="operators", secretKey="two\nlines"),
        encoded(accessKey="operators", secretKey="x" * 5_000),
        {"data": {"accessKey": "%%%", "secretKey": 7}},
    ],
)
def test_secret_without_valid_account_yields_none(secret: Manifest | None) -> None:
    assert parse_secret(secret).account is None


def test_account_is_read_again_after_expiry_and_for_another_secret() -> None:
    world = TopicWorld(groups=1)
    asked = []

    class Kube:
        async def get(self, kind: str, namespace: str, name: str) -> Manifest:
            asked.append(name)
            return encoded(accessKey="operators", secretKey=f"{name}-secret-{len(asked)}")

    world.kube = Kube()  # type: ignore[assignment]  # only `get` of the port is called
    used = world._world()

    def account(name: str | None) -> AdminAccount | None:
        body = {"metadata": {"name": "demo", "namespace": "ns", "uid": "u"}}
        spec = {"accessControl": {"secretName": name}} if name else {}
        return asyncio.run(operator_account(parse_broker(body | {"spec": spec}), used))

    assert account(None) is None
    assert asked == []
    assert account("rules") == AdminAccount(access_key="operators", secret_key="rules-secret-1")
    assert account("rules") == AdminAccount(access_key="operators", secret_key="rules-secret-1")
    world.now_ms += MAX_AGE_MS
    assert account("rules") == AdminAccount(access_key="operators", secret_key="rules-secret-2")
    world.now_ms -= 10 * MAX_AGE_MS  # the clock is set back
    assert account("rules") == AdminAccount(access_key="operators", secret_key="rules-secret-3")
    assert account("others") == AdminAccount(access_key="operators", secret_key="others-secret-4")


def test_topic_requests_to_brokers_use_account() -> None:
    world = TopicWorld(groups=1)
    world.kube.change("Broker", "demo", accessControl={"secretName": "rules"})
    world.kube.objects["Secret", "ns", "rules"] = encoded(accessKey="operators", secretKey="operators-secret")
    broker = parse_broker(world.kube.objects["Broker", "ns", "demo"])
    [group] = asyncio.run(groups_of(broker, world.world))
    assert group.endpoint is not None
    assert group.endpoint.account == ACCOUNT
    without = broker_endpoint({"status": {"podIP": "10.0.0.1"}}, 10911, "t")
    assert without is not None
    assert without.account is None


def test_missing_operator_account_is_reported_until_added() -> None:
    world = FakeWorld()
    put_secret(world.kube, **RULES)
    world.create(size=1, accessControl={"secretName": "rules"})
    world.run(lambda: world.reason("Degraded") == "AccountMissing")
    message = world.condition("Degraded")["message"]
    assert "Secret rules has no accessKey and secretKey" in message
    world.run()  # the Broker becomes ready nevertheless
    put_secret(world.kube, **RULES, accessKey="operators", secretKey="operators-secret")
    world.run(lambda: world.settled and world.condition("Degraded")["status"] == "False")


def test_settings_are_sent_to_brokers_with_account() -> None:
    world = FakeWorld()
    put_secret(world.kube, **RULES, accessKey="operators", secretKey="operators-secret")
    world.create(size=1, accessControl={"secretName": "rules"})
    world.run(lambda: world.settled)
    accounts = []
    given = world.brokers.set_settings

    async def noted(endpoint: Endpoint, settings: Mapping[str, str]) -> None:
        accounts.append(endpoint.account)
        await given(endpoint, settings)

    world.brokers.set_settings = noted
    world.change(config={"fileReservedTime": "9"})
    world.run(lambda: bool(accounts))
    assert accounts == [ACCOUNT]


def test_pods_mount_only_rules_of_secret() -> None:
    def made(**spec: Any) -> Manifest:
        body = {"metadata": {"name": "demo", "namespace": "ns", "uid": "u-1"}, "spec": spec}
        context = Context(image="delaymq/broker:1", token="sesame")
        group = GroupContext(group=0, advertised_address="10.96.0.7", storage_size="10Gi")
        return broker_stateful_set(parse_broker(body), context, group)["spec"]["template"]["spec"]

    pod = made(accessControl={"secretName": "rules"}, podTemplate={"env": [{"name": "DELAYMQ_ACL_ENABLE"}]})
    [container] = pod["containers"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "access"]
    assert volume["secret"]["secretName"] == "rules"
    assert volume["secret"]["items"] == [{"key": "plain_acl.yml", "path": "plain_acl.yml"}]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    assert mount["readOnly"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["DELAYMQ_ACL_ENABLE"] == "true"
    assert environment["DELAYMQ_ACL_CONFIG_PATH"] == f"{mount['mountPath']}/plain_acl.yml"
    without = copy.deepcopy(made())
    assert not [each for each in without["volumes"] if "secret" in each]
    assert "DELAYMQ_ACL_ENABLE" not in str(without)


GUARDED = {"accessControl": {"secretName": "rules"}, "tls": {"secretName": "certificate"}}
NEEDS_TLS = "DELAYMQ_ACL_ADMIN_NEEDS_TLS"


def that_need_tls(world: FakeWorld) -> list[int]:
    """Return the groups whose pods accept administrators' requests only over TLS."""
    found = []
    for group in range(world.broker["spec"].get("size", 1)):
        template = world.existing("StatefulSet", f"demo-broker-{group}")["spec"]["template"]
        environment = {each["name"]: each.get("value") for each in template["spec"]["containers"][0]["env"]}
        found += [group] if environment.get(NEEDS_TLS) == "true" else []
    return found


def test_administrators_of_new_brokers_with_certificate_need_tls() -> None:
    world = settled(size=2, **GUARDED)
    assert that_need_tls(world) == [0, 1]
    world.change(size=3)
    world.run()
    assert that_need_tls(world) == [0, 1, 2]
    world.annotate(restart="again")
    world.run()
    assert that_need_tls(world) == [0, 1, 2]


def test_tls_requirement_depends_on_access_control_and_config() -> None:
    assert that_need_tls(settled(accessControl={"secretName": "rules"})) == []
    assert that_need_tls(settled(**GUARDED, config={"aclAdminNeedsTls": "false"})) == []
    world = settled(tls={"secretName": "certificate"})
    assert that_need_tls(world) == []
    world.change(accessControl={"secretName": "rules"})
    world.run()
    assert that_need_tls(world) == [0]


def test_operator_upgrade_does_not_require_tls_of_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr("delaymq_operator.reconcile.broker.apply.stateful_sets._admin_needs_tls", lambda p: False)
        world = settled(size=2, **GUARDED)
    pods = world.pod_uids()
    world.restart_operator()
    world.idle(5)
    assert world.pod_uids() == pods
    world.annotate(restart="again")
    world.change(size=3)
    world.run()
    assert that_need_tls(world) == []
