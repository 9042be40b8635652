"""Statistics under RocketMQ's names: counted keys, sliding windows, and expiry of keys."""

from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.statistics import DAY, HOUR, MINUTE, Series, Statistics
from delaymq.broker.statistics import statistics as module
from delaymq.broker.statistics.names import windows_of
from delaymq.protocol.bodies import BrokerStatistics, ConsumeStats, ConsumeStatsList, StatisticsFigures
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq_testing.broker.harness import START_MS, Harness, response_of
from delaymq_testing.broker.transactions import COMMIT, ROLLBACK, TOPIC, Transacting

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS


def view(harness: Harness, name: str, key: str) -> BrokerStatistics | None:
    answer = harness.answer(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
    if answer.code == ResponseCode.SYSTEM_ERROR:
        assert answer.remark == f"The stats <{name}> <{key}> not exist"
        return None
    return BrokerStatistics.decode(answer.body)


def minute(harness: Harness, name: str, key: str) -> StatisticsFigures:
    found = view(harness, name, key)
    assert found is not None
    return found.stats_minute


def size_of_log(harness: Harness) -> int:
    return harness.broker.store.end_offset


def run(harness: Harness, ms: int, *, every: int = SECOND_MS) -> None:
    """Lets time pass, with the jobs of the server."""
    for _ in range(ms // every):
        harness.clock.advance(every)
        harness.broker.stats.sample(harness.clock())
        harness.broker.hand_over(harness.clock(), 100)


def test_sent_messages_equal_stored_and_consumed_ones(harness: Harness) -> None:
    for number in range(6):
        harness.send(body=b"x" * number)
    end = size_of_log(harness)
    harness.pulled()
    harness.pulled(consumerGroup="others")
    harness.pulled(maxMsgNums=2)
    run(harness, 10 * SECOND_MS)
    sent = minute(harness, "TOPIC_PUT_NUMS", "Orders")
    assert (sent.sum, sent.tps, sent.avgpt) == (6, 0.6, 1.0)
    stored = minute(harness, "TOPIC_PUT_SIZE", "Orders")
    assert (stored.sum, stored.avgpt) == (end, end / 6)
    got = minute(harness, "GROUP_GET_NUMS", "Orders@readers")
    assert (got.sum, got.tps, got.avgpt) == (8, 0.8, 4.0)
    assert minute(harness, "GROUP_GET_SIZE", "Orders@others").sum == end
    assert minute(harness, "BROKER_PUT_NUMS", "DefaultCluster") == StatisticsFigures(6, 0.6, 0.0)
    assert minute(harness, "BROKER_GET_NUMS", "DefaultCluster") == StatisticsFigures(14, 1.4, 0.0)
    latency = minute(harness, "GROUP_GET_LATENCY", "0@Orders@readers")
    assert latency.sum >= 0
    assert view(harness, "GROUP_GET_LATENCY", "1@Orders@readers") is None


def test_empty_pulls_are_not_counted(harness: Harness) -> None:
    harness.send()
    harness.pull(offset=1)
    harness.pull(offset=9)
    assert view(harness, "GROUP_GET_NUMS", "Orders@readers") is None
    assert view(harness, "BROKER_GET_NUMS", "DefaultCluster") is None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "Nothing"),
        ("NO_SUCH_NAME", "Orders"),
        ("GROUP_GET_NUMS", "Orders"),
        ("GROUP_GET_NUMS", "@"),
        ("GROUP_GET_FROM_DISK_NUMS", "Orders@readers"),
        ("COMMERCIAL_SEND_TIMES", "Orders"),
        ("BROKER_PUT_NUMS", "OtherCluster"),
        ("QUEUE_PUT_NUMS", "Orders@0"),
        ("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@²"),
        ("QUEUE_GET_NUMS", "SCHEDULE_TOPIC_XXXX@0@SCHEDULE_CONSUMER"),
        ("GROUP_GET_LATENCY", "Orders@readers"),
        ("GROUP_GET_FALL_SIZE", "0@Orders@nobody"),
        ("", ""),
    ],
)
def test_uncounted_names_and_keys_do_not_exist(harness: Harness, name: str, key: str) -> None:
    harness.send()
    assert view(harness, name, key) is None


def test_long_names_are_truncated(harness: Harness) -> None:
    fields = {"statsName": "x" * 50_000, "statsKey": "y" * 50_000}
    answer = harness.answer(RequestCode.VIEW_BROKER_STATS_DATA, fields)
    assert len(str(answer.remark)) < 1_100


