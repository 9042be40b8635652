"""Messages that would be lost with a broker: relevant groups, topics and counts."""

import os
from collections.abc import Callable

from delaymq.broker.admin import remaining
from delaymq.broker.admin.remaining import Unconsumed, UnconsumedTotals
from delaymq.broker.groups.activity import ACTIVE_MS
from delaymq.broker.groups.client_snapshot import REMEMBER_MS
from delaymq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from delaymq.protocol.codes import RequestCode
from delaymq_testing.broker.harness import FakeSession, Harness


def scanned(harness: Harness) -> UnconsumedTotals:
    found = UnconsumedTotals()
    for row in remaining.scan(harness.broker, harness.clock()):
        found.add(row)
    return found


def rows(harness: Harness) -> set[tuple[str, str, int]]:
    return {(row.group, row.topic, row.messages) for row in scanned(harness).largest()}


def beat(
    harness: Harness, group: str, *topics: str, model: str = "CLUSTERING", session: FakeSession | None = None
) -> None:
    subscriptions = [SubscriptionData(topic, "*") for topic in topics]
    data = ConsumerData(group, message_model=model, subscription_data_set=subscriptions)
    body = HeartbeatData(f"client-of-{group}", consumer_data_set=[data]).encode()
    harness.answer(RequestCode.HEART_BEAT, body=body, session=session)


def commit(harness: Harness, group: str, topic: str, offset: int, queue_id: int = 0) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    assert harness.answer(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0


def send_to(harness: Harness, topic: str, count: int, queue_id: int = 0) -> None:
    for _ in range(count):
        harness.send(topic, e=queue_id)


def test_connected_group_counts_all_uncommitted_messages(harness: Harness) -> None:
    send_to(harness, "Orders", 5)
    send_to(harness, "Orders", 2, queue_id=3)
    beat(harness, "readers", "Orders")
    assert rows(harness) == {("readers", "Orders", 7)}
    commit(harness, "readers", "Orders", 4)
    assert rows(harness) == {("readers", "Orders", 3)}
    commit(harness, "readers", "Orders", 5)
    commit(harness, "readers", "Orders", 2, queue_id=3)
    assert rows(harness) == set()
    assert scanned(harness).groups == {"readers"}
    commit(harness, "readers", "Orders", 99)
    assert scanned(harness).messages == 0


def test_topics_without_readers_do_not_count(harness: Harness) -> None:
    send_to(harness, "Orders", 5)
    assert scanned(harness) == UnconsumedTotals()


def test_disconnected_group_counts_for_a_day(harness: Harness) -> None:
    send_to(harness, "Orders", 5)
    beat(harness, "readers", "Orders")
    commit(harness, "readers", "Orders", 1)
    harness.broker.session_closed(harness.session)
    harness.broker.groups.find("readers")
    harness.clock.advance(ACTIVE_MS - 1)
    assert rows(harness) == {("readers", "Orders", 4)}
    harness.clock.advance(1)
    assert rows(harness) == set()
    commit(harness, "readers", "Orders", 2)
    assert rows(harness) == {("readers", "Orders", 3)}


def test_every_group_with_offsets_counts_after_a_start(harness: Harness) -> None:
    send_to(harness, "Orders", 5)
    beat(harness, "readers", "Orders")
    commit(harness, "readers", "Orders", 1)
    harness.broker.session_closed(harness.session)
    harness.clock.advance(2 * ACTIVE_MS)
    harness.restart()
    assert rows(harness) == {("readers", "Orders", 4)}
    harness.clock.advance(ACTIVE_MS)
    assert rows(harness) == set()


def test_expected_group_counts_without_offsets(harness: Harness) -> None:
    send_to(harness, "Orders", 5)
    beat(harness, "readers", "Orders")
    harness.broker.freeze()
    harness.restart()
    assert rows(harness) == {("readers", "Orders", 5)}
    harness.clock.advance(REMEMBER_MS)
    assert rows(harness) == set()


def test_deleted_group_does_not_count(harness: Harness) -> None:
    send_to(harness, "Orders", 5)
    beat(harness, "readers", "Orders")
    commit(harness, "readers", "Orders", 1)
    harness.broker.session_closed(harness.session)
    harness.answer(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers"})
    assert rows(harness) == set()


def test_connected_group_counts_only_subscribed_topics_and_retries(harness: Harness) -> None:
    send_to(harness, "Old", 2)
    send_to(harness, "New", 2)
    for topic in ("%RETRY%readers", "%DLQ%readers"):
        harness.broker.topics.create_for_group(topic, 1)
    commit(harness, "readers", "Old", 1)
    commit(harness, "readers", "%DLQ%readers", 0)
    harness.broker.groups.find("readers")
    assert rows(harness) == {("readers", "Old", 1)}
    beat(harness, "readers", "New")
    harness.send("%RETRY%readers", j=1, l=16)
    assert rows(harness) == {("readers", "New", 2), ("readers", "%RETRY%readers", 1)}


def test_dead_letters_system_topics_and_system_groups_do_not_count(harness: Harness) -> None:
    harness.send("%RETRY%readers", j=20, l=3)
    assert harness.broker.store.queue_bounds("%DLQ%readers", 0) == (0, 1)
    harness.send("BenchmarkTest")
    harness.send("Orders")
    beat(harness, "readers", "%DLQ%readers", "BenchmarkTest")
    beat(harness, "CID_RMQ_SYS_TRANS", "Orders", session=FakeSession())
    beat(harness, "TOOLS_CONSUMER", "Orders", session=FakeSession())
    assert scanned(harness).messages == 0
    assert scanned(harness).groups == {"readers"}


def test_broadcasting_group_is_omitted(harness: Harness) -> None:
    send_to(harness, "Orders", 5)
    commit(harness, "readers", "Orders", 1)
    beat(harness, "readers", "Orders", model="BROADCASTING")
    assert scanned(harness) == UnconsumedTotals()


def test_messages_deleted_by_retention_do_not_count(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(mapped_file_size_commit_log=4_096, file_reserved_time=1)
    send_to(harness, "Orders", 100)
    beat(harness, "readers", "Orders")
    commit(harness, "readers", "Orders", 0)
    harness.flush()
    for segment in (harness.config.store_path / "commitlog").iterdir():
        os.utime(segment, (1, 1))
    harness.broker.store.clean(harness.clock(), at_any_hour=True)
    low, high = harness.broker.store.queue_bounds("Orders", 0)
    assert low > 0
    assert rows(harness) == {("readers", "Orders", high - low)}


def test_largest_rows_are_listed_and_sums_are_complete() -> None:
    found = UnconsumedTotals()
    for number in range(20_000):
        found.add(Unconsumed(f"g{number}", "T", number % 15_000))
    assert found.messages == sum(range(15_000)) + sum(range(5_000))
    assert [row.messages for row in found.largest()] == list(range(14_999, 14_899, -1))
    assert len(found.groups) == 20_000
