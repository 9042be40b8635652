"""Users: accounts in the rules of the Broker, Secrets for clients, conflicts, limits, and lost Secrets."""

from __future__ import annotations

from typing import Any

import pytest
from delaymq.access import PUB, SUB
from delaymq.access.accounts import Account
from delaymq.access.plain_acl import parse
from delaymq_operator.api.names import OPERATOR_ACCESS_KEY
from delaymq_operator.reconcile.users import accounts
from delaymq_operator_testing.fakes.world import NAMESPACE
from delaymq_operator_testing.trees import copied
from delaymq_operator_testing.worlds.users import CONTROL, UsersWorld

NAME = "orders-service"


@pytest.fixture
def world() -> UsersWorld:
    made = UsersWorld()
    made.create(accessControl=CONTROL, size=2)
    return made


def settle(world: UsersWorld, *names: str) -> None:
    """Run until these Users are in force on all brokers."""
    world.run(lambda: world.settled and all(world.ready(name) == ("True", "Active") for name in names), ticks=200)


def account(world: UsersWorld, key: str) -> Account | None:
    rules = world.secret("demo-users")
    assert rules is not None
    return parse(rules["plain_acl.yml"], 0).account(key)


def test_user_gets_an_account_on_all_brokers_and_a_secret(world: UsersWorld) -> None:
    world.user(
        NAME,
        topics=[{"name": "orders", "permission": "PUB|SUB"}, {"name": "audit", "permission": "DENY"}],
        groups=[{"name": "billing", "permission": "SUB"}],
        defaultTopicPermission="SUB",
        role="operate",
        quotas={"sendBytesPerSecond": 1000, "heldPulls": 0},
    )
    settle(world, NAME)
    found, secret = account(world, NAME), world.secret(f"{NAME}-credentials")
    assert found is not None
    assert secret is not None
    assert found.entry.secret_key == secret["secretKey"]
    assert len(secret["secretKey"]) >= 32
    assert secret["accessKey"] == NAME
    assert secret["tools.yml"] == f"accessKey: {NAME}\nsecretKey: {secret['secretKey']}\n"
    assert (found.permissions["orders"], found.permissions["%RETRY%billing"]) == (PUB | SUB, SUB)
    assert (found.topic_permission, found.admin, found.entry.require_second_signature) == (SUB, False, False)
    assert found.entry.role == "operate"
    assert found.entry.quotas is not None
    assert dict(found.entry.quotas.limits()) == {"sendBytesPerSecond": 1000, "heldPulls": 0}
    assert world.user_status(NAME)["accessKey"] == NAME
    assert world.user_status(NAME)["secretName"] == f"{NAME}-credentials"
    assert "formerKeyUntil" not in world.user_status(NAME)
    [owner] = world.existing("Secret", f"{NAME}-credentials")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("User", NAME)
    assert all(world.brokers.rules.accepts(pod, NAME, secret["secretKey"]) for pod in world.brokers.running)


def test_operator_has_an_administrator_account_of_its_own(world: UsersWorld) -> None:
    settle(world)
    found, secret = account(world, OPERATOR_ACCESS_KEY), world.secret("demo-users")
    assert found is not None
    assert secret is not None
    assert (secret["accessKey"], secret["secretKey"]) == (OPERATOR_ACCESS_KEY, found.entry.secret_key)
    assert (found.admin, found.entry.require_second_signature) == (True, True)
    # Pods mount the rules only.
    pod = world.existing("Pod", "demo-broker-0-0")
    [volume] = [each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "access"]
    assert [item["key"] for item in volume["items"]] == ["plain_acl.yml"]


def test_administrators_require_the_second_signature_by_default(world: UsersWorld) -> None:
    for name, spec in {"careful1": {}, "rocketmq": {"requireSecondSignature": False}}.items():
        world.user(name, admin=True, **spec)
    settle(world, "careful1", "rocketmq")
    found = [account(world, name) for name in ("careful1", "rocketmq")]
    assert [each is not None and each.entry.require_second_signature for each in found] == [True, False]
    assert all(each is not None and each.admin for each in found)


