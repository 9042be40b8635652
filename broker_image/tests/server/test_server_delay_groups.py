"""Groups of pending messages and pauses over HTTP: changes, lists, counts, history, metrics."""

import random
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from delaymq.broker.broker import Broker
from delaymq.broker.delivery.changes import pauses
from delaymq.client import Client, Message, Producer
from delaymq.message.errors import IllegalMessageError
from delaymq.message.ids import unpack_host
from delaymq.schedule.timeline import inspection
from delaymq.server.api import broker as broker_api
from delaymq.server.api.messages import pending_list
from delaymq.store.errors import StoreFullError
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.repetitions import SEED
from delaymq_testing.running_server import HOST, run, standalone, until
from prometheus_client.parser import text_string_to_metric_families

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
        ({"action": "cancel", "group": "g\0"}, "group must not be empty or contain the characters 0, 1 or 2"),
        ({"action": "pause", "group": "g\x02__DMQ_BY\x01ann"}, "group must not be empty or contain"),
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


def test_too_many_paused_groups_are_rejected_but_not_wider_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "MAX_GROUPS", 1)

    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await fill(api, 1)
            await change(api, "pause", group="spring")
            assert "resume some of them" in (await change(api, "pause", 400, group="summer"))["error"]["message"]
            await change(api, "pause")
            assert (await api.post("delay/pause", {}, 202))["held"]["mode"] == "paused"

    run(scenario)


