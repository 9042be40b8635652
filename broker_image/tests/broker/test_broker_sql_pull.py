"""Pulls that filter by properties: results, limits and permissions."""

from collections.abc import Callable
from typing import Any

import pytest
from delaymq.broker.filters import Filter
from delaymq.broker.groups.slow_readers import PATIENCE_MS
from delaymq.broker.pull.filter_resolution import value_of
from delaymq.broker.pull.property_reader import LARGE_RECORD_BYTES, PropertyReader
from delaymq.broker.pull.queue_reader import (
    MAX_PROPERTY_WORK,
    MIN_ENTRIES_EXAMINED,
    MIN_PROPERTY_WORK,
    PROPERTY_WINDOW_MS,
    PROPERTY_WORK_PER_WINDOW,
    read_queue,
)
from delaymq.broker.requests.results import Held
from delaymq.message.names import retry_topic
from delaymq.message.record import decode_record, encode_record
from delaymq.protocol.bodies import CheckClient, ConsumerData, HeartbeatData, SubscriptionData
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.broker.harness import Harness, records_of

HOLD = 4 | 2
BY_HEARTBEAT = 0


@pytest.fixture
def harness(open_harness: Callable[..., Harness]) -> Harness:
    return open_harness(enable_property_filter=True)


def pull(harness: Harness, expression: str, offset: int = 0, **fields: Any) -> Response | Held:
    return harness.pull(offset=offset, subscription=expression, expressionType="SQL92", **fields)


def answer(harness: Harness, expression: str, offset: int = 0, **fields: Any) -> Response:
    result = pull(harness, expression, offset, **fields)
    assert isinstance(result, Response)
    return result


def bodies(response: Response) -> list[bytes]:
    return [record.body for record in records_of(response.body)]


def subscribe(harness: Harness, expression: str, topic: str = "Orders", version: int = 1, kind: str = "SQL92") -> None:
    subscriptions = [SubscriptionData(topic, expression, sub_version=version, expression_type=kind)]
    subscriptions.append(SubscriptionData(retry_topic("readers"), "*", sub_version=1))
    group = ConsumerData("readers", subscription_data_set=subscriptions)
    heartbeat = HeartbeatData("10.0.0.2@1", consumer_data_set=[group])
    assert harness.answer(RequestCode.HEART_BEAT, body=heartbeat.encode()).code == ResponseCode.SUCCESS


def test_pull_returns_matching_messages(harness: Harness) -> None:
    for i in range(10):
        harness.send(body=b"%d" % i, properties={"price": str(i), "TAGS": "A"})
    found = answer(harness, "price BETWEEN 3 AND 5 AND TAGS = 'A'")
    assert (found.code, bodies(found)) == (ResponseCode.SUCCESS, [b"3", b"4", b"5"])
    assert found.fields["nextBeginOffset"] == "10"
    assert bodies(answer(harness, "price > 1", maxMsgNums=2)) == [b"2", b"3"]
    assert answer(harness, "price > 1", maxMsgNums=2).fields["nextBeginOffset"] == "4"


def test_pull_without_a_match_moves_past_the_evaluated_messages(harness: Harness) -> None:
    for _ in range(5):
        harness.send(properties={"price": "1"})
    found = answer(harness, "price > 1")
    assert (found.code, found.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "5")
    assert isinstance(pull(harness, "price > 1", 5, sysFlag=HOLD), Held)


def test_pull_evaluates_a_bounded_number_of_records(harness: Harness) -> None:
    for _ in range(MIN_ENTRIES_EXAMINED + 200):
        harness.send(body=b"", properties={"price": "1"})
    cheap = answer(harness, "price > 1")
    assert cheap.fields["nextBeginOffset"] == str(MIN_ENTRIES_EXAMINED)
    costly = answer(harness, " AND ".join(["price <> 7"] * 100) + " AND price > 1")
    assert 0 < int(costly.fields["nextBeginOffset"]) <= MAX_PROPERTY_WORK // 100


