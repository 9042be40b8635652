"""Access control while its rules change: rule files, their folder, mqadmin and the Python administrator."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from compat.accounts import ADMIN, asked, shown, wait_for
from delaymq.client import Admin, Client, Credentials, RefusedError
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError, Driver

OWN_RULES = """
accounts:
- accessKey: operators
  secretKey: operators-secret
  admin: true
"""


@pytest.fixture(scope="module")
def changing(new_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """Provide a broker whose rules the tests change; its tools have the administrator's account."""
    with new_cluster(rules=OWN_RULES) as cluster:
        (cluster.home_path / "conf" / "tools.yml").write_text("accessKey: operators\nsecretKey: operators-secret\n")
        yield cluster


def accepted(bench: Workbench, account: str, topic: str) -> Callable[[], bool]:
    """Return a function that returns whether an account of that name may send to the topic now."""
    producer = bench.new_producer(credentials={"accessKey": account, "secretKey": f"{account}-secret"}, retries=0)

    def send() -> bool:
        producer.send(topic, "x")
        return True

    return send


def refused(bench: Workbench, account: str, topic: str) -> Callable[[], bool]:
    """Return a function that returns whether that send is rejected."""
    send = accepted(bench, account, topic)

    return lambda: not accepts(send)


def accepts(send: Callable[[], bool]) -> bool:
    """Return whether a send succeeds; errors other than rejections by access control are raised."""
    try:
        return send()
    except ClientError as error:
        if "AclException" not in shown(error):
            raise
        return False


@pytest.fixture
def bench(changing: Cluster, new_workbench: Callable[..., Workbench]) -> Workbench:
    bench = new_workbench(changing, credentials=ADMIN)
    bench.admin.update_topic("Changing", broker=changing.broker_address, queues=1)
    bench.wait_for_route("Changing", queues=1)
    return bench


def put(path: Path, text: str) -> None:
    """Write a file as an administrator would: under another name, then renamed."""
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name("new.tmp")
    beside.write_text(text)
    beside.rename(path)


def account(name: str, topic_permission: str) -> str:
    return f"- accessKey: {name}\n  secretKey: {name}-secret\n  defaultTopicPerm: {topic_permission}\n"


def test_changed_file_takes_effect_without_restart_and_broken_file_keeps_last_rules(
    changing: Cluster, bench: Workbench
) -> None:
    put(changing.rules_path, OWN_RULES + account("newcomer", "PUB"))
    wait_for(accepted(bench, "newcomer", "Changing"))
    put(changing.rules_path, OWN_RULES + account("newcomer", "SUB"))
    wait_for(refused(bench, "newcomer", "Changing"))
    put(changing.rules_path, OWN_RULES + account("newcomer", "PUB"))
    send = accepted(bench, "newcomer", "Changing")
    wait_for(send)
    seen_bytes = changing.broker.log_size_bytes()
    put(changing.rules_path, "accounts: [\n")
    said = ("last valid rules stay", "AclFileWatchService service has exception")
    wait_for(lambda: any(text in changing.broker.log_since(seen_bytes) for text in said))
    assert send()
    put(changing.rules_path, OWN_RULES)
    wait_for(refused(bench, "newcomer", "Changing"))


def test_files_in_acl_folder_take_effect(changing: Cluster, bench: Workbench) -> None:
    put(changing.rules_path.parent / "acl" / "more.yml", "accounts:\n" + account("besides", "PUB"))
    wait_for(accepted(bench, "besides", "Changing"))


def mqadmin(driver: Driver, cluster: Cluster, *arguments: str, signed: bool = True) -> str:
    home = {"home": str(cluster.home_path)} if signed else {}
    answer = driver.call("mqadmin", arguments=[*arguments, "-n", cluster.namesrv_address], **home)
    return f"{answer['output']}\n{answer['errors']}"


def test_mqadmin_creates_changes_and_deletes_accounts(driver: Driver, changing: Cluster, bench: Workbench) -> None:
    where = ("-b", changing.broker_address)
    made = ("-a", "by-a-tool", "-s", "by-a-tool-secret", "-i", "DENY", "-u", "SUB", "-t", "Changing=PUB,Other=SUB")
    said = mqadmin(driver, changing, "updateAclConfig", *where, *made)
    assert f"create or update plain access config to {changing.broker_address} success" in said
    wait_for(accepted(bench, "by-a-tool", "Changing"))
    kept = yaml.safe_load(changing.rules_path.read_text())
    [found] = [each for each in kept["accounts"] if each["accessKey"] == "by-a-tool"]
    assert (found["defaultGroupPerm"], found["admin"]) == ("SUB", False)
    assert found["topicPerms"] == ["Changing=PUB", "Other=SUB"]
    counter = kept["dataVersion"][0]["counter"]

    changed = ("-a", "by-a-tool", "-s", "by-a-tool-secret", "-t", "Changing=SUB")
    assert "success" in mqadmin(driver, changing, "updateAclConfig", *where, *changed)
    wait_for(refused(bench, "by-a-tool", "Changing"))
    kept = yaml.safe_load(changing.rules_path.read_text())
    [found] = [each for each in kept["accounts"] if each["accessKey"] == "by-a-tool"]
    assert (found["topicPerms"], found["defaultGroupPerm"]) == (["Changing=SUB"], "SUB")
    assert kept["dataVersion"][0]["counter"] == counter + 1

    said = mqadmin(driver, changing, "clusterAclConfigVersion", *where)
    [line] = [each for each in said.splitlines() if str(changing.rules_path) in each]
    assert line.split()[:5] == [
        "DefaultCluster", "broker-a", changing.broker_address, str(changing.rules_path), str(counter + 1)
    ]  # fmt: skip
    said = mqadmin(driver, changing, "deleteAccessConfig", *where, "-a", "by-a-tool")
    assert f"delete plain access config account from {changing.broker_address} success" in said
    wait_for(refused(bench, "by-a-tool", "Changing"))
    accounts = yaml.safe_load(changing.rules_path.read_text())["accounts"]
    assert "by-a-tool" not in [each["accessKey"] for each in accounts]


