"""GET /api/v1/delay/forecast: counts of what will be due, against a list of what was sent."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
from delaymq.server.api.messages.forecast import DAYS, HOURS
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.repetitions import SEED
from delaymq_testing.running_server import run

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


async def send_many(api: Asked, rng: random.Random, count: int) -> list[tuple[str, int]]:
    """Send timed messages up to 60 days ahead, and return their topics and due times."""
    sent = []
    for number in range(count):
        topic = rng.choice(("Orders", "Bills"))
        due_ms = (
            api.broker.now_ms() + 20_000 + int(rng.choice((MINUTE_MS, HOUR_MS, DAY_MS, 60 * DAY_MS)) * rng.random())
        )
        await api.post(f"topics/{topic}/messages", {"body": "m", "deliverAtMs": due_ms, "delayKey": f"k{number}"})
        sent.append((topic, due_ms))
    return sent


def expected(dues: list[int], bounds: list[int]) -> list[int]:
    edges = [0, *bounds, 1 << 62]
    return [sum(begin <= due < end for due in dues) for begin, end in pairwise(edges)]


@pytest.mark.parametrize("is_frozen", [False, True])
def test_forecast_equals_what_was_sent(tmp_path: Path, is_frozen: bool) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            sent = await send_many(api, random.Random(SEED), 120)
            if is_frozen:
                api.broker.delivery.timeline.freeze()
            cancelled = {"action": "cancel", "topic": sent[0][0], "key": "k0"}
            await api.post("delay/changes", cancelled)
            for topic in (None, "Orders"):
                answer = await api.get("delay/forecast" + (f"?topic={topic}" if topic else ""))
                now_ms = answer["asOfMs"]
                dues = [due_ms for each, due_ms in sent[1:] if topic in (None, each)]
                assert answer["pending"] == len(dues)
                horizons = [now_ms + ms for ms in (MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, DAY_MS)]
                assert list(answer["due"]) == ["1m", "10m", "1h", "1d", "more"]
                assert list(answer["due"].values()) == expected(dues, horizons)
                for name, width_ms, count in (("hours", HOUR_MS, HOURS), ("days", DAY_MS, DAYS)):
                    ends = [now_ms + number * width_ms for number in range(1, count + 1)]
                    assert [row["pending"] for row in answer[name]] == expected(dues, ends)
                    assert [row["toMs"] for row in answer[name]] == [*ends, None]
                    assert [row["fromMs"] for row in answer[name]] == [None, *ends]
                for row in answer["topics"]:
                    of_topic = [due_ms for each, due_ms in sent[1:] if each == row["topic"]]
                    assert row["pending"] == len(of_topic)
                    assert list(row["due"].values()) == expected(of_topic, horizons)

    run(body)


def test_forecast_lists_the_topics_with_the_most_messages(tmp_path: Path) -> None:
    async def body() -> None:
        async with asked(tmp_path, message_delay_level="2h") as api:
            for topic, count in (("A", 1), ("B", 3), ("C", 2)):
                for _ in range(count):
                    await api.post(f"topics/{topic}/messages", {"body": "m", "delayMs": HOUR_MS})
            await api.post("topics/A/messages", {"body": "m", "delayLevel": 1})
            answer = await api.get("delay/forecast?limit=1")
            assert [row["topic"] for row in answer["topics"]] == ["B"]
            assert (answer["pending"], answer["truncated"], answer["complete"]) == (7, True, True)
            assert (await api.get("delay/forecast?kind=level"))["pending"] == 1
            none = await api.get("delay/forecast?topic=Unknown")
            assert (none["pending"], none["topics"], sum(none["due"].values())) == (0, [], 0)
            await api.get("delay/forecast?limit=0", 400)

    run(body)
