"""Registration accounts: creation, mounting and rotation without disconnecting a broker."""

import base64
from typing import Any

import pytest
from delaymq.access.yaml_tree import read_yaml
from delaymq.namesrv.rules import NamesFile, parse
from delaymq_operator.manifests import broker_pods
from delaymq_operator.reconcile.broker.apply import registration
from delaymq_operator.reconcile.broker.model.memory import BrokerMemory
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.trees import copied

RULES = {"plain_acl.yml": "accounts: []", "accessKey": "operators", "secretKey": "operators-secret"}
ON = {"secretName": "rules"}
NAME = "demo-registration"


def guarded(size: int = 1, **control: Any) -> FakeWorld:
    world = FakeWorld()
    data = {key: base64.b64encode(text.encode()).decode() for key, text in RULES.items()}
    world.kube.put({"kind": "Secret", "metadata": {"name": "rules", "namespace": NAMESPACE}, "data": data})
    world.create(size=size, accessControl=control if "users" in control else ON | control)
    world.run(lambda: world.settled)
    return world


@pytest.fixture
def older() -> FakeWorld:
    """Return a Broker created by an older operator, which had no registration accounts."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (broker_pods, registration):
            patch.setattr(module, "registers", lambda broker: False)
        patch.setattr(broker_pods, "account_volumes", lambda broker, group: [])
        patch.setattr(broker_pods, "account_environment", lambda broker: {})
        world = guarded(nameServers=False)
    body = copied(world.broker)
    del body["spec"]["accessControl"]["nameServers"]
    del body["status"]["defaults"]
    world.kube.put(body)
    world.memory.__init__()
    assert world.get("Secret", NAME) is None
    return world


def text(world: FakeWorld, key: str) -> str:
    secret = world.get("Secret", NAME)
    assert secret is not None
    return base64.b64decode(secret["data"][key]).decode()


def rules(world: FakeWorld) -> NamesFile:
    return parse(text(world, "namesrv_acl.yml"), 0)


def account(world: FakeWorld, group: int = 0) -> tuple[str, str]:
    tree = read_yaml(text(world, f"group-{group}.yml"))
    assert isinstance(tree, dict)
    return str(tree["accessKey"]), str(tree["secretKey"])


def is_known(world: FakeWorld, key: str, secret: str, name: str) -> bool:
    file = rules(world)
    entry = file.account(key)
    return entry is not None and entry.entry.secret_key == secret and (key, name) in file.names


def volumes(pod: Manifest | None) -> dict[str, Any]:
    assert pod is not None
    return {each["name"]: each for each in pod["spec"]["volumes"]}


def environment(pod: Manifest | None) -> dict[str, str]:
    assert pod is not None
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0].get("env", [])}


def test_every_possible_group_has_account_known_to_name_servers() -> None:
    world = guarded()
    for group in (0, 31):
        assert is_known(world, *account(world, group), f"demo-{group}")
    assert len({account(world, group) for group in range(32)}) == 32
    assert rules(world).open_names == frozenset()
    administrators = [each.entry.access_key for each in rules(world).accounts if each.admin]
    assert administrators == [text(world, "accessKey")]
    assert text(world, "secretKey") not in [each.entry.secret_key for each in rules(world).accounts if not each.admin]


def test_pod_mounts_own_account_and_name_servers_mount_rules() -> None:
    world = guarded(size=2)
    for group in (0, 1):
        pod = world.get("Pod", f"demo-broker-{group}-0")
        items = volumes(pod)["registration"]["secret"]["items"]
        assert items == [{"key": f"group-{group}.yml", "path": "account.yml"}]
        assert environment(pod)["DELAYMQ_NAMESRV_ACCOUNT_FILE"] == "/etc/delaymq-registration/account.yml"
    server = world.get("Pod", "demo-namesrv-0")
    assert environment(server)["DELAYMQ_NAMESRV_ACL_CONFIG_PATH"] == "/etc/delaymq-registration/namesrv_acl.yml"
    own, users = (each["secret"] for each in volumes(server)["registration"]["projected"]["sources"])
    assert own == {"name": NAME, "items": [{"key": "namesrv_acl.yml", "path": "namesrv_acl.yml"}]}
    assert users == {
        "name": "rules",
        "items": [{"key": "namesrv_acl.yml", "path": "acl/namesrv_acl.yml"}],
        "optional": True,
    }


@pytest.mark.parametrize(("control", "secret"), [({"secretName": "rules"}, "rules"), ({"users": True}, "demo-users")])
def test_name_servers_that_restrict_queries_have_the_accounts_of_the_brokers(
    control: dict[str, Any], secret: str
) -> None:
    world = guarded(metadata="Own", **control)
    server, broker = world.get("Pod", "demo-namesrv-0"), world.get("Pod", "demo-broker-0-0")
    assert environment(server)["DELAYMQ_NAMESRV_ACL_METADATA"] == "own"
    assert environment(broker)["DELAYMQ_ACL_METADATA"] == "own"
    sources = volumes(server)["registration"]["projected"]["sources"]
    items = [{"key": "plain_acl.yml", "path": "acl/plain_acl.yml"}]
    assert sources[-1] == {"secret": {"name": secret, "items": items}}
    assert "optional" not in sources[-1]["secret"]


def test_accounts_are_omitted_without_access_control_or_with_external_name_servers() -> None:
    for spec in ({}, {"nameServers": {"addresses": ["others:9876"]}}):
        world = FakeWorld()
        world.create(size=1, **spec)
        world.run(lambda world=world: world.settled)
        assert world.get("Secret", NAME) is None
        assert "registration" not in volumes(world.get("Pod", "demo-broker-0-0"))


def test_upgrade_enables_no_accounts_and_restarts_nothing(older: FakeWorld) -> None:
    world = older
    before = world.pod_uids()
    world.run(lambda: world.status.get("defaults") == 1)
    world.run(lambda: world.settled)
    assert world.pod_uids() == before
    assert "DELAYMQ_NAMESRV_ACL_CONFIG_PATH" not in environment(world.get("Pod", "demo-namesrv-0"))


def test_enabling_later_requires_no_signature_before_broker_can_sign(older: FakeWorld) -> None:
    world = older
    world.run(lambda: world.status.get("defaults") == 1)
    world.run(lambda: world.settled)
    asked = []

    def watch() -> None:
        server, pod = world.get("Pod", "demo-namesrv-0"), world.get("Pod", "demo-broker-0-0")
        if server is None or pod is None or "DELAYMQ_NAMESRV_ACL_CONFIG_PATH" not in environment(server):
            return
        signs = "registration" in volumes(pod)
        asked.append(signs)
        assert signs or "demo-0" in rules(world).open_names

    world.watch = watch
    world.change(accessControl=ON | {"nameServers": True})
    world.run(lambda: world.settled)
    world.idle(2)
    assert False in asked, "the NameServer was not restarted before the broker"
    assert asked[-1]
    assert rules(world).open_names == frozenset()


def test_rotation_publishes_new_accounts_first_and_keeps_old_ones() -> None:
    world = guarded()
    uids = world.pod_uids()
    first = account(world)
    world.annotate(rotate_registration="1")
    world.run(lambda: len(rules(world).accounts) == 66)
    assert account(world) == first
    assert "RegistrationRotated" in str(world.kube.events)
    world.annotate(rotate_registration="2")  # during the first rotation
    world.now_ms += 500_000
    world.idle(1)
    assert account(world) == first
    world.now_ms += 600_000
    world.run(lambda: account(world) != first)
    second = account(world)
    assert is_known(world, *first, "demo-0")
    assert is_known(world, *second, "demo-0")
    # The second rotation starts now; accounts that are no longer in use are removed.
    world.run(lambda: not is_known(world, *first, "demo-0"))
    assert account(world) == second
    assert is_known(world, *second, "demo-0")
    assert world.pod_uids() == uids


def test_operator_restart_or_deleted_secret_changes_no_account() -> None:
    world = guarded()
    first = account(world)
    world.memory.__init__()
    world.annotate(seen="again")
    world.run(lambda: world.settled)
    assert account(world) == first
    world.kube.remove("Secret", NAMESPACE, NAME)
    world.change(size=2)
    world.run(lambda: world.settled and world.get("Secret", NAME) is not None)
    assert account(world) == first


@pytest.mark.parametrize("data", [{}, {"state.json": "%%%"}, {"state.json": base64.b64encode(b"{}").decode()}])
def test_damaged_secret_is_recreated(data: dict[str, str]) -> None:
    world = guarded()
    first = account(world)
    secret = copied(world.get("Secret", NAME))
    world.kube.put(secret | {"data": data})
    world.memory.__init__()
    world.annotate(seen="again")
    world.run(lambda: "group-0.yml" in world.existing("Secret", NAME)["data"])
    assert is_known(world, *account(world), "demo-0")
    assert account(world) != first


def test_secrets_are_not_exposed() -> None:
    world = guarded()
    kept = world.memory.of(world.key, BrokerMemory).registrations
    assert kept is not None
    assert kept.seeds[1] not in repr(kept)
    assert kept.seeds[1] not in str(world.broker)
