"""Metrics of delays by topic: messages by due time, lateness objectives, use of limits."""

import re
from pathlib import Path
from typing import Any

import pytest
from delaymq.api_types.delay_settings import AccountDelaySettings, LatenessObjective, TopicDelaySettings
from delaymq.broker.delivery.level_entries import UNKNOWN_TOPIC
from delaymq.broker.statistics.metric_labels import OTHER
from delaymq.schedule.timeline.files import TimelineDamagedError
from delaymq.server.metrics import due_counts
from delaymq.server.metrics.due_counts import DueCountsByTopic
from delaymq.server.metrics.gather import gather
from delaymq.server.time_slices import TimeSlices
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.running_server import run

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


async def schedule(api: Asked, topic: str, *delays_ms: int) -> None:
    for delay_ms in delays_ms:
        await api.post(f"topics/{topic}/messages", {"body": "m", "delayMs": delay_ms})


async def metric(api: Asked, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by the values of its labels, in descending order of the labels' names."""
    text = await api.metrics()
    rows = re.findall(rf"^{name}(?:{{(.*?)}})? (\S+)$", text, re.MULTILINE)
    return {tuple(re.findall(r'"(.*?)"', labels)[::-1]): float(value) for labels, value in rows}


def test_pending_messages_are_counted_by_topic_and_time_until_they_are_due(tmp_path: Path) -> None:
    async def body() -> None:
        async with asked(tmp_path, message_delay_level="1s 2h") as api:
            await api.post("delay/pause", {}, 202)
            await schedule(
                api, "Orders", 5_000, 50_000, 5 * MINUTE_MS, 50 * MINUTE_MS, 5 * HOUR_MS, 9 * DAY_MS, 900 * DAY_MS
            )
            await schedule(api, "Bills", 2 * MINUTE_MS)
            await api.post("topics/Bills/messages", {"body": "m", "delayLevel": 2})
            found = await metric(api, "delaymq_topic_delay_due")
            rows = {topic: [found[topic, name] for name in ("1m", "10m", "1h", "1d", "more")] for topic, _ in found}
            assert rows == {"Orders": [2, 1, 1, 1, 2], "Bills": [0, 1, 0, 1, 0]}
            pending = await metric(api, "delaymq_topic_delay_pending")
            assert pending == {(topic,): sum(counts) for topic, counts in rows.items()}

    run(body)


def test_topics_without_a_series_of_their_own_are_counted_together(tmp_path: Path) -> None:
    async def body() -> None:
        async with asked(tmp_path, metrics_max_topics=2) as api:  # one is that of the timer topic
            for topic in ("A", "B", "C"):
                await schedule(api, topic, HOUR_MS - 1_000)
                objective = LatenessObjective(within_ms=5, percent=99.0)
                settings = TopicDelaySettings(max_pending_messages=4, lateness_objective=objective)
                api.broker.delay_settings.put_topic(topic, settings)
            found = await metric(api, "delaymq_topic_delay_due")
            assert [found[label, "1h"] for label in ("A", OTHER)] == [1, 2]
            assert len(found) == 10
            assert list(await metric(api, "delaymq_delay_objective_ratio")) == [("A",)]
            assert list(await metric(api, "delaymq_topic_delay_limit_used_ratio")) == [("A", "maxPendingMessages")]

    run(body)


def test_counts_are_repeated_if_counting_again_would_take_too_much_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            await schedule(api, "Orders", HOUR_MS - 1_000)
            counts, now_s = DueCountsByTopic(), [100.0]

            def clock() -> float:
                now_s[0] += 0.01  # each step takes 10 ms
                return now_s[0]

            monkeypatch.setattr(due_counts, "perf_counter", clock)

            async def counted() -> Any:
                found = await counts.count(api.broker, TimeSlices())
                return found and found["Orders"]["1h"]

            assert await counted() == 1
            await schedule(api, "Orders", HOUR_MS - 1_000)
            assert await counted() == 1
            now_s[0] += 60
            assert await counted() == 2

    run(body)


def test_counts_are_absent_while_they_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            await schedule(api, "Orders", HOUR_MS)
            partitions = api.broker.delivery.timeline.partitions
            number = partitions.number(UNKNOWN_TOPIC, level=1)
            partitions.count(number, 0, 1, 100)
            assert (await gather(api.server)).due is None
            partitions.count(number, 0, -1, -100)

            def damaged(*arguments: object) -> Any:
                raise TimelineDamagedError("block 0 does not match")

            monkeypatch.setattr(due_counts, "count_each_by_due", damaged)
            assert (await gather(api.server)).due is None

    run(body)


def test_objectives_and_limits_are_exposed(tmp_path: Path) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            await schedule(api, "Orders", HOUR_MS, HOUR_MS, HOUR_MS)
            settings = TopicDelaySettings(
                max_pending_messages=4, lateness_objective=LatenessObjective(within_ms=5_000, percent=99.5)
            )
            api.broker.delay_settings.put_topic("Orders", settings)
            api.broker.delay_settings.put_account(
                "web", AccountDelaySettings(max_pending_messages=5, max_pending_bytes=0)
            )
            api.broker.delivery.promises.count("Orders", 5_000, 7)
            api.broker.delivery.promises.count("Orders", 5_001, 2)
            assert await metric(api, "delaymq_topic_delay_limit_used_ratio") == {("Orders", "maxPendingMessages"): 0.75}
            assert await metric(api, "delaymq_account_delay_limit_used_ratio") == {("maxPendingMessages", "web"): 0}
            assert await metric(api, "delaymq_delay_objective_ratio") == {("Orders",): 0.995}
            assert await metric(api, "delaymq_delay_objective_seconds") == {("Orders",): 5}
            assert await metric(api, "delaymq_delay_objective_messages_total") == {("Orders",): 9}
            assert await metric(api, "delaymq_delay_objective_late_total") == {("Orders",): 2}
            await api.post("topics/Orders/messages", {"body": "m", "delayMs": HOUR_MS})
            await api.post("topics/Orders/messages", {"body": "m", "delayMs": HOUR_MS}, 400)
            assert await metric(api, "delaymq_delay_limited_total") == {("maxPendingMessages",): 1}

    run(body)
