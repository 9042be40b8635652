"""A NameServer and a broker with access control, plaintext or TLS, and RocketMQ 4.9 and 5.3 clients for them.

Everything runs on one machine, so administrators' plaintext requests come from the same machine, which
`aclAdminNeedsTls` permits.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compat.accounts import ADMIN, APP
from harness.brokers import HOME_PATH, write_properties
from harness.clients import Workbench
from harness.driver import Driver
from harness.name_servers import BrokerNode, NameServerNode
from harness.waiting import until

Transport = Literal["plain", "tls"]
DELAY_LEVELS = "1s 2s 1s 1s"
FIRST_LEVEL_MS = 1_000

RULES = """
accounts:
- accessKey: operators
  secretKey: operators-secret
  admin: true
- accessKey: broker-a-account
  secretKey: broker-a-secret
  brokerNames: [broker-a]
  requireSecondSignature: true
- accessKey: application
  secretKey: 12345678
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [Orders49=PUB|SUB, Orders53=PUB|SUB, Questions49=PUB|SUB, Questions53=PUB|SUB]
  groupPerms: [Readers49=SUB, Readers53=SUB, Pollers49=SUB, Pollers53=SUB, Repliers49=SUB, Repliers53=SUB]
"""


@dataclass(frozen=True)
class Guarded:
    """The running cluster, and mqadmin's home folder with the administrator's account."""

    namesrv_address: str
    broker_address: str
    home: Path
    metadata: str
    """Metadata that accounts receive: `open`, or `own`."""


@contextmanager
def guarded(
    folder: Path,
    server_keys: Mapping[str, str],
    *,
    metadata: str = "open",
    rules: str = RULES,
    creates: bool = False,
) -> Iterator[Guarded]:
    """`server_keys` (`tls.…`, including those of a client) make TLS mandatory; without any, TLS is off.

    `creates`: topics and groups are created by use.
    """
    shutil.copytree(HOME_PATH / "conf", folder / "conf")
    (folder / "conf" / "tools.yml").write_text("accessKey: {accessKey}\nsecretKey: {secretKey}\n".format(**ADMIN))
    rule_path, account = folder / "plain_acl.yml", folder / "account.yml"
    rule_path.write_text(rules)
    account.write_text("accessKey: broker-a-account\nsecretKey: broker-a-secret\n")
    tls = {}
    if server_keys:
        path = write_properties(folder / "tls.properties", server_keys)
        tls = {"tls.server.mode": "enforcing", "tls.config.file": str(path)}
    config = {
        **tls,
        "aclEnable": "true",
        "aclConfigPath": str(rule_path),
        "aclAdminNeedsTls": "true",
        "aclMetadata": metadata,
        "namesrvAccountFile": str(account),
        "autoCreateTopicEnable": str(creates).lower(),
        "autoCreateSubscriptionGroup": str(creates).lower(),
        "messageDelayLevel": DELAY_LEVELS,
        "brokerFastFailureEnable": "false",
    }
    of_namesrv = {"namesrvAclConfigPath": str(rule_path), "namesrvAclMetadata": metadata}
    with (
        NameServerNode("ours", config={**tls, **of_namesrv}) as namesrv,
        BrokerNode("ours", [namesrv.address], config=config) as broker,
    ):
        yield Guarded(namesrv.address, broker.address, folder, metadata)


class Side:
    """Clients and tools of one version with one of the clusters, and their topics and groups."""

    def __init__(self, cluster: Guarded, driver: Driver, version: str) -> None:
        self.cluster = cluster
        self.driver = driver
        self.version = version
        number = version.replace(".", "")
        self.orders, self.questions = f"Orders{number}", f"Questions{number}"
        self.readers, self.pollers, self.repliers = f"Readers{number}", f"Pollers{number}", f"Repliers{number}"
        self.clients = self.bench(APP)

    def bench(self, account: dict[str, str] | None) -> Workbench:
        addresses = {
            "namesrv_address": self.cluster.namesrv_address,
            "broker_address": self.cluster.broker_address,
        }
        return Workbench(self.driver, **addresses, credentials=account)

    def mqadmin(self, words: str, *, signed: bool = True) -> str:
        """Return the output of a command, including errors; unsigned: without the administrator's account."""
        home = {"home": str(self.cluster.home)} if signed else {}
        arguments = [*words.format(broker=self.cluster.broker_address).split(), "-n", self.cluster.namesrv_address]
        answer = self.driver.call("mqadmin", arguments=arguments, **home)
        return f"{answer['output']}\n{answer['errors']}"

    def make_topics_and_groups(self) -> None:
        """Create them with mqadmin as administrator, since automatic creation is disabled."""
        for topic in (self.orders, self.questions):
            said = self.mqadmin(f"updateTopic -t {topic} -b {{broker}} -r 2 -w 2")
            assert "create topic to" in said, said
            until(lambda topic=topic: self.clients.producer.queue_ids(topic) == [0, 1], f"a route of {topic}")
        for group in (self.readers, self.pollers, self.repliers):
            said = self.mqadmin(f"updateSubGroup -g {group} -b {{broker}}")
            assert "create subscription group to" in said, said
