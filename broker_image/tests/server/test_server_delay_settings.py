"""/api/v1/delay/settings: settings of topics and accounts over HTTP."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from delaymq.broker.delivery.settings.overdue import Treatment
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.running_server import run

NONE = {"pending": 0, "pendingBytes": 0, "nextDueMs": None, "latestDueMs": None, "treatment": None}


async def make_topics(api: Asked, *topics: str) -> None:
    for topic in topics:
        await api.post(f"topics/{topic}/messages", {"body": "m"})


def test_settings_of_a_topic_are_set_shown_enforced_and_removed(tmp_path: Path) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            await make_topics(api, "Orders")
            path = "delay/settings/topics/Orders"
            assert await api.get(path) == {"topic": "Orders", "exists": True, "settings": {}, **NONE}
            wanted = {"maxPendingMessages": 1, "latenessObjective": {"withinMs": 5_000, "percent": 99.5}}
            assert (await api.put(path, wanted))["settings"] == wanted
            await api.post("topics/Orders/messages", {"body": "m", "delayMs": 60_000})
            refused = await api.post("topics/Orders/messages", {"body": "m", "delayMs": 60_000}, 400)
            assert "the maximum is 1 (maxPendingMessages)" in refused["error"]["message"]
            shown = await api.get(path)
            assert (shown["pending"], shown["settings"]) == (1, wanted)
            assert shown["pendingBytes"] > 100
            due = (await api.get("delay/pending/messages"))["messages"][0]["dueMs"]
            assert (shown["nextDueMs"], shown["latestDueMs"]) == (due, due)
            assert (await api.get("delay/settings"))["topics"] == [shown]
            assert (await api.put(path, {}))["settings"] == {}
            assert (await api.get("delay/settings"))["total"] == 0
            await api.post("topics/Orders/messages", {"body": "m", "delayMs": 60_000})

    run(body)


def test_treatment_in_progress_is_shown_with_its_end(tmp_path: Path) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            await make_topics(api, "Orders")
            await api.put("delay/settings/topics/Orders", {"overdue": {"treatment": "shift"}})
            open_ones = api.broker.delivery.control.treatments.open
            shift = Treatment(treatment="shift", after_ms=1, up_to_ms=5, until_ms=7)
            for treatment, until_ms in ((shift, 7), (msgspec.structs.replace(shift, treatment="pause"), None)):
                open_ones["Orders"] = treatment
                expected = {"treatment": treatment.treatment, "afterMs": 1, "upToMs": 5, "untilMs": until_ms}
                assert (await api.get("delay/settings/topics/Orders"))["treatment"] == expected
                assert (await api.get("topics/Orders"))["delayTreatment"] == expected
            open_ones.clear()

    run(body)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"maxPendingMessages": -1}, "maxPendingMessages"),
        ({"maxPendingBytes": 1 << 60}, "maxPendingBytes"),
        ({"maxDelaySeconds": 0}, "maxDelaySeconds"),
        ({"whenTopicIsGone": "ignore"}, "whenTopicIsGone"),
        ({"latenessObjective": {"withinMs": 5}}, "percent"),
        ({"latenessObjective": {"withinMs": 5, "percent": 100}}, "percent"),
        ({"maxPerSecond": 0}, "maxPerSecond"),
        ({"spreadOverMs": 0}, "spreadOverMs"),
        ({"spreadOverMs": 86_400_001}, "spreadOverMs"),
        ({"overdue": {"treatment": "spread"}}, "spread needs overMs"),
        ({"overdue": {"treatment": "drop", "overMs": 5}}, "overMs belongs to the treatment spread"),
        ({"overdue": {"treatment": "wait"}}, "overdue.treatment"),
        ({"overdue": {"treatment": "shift", "overMs": 5}}, "overMs belongs to the treatment spread"),
        ({"maxPending": 5}, "maxPending"),
        ([], "object"),
    ],
)
def test_invalid_settings_change_nothing(tmp_path: Path, wanted: Any, problem: str) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            await make_topics(api, "Orders")
            refused = await api.put("delay/settings/topics/Orders", wanted, 400)
            assert problem in refused["error"]["message"]
            assert not api.broker.delay_settings.topics

    run(body)


def test_only_topics_that_producers_send_to_have_settings(tmp_path: Path) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            await api.put("delay/settings/topics/Unknown", {"maxPendingMessages": 1}, 404)
            for topic in ("SCHEDULE_TOPIC_XXXX", "TBW102"):
                refused = await api.put(f"delay/settings/topics/{topic}", {"maxPendingMessages": 1}, 409)
                assert "name a topic that producers send to" in refused["error"]["message"]
            refused = await api.put("delay/settings/accounts/alice", {"maxPendingMessages": 1}, 409)
            assert "aclEnable=true" in refused["error"]["message"]

    run(body)


def test_settings_are_listed_in_pages(tmp_path: Path) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            topics = [f"T{number}" for number in range(5)]
            await make_topics(api, *topics)
            for topic in topics:
                await api.put(f"delay/settings/topics/{topic}", {"maxDelaySeconds": 60})
            found, after = [], ""
            while after is not None:
                page = await api.get(f"delay/settings?limit=2&after={after}")
                found += [row["topic"] for row in page["topics"]]
                assert page["total"] == 5
                after = page["next"]
            assert found == topics

    run(body)


def test_list_includes_topics_with_pending_messages_on_request(tmp_path: Path) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            await make_topics(api, "Settled", "Pending", "Idle")
            await api.put("delay/settings/topics/Settled", {"maxDelaySeconds": 600})
            for delay_ms in (50_000, 20_000):
                await api.post("topics/Pending/messages", {"body": "m", "delayMs": delay_ms})
            assert [row["topic"] for row in (await api.get("delay/settings"))["topics"]] == ["Settled"]
            rows = (await api.get("delay/settings?pending=true"))["topics"]
            assert [(row["topic"], row["pending"]) for row in rows] == [("Pending", 2), ("Settled", 0)]
            assert rows[0]["latestDueMs"] - rows[0]["nextDueMs"] > 29_000

    run(body)


def test_settings_that_could_not_be_written_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with asked(tmp_path) as api:
            await make_topics(api, "Orders")
            monkeypatch.setattr(api.broker, "persist_definitions", lambda: OSError(28, "No space left on device"))
            refused = await api.put("delay/settings/topics/Orders", {"maxDelaySeconds": 60}, 503)
            assert "could not be written" in refused["error"]["message"]
            monkeypatch.undo()
            await api.put("delay/settings/topics/Orders", {"maxDelaySeconds": 60})

    run(body)
