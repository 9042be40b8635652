"""Request authorization: authentication, permissions per request code, and their documentation."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.access import SUB
from delaymq.broker.access.requirements import ACCOUNT, REQUIREMENTS
from delaymq.broker.processors.table import NOT_SERVED, PROCESSORS
from delaymq.message.ids import offset_message_id
from delaymq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockRequest,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Response, request_command
from delaymq.protocol.credential_fields import SIGNATURE
from delaymq.protocol.signatures import UNIQUE_KEY_QUERY, Signer
from delaymq_testing.broker.guarded import MISSING, RULES, Guarded
from delaymq_testing.broker.harness import FakeSession, Harness, response_of, send_fields

PAGE = Path(__file__).parents[4] / "docs" / "operations" / "access-control.md"


def heartbeat(group: str, *topics: str) -> bytes:
    subscriptions = [SubscriptionData(topic, "*") for topic in topics]
    return HeartbeatData("client", [], [ConsumerData(group, subscription_data_set=subscriptions)]).encode()


def test_no_signature_needed_without_access_control(harness: Harness) -> None:
    assert harness.broker.access is None
    assert response_of(harness.send()).code == 0


def test_every_broker_code_is_classified() -> None:
    assert set(PROCESSORS) | set(NOT_SERVED) == set(REQUIREMENTS)


def test_page_lists_permission_of_every_code() -> None:
    rows: dict[int, tuple[bool, bool, bool]] = {}
    section = PAGE.read_text().partition("## Requirements of requests")[2].partition("\n## ")[0]
    for codes, needs in re.findall(r"^\| ([\d, ]+?)(?: \([^)]*\))? \| (.+) \|$", section, re.MULTILINE):
        for code in codes.split(", "):
            assert int(code) not in rows, code
            admin = needs.startswith("`admin: true`")
            own = "RocketMQ does not check" in needs or "RocketMQ lets every account" in needs
            rows[int(code)] = (admin, "an account" in needs, own)
    stated = {
        int(code): (each.admin, each is ACCOUNT, each.own or code in (36, 320)) for code, each in REQUIREMENTS.items()
    }
    assert rows == stated


def test_unauthenticated_request_gets_a_reason(guarded: Guarded) -> None:
    fields = send_fields("Orders")
    assert guarded.refusal(310, fields) == ""
    assert guarded.refusal(310, fields, key=None).startswith("No accessKey is configured")
    assert guarded.refusal(310, fields, key="strangers") == "No acl config for strangers"
    assert guarded.refusal(310, fields, secret="something").startswith("Check signature failed for accessKey=applic")
    refused = {reason: count for reason, count in guarded.access.refused.items() if count}
    assert refused == {"unsigned": 1, "unknown_key": 1, "signature": 1}


def test_long_unknown_access_key_is_truncated_in_response(guarded: Guarded) -> None:
    said = guarded.refusal(310, send_fields("Orders"), key="k\x1b" * 10_000, secret="secret")
    assert len(said) < 100
    assert "\x1b" not in said


def test_modified_request_is_rejected(guarded: Guarded) -> None:
    def changed(change: Any) -> str:
        command = request_command(310, {name: str(value) for name, value in send_fields("Orders").items()}, b"body")
        Signer("application-secret").sign(command, "application")
        change(command)
        result = guarded.broker.handle(guarded.harness.session, command)
        return str(result.remark) if isinstance(result, Response) and result.code else ""

    def field(name: str, value: str) -> Any:
        return lambda command: command.fields.__setitem__(name, value)

    assert changed(lambda command: None) == ""
    for change in (
        field("b", "Write"),
        field("extra", "x"),
        field(SIGNATURE, ""),
        field(SIGNATURE, "AAAA\udcff"),
        lambda command: command.fields.pop(SIGNATURE),
        lambda command: setattr(command, "body", b"Body"),
    ):
        assert "Check signature failed" in changed(change)


def test_field_ignored_by_rocketmqs_broker_may_be_signed_or_not(guarded: Guarded) -> None:
    fields = {"topic": "Orders", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}
    assert guarded.refusal(12, {**fields, UNIQUE_KEY_QUERY: "true"}) == ""
    command = request_command(12, {name: str(value) for name, value in fields.items()})
    Signer("application-secret").sign(command, "application")
    command.fields[UNIQUE_KEY_QUERY] = "true"
    result = guarded.broker.handle(guarded.harness.session, command)
    assert isinstance(result, Response)
    assert "AclException" not in (result.remark or "")


def test_white_listed_addresses_need_no_signature(guarded: Guarded) -> None:
    inside, outside = FakeSession(address="10.1.0.9"), FakeSession(address="10.1.1.9")
    assert guarded.refusal(17, {}, key=None, session=inside) == ""
    assert guarded.refusal(17, {}, key=None, session=outside).startswith("No accessKey")
    neighbour = FakeSession(address="10.2.0.1")
    assert guarded.refusal(17, {}, key="neighbours", secret="wrong", session=neighbour) == ""
    assert guarded.refusal(17, {}, key="neighbours", secret="wrong").startswith("Check signature failed")


def test_rejected_oneway_request_gets_no_response(guarded: Guarded) -> None:
    assert guarded.ask(310, send_fields("Read"), flag=2) is None
    assert guarded.access.refused["permission"] == 1
    assert guarded.broker.store.end_offset == 0


@pytest.mark.parametrize(
    ("code", "fields", "missing"),
    [
        (310, send_fields("Orders"), ""),
        (310, send_fields("Write"), ""),
        (310, send_fields("Read"), "topic:Read"),
        (310, send_fields("Other"), "topic:Other"),
        (310, send_fields("%RETRY%mine"), ""),
        (310, send_fields("%RETRY%other"), "group:other"),
        (310, send_fields("%RETRY%mine", {"RETRY_TOPIC": "Read"}), ""),
        (310, send_fields("%RETRY%mine", {"RETRY_TOPIC": "Secret"}), "topic:Secret"),
        (310, send_fields("%RETRY%NS%mine", {"RETRY_TOPIC": "Orders"}), "group:NS%mine"),
        (310, send_fields("Orders", {"RETRY_TOPIC": "Secret"}), ""),
        (310, send_fields("%DLQ%mine"), "topic:%DLQ%mine"),
        (310, send_fields("RMQ_SYS_TRACE_TOPIC"), ""),
        (10, {"topic": "Orders", "producerGroup": "p"}, ""),
        (10, {"topic": "Read", "b": "Orders"}, "topic:Read"),
        (310, {"b": "Read", "topic": "Orders"}, "topic:Read"),
        (320, send_fields("Write"), ""),
        (320, send_fields("Read"), "topic:Read"),
        (11, {"topic": "Orders", "consumerGroup": "mine"}, ""),
        (11, {"topic": "Write", "consumerGroup": "mine"}, "topic:Write"),
        (11, {"topic": "Orders", "consumerGroup": "other"}, "group:other"),
        (11, {"topic": "%RETRY%mine", "consumerGroup": "mine"}, ""),
        (11, {"topic": "%RETRY%other", "consumerGroup": "mine"}, "group:other"),
        (11, {"topic": "%DLQ%mine", "consumerGroup": "mine"}, ""),
        (11, {"topic": "SCHEDULE_TOPIC_XXXX", "consumerGroup": "mine"}, "topic:SCHEDULE_TOPIC_XXXX"),
        (361, {"topic": "Orders", "consumerGroup": "mine"}, ""),
        (361, {"topic": "Write", "consumerGroup": "mine"}, "topic:Write"),
        (361, {"topic": "Orders", "consumerGroup": "other"}, "group:other"),
        (12, {"topic": "Read"}, ""),
        (12, {"topic": "Write"}, "topic:Write"),
        (15, {"topic": "Read", "consumerGroup": "mine"}, ""),
        (15, {"topic": "Read", "consumerGroup": "other"}, "group:other"),
        (15, {"topic": "Write", "consumerGroup": "mine"}, "topic:Write"),
        (35, {"consumerGroup": "mine", "clientID": "c"}, ""),
        (35, {"consumerGroup": "other", "clientID": "c"}, "group:other"),
        (35, {"producerGroup": "any", "clientID": "c"}, ""),
        (36, {"group": "mine", "offset": 0, "delayLevel": 0}, ""),
        (36, {"group": "other", "offset": 0, "delayLevel": 0}, "group:other"),
        (38, {"consumerGroup": "mine"}, ""),
        (38, {"consumerGroup": "other"}, "group:other"),
        (222, {"group": "mine", "topic": "Read", "timestamp": 0, "isForce": "true"}, ""),
        (222, {"group": "other", "topic": "Read"}, "group:other"),
        (222, {"group": "mine", "topic": "Other"}, "topic:Other"),
        (223, {"group": "other", "topic": "Read"}, "group:other"),
        (307, {"consumerGroup": "other", "clientId": "c"}, "group:other"),
        (309, {"consumerGroup": "other", "clientId": "c", "msgId": "x"}, "group:other"),
        (314, {"srcGroup": "mine", "destGroup": "other"}, "group:other"),
        (314, {"srcGroup": "other", "destGroup": "mine"}, "group:other"),
        (321, {"topic": "Read", "queueId": 0}, ""),
        (321, {"topic": "Write", "queueId": 0}, "topic:Write"),
        (324, {"topic": "DefaultCluster_REPLY_TOPIC"}, ""),
        (324, {"topic": "Read"}, "topic:Read"),
        (325, {"b": "DefaultCluster_REPLY_TOPIC"}, ""),
        (325, {"b": "Read", "topic": "DefaultCluster_REPLY_TOPIC"}, "topic:Read"),
    ],
)
def test_request_needs_permission_for_named_resources(
    guarded: Guarded, code: int, fields: dict[str, Any], missing: str
) -> None:
    assert guarded.refusal(code, fields) == (MISSING + missing if missing else "")


def test_heartbeats_and_locks_need_permissions_for_their_bodies(guarded: Guarded) -> None:
    assert guarded.refusal(34, body=heartbeat("mine", "Orders", "Read", "%RETRY%mine")) == ""
    assert guarded.refusal(34, body=heartbeat("other", "Orders")) == MISSING + "group:other"
    assert guarded.refusal(34, body=heartbeat("mine", "Write")) == MISSING + "topic:Write"
    assert guarded.refusal(34, body=heartbeat("mine", "%RETRY%other")) == MISSING + "group:other"
    for code in (41, 42):
        for group, missing in (("mine", ""), ("other", MISSING + "group:other")):
            body = LockRequest(group, "client", [MessageQueue("broker-a", 0, "Orders")]).encode()
            assert guarded.refusal(code, body=body) == missing


def test_undecodable_body_is_rejected_without_error(guarded: Guarded) -> None:
    for code in (34, 41, 42):
        answer = guarded.ask(code, body=b'{"consumerDataSet":7')
        assert isinstance(answer, Response)
        assert answer.code == 1


def test_record_is_authorized_by_its_real_topic(guarded: Guarded) -> None:
    sent = guarded.harness
    offsets = {}
    for topic, properties in (("Orders", {}), ("Other", {}), ("Later", {"DELAY": "3"})):
        offsets[topic] = guarded.broker.store.end_offset
        answer = response_of(guarded.ask(310, send_fields(topic, properties), b"x", key="operators"))
        assert answer.code == 0, answer
    assert sent.broker.records.record_at(offsets["Later"]).topic == "SCHEDULE_TOPIC_XXXX"  # type: ignore[union-attr]
    for topic, missing in (("Orders", ""), ("Other", MISSING + "topic:Other"), ("Later", MISSING + "topic:Later")):
        at = offsets[topic]
        assert guarded.refusal(33, {"offset": at}) == missing
        assert guarded.refusal(36, {"offset": at, "group": "mine", "delayLevel": 0}) == missing
        message_id = offset_message_id(guarded.broker.store_host, at)
        assert guarded.refusal(309, {"consumerGroup": "mine", "clientId": "c", "msgId": message_id}) == missing
        assert guarded.refusal(37, {"commitLogOffset": at, "producerGroup": "p"}) == missing
    assert guarded.refusal(33, {"offset": offsets["Other"]}, key="operators") == ""


def test_end_of_a_transaction_that_replicas_do_not_have_is_authorized_by_its_topic(guarded: Guarded) -> None:
    broker = guarded.broker
    broker.replicate(waits=True)
    broker.set_replicated(0)
    at, half = broker.store.end_offset, send_fields("Other", {"TRAN_MSG": "true", "PGROUP": "p"}) | {"f": 4}
    guarded.ask(310, half, b"x", key="operators")
    fields = {
        "commitLogOffset": at,
        "tranStateTableOffset": 0,
        "producerGroup": "p",
        "commitOrRollback": 12,
        "msgId": "m",
    }
    assert guarded.refusal(37, fields) == MISSING + "topic:Other"
    assert broker.transactions.totals().pending == 1
    assert guarded.refusal(37, fields, key="operators") == ""
    assert broker.transactions.totals().rolled_back == 1


@pytest.mark.parametrize("text", [" 0", "0 ", "+0", "0.0", "0x0", "٣", "1e0", "9" * 30, "-", ""])
def test_ambiguous_offset_is_rejected(guarded: Guarded, text: str) -> None:
    for code, name in ((33, "offset"), (36, "offset"), (37, "commitLogOffset")):
        answer = guarded.ask(code, {name: text, "group": "mine"})
        assert isinstance(answer, Response)
        assert "64-bit integer" in str(answer.remark)


@pytest.mark.parametrize("code", sorted(code for code, each in REQUIREMENTS.items() if each.admin))
def test_only_administrators_change_the_broker(guarded: Guarded, code: int) -> None:
    needed = f"Need admin permission for request code={code}, but accessKey=application is not"
    assert guarded.refusal(code) == needed
    assert guarded.refusal(code, key="operators") == ""


@pytest.mark.parametrize("code", sorted(code for code, each in REQUIREMENTS.items() if each is ACCOUNT))
def test_reading_broker_information_needs_an_account(guarded: Guarded, code: int) -> None:
    assert guarded.refusal(code) == ""
    assert guarded.refusal(code, key=None).startswith("No accessKey")


def test_unknown_code_is_rejected_after_authentication(guarded: Guarded) -> None:
    assert guarded.refusal(9_999, key=None).startswith("No accessKey")
    answer = guarded.ask(9_999)
    assert isinstance(answer, Response)
    assert answer.code == 3


def test_administrator_permissions_match_rocketmq(guarded: Guarded) -> None:
    assert guarded.refusal(310, send_fields("Any"), key="operators") == ""
    assert guarded.refusal(310, send_fields("Orders"), key="limited-admin") == ""
    assert guarded.refusal(310, send_fields("Any"), key="limited-admin") == MISSING + "topic:Any"
    assert guarded.refusal(11, {"topic": "Any", "consumerGroup": "g"}, key="limited-admin") == MISSING + "group:g"
    assert guarded.refusal(222, {"group": "g", "topic": "T"}, key="limited-admin") == ""


def test_default_permission_opens_neither_denied_nor_system_topics(guarded: Guarded) -> None:
    assert guarded.refusal(310, send_fields("Any"), key="generous") == ""
    assert guarded.refusal(310, send_fields("Orders"), key="generous") == MISSING + "topic:Orders"
    for topic in (
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
    ):  # fmt: skip
        said = guarded.refusal(11, {"topic": topic, "consumerGroup": "g"}, key="generous")
        assert said == MISSING + f"topic:{topic}"
        assert guarded.refusal(12, {"topic": topic}, key="operators") == ""


# Rules that change


def test_rejections_are_logged_at_intervals(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        guarded.refusal(26, key=None)
        guarded.refusal(17)
    assert len([each for each in caplog.records if each.getMessage().startswith("request rejected")]) == 2


def test_response_codes_match_rocketmq() -> None:
    assert int(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG) == 50
    assert {code for code, each in REQUIREMENTS.items() if each.admin and not each.own} == {17, 25, 200, 207, 215}


def test_checks_go_only_to_producers_permitted_to_send(guarded: Guarded) -> None:
    """The question holds the whole message, and anybody can say that he is of a group."""
    broker = guarded.broker
    accounts = ("application", "generous", "operators", "neighbours")
    sessions = {key: FakeSession(50_001 + at) for at, key in enumerate(accounts)}
    trusted = FakeSession(50_009, "10.1.0.9")
    beat = HeartbeatData("client", producer_data_set=[ProducerData("payers")]).encode()

    def asked() -> list[str]:
        """About a half message for the topic Write, each producer in its turn."""
        guarded.harness.clock.now_ms += broker.config.transaction_check_interval + 60_000
        while broker.transactions.check(guarded.harness.clock(), 16):
            pass
        everybody = sessions | {"trusted": trusted}
        found = sorted(key for key, session in everybody.items() if session.notified)
        for session in everybody.values():
            session.notified.clear()
        return found

    for key in ("generous", "neighbours"):
        guarded.ask(RequestCode.HEART_BEAT, body=beat, key=key, session=sessions[key])
    guarded.path.write_text(RULES.replace("topicPerms: [Orders=DENY]", "topicPerms: [Write=SUB]"))
    guarded.reload()
    half = send_fields("Write", {"TRAN_MSG": "true", "PGROUP": "payers"})
    assert guarded.ask(RequestCode.SEND_MESSAGE_V2, half, b"private", session=sessions["application"]).code == 0
    assert asked() == []
    for key, session in (("application", sessions["application"]), ("operators", sessions["operators"])):
        guarded.ask(RequestCode.HEART_BEAT, body=beat, key=key, session=session)
        assert asked() == [key]
        broker.session_closed(session)
        assert asked() == []
    guarded.ask(RequestCode.HEART_BEAT, body=beat, key=None, session=trusted)
    assert asked() == ["trusted"]
    assert not guarded.access.may_publish(sessions["application"], "Write")


def test_retry_origin_must_be_in_the_groups_namespace() -> None:
    requirement = REQUIREMENTS[310]
    assert requirement.resources is not None
    for origin in ("Orders", "NS%Orders"):
        fields = send_fields("%RETRY%NS%readers", {"RETRY_TOPIC": origin})
        command = request_command(310, {name: str(value) for name, value in fields.items()})
        assert requirement.resources(command, lambda offset: None) == [("%RETRY%NS%readers", SUB), ("NS%Orders", SUB)]


def test_topic_creation_limit_counts_all_connections_of_an_account(
    open_harness: Callable[..., Harness], tmp_path: Path
) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(RULES)
    limits = {"auto_create_max_per_connection": 3, "auto_create_max_per_account": 3}
    guarded = Guarded(open_harness(acl_enable=True, acl_config_path=str(path), **limits), path)

    def makes(key: str, topic: str, address: str) -> str:
        fields = send_fields(topic)
        return str(response_of(guarded.ask(310, fields, key=key, session=FakeSession(1, address))).remark or "")

    assert [makes("generous", f"T{number}", f"10.0.0.{number}") for number in range(3)] == ["", "", ""]
    assert "[generous] has already created 3 topics and groups" in makes("generous", "T3", "10.0.0.3")
    assert makes("generous", "T2", "10.0.0.3") == ""
    assert makes("operators", "T3", "10.0.0.3") == ""
