"""Groups of pending messages and pauses over HTTP: changes, lists, counts, history, metrics."""

from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.broker import Broker
from delaymq.broker.delivery.changes import pauses
from delaymq.message.ids import unpack_host
from delaymq.server.api import broker as broker_api
from delaymq.store.errors import StoreFullError
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.running_server import HOST, run, until

HOUR_MS = 3_600_000


async def fill(api: Asked, count: int, group: str = "spring", **more: object) -> list[str]:
    """Schedule messages of a group; return their unique ids."""
    body = {"body": "m", "delayMs": HOUR_MS, "delayGroup": group, **more}
    return [(await api.post("topics/Orders/messages", body))["messageId"] for _ in range(count)]


async def change(api: Asked, action: str, status: int = 200, **more: object) -> Any:
    return await api.post("delay/changes", {"action": action, "topic": "Orders", **more}, status)


def test_group_is_moved_fired_and_cancelled_over_http(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await fill(api, 3)
            await fill(api, 2, "summer ä")
            moved = await change(api, "move", group="spring", delayMs=2 * HOUR_MS)
            assert moved["changed"] == 3
            assert moved["dueMs"] >= api.broker.now_ms() + 2 * HOUR_MS - 60_000
            assert await change(api, "cancel", group="summer ä") == {
                "action": "cancel", "topic": "Orders", "changed": 2, "dueMs": None
            }  # fmt: skip
            assert (await change(api, "cancel", group="summer ä"))["changed"] == 0
            assert (await change(api, "fire", group="spring"))["changed"] == 3
            await until(lambda: api.broker.delivery.pending_total() == 0)
            gone = await change(api, "fire", 404, group="spring")
            assert "the messages with DELAY_GROUP 'spring'" in gone["error"]["message"]

    run(scenario)


def test_groups_and_topics_are_paused_resumed_and_listed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await fill(api, 3)
            await fill(api, 1, "summer")
            paused = await change(api, "pause", group="spring")
            assert (paused["changed"], paused["dueMs"]) == (3, None)
            assert (await change(api, "pause"))["changed"] == 4
            await api.post("delay/pause", {}, 202)
            state = await api.get("delay")
            assert [(each["topic"], each["group"], each["pending"]) for each in state["pauses"]] == [
                ("Orders", "spring", 3), ("Orders", None, 4), (None, None, 4)
            ]  # fmt: skip
            assert all(0 <= state["asOfMs"] - each["sinceMs"] < 60_000 for each in state["pauses"])
            assert not state["pausesTruncated"]
            await api.post("delay/resume", {"overdue": "deliver"}, 202)
            await change(api, "fire", group="spring")
            await change(api, "resume")
            assert len((await api.get("delay"))["pauses"]) == 1
            assert api.broker.delivery.pending_total() == 4
            assert (await change(api, "resume", group="spring"))["changed"] == 3
            await until(lambda: api.broker.delivery.pending_total() == 1)

    run(scenario)


def test_pauses_are_requested_by_the_address_and_the_list_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_api, "MAX_PAUSES_SHOWN", 2)

    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await fill(api, 1)
            await api.post("delay/pause", {}, 202)
            for group in ("a", "b"):
                await change(api, "pause", group=group)
            state = await api.get("delay")
            assert (len(state["pauses"]), state["pausesTruncated"]) == (2, True)
            assert marks_by(api.broker) == {HOST}

    run(scenario)


def marks_by(broker: Broker) -> set[str]:
    """Return the addresses of the clients that requested the pauses, according to the log."""
    records = [broker.store.record_at(pause.place) for _, pause in broker.delivery.pauses]
    return {unpack_host(record.born_host)[0] for record in records if record is not None}


def test_pause_of_a_topic_that_was_deleted_can_be_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await fill(api, 1)
            await change(api, "pause")
            del api.broker.topics.table["Orders"]
            await change(api, "pause", 404, group="spring")
            await change(api, "resume")
            await change(api, "resume", 404)

    run(scenario)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"action": "cancel", "group": "g", "key": "k"}, "name exactly one of"),
        ({"action": "touch", "group": "g"}, "touch applies to single messages"),
        ({"action": "pause", "key": "k"}, "pause applies to a group or to a topic"),
        ({"action": "resume", "id": "u", "group": "g"}, "resume applies to a group or to a topic"),
        ({"action": "pause", "group": "g", "delayMs": 1}, "pause takes no due time"),
        ({"action": "cancel", "group": ""}, "group"),
        ({"action": "cancel", "group": "ä" * 128}, "use 1 to 255 bytes"),
        ({"action": "cancel", "id": "u", "handle": "h"}, "send either id or handle"),
        ({"action": "move", "group": "spring", "delayMs": 1 << 50}, "the maximum is"),
    ],
)
def test_wrong_change_of_a_group_is_rejected(tmp_path: Path, wrong: dict[str, object], reason: str) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await fill(api, 1)
            end = api.broker.store.end_offset
            refusal = await api.post("delay/changes", {"topic": "Orders", **wrong}, 400)
            assert reason in refusal["error"]["message"]
            assert api.broker.store.end_offset == end

    run(scenario)


def test_full_store_rejects_pauses_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await fill(api, 1)
            await api.post("delay/pause", {}, 202)

            def full(*_: object, **__: object) -> None:
                raise StoreFullError("the disk is full: free some space")

            monkeypatch.setattr(pauses, "append_statement", full)
            for path, body in (
                ("delay/resume", {"overdue": "deliver"}),
                ("delay/changes", {"action": "pause", "topic": "Orders"}),
            ):
                refusal = await api.post(path, body, 503)
                assert refusal["error"]["code"] == "service_not_available"
                assert "the disk is full: free some space" in refusal["error"]["message"]
            assert api.broker.delivery.control.is_paused
            assert (await api.get("delay"))["held"]["mode"] == "paused"

    run(scenario)


def test_too_many_pauses_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "MAX_PAUSES", 1)

    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await fill(api, 1)
            await change(api, "pause")
            assert "resume some of them first" in (await change(api, "pause", 400, group="spring"))["error"]["message"]
            assert (await api.post("delay/pause", {}, 409))["error"]["code"] == "too_many_pauses"

    run(scenario)