def test_changed_permissions_take_effect_and_keep_the_secret_key(world: UsersWorld) -> None:
    world.user(NAME)
    settle(world, NAME)
    key, pods = world.key_of(NAME), world.pod_uids()
    world.brokers.rules.lags_ms = {"demo-broker-1-0": 30_000}
    world.user(NAME, topics=[{"name": "orders", "permission": "PUB"}])
    world.idle(10)
    assert world.ready(NAME) == ("False", "Distributing")
    assert "demo-broker-1-0 (its kubelet has not delivered the rules yet)" in world.message(NAME)
    settle(world, NAME)
    changed = account(world, NAME)
    assert changed is not None
    assert changed.permissions == {"orders": PUB}
    assert (world.key_of(NAME), world.pod_uids()) == (key, pods)


def test_deleted_user_loses_its_account(world: UsersWorld) -> None:
    world.user(NAME)
    world.user("billing-service")
    settle(world, NAME, "billing-service")
    world.delete_user(NAME)
    world.idle(20)
    assert account(world, NAME) is None
    assert account(world, "billing-service") is not None
    # Also if the operator did not run meanwhile.
    world.delete_user("billing-service")
    world.restart_operator()
    world.idle(2)
    assert account(world, "billing-service") is None


def test_younger_user_with_the_same_access_key_is_refused_until_the_older_one_is_deleted(world: UsersWorld) -> None:
    world.user(NAME)
    world.user("another", accessKey=NAME, admin=True)
    settle(world, NAME)
    assert world.ready("another") == ("False", "Conflict")
    assert f"User {NAME} is older and has the access key {NAME}" in world.message("another")
    assert world.secret("another-credentials") is None
    found, key = account(world, NAME), world.key_of(NAME)
    assert found is not None
    assert not found.admin
    world.delete_user(NAME)
    settle(world, "another")
    found = account(world, NAME)
    assert found is not None
    assert found.admin
    assert world.key_of("another") not in (None, key)


def test_holder_of_an_access_key_keeps_it_from_a_user_created_in_the_same_second(world: UsersWorld) -> None:
    body = world.user("zz-service", accessKey=NAME)
    settle(world, "zz-service")
    other = world.user("aa-service", accessKey=NAME)
    other["metadata"] |= {"uid": "a", "creationTimestamp": body["metadata"]["creationTimestamp"]}
    key = world.key_of("zz-service")
    world.kube.put(other)
    world.idle(5)
    assert world.ready("aa-service") == ("False", "Conflict")
    assert (world.ready("zz-service"), world.key_of("zz-service")) == (("True", "Active"), key)


@pytest.mark.parametrize(
    ("control", "reason"), [(None, "UsersDisabled"), ({"secretName": "rules"}, "UsersDisabled")], ids=["none", "Secret"]
)
def test_broker_without_users_is_reported(control: Any, reason: str) -> None:
    world = UsersWorld()
    world.create(**({} if control is None else {"accessControl": control}))
    world.user(NAME)
    world.idle(3)
    assert world.ready(NAME) == ("False", reason)
    assert "users: true" in world.message(NAME)
    assert world.secret("demo-users") is None


def test_missing_and_paused_brokers_are_reported(world: UsersWorld) -> None:
    world.user(NAME, brokerRef={"name": "absent"})
    world.idle(2)
    assert world.ready(NAME) == ("False", "BrokerMissing")
    world.user(NAME, brokerRef={"name": "demo"})
    settle(world, NAME)
    world.change(paused=True)
    world.user(NAME, admin=True)
    world.idle(3)
    assert world.ready(NAME) == ("False", "BrokerPaused")
    found = account(world, NAME)
    assert found is not None
    assert not found.admin
    assert world.user_status(NAME)["secretName"] == f"{NAME}-credentials"