async def pages(api: Asked, **query: object) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the unique ids on all pages, and the pages."""
    found: list[dict[str, Any]] = []
    after: dict[str, object] = {}
    while True:
        found.append(await api.get(f"delay/pending/messages?{urlencode({'topic': 'Orders', **query, **after})}"))
        if found[-1]["next"] is None:
            return [row["messageId"] for page in found for row in page["messages"]], found
        after = {"after": found[-1]["next"]}


@pytest.mark.parametrize("examined", [10, 2_000_000])
def test_pages_of_a_group_are_those_of_a_list(tmp_path: Path, examined: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_list, "MAX_EXAMINED", examined)
    monkeypatch.setattr(inspection, "_FIRST_ROUND", 4)

    async def scenario() -> None:
        rng, sent = random.Random(SEED), list[tuple[int, str, str, str]]()
        async with asked(tmp_path) as api:
            base_ms = api.broker.now_ms() + HOUR_MS
            for number in range(150):
                group, tag = rng.choice(("spring", "summer", "summer", "ä")), rng.choice(("red", "blue"))
                due_ms = base_ms + rng.randrange(30) * 1_000
                body = {
                    "body": "m",
                    "deliverAtMs": due_ms,
                    "delayGroup": group,
                    "tags": tag,
                    "keys": [f"k{number % 9}"],
                }
                sent.append((due_ms, (await api.post("topics/Orders/messages", body))["messageId"], group, tag))
                if number % 50 == 40:
                    api.broker.delivery.timeline.freeze()
            for group in ("spring", "ä", "none"):
                of_group = [each for each in sent if each[2] == group]
                ids, found = await pages(api, group=group, limit=7)
                assert sorted(ids) == sorted(each[1] for each in of_group)
                assert {page["total"] for page in found} == {len(of_group)}
                assert {row["group"] for page in found for row in page["messages"]} <= {group}
                dues = {each[1]: each[0] for each in sent}
                assert [dues[each] for each in ids] == sorted(dues[each] for each in ids)
                ids, found = await pages(api, group=group, tag="red", untilMs=base_ms + 15_000)
                expected = {each[1] for each in of_group if each[3] == "red" and each[0] < base_ms + 15_000}
                assert (len(ids), set(ids)) == (len(expected), expected)
                assert {page["total"] for page in found} == {None}
                ids, _ = await pages(api, group=group, key="k3")
                assert set(ids) == {each[1] for number, each in enumerate(sent) if number % 9 == 3 and each[2] == group}
            token = (await api.get("delay/pending/messages?topic=Orders&group=summer&limit=1"))["next"]
            for other in ("", "&group=spring", "&group=summer&held=true"):
                refusal = await api.get(f"delay/pending/messages?topic=Orders{other}&after={token}", 400)
                assert "with other filters" in refusal["error"]["message"]
            refusal = await api.get("delay/pending/messages?group=summer", 400)
            assert "group requires topic" in refusal["error"]["message"]

    run(scenario)


def test_held_messages_are_those_that_pauses_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            spring = await fill(api, 3)
            await change(api, "pause", group="spring")
            await change(api, "fire", group="spring")
            later = await fill(api, 2, "summer")
            partitions = api.broker.delivery.timeline.partitions
            await until(lambda: partitions.of_partition(partitions.number("Orders", "spring")).messages == 3)
            for query in ({"held": "true"}, {"held": "true", "group": "spring"}):
                ids, [page] = await pages(api, **query)
                assert (sorted(ids), page["total"]) == (sorted(spring), 3)
            assert (await pages(api, held="true", group="summer"))[0] == []
            assert len((await pages(api, held="false"))[0]) == 5
            await change(api, "pause")
            await change(api, "fire", group="summer")
            assert sorted((await pages(api, held="true"))[0]) == sorted(spring + later)
            assert sorted((await pages(api, held="true", group="summer"))[0]) == sorted(later)
            await change(api, "resume")
            await change(api, "resume", group="spring")
            await until(lambda: api.broker.delivery.pending_total() == 0)
            await api.post("delay/pause", {}, 202)
            overdue = await fill(api, 1, delayMs=1)
            await fill(api, 1)
            await until(lambda: api.broker.delivery.control.overdue(api.broker.now_ms()) == 1)
            assert (await pages(api, held="true"))[0] == overdue

    run(scenario)


def test_groups_of_a_topic_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            for number, group in enumerate(("a", "b", "ä")):
                await fill(api, number + 1, group)
            await api.post("topics/Bills/messages", {"body": "m", "delayMs": HOUR_MS, "delayGroup": "a"})
            await change(api, "pause", group="b")
            counts = await api.get("delay/pending?by=group&topic=Orders&limit=2")
            assert counts["rows"] == [
                {"group": "ä", "pending": 3, "nextDueMs": None},
                {"group": "b", "pending": 2, "nextDueMs": None, "paused": True},
            ]
            assert (counts["total"], counts["truncated"], counts["complete"]) == (6, True, True)
            for query, reason in (("", "by=group needs topic"), ("&topic=Orders&level=1", "omit level and kind")):
                assert reason in (await api.get(f"delay/pending?by=group{query}", 400))["error"]["message"]

    run(scenario)


def test_history_names_the_changes_of_the_group_and_pauses(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:

            async def life(message_id: str) -> list[tuple[str, str]]:
                details = await api.get(f"messages/{message_id}?topic=Orders")
                return [(event["event"], event["detail"]) for event in details["life"]]

            await fill(api, 1)
            await change(api, "cancel", group="spring")
            (moved,) = await fill(api, 1, delayKey="k")
            (other,) = await fill(api, 1)
            await change(api, "move", group="spring", delayMs=2 * HOUR_MS)
            await change(api, "move", key="k", delayMs=3 * HOUR_MS)
            await change(api, "pause", group="spring")
            assert [event for event, _ in await life(moved)] == ["stored", "moved", "moved", "due", "pending"]
            assert "group spring is paused since" in (await life(moved))[-1][1]
            await change(api, "pause")
            assert "topic Orders is paused since" in (await life(moved))[-1][1]
            await api.post("delay/pause", {}, 202)
            assert "all deliveries are paused since" in (await life(moved))[-1][1]
            await api.post("delay/resume", {"overdue": "deliver"}, 202)
            await change(api, "resume")
            await change(api, "resume", group="spring")
            await change(api, "fire", key="k")
            await until(lambda: api.broker.delivery.pending_total() == 1)
            await change(api, "cancel", group="spring")
            # The cancellation of the group came after the delivery of this message.
            assert [event for event, _ in await life(moved)][-2:] == ["fired", "delivered"]
            events = await life(other)
            assert [event for event, _ in events] == ["stored", "moved", "cancelled"]
            assert events[-1][1] == f"with its group spring, by {HOST}"
            assert (await api.get(f"messages/{other}?topic=Orders"))["state"] == "cancelled"

    run(scenario)


def test_client_changes_and_pauses_groups_and_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            standalone(tmp_path) as server,
            Client(f"{HOST}:{server.namesrv.port}") as client,
            Producer(client, "campaigns") as producer,
        ):
            broker = server.broker.broker
            message = Message(topic="Orders", body=b"m")
            for _ in range(3):
                await producer.schedule(message, after="1h", group="spring")
            await producer.schedule(message, after="1h", key="k", group="summer")
            moved = await producer.move("Orders", group="spring", after="2h")
            assert (moved.messages, moved.missing, moved.broker_name) == (3, (), "")
            assert moved.due_ms is not None
            assert (await producer.pause("Orders", "spring")).messages == 3
            assert (await producer.pause("Orders")).messages == 4
            assert (await producer.fire("Orders", group="spring")).messages == 3
            assert (await producer.resume("Orders")).messages == 4
            assert broker.delivery.pending_total() == 4
            assert (await producer.resume("Orders", "spring")).messages == 3
            await until(lambda: broker.delivery.pending_total() == 1)
            assert (await producer.cancel("Orders", group="summer")).messages == 1
            assert (await producer.cancel("Orders", group="summer")).messages == 0
            assert (await producer.fire("Orders", group="none")).messages == 0
            for wrong in (producer.cancel("Orders", group="g", key="k"), producer.cancel("Orders")):
                with pytest.raises(ValueError, match="either"):
                    await wrong
            for empty in (producer.cancel("Orders", group=""), producer.schedule(message, after="1h", group="")):
                with pytest.raises(IllegalMessageError, match="the group is empty"):
                    await empty

    run(scenario)


def test_pauses_are_metrics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await fill(api, 1)
            assert await gauges(api, "delaymq_delay_pauses") == {"topic": 0, "group": 0, "all": 0}
            for group in ("spring", "summer"):
                await change(api, "pause", group=group)
            await change(api, "pause")
            assert (await gauges(api, "delaymq_delay_held"))["paused"] == 0
            await api.post("delay/pause", {}, 202)
            assert await gauges(api, "delaymq_delay_pauses") == {"topic": 1, "group": 2, "all": 1}
            assert (await gauges(api, "delaymq_delay_held"))["paused"] == 1
            await api.post("delay/resume", {"overdue": "deliver"}, 202)
            assert (await gauges(api, "delaymq_delay_held"))["paused"] == 0
            api.broker.delivery.control.pause_locally()
            assert (await gauges(api, "delaymq_delay_held"))["paused"] == 1

    run(scenario)


async def gauges(api: Asked, name: str) -> dict[str, float]:
    """Return the values of a metric by its only label."""
    text = await api.metrics()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {next(iter(sample.labels.values())): sample.value for sample in samples if sample.name == name}
