"""Repeating messages over HTTP and by the client: sends, list, search, history, metrics."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delaymq.client import Client, Message, NoSuchDelayError, NotPendingError, Producer, RefusedError
from delaymq.client.core import broker_delays
from delaymq.message.errors import IllegalMessageError
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.running_server import HOST, run, standalone, until
from prometheus_client.parser import text_string_to_metric_families

CRON = {"cron": "30 9 * * 1-5", "zone": "Europe/Berlin"}


async def repeat(api: Asked, **more: object) -> dict[str, Any]:
    sent: dict[str, Any] = await api.post("topics/Orders/messages", {"body": "report", **more})
    return sent


async def fire(api: Asked, sent: dict[str, Any], run: int) -> None:
    """Lets the next run take place, and waits for it."""
    await api.post("delay/changes", {"action": "fire", "topic": "Orders", "id": sent["messageId"]})
    await until(lambda: api.broker.delivery.counters.repeated == run)


async def counters(api: Asked) -> dict[str, float]:
    async with api._session.get(f"http://{HOST}:{api.http_port}/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_schedule_is_listed_with_its_last_and_next_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            sent = await repeat(api, **CRON, missed="all", delayKey="report")
            every = await repeat(api, everyMs=7_200_000, untilMs=1 << 45, runs=3)
            assert sent["recallHandle"]
            [first, second] = sorted(
                (await api.get("delay/pending/messages?topic=Orders"))["messages"],
                key=lambda row: row["physicalOffset"],
            )
            assert first["dueMs"] == sent["dueMs"]
            assert first["repeats"] == {
                "cron": "30 9 * * 1-5", "zone": "Europe/Berlin", "everyMs": None, "untilMs": None, "runs": None,
                "missed": "all", "run": 0, "lastRunMs": None,
            }  # fmt: skip
            assert second["repeats"] == {
                "cron": None, "zone": None, "everyMs": 7_200_000, "untilMs": 1 << 45, "runs": 3, "missed": "latest",
                "run": 0, "lastRunMs": None,
            }  # fmt: skip
            await fire(api, every, 1)
            [found] = [
                row for row in (await api.get("delay/pending/messages"))["messages"] if row["repeats"]["everyMs"]
            ]
            assert found["repeats"]["run"] == 1
            assert found["dueMs"] == found["repeats"]["lastRunMs"] + 7_200_000

    run(scenario)


def test_history_shows_runs_changes_and_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            sent = await repeat(api, everyMs=3_600_000, runs=3, delayKey="report")
            await fire(api, sent, 1)
            await fire(api, sent, 2)
            details = await api.get(f"messages/{sent['messageId']}?topic=Orders")
            assert details["state"] == "pending"
            events = [event["event"] for event in details["life"]]
            assert events == ["stored", "fired", "delivered", "fired", "delivered", "due", "pending"]
            assert details["life"][-2]["atMs"] == details["dueMs"] > sent["dueMs"]
            assert details["life"][-1]["detail"] == "pending, repeating message, 2 runs so far"
            assert details["life"][2]["detail"].startswith("run 1 delivered to queue ")
            found = (await api.get(f"messages?topic=Orders&key={sent['messageId']}"))["messages"]
            assert [row["state"] for row in found] == ["pending", "delivered", "delivered"]
            assert [row["properties"].get("DELAY_RUN") for row in found] == [None, "2", "1"]
            assert found[1]["dueMs"] == int(found[1]["properties"]["TIMER_OUT_MS"])
            of_run = await api.get(f"messages/{found[1]['messageId']}?topic=Orders")
            assert (of_run["state"], of_run["body"]["text"]) == ("delivered", "report")
            await fire(api, sent, 3)
            details = await api.get(f"messages/{sent['messageId']}?topic=Orders")
            assert details["state"] == "delivered"
            assert [event["event"] for event in details["life"]].count("delivered") == 3
            text = await counters(api)
            assert text["delaymq_delay_repeated_total"] == 3

    run(scenario)


def test_history_shows_skipped_runs_and_a_cancel(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            sent = await repeat(api, everyMs=1_000, missed="none", expireMs=0)
            api.broker.delivery.control.pause()
            await asyncio.sleep(1.1)
            api.broker.delivery.control.resume()
            api.broker.delivery.wake()
            await until(lambda: api.broker.delivery.counters.skipped > 0)
            await api.post("delay/changes", {"action": "cancel", "topic": "Orders", "id": sent["messageId"]})
            details = await api.get(f"messages/{sent['messageId']}?topic=Orders")
            assert details["state"] == "cancelled"
            expired = [event for event in details["life"] if event["event"] == "expired"]
            assert expired
            assert "were skipped" in expired[0]["detail"]
            assert (await counters(api))["delaymq_delay_skipped_total"] >= 1

    run(scenario)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"cron": "61 * * * *"}, "field 1 (minute) of DELAY_CRON is '61'"),
        ({"cron": "* * * * *", "zone": "Mars"}, "not a known time zone"),
        ({"cron": "* * * * *", "everyMs": 1_000}, "at most one due time"),
        ({"cron": "* * * * *", "delayMs": 1_000}, "at most one due time"),
        ({"everyMs": 999}, "everyMs"),
        ({"everyMs": 1_000, "zone": "UTC"}, "DELAY_ZONE needs DELAY_CRON"),
        ({"everyMs": 1_000, "missed": "some"}, "missed"),
        ({"everyMs": 1_000, "untilMs": 1}, "before the first run"),
        ({"runs": 3}, "zone, untilMs, runs and missed need a repeating message: send cron or everyMs"),
        ({"properties": {"DELAY_CRON": "* * * * *"}}, "is reserved"),
    ],
)
def test_wrong_schedule_is_rejected(tmp_path: Path, wrong: dict[str, object], reason: str) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            refusal = await api.post("topics/Orders/messages", {"body": "m", **wrong}, 400)
            assert reason in refusal["error"]["message"]
            assert api.broker.delivery.pending_total() == 0

    run(scenario)


def test_client_schedules_repeating_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            standalone(tmp_path) as server,
            Client(f"{HOST}:{server.namesrv.port}") as client,
            Producer(client, "p") as producer,
        ):
            message = Message(topic="Reports", body=b"report")
            until_time = datetime.now(UTC) + timedelta(days=9)
            daily = await producer.schedule(
                message, cron="0 9 * * *", zone="Europe/Berlin", until=until_time, missed="all", key="daily"
            )
            assert daily.due_ms is not None
            often = await producer.schedule(message, every=timedelta(minutes=15), runs=2)
            for number in (1, 2):
                await often.fire()
                await until(lambda number=number: server.broker.broker.delivery.counters.repeated == number)
            with pytest.raises(NotPendingError) as ended:
                await often.cancel()
            assert ended.value.fate == "delivered"
            kept = await producer.schedule(message, every="1h", key="daily", on_same_key="keep")
            assert kept.is_kept
            assert (await producer.touch("Reports", key="daily")).due_ms == daily.due_ms
            assert (await daily.cancel()).messages == 1
            with pytest.raises(RefusedError, match=r"field 1 \(minute\) of DELAY_CRON is '61'"):
                await producer.schedule(message, cron="61 * * * *")
            assert server.broker.broker.delivery.pending_total() == 0

    run(scenario)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"cron": "* * * * *", "every": 5}, "either cron or every"),
        ({"every": 5, "zone": "UTC"}, "give zone only with cron"),
        ({"zone": "UTC"}, "need a repeating message"),
        ({"runs": 3, "after": 5}, "need a repeating message"),
        ({"every": 5, "after": 5}, "one schedule"),
        ({"cron": "* * * * *", "at": datetime(2030, 1, 1, tzinfo=UTC)}, "one schedule"),
        ({"cron": ""}, "DELAY_CRON is empty"),
        ({"every": 5, "missed": "some"}, "use latest, all or none"),
        ({"every": 5, "until": datetime(2030, 1, 1)}, "no time zone"),
        ({"every": "often"}, "often"),
        ({}, "give at, after, cron or every"),
    ],
)
def test_client_rejects_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], reason: str) -> None:
    async def scenario() -> None:
        async with (
            standalone(tmp_path) as server,
            Client(f"{HOST}:{server.namesrv.port}") as client,
            Producer(client, "p") as producer,
        ):
            with pytest.raises((IllegalMessageError, NoSuchDelayError), match=reason):
                await producer.schedule(Message(topic="Reports", body=b"m"), **arguments)

    run(scenario)


def test_client_does_not_send_to_brokers_that_would_not_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with (
            standalone(tmp_path) as server,
            Client(f"{HOST}:{server.namesrv.port}") as client,
            Producer(client, "p") as producer,
        ):
            monkeypatch.setattr(broker_delays, "CHANGE_SETTING", "settingOfALaterVersion")
            with pytest.raises(NoSuchDelayError):
                await producer.schedule(Message(topic="Reports", body=b"m"), every="1h")
            assert server.broker.broker.store.end_offset == 0

    run(scenario)