def test_foreign_secrets_are_not_taken_over(world: UsersWorld) -> None:
    foreign: Any = {"kind": "Secret", "metadata": {"namespace": NAMESPACE}, "data": {"own": "eA=="}}
    for name in (f"{NAME}-credentials", "demo-users"):
        world.kube.put(copied(foreign) | {"metadata": foreign["metadata"] | {"name": name}})
    world.user(NAME)
    world.idle(5)
    assert world.ready(NAME) == ("False", "NameConflict")
    assert world.reason("Degraded") == "NameConflict"
    assert world.secret("demo-users") == {"own": "x"}
    world.kube.remove("Secret", NAMESPACE, f"{NAME}-credentials")
    world.idle(2)
    assert "Secret demo-users does not belong to this Broker" in world.message(NAME)
    world.kube.remove("Secret", NAMESPACE, "demo-users")
    settle(world, NAME)


def test_lost_rules_are_restored_with_the_keys_that_clients_have(world: UsersWorld) -> None:
    world.user(NAME)
    settle(world, NAME)
    before, key = world.secret("demo-users"), world.key_of(NAME)
    world.kube.remove("Secret", NAMESPACE, "demo-users")
    world.idle(70)
    assert world.secret("demo-users") == before
    # Without the operator's memory, only the operator's own account is new.
    world.kube.remove("Secret", NAMESPACE, "demo-users")
    world.restart_operator()
    settle(world, NAME)
    found = account(world, NAME)
    assert found is not None
    assert (found.entry.secret_key, world.key_of(NAME)) == (key, key)
    assert world.refused == []


def test_changed_secrets_are_put_right(world: UsersWorld) -> None:
    world.user(NAME)
    settle(world, NAME)
    rules, credentials = world.secret("demo-users"), world.secret(f"{NAME}-credentials")
    for name, key in (("demo-users", "plain_acl.yml"), (f"{NAME}-credentials", "secretKey")):
        body = copied(world.existing("Secret", name))
        body["data"][key] = "eA=="
        world.kube.put(body)
    world.brokers.rules.lags_ms = dict.fromkeys(world.brokers.running, 120_000)
    world.idle(65)
    assert (world.secret("demo-users"), world.secret(f"{NAME}-credentials")) == (rules, credentials)


def test_users_beyond_the_limits_get_no_account_and_accounts_are_kept(
    world: UsersWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "MAX_USERS", 2)
    for name in ("service-1", "service-2", "service-3"):
        world.user(name)
    settle(world, "service-1", "service-2")
    assert world.ready("service-3") == ("False", "TooManyUsers")
    world.delete_user("service-1")
    settle(world, "service-2", "service-3")
    rules = world.secret("demo-users")
    assert rules is not None
    monkeypatch.setattr(accounts, "MAX_BYTES", 2_000)
    world.user("service-2", topics=[{"name": f"topic-{n}", "permission": "PUB"} for n in range(100)])
    world.idle(3)
    assert world.secret("demo-users") == rules


def test_settled_users_cause_one_read_each_in_a_minute(world: UsersWorld) -> None:
    world.user(NAME)
    settle(world, NAME)
    world.idle(5)
    outcome = world.reconcile_user(NAME)
    assert outcome is not None
    assert outcome.requeue_after_s == world.settings.status_interval_s
    world.kube.requests.clear()
    for _ in range(3):
        world.reconcile_user(NAME)
    assert set(world.kube.requests) == {("get", "Secret", f"{NAME}-credentials")}
    assert len(world.kube.requests) == 3


def test_no_event_status_or_failure_contains_a_secret_key(world: UsersWorld) -> None:
    world.user(NAME)
    settle(world, NAME)
    world.user(NAME, rotation={"overlap": "5s", "request": 1})
    world.idle(20)
    rules = world.secret("demo-users")
    assert rules is not None
    shown = repr([world.kube.events, world.user_status(NAME), world.status, world.failures, world.memory])
    for key in (rules["secretKey"], world.key_of(NAME)):
        assert key is not None
        assert key not in shown