def test_delayed_messages_count_when_stored_and_when_delivered(harness: Harness) -> None:
    harness.send(properties={"DELAY": "1"})
    harness.send(properties={"DELAY": "1"})
    harness.send(properties={"DELAY": "2"})
    waiting = size_of_log(harness)
    assert view(harness, "TOPIC_PUT_NUMS", "Orders") is None
    assert minute(harness, "TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX").sum == 3
    assert minute(harness, "TOPIC_PUT_SIZE", "SCHEDULE_TOPIC_XXXX").sum == waiting
    assert minute(harness, "QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@0").sum == 2
    assert minute(harness, "QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@1").sum == 1
    assert minute(harness, "BROKER_PUT_NUMS", "DefaultCluster").sum == 3
    run(harness, 6 * SECOND_MS)
    arrived = size_of_log(harness) - waiting
    assert minute(harness, "TOPIC_PUT_NUMS", "Orders").sum == 3
    assert minute(harness, "TOPIC_PUT_SIZE", "Orders").sum == arrived
    for level, count in ((0, 2), (1, 1)):
        assert minute(harness, "QUEUE_GET_NUMS", f"SCHEDULE_TOPIC_XXXX@{level}@SCHEDULE_CONSUMER").sum == count
    whole = minute(harness, "GROUP_GET_NUMS", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER")
    assert (whole.sum, whole.avgpt) == (3, 1.0)
    assert minute(harness, "GROUP_GET_SIZE", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER").sum == arrived
    assert minute(harness, "BROKER_PUT_NUMS", "DefaultCluster").sum == 6


def test_batch_counts_as_one_send(harness: Harness) -> None:
    harness.broker.stats.put_batch("Orders", 3, 600)
    harness.broker.stats.put("Orders", 600)
    assert minute(harness, "TOPIC_PUT_NUMS", "Orders") == StatisticsFigures(4, 0.4, 2.0)
    assert minute(harness, "TOPIC_PUT_SIZE", "Orders") == StatisticsFigures(1_200, 120.0, 600.0)
    assert harness.broker.stats.put_messages == 4
    assert harness.broker.stats.stored == {"Orders": 4}


def test_sent_back_messages_count_for_their_original_topic(harness: Harness) -> None:
    harness.broker.groups.find("readers")
    sent = response_of(harness.send())
    fields = {"offset": int(sent.fields["msgId"][-16:], 16), "group": "readers", "delayLevel": 0}
    response_of(harness.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
    assert minute(harness, "SNDBCK_PUT_NUMS", "Orders@readers") == StatisticsFigures(1, 0.1, 1.0)
    assert minute(harness, "TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX").sum == 1
    assert minute(harness, "BROKER_PUT_NUMS", "DefaultCluster").sum == 1
    run(harness, 20 * SECOND_MS)
    assert minute(harness, "TOPIC_PUT_NUMS", "%RETRY%readers").sum == 1
    (retry,) = harness.pulled("%RETRY%readers")
    response_of(
        harness.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {"offset": retry.physical_offset, "group": "readers", "delayLevel": 0},
        )
    )
    assert minute(harness, "SNDBCK_PUT_NUMS", "Orders@readers").sum == 2


def test_group_behind_reports_its_backlog(harness: Harness) -> None:
    harness.send()
    behind_from = size_of_log(harness)
    harness.clock.advance(SECOND_MS)
    harness.send()
    for offset in (0, 1):
        harness.clock.advance(SECOND_MS)
        harness.broker.offsets.commit("Orders", "readers", 0, offset)
    end = size_of_log(harness)
    figures = view(harness, "GROUP_GET_FALL_SIZE", "0@Orders@readers")
    assert figures is not None
    assert figures.stats_minute == figures.stats_day == StatisticsFigures(end - behind_from, 0.0, 0.0)
    assert minute(harness, "GROUP_GET_FALL_TIME", "0@Orders@readers").sum == 2 * SECOND_MS
    harness.broker.offsets.commit("Orders", "readers", 0, 2)
    for name in ("GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME"):
        assert minute(harness, name, "0@Orders@readers").sum == 0


def test_progress_includes_the_groups_consumption_rate(harness: Harness) -> None:
    for _ in range(30):
        harness.send()
        harness.send("Refunds")
    for topic in ("Orders", "Refunds"):
        harness.pulled(topic)
        harness.broker.offsets.commit(topic, "readers", 0, 30)
    run(harness, 20 * SECOND_MS)
    harness.broker.groups.find("readers")

    def tps(**fields: Any) -> float:
        answer = harness.answer(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "readers"} | fields)
        return ConsumeStats.decode(answer.body).consume_tps

    assert (tps(), tps(topic="Orders"), tps(topic="Nothing")) == (3.0, 1.5, 0.0)
    answer = harness.answer(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    (listed,) = [
        group["readers"] for group in ConsumeStatsList.decode(answer.body).consume_stats_list if "readers" in group
    ]
    assert [stats.consume_tps for stats in listed] == [1.5, 1.5]


def test_statistics_end_with_their_topic_or_group(harness: Harness) -> None:
    harness.send()
    harness.send("Refunds")
    for topic in ("Orders", "Refunds"):
        harness.pulled(topic)
        harness.pulled(topic, consumerGroup="others")
    harness.broker.stats.send_back("Orders", "others")
    harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
    for name, key in (
        ("TOPIC_PUT_NUMS", "Orders"),
        ("GROUP_GET_NUMS", "Orders@readers"),
        ("GROUP_GET_LATENCY", "0@Orders@others"),
        ("SNDBCK_PUT_NUMS", "Orders@others"),
    ):
        assert view(harness, name, key) is None
    assert minute(harness, "GROUP_GET_NUMS", "Refunds@others").sum == 1
    harness.answer(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "others"})
    assert view(harness, "GROUP_GET_NUMS", "Refunds@others") is None
    assert view(harness, "GROUP_GET_LATENCY", "0@Refunds@others") is None
    assert minute(harness, "GROUP_GET_NUMS", "Refunds@readers").sum == 1


def sums(statistics: Statistics, now_ms: int) -> tuple[int, int, int]:
    windows = windows_of(statistics, "TOPIC_PUT_NUMS", "T", "C", statistics.advance(now_ms))
    assert windows is not None
    return windows[0].sum, windows[1].sum, windows[2].sum


def test_windows_drop_old_samples() -> None:
    statistics = Statistics(START_MS)
    now_ms = START_MS
    history: list[int] = []
    for step in range(2 * 24 * 60):
        statistics.advance(now_ms)
        if step % 7 != 3:
            statistics.add(statistics.puts, "T")
            history.append(now_ms)
        now_ms += MINUTE_MS
        if step % 11 == 0:
            for found, window_ms, step_ms in zip(
                sums(statistics, now_ms),
                (MINUTE_MS, HOUR_MS, 24 * HOUR_MS),
                (10 * SECOND_MS, 10 * MINUTE_MS, HOUR_MS),
                strict=True,
            ):
                within = sum(at_ms >= now_ms - window_ms for at_ms in history)
                at_most = sum(at_ms >= now_ms - window_ms - step_ms for at_ms in history)
                assert within <= found <= at_most
    now_ms += 26 * HOUR_MS
    assert sums(statistics, now_ms) == (0, 0, 0)


def test_rates_use_the_time_covered_by_the_window() -> None:
    statistics = Statistics(START_MS)
    for second in range(125):
        statistics.advance(START_MS + second * SECOND_MS)
        statistics.add(statistics.puts, "T", size=10, messages=2)
    series = statistics.puts["T"]
    elapsed_ms = statistics.advance(START_MS + 125 * SECOND_MS)
    messages, size = series.figures(MINUTE, elapsed_ms)
    # Six whole stretches of 10 s and the five seconds since.
    assert (messages.sum, messages.tps, messages.avgpt) == (130, 2.0, 2.0)
    assert (size.sum, size.tps, size.avgpt) == (650, 10.0, 10.0)
    assert series.figures(HOUR, elapsed_ms)[0].tps == 2.0
    assert series.figures(DAY, elapsed_ms)[0].sum == 250


def test_idle_key_keeps_its_statistics_until_they_expire() -> None:
    series = Series(0)
    series.messages = 5
    assert series.figures(MINUTE, 5_000)[0].sum == 5
    assert series.figures(MINUTE, 69_999)[0].sum == 5
    assert series.figures(MINUTE, 70_000)[0].sum == 0
    assert series.figures(HOUR, 70_000)[0].sum == 5
    series.advance(7)
    series.messages += 2
    assert series.figures(MINUTE, 75_000)[0].sum == 2
    assert series.figures(DAY, 75_000)[0].sum == 7


def test_clock_set_back_loses_nothing() -> None:
    statistics = Statistics(START_MS)
    statistics.add(statistics.puts, "T")
    statistics.advance(START_MS + 5_000)
    statistics.advance(START_MS - HOUR_MS)
    statistics.add(statistics.puts, "T")
    assert sums(statistics, START_MS - HOUR_MS + 30_000) == (2, 2, 2)
    assert sums(statistics, START_MS - HOUR_MS + 90_000) == (0, 2, 2)


def test_invented_keys_use_bounded_memory_and_idle_ones_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEYS", 3)
    statistics = Statistics(START_MS)
    for number in range(10):
        statistics.add(statistics.puts, f"T{number}")
    assert list(statistics.puts) == ["T0", "T1", "T2"]
    statistics.advance(START_MS + 27 * HOUR_MS)
    statistics.add(statistics.puts, "T1")
    statistics.add(statistics.puts, "T9")
    assert list(statistics.puts) == ["T1", "T9"]


def test_transaction_counts_as_half_message_and_when_committed(tmp_path: Path) -> None:
    harness = Transacting(tmp_path)
    committed, rolled_back, delayed = harness.prepare(), harness.prepare(), harness.prepare(DELAY="1")
    assert minute(harness, "TOPIC_PUT_NUMS", "RMQ_SYS_TRANS_HALF_TOPIC").sum == 3
    assert view(harness, "TOPIC_PUT_NUMS", TOPIC) is None
    harness.end(committed, COMMIT)
    harness.end(rolled_back, ROLLBACK)
    harness.end(delayed, COMMIT)
    assert minute(harness, "TOPIC_PUT_NUMS", TOPIC).sum == 1
    assert minute(harness, "TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX").sum == 1
    run(harness, 2 * SECOND_MS)
    assert minute(harness, "TOPIC_PUT_NUMS", TOPIC).sum == 2
    assert minute(harness, "TOPIC_PUT_NUMS", "RMQ_SYS_TRANS_HALF_TOPIC").sum == 3
    harness.broker.close()
