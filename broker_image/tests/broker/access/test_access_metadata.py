"""Metadata with `aclMetadata=own`: what an account sees, what administrators see, and requests of consumers.

tests/server/test_server_two_tenants.py compares the responses of all codes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.access.errors import AccessError
from delaymq.access.plain_acl import parse, to_text
from delaymq.broker.opening import open_broker
from delaymq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    TopicConfig,
    decode_settings,
)
from delaymq_testing.accounts.two_tenants import BROKER
from delaymq_testing.accounts.two_tenants import RULES as SHARED_RULES
from delaymq_testing.broker.guarded import MISSING, RULES, Guarded
from delaymq_testing.broker.harness import FakeSession, Harness, broker_config, send_fields

QUEUE = {"queueId": "0"}


@pytest.fixture
def guarded(open_harness: Callable[..., Harness], tmp_path: Path) -> Guarded:
    """A broker with the accounts of RULES and some topics."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(RULES)
    harness = open_harness(acl_enable=True, acl_config_path=str(path), acl_metadata="own")
    for topic in ("Orders", "Read", "Write", "Other"):
        harness.broker.topics.put(TopicConfig(topic, 1, 1))
    return Guarded(harness, path)


def join(guarded: Guarded, key: str, group: str, topic: str, session: FakeSession) -> None:
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData(topic, "*")])
    body = HeartbeatData(f"client-of-{key}", [ProducerData(f"producers-of-{key}")], [consumer]).encode()
    assert guarded.ask(34, {}, body, key=key, session=session).code == 0


def table(guarded: Guarded, code: int, key: str, **fields: Any) -> Any:
    return json.loads(guarded.ask(code, fields, key=key).body)


def test_tables_contain_what_the_account_may_use(guarded: Guarded) -> None:
    join(guarded, "application", "mine", "Orders", FakeSession())
    join(guarded, "generous", "theirs", "Other", FakeSession())
    for key, group, topic in (("application", "mine", "Orders"), ("generous", "theirs", "Other")):
        commit = {"consumerGroup": group, "topic": topic, "commitOffset": 1, **QUEUE}
        assert guarded.ask(310, send_fields(topic), key=key).code == 0
        assert guarded.ask(15, commit, key=key).code == 0
    topics = set(table(guarded, 21, "application")["topicConfigTable"])
    assert topics - {"DefaultCluster_REPLY_TOPIC"} == {"Orders", "Read", "Write", "%RETRY%mine"}
    assert "Other" in table(guarded, 21, "operators")["topicConfigTable"]
    assert set(table(guarded, 201, "application")["subscriptionGroupTable"]) == {"mine"}
    assert set(table(guarded, 43, "application")["offsetTable"]) == {"Orders@mine"}
    assert set(table(guarded, 43, "operators")["offsetTable"]) == {"Orders@mine", "Other@theirs"}
    stats = guarded.ask(317, {"isOrder": "false"}).body
    assert b'"consumeStatsList":[{"mine":[' in stats
    assert b"theirs" not in stats
    assert set(table(guarded, 328, "application")["data"]) == {"producers-of-application"}
    assert set(table(guarded, 328, "operators")["data"]) == {"producers-of-application", "producers-of-generous"}
    assert table(guarded, 300, "application", topic="Orders")["groupList"] == ["mine"]


def test_versions_and_settings_do_not_reveal_the_activity_of_others(guarded: Guarded) -> None:
    assert table(guarded, 21, "application")["dataVersion"] == {"counter": 0, "timestamp": 0}
    assert table(guarded, 21, "operators")["dataVersion"] != {"counter": 0, "timestamp": 0}
    settings = decode_settings(guarded.ask(26, key="application").body)
    own = {"httpPort", "maxMessageSize", "messageDelayLevel", "recallMessageEnable", "timerMaxDelaySec"}
    assert set(settings) == own
    assert "storePathRootDir" in decode_settings(guarded.ask(26, key="operators").body)


@pytest.mark.parametrize("code", [28, 45, 52])
def test_figures_of_the_whole_broker_need_an_administrator(guarded: Guarded, code: int) -> None:
    assert guarded.refusal(code).startswith(f"Need admin permission for request code={code}")
    assert guarded.refusal(code, key="operators") == ""


def test_account_with_a_role_sees_the_metadata_of_all_and_no_messages(guarded: Guarded) -> None:
    guarded.path.write_text(RULES + "- {accessKey: watchers, secretKey: watchers-secret, role: read}\n")
    guarded.reload()
    assert {"Orders", "Other"} <= set(table(guarded, 21, "watchers")["topicConfigTable"])
    assert guarded.ask(28, key="watchers").code == 0
    pull = {"consumerGroup": "mine", "topic": "Orders", "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 0}
    pull |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, **QUEUE}
    assert guarded.refusal(11, pull, key="watchers").startswith(MISSING)


def test_missing_and_foreign_records_are_refused_alike(guarded: Guarded) -> None:
    own = guarded.ask(310, send_fields("Orders")).fields["msgId"]
    foreign = guarded.ask(310, send_fields("Other"), key="generous").fields["msgId"]
    assert guarded.ask(33, {"offset": int(own[16:], 16)}).code == 0
    texts = {guarded.refusal(33, {"offset": offset}) for offset in (int(foreign[16:], 16), 7, 10**9)}
    assert texts == {f"{MISSING}this record, or there is none"}
    assert guarded.ask(33, {"offset": 10**9}, key="operators").remark.startswith("can not find message by the offset")


def test_requests_of_consumers_need_the_permissions_of_their_pulls(guarded: Guarded) -> None:
    assert guarded.refusal(14, {"topic": "Orders", "consumerGroup": "mine", **QUEUE}) == ""
    assert guarded.refusal(14, {"topic": "Orders", "consumerGroup": "others", **QUEUE}) == f"{MISSING}group:others"
    for code in (29, 30, 31, 32):
        fields = {"timestamp": 0, **QUEUE}
        assert [guarded.refusal(code, {"topic": topic, **fields}) for topic in ("Orders", "Read", "Write")] == [""] * 3
        assert guarded.refusal(code, {"topic": "Other", **fields}) == f"{MISSING}topic:Other"
    assert guarded.refusal(30, {"topic": "Other", **QUEUE}, key="operators") == ""


def test_traces_may_be_sent_but_not_examined(guarded: Guarded) -> None:
    assert guarded.ask(310, send_fields("RMQ_SYS_TRACE_TOPIC")).code in (0, 17)
    assert guarded.refusal(30, {"topic": "RMQ_SYS_TRACE_TOPIC", **QUEUE}).startswith(MISSING)


def test_white_listed_address_sees_everything(guarded: Guarded) -> None:
    answer = guarded.ask(21, key=None, session=FakeSession(address="10.1.0.9"))
    assert "Other" in json.loads(answer.body)["topicConfigTable"]


def test_setting_without_access_control_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="aclEnable=false admits everyone"):
        open_broker(broker_config(tmp_path, acl_metadata="own"), lambda: 0)


def test_keys_of_name_servers_survive_a_write_without_a_warning() -> None:
    text = f"{SHARED_RULES}unsignedBrokers:\n- 10.1.0.0/16\n"
    file = parse(text, 0)
    assert file.notes == ()
    written = to_text(file)
    assert parse(written, 0).others == file.others == (("unsignedBrokers", ("10.1.0.0/16",)),)
    assert ("brokerNames", (BROKER,)) in [pair for each in file.accounts for pair in each.entry.others]
    assert f'"brokerNames":\n  - "{BROKER}"' in written
