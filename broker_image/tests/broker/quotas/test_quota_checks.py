"""Quotas of requests to a broker with access control, on a virtual clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.quotas.usage import (
    PATIENCE,
    PATIENT,
    REJECTION_PAUSE_S,
    REJECTIONS_PER_S,
    AccountUsage,
)
from delaymq.broker.requests.results import Held
from delaymq.message import names
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from delaymq.protocol.command import FLAG_ONEWAY
from delaymq.protocol.errors import RequestError
from delaymq_testing.broker.guarded import SECRETS, Guarded, rewrite_rules
from delaymq_testing.broker.harness import FakeSession, Harness, response_of, send_fields

BUSY = "[QUOTA]system busy, start flow control for a while: account application "


class Metered(Guarded):
    """A broker whose account `application` has quotas, and a clock for them."""

    def __init__(self, harness: Harness, path: Path) -> None:
        super().__init__(harness, path)
        self.now = 1_000.0
        self.access.usages.clock = lambda: self.now

    def limit(self, quotas: str, *, more: str = "") -> None:
        """Writes the rule file, and lets the broker reload it."""
        rewrite_rules(self.access.rules, self.path, rules(quotas) + more)

    def send(self, body: bytes = b"x", *, topic: str = "Orders", **options: Any) -> tuple[int, str]:
        response = response_of(self.ask(310, send_fields(topic), body, **options))
        return response.code, response.remark or ""

    def pull(self, group: str = "readers", *, held: bool = False) -> Any:
        fields = {
            "consumerGroup": group, "topic": "Orders", "queueId": 0, "queueOffset": int(held),
            "maxMsgNums": 32, "sysFlag": 6 if held else 4, "commitOffset": 0, "suspendTimeoutMillis": 15_000,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        return self.ask(11, fields)

    @property
    def usage(self) -> AccountUsage:
        return self.access.usages.by_account["application"]


def rules(quotas: str) -> str:
    return (
        "accounts:\n- {accessKey: operators, secretKey: operators-secret, admin: true}\n"
        "- {accessKey: application, secretKey: application-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,"
        f" quotas: {{{quotas}}}}}\n"
    )


@pytest.fixture
def metered(open_harness: Callable[..., Harness], tmp_path: Path) -> Metered:
    path = tmp_path / "plain_acl.yml"
    path.write_text(rules(""))
    return Metered(open_harness(acl_enable=True, acl_config_path=str(path)), path)


def test_send_beyond_the_rate_is_stored_and_delays_its_connection(metered: Metered) -> None:
    metered.limit("sendRequestsPerSecond: 10")
    session = metered.harness.session
    assert [metered.send()[0] for _ in range(10)] == [0] * 10
    assert session.paused_s == []
    assert metered.send() == (0, "")
    assert session.paused_s == [pytest.approx(0.1)]
    metered.now += 0.1
    assert metered.send() == (0, "")
    assert session.paused_s[1:] == [pytest.approx(0.1)]
    assert metered.usage.delays == {"sendRequestsPerSecond": 2}
    assert metered.usage.delayed_s == {"sendRequestsPerSecond": pytest.approx(0.2)}


def test_send_beyond_the_longest_delay_is_rejected_with_the_quota(metered: Metered) -> None:
    metered.limit("sendBytesPerSecond: 1000, maxDelayMs: 500")
    assert metered.send(bytes(3_000)) == (0, "")
    assert metered.harness.session.paused_s == [0.5]
    stored = metered.broker.stats.sends
    code, remark = metered.send()
    assert (code, metered.broker.stats.sends) == (2, stored)
    assert remark == (
        BUSY + "has used its sendBytesPerSecond (1000) for the next 2000 ms, more than maxDelayMs (500): send less, or"
        " raise the quota"
    )
    assert metered.usage.refused == {"sendBytesPerSecond": 1}
    metered.now += 1.5
    assert metered.send() == (0, "")


def test_rejected_requests_are_not_charged(metered: Metered) -> None:
    metered.limit("sendBytesPerSecond: 1000")
    metered.send(bytes(3_500))
    assert {metered.send(bytes(500))[0] for _ in range(100)} == {2}
    assert (metered.usage.requests, metered.usage.send_bytes) == (1, 3_500)
    metered.now += 2.5
    assert metered.send()[0] == 0


def test_account_that_causes_too_many_rejections_is_paused_for_longer(metered: Metered) -> None:
    metered.limit("sendBytesPerSecond: 1, maxDelayMs: 2000")
    assert metered.send(bytes(3_500))[0] == 0
    session = metered.harness.session
    for _ in range(REJECTIONS_PER_S):
        with pytest.raises(RequestError):
            metered.usage.take(session, 310, 1)
    assert set(session.shortened_s) == {REJECTION_PAUSE_S}
    for _ in range(3 * REJECTIONS_PER_S):
        with pytest.raises(RequestError):
            metered.usage.take(session, 310, 1)
    assert session.shortened_s[-1] == 2.0
    metered.now += 4
    assert metered.send()[0] == 2
    assert session.shortened_s[-1] == REJECTION_PAUSE_S


def test_rejected_request_pauses_a_connection_with_a_single_request_for_the_longest_delay(metered: Metered) -> None:
    metered.limit("sendBytesPerSecond: 1000, maxDelayMs: 700")
    other = FakeSession(50_001)
    assert metered.send(bytes(3_000))[0] == 0
    assert metered.send(session=other)[0] == 2
    assert (other.paused_s, other.shortened_s) == ([0.7], [])


def test_quotas_limit_their_account_only(metered: Metered) -> None:
    metered.limit("requestsPerSecond: 1")
    assert [metered.send(key="application")[0] for _ in range(4)] == [0, 0, 0, 2]
    assert {metered.send(key="operators")[0] for _ in range(20)} == {0}
    assert metered.access.usages.by_account["operators"].quotas is None


@pytest.mark.parametrize("stated", ["", "maxDelayMs: 10", "connections: unlimited, sendBytesPerSecond: unlimited"])
def test_account_without_limits_is_never_delayed(metered: Metered, stated: str) -> None:
    metered.limit(stated)
    for _ in range(50):
        assert metered.send(bytes(10_000))[0] == 0
    assert metered.harness.session.paused_s == []
    assert (metered.usage.sends, metered.usage.send_bytes, metered.usage.requests) == (50, 500_000, 50)


def test_request_with_a_wrong_signature_uses_no_quota_of_the_account(metered: Metered) -> None:
    metered.limit("requestsPerSecond: 1")
    for _ in range(20):
        assert metered.refusal(310, send_fields("Orders"), secret="something-else").startswith("Check signature failed")
    assert metered.send()[0] == 0
    assert metered.usage.requests == 1


def test_pulled_bytes_are_a_debt_of_later_pulls(metered: Metered) -> None:
    metered.limit("pullBytesPerSecond: 1000")
    for _ in range(3):
        assert metered.send(bytes(1_000))[0] == 0
    assert metered.pull().code == 0
    assert metered.usage.pull_bytes > 3_000
    assert metered.harness.session.paused_s == [1.0]
    refused = metered.pull()
    assert refused.code == 2
    assert refused.remark.startswith(BUSY + "has used its pullBytesPerSecond (1000) for the next 2")
    assert metered.send()[0] == 0
    metered.now += 4
    assert metered.pull().code == 0


@pytest.mark.parametrize("code", sorted(PATIENT))
def test_requests_that_complete_earlier_work_are_rejected_last(metered: Metered, code: int) -> None:
    metered.limit("requestsPerSecond: 10, maxDelayMs: 100")
    while metered.send()[0] == 0:
        pass
    fields = {"group": "readers", "consumerGroup": "readers", "topic": "Orders", "queueId": 0, "offset": 0}

    def code_of_response() -> int:
        result = metered.ask(code, fields)
        return 0 if result is None else response_of(result).code

    # Two more than the whole requests that fit into the debt: one of them pays for the first one's burst.
    admitted = [code_of_response() for _ in range(10 * PATIENCE // 10 + 2)]
    assert 2 not in admitted[: PATIENCE - 2]
    assert admitted[-1] == 2
    assert metered.usage.refused["requestsPerSecond"] == 1 + admitted.count(2)


def test_returned_message_is_kept_while_sends_are_rejected(metered: Metered) -> None:
    metered.limit("sendRequestsPerSecond: 1")
    data = ConsumerData("readers", subscription_data_set=[SubscriptionData("Orders", "*")])
    assert metered.ask(34, {}, HeartbeatData("client", [], [data]).encode()).code == 0
    while metered.send()[0] == 0:
        pass
    for _ in range(20):
        response = metered.ask(
            36, {"group": "readers", "offset": 0, "delayLevel": 3, "originMsgId": "", "unitMode": "false"}
        )
        assert response_of(response).code == 0
    assert metered.broker.delivery.timeline.partitions.totals("%RETRY%readers").messages == 20


def test_rejected_send_of_a_batch_stores_nothing_and_one_beyond_a_second_is_stored(metered: Metered) -> None:
    metered.limit("sendBytesPerSecond: 1000")
    body = encode_batch([BatchMessage(0, bytes(100), b"")] * 40)
    fields = send_fields("Orders") | {"m": True}
    assert response_of(metered.ask(320, fields, body)).code == 0
    assert response_of(metered.ask(320, fields, body)).code == 2
    assert metered.broker.store.queue_bounds("Orders", 0) == (0, 40)


def test_one_way_send_beyond_the_longest_delay_is_dropped_without_a_response(metered: Metered) -> None:
    metered.limit("sendBytesPerSecond: 1000")
    assert metered.send(bytes(3_000))[0] == 0
    stored = metered.broker.store.end_offset
    assert metered.ask(310, send_fields("Orders"), b"x", flag=FLAG_ONEWAY) is None
    assert metered.broker.store.end_offset == stored
    assert metered.harness.session.shortened_s == [REJECTION_PAUSE_S]
    assert metered.usage.refused == {"sendBytesPerSecond": 1}


def test_transaction_is_ended_while_its_account_may_not_send(metered: Metered) -> None:
    metered.limit("sendRequestsPerSecond: 2")
    half = send_fields("Orders", {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: "producers"}) | {"f": 4}
    sent = response_of(metered.ask(310, half, b"in a transaction"))
    assert sent.code == 0
    while metered.send()[0] == 0:
        pass
    fields = {
        "producerGroup": "producers", "tranStateTableOffset": sent.fields["queueOffset"], "commitOrRollback": 8,
        "commitLogOffset": int(sent.fields["msgId"][-16:], 16), "fromTransactionCheck": False,
        "msgId": "", "transactionId": sent.fields.get("transactionId", ""),
    }  # fmt: skip
    _, before = metered.broker.store.queue_bounds("Orders", 0)
    assert response_of(metered.ask(37, fields)).code == 0
    assert metered.broker.store.queue_bounds("Orders", 0)[1] == before + 1


def test_connection_beyond_the_quota_is_closed_with_the_reason(metered: Metered) -> None:
    metered.limit("connections: 2")
    sessions = [FakeSession(50_000 + number) for number in range(3)]
    assert [metered.send(session=each)[0] for each in sessions] == [0, 0, 2]
    assert [each.ended for each in sessions] == [False, False, True]
    code, remark = metered.send(session=sessions[2])
    assert (code, remark) == (2, BUSY + "has 2 of at most 2 (connections): use fewer, or raise the quota")
    metered.broker.session_closed(sessions[2])
    metered.broker.session_closed(sessions[0])
    assert metered.send(session=FakeSession(50_003))[0] == 0
    assert metered.usage.counts["connections"] == 2


def test_connection_counts_to_the_account_of_its_last_request(metered: Metered) -> None:
    metered.limit("connections: 1")
    first, second = FakeSession(1), FakeSession(2)
    assert metered.send(session=first)[0] == 0
    assert metered.send(session=first, key="operators")[0] == 0
    assert metered.send(session=second)[0] == 0
    assert metered.send(session=first)[0] == 2
    metered.broker.session_closed(first)
    metered.broker.session_closed(second)
    assert {key: each.counts["connections"] for key, each in metered.access.usages.by_account.items()} == {
        "application": 0,
        "operators": 0,
    }


def test_created_topics_and_groups_are_limited(metered: Metered) -> None:
    metered.limit("createdTopics: 2, createdGroups: 1")
    made = [metered.send(topic=f"T{number}") for number in range(3)]
    assert [code for code, _ in made] == [0, 0, 2]
    assert made[2][1] == BUSY + "has 2 of at most 2 (createdTopics): use fewer, or raise the quota"
    assert metered.send(topic="T1")[0] == 0
    assert metered.send(key="operators")[0] == 0
    assert isinstance(metered.pull("first", held=True), Held)
    refused = metered.pull("second")
    assert refused.code == 2
    assert "(createdGroups)" in refused.remark
    assert "second" not in metered.broker.groups.table
    assert metered.send(topic="T2", key="operators")[0] == 0


def test_reload_raises_and_lowers_a_rate_with_its_debt(metered: Metered) -> None:
    metered.limit("sendBytesPerSecond: 1000")
    assert metered.send(bytes(5_000))[0] == 0
    assert metered.send()[0] == 2
    metered.limit("sendBytesPerSecond: 10000")
    assert metered.send()[0] == 0
    assert metered.harness.session.paused_s[-1] == pytest.approx(0.4, abs=0.001)
    metered.limit("sendBytesPerSecond: 100")
    assert metered.send()[0] == 2
    metered.limit("")
    assert metered.send()[0] == 0
    metered.limit("sendBytesPerSecond: 100")
    assert metered.send()[0] == 0


def test_reload_without_a_change_keeps_the_debt(metered: Metered) -> None:
    metered.limit("sendBytesPerSecond: 1000")
    assert metered.send(bytes(5_000))[0] == 0
    metered.limit("sendBytesPerSecond: 1000", more="# a comment\n")
    assert metered.send()[0] == 2


def test_administrators_are_limited_if_their_entry_says_so(metered: Metered) -> None:
    metered.path.write_text(
        "defaultQuotas: {requestsPerSecond: 1}\naccounts:\n"
        "- {accessKey: operators, secretKey: operators-secret, admin: true}\n"
        "- {accessKey: careful-admin, secretKey: careful-admin-secret, admin: true, quotas: {requestsPerSecond: 1}}\n"
    )
    metered.reload()
    assert {metered.send(key="operators")[0] for _ in range(10)} == {0}
    assert [metered.send(key="careful-admin")[0] for _ in range(4)] == [0, 0, 0, 2]


def test_usage_of_deleted_accounts_is_released(metered: Metered) -> None:
    usages = metered.access.usages.by_account
    for number in range(5):
        key = f"tenant-{number}"
        SECRETS[key] = f"{key}-secret"
        try:
            metered.limit("", more=f"- {{accessKey: {key}, secretKey: {key}-secret, defaultTopicPerm: PUB}}\n")
            session = FakeSession(number + 1)
            assert metered.send(key=key, session=session)[0] == 0
            metered.broker.session_closed(session)
        finally:
            del SECRETS[key]
    assert set(usages) == {"tenant-4"}


def test_time_of_the_event_loop_is_a_debt(metered: Metered) -> None:
    metered.limit("eventLoopPercent: 10")
    assert metered.send()[0] == 0
    metered.usage.spent(metered.harness.session, 0.15)
    assert metered.harness.session.paused_s == [pytest.approx(0.5)]
    assert metered.send()[0] == 0
    metered.usage.spent(metered.harness.session, 0.2)
    code, remark = metered.send()
    assert code == 2
    assert "has used its eventLoopPercent (10) for the next 2500 ms" in remark