def test_selective_consumers_share_the_work_and_each_progresses(harness: Harness) -> None:
    for _ in range(100):
        harness.send(properties={"kind": "common"})
    rare = " OR ".join(f"p{i} = '1'" for i in range(100))
    alone = int(answer(harness, rare).fields["nextBeginOffset"])
    steps = [int(answer(harness, rare).fields["nextBeginOffset"]) for _ in range(50)]
    assert 0 < steps[-1] < alone
    assert sum(steps) * 100 <= PROPERTY_WORK_PER_WINDOW + len(steps) * 2 * MIN_PROPERTY_WORK
    harness.clock.advance(PROPERTY_WINDOW_MS)
    assert int(answer(harness, rare).fields["nextBeginOffset"]) == alone


def test_properties_are_read_whatever_the_body_size(harness: Harness) -> None:
    sizes = [0, 10, LARGE_RECORD_BYTES - 200, LARGE_RECORD_BYTES, 100_000, 5]
    for number, size in enumerate(sizes):
        # A body that looks like properties deceives nobody.
        body = b"\x02wanted\x01yes\x02" * (size // 13)
        harness.send(body=body, properties={"number": str(number), **({"wanted": "yes"} if number % 2 else {})})
    found = answer(harness, "wanted = 'yes'")
    assert [record.properties["number"] for record in records_of(found.body)] == ["1", "3", "5"]


@pytest.mark.parametrize("born", [bytes(8), bytes(20)])
@pytest.mark.parametrize("stored", [bytes(8), bytes(20)])
@pytest.mark.parametrize("body", [b"", b"x" * 20_000])
def test_properties_are_found_with_hosts_of_any_width(born: bytes, stored: bytes, body: bytes) -> None:
    parts = (0, 0, 0, 0, 0, 0, born, 0, stored, 0, 0, body, b"a\x01b\x02c\x01d")
    data = encode_record(b"Orders", *parts)
    read = PropertyReader(lambda at, size: data[at : at + size] if at + size <= len(data) else b"")
    assert read(0, len(data)) == decode_record(data).raw_properties
    assert read(0, len(data) - 1) is None
    for cut in (0, 4, 39, 80, 90, len(data) - 12):
        damaged = data[:cut] + b"\xff" * 8 + data[cut + 8 :]
        read = PropertyReader(lambda at, size, damaged=damaged: damaged[at : at + size])
        assert read(0, len(data)) in (None, decode_record(data).raw_properties)


def test_held_pull_records_its_required_properties(harness: Harness) -> None:
    harness.send(properties={"price": "1"})
    held = pull(harness, "price > 1", 1, sysFlag=HOLD)
    assert isinstance(held, Held)
    assert held.properties is not None
    assert held.properties(b"price\x012")
    assert not held.properties(b"price\x011")
    plain = harness.pull(offset=1, sysFlag=HOLD)
    assert isinstance(plain, Held)
    assert plain.properties is None


def test_arrivals_carry_properties_only_for_filtering_pulls(harness: Harness) -> None:
    seen: list[Any] = []
    waiting = {("Orders", 0)}
    harness.broker.watch_arrivals(lambda *arrival: seen.append(arrival[4]), {("Orders", 0), ("Orders", 1)}, waiting)
    harness.send(properties={"price": "2"}, e=0)
    harness.send(properties={"price": "2"}, e=1)
    waiting.clear()
    harness.send(properties={"price": "2"}, e=0)
    assert value_of(seen[0], b"price") == b"2"
    assert seen[1:] == [None, None]


def test_invalid_expression_gets_27_in_a_heartbeat_and_23_in_a_pull(harness: Harness) -> None:
    harness.send(body=b"no", properties={"price": "1"})
    harness.send(body=b"yes", properties={"price": "2"})
    subscribe(harness, "price > 1")
    found = harness.pull(sysFlag=BY_HEARTBEAT, subVersion=1)
    assert isinstance(found, Response)
    assert bodies(found) == [b"yes"]
    newer = harness.pull(sysFlag=BY_HEARTBEAT, subVersion=2)
    assert isinstance(newer, Response)
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    subscribe(harness, "price > ", version=2)
    refused = harness.pull(sysFlag=BY_HEARTBEAT, subVersion=2)
    assert isinstance(refused, Response)
    assert refused.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "line 1, column 9" in (refused.remark or "")
    assert answer(harness, "price > ").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_client_can_check_at_start_whether_its_expression_is_supported(harness: Harness) -> None:
    def check(expression: str, kind: str = "SQL92") -> Response:
        subscription = SubscriptionData("Orders", expression, expression_type=kind)
        body = CheckClient("10.0.0.2@1", "readers", subscription).encode()
        return harness.answer(RequestCode.CHECK_CLIENT_CONFIG, body=body)

    assert check("price > 1").code == ResponseCode.SUCCESS
    assert check("price >").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert check("x", "LUA").code == ResponseCode.SYSTEM_ERROR


def test_expressions_are_rejected_unless_enabled(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness()
    harness.send()
    refused = answer(harness, "price > 1")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "does not support consumer to filter message by SQL92" in (refused.remark or "")
    assert "enablePropertyFilter" in (refused.remark or "")


@pytest.mark.parametrize(("applied", "expected"), [(False, [b"one", b"two"]), (True, [b"two"])])
def test_retries_are_filtered_as_configured(
    open_harness: Callable[..., Harness], applied: bool, expected: list[bytes]
) -> None:
    harness = open_harness(enable_property_filter=True, filter_support_retry=applied)
    subscribe(harness, "price > 1")
    topic = retry_topic("readers")
    harness.send(topic, b"one", {"price": "1", "RETRY_TOPIC": "Orders"})
    harness.send(topic, b"two", {"price": "2", "RETRY_TOPIC": "Orders"})
    found = harness.pull(topic, sysFlag=BY_HEARTBEAT)
    assert isinstance(found, Response)
    assert bodies(found) == expected


def test_retries_of_topics_subscribed_by_tag_pass(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(enable_property_filter=True, filter_support_retry=True)
    subscribe(harness, "A", kind="TAG")
    topic = retry_topic("readers")
    for properties in ({"RETRY_TOPIC": "Orders"}, {"RETRY_TOPIC": "Gone"}, {}):
        harness.send(topic, b"x", properties)
    found = harness.pull(topic, sysFlag=BY_HEARTBEAT)
    assert isinstance(found, Response)
    assert len(bodies(found)) == 3


def test_delayed_message_keeps_the_filtered_properties(harness: Harness) -> None:
    harness.send(body=b"late", properties={"price": "2", "DELAY": "1"})
    harness.clock.advance(2_000)
    harness.broker.hand_over(harness.clock(), 100)
    assert bodies(answer(harness, "price > 1 AND DELAY = 1")) == [b"late"]


def test_slow_consumer_is_directed_to_its_groups_broker(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(slave_read_enable=True, access_message_in_memory_max_ratio=0)
    for _ in range(3):
        harness.send()
    harness.broker.groups.find("readers")
    group = harness.broker.groups.table["readers"]
    group.which_broker_when_consume_slowly, group.broker_id = 7, 3
    slow, up_to_date = harness.pull(), harness.pull(offset=3)
    assert isinstance(slow, Response)
    assert isinstance(up_to_date, Response)
    assert slow.fields["suggestWhichBrokerId"] == "7"
    assert up_to_date.fields["suggestWhichBrokerId"] == "3"


def test_group_far_behind_is_stopped_when_configured(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(disable_consume_if_consumer_read_slowly=True, consumer_fallbehind_threshold=1_000)
    for _ in range(20):
        harness.send(body=b"x" * 100)
    assert harness.pulled(maxMsgNums=1)
    harness.clock.advance(PATIENCE_MS)
    assert harness.pulled(maxMsgNums=32)  # near the end by now
    assert harness.pulled(maxMsgNums=1)
    harness.clock.advance(PATIENCE_MS - 1)
    assert harness.pulled(maxMsgNums=1)
    harness.clock.advance(1)
    assert harness.pulled(maxMsgNums=1)
    stopped = harness.pull(maxMsgNums=1)
    assert isinstance(stopped, Response)
    assert stopped.code == ResponseCode.NO_PERMISSION


def test_damaged_records_are_skipped_by_filters(harness: Harness) -> None:
    for number in range(4):
        harness.send(body=b"%d" % number, properties={"price": str(number)})
    first = harness.pulled()[1]
    mapping = harness.broker.store._log.mapping
    mapping[first.physical_offset + 4 : first.physical_offset + 8] = bytes(4)
    wanted = Filter(properties=lambda raw: value_of(raw, b"price") > b"0")
    found = read_queue(harness.broker, "Orders", 0, 0, 32, wanted)
    assert [record.body for record in records_of(found.records)] == [b"2", b"3"]
    assert found.next_offset == 4