def test_mqadmin_shows_why_a_change_of_rules_fails(driver: Driver, changing: Cluster, bench: Workbench) -> None:
    where = ("-b", changing.broker_address)
    said = mqadmin(driver, changing, "updateAclConfig", *where, "-a", "short", "-s", "a-long-secret")
    assert "CODE: 209" in said
    assert "length should longer than 6" in said
    said = mqadmin(driver, changing, "updateAclConfig", *where, "-a", "long-enough", "-s", "a-long-secret", "-t", "T")
    assert "CODE: 209" in said
    assert "The expected resource format is 'Res=Perm'. For example: topicA=SUB" in said
    said = mqadmin(driver, changing, "deleteAccessConfig", *where, "-a", "nobody-here")
    assert "CODE: 210" in said
    assert "The accesskey[nobody-here] corresponding to accessConfig has been deleted failed." in said
    said = mqadmin(driver, changing, "updateGlobalWhiteAddr", *where, "-g", "10.0.0.1", "-p", "/etc/passwd")
    assert "CODE: 211" in said
    said = mqadmin(driver, changing, "clusterAclConfigVersion", *where, signed=False)
    assert "No accessKey is configured" in said


def test_python_administrator_changes_rules(changing: Cluster, bench: Workbench) -> None:
    name, address = "by-python", changing.broker_address
    newcomer = Credentials(name, f"{name}-secret")

    async def make(client: Client) -> None:
        admin = Admin(client)
        before = await admin.access_versions(address)
        assert str(changing.rules_path) in before
        await admin.put_account(address, newcomer, default_topic="DENY", topics={"Changing": "PUB|SUB"})
        counter = (await admin.access_versions(address))[str(changing.rules_path)].counter
        assert counter == before[str(changing.rules_path)].counter + 1

    async def delete(client: Client) -> None:
        await Admin(client).delete_account(address, name)
        with pytest.raises(RefusedError, match="has been deleted failed"):
            await Admin(client).delete_account(address, name)
        path = str(changing.rules_path)
        await Admin(client).set_white_addresses(address, ["10.9.9.1", "10.9.8.*"], path)

    asked(changing, ADMIN, make)
    wait_for(accepted(bench, name, "Changing"))
    asked(changing, ADMIN, delete)
    wait_for(refused(bench, name, "Changing"))
    kept = yaml.safe_load(changing.rules_path.read_text())
    assert kept["globalWhiteRemoteAddresses"] == ["10.9.9.1", "10.9.8.*"]


def test_mqadmin_sets_white_list(driver: Driver, changing: Cluster, bench: Workbench, against: str) -> None:
    # Last test with this broker: RocketMQ's keeps addresses of a list that was missing in the file at startup.
    where = ("-b", changing.broker_address, "-p", str(changing.rules_path))
    unsigned = bench.new_producer(credentials=None, retries=0)

    def send() -> bool:
        unsigned.send("Changing", "unsigned")
        return True

    said = mqadmin(driver, changing, "updateGlobalWhiteAddr", *where, "-g", "10.10.10.*,127.0.0.1")
    assert f"update global white remote addresses to {changing.broker_address} success" in said
    wait_for(send)
    kept = yaml.safe_load(changing.rules_path.read_text())
    assert kept["globalWhiteRemoteAddresses"] == ["10.10.10.*", "127.0.0.1"]
    mqadmin(driver, changing, "updateGlobalWhiteAddr", *where, "-g", "10.10.10.*")
    assert yaml.safe_load(changing.rules_path.read_text())["globalWhiteRemoteAddresses"] == ["10.10.10.*"]
    if against == "ours":
        wait_for(lambda: not accepts(send))


ADMINISTRATION = (
    "updateTopic -t Administered -r 1 -w 1 -o false",
    "updateBrokerConfig -k fileReservedTime -v 24",
    "updateSubGroup -g Administered -r 2",
    "cloneGroupOffset -s Administered -d AdministeredToo -t Administered",
    "resetOffsetByTime -g Administered -t Administered -s now",
    "cleanExpiredCQ",
    "cleanUnusedTopic",
    "deleteExpiredCommitLog",
    "deleteSubGroup -g Administered",
    "deleteTopic -t Administered -c DefaultCluster",
)


def test_requests_of_mqadmin_administration_commands_are_accepted(
    driver: Driver, changing: Cluster, bench: Workbench
) -> None:
    for words in ADMINISTRATION:
        arguments = words.split()
        if arguments[0] not in ("cloneGroupOffset", "resetOffsetByTime", "deleteTopic"):
            arguments += ["-b", changing.broker_address]
        said = mqadmin(driver, changing, *arguments)
        assert "AclException" not in said, said
        assert "usage: mqadmin" not in said, said
