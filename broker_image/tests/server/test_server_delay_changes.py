"""Changes of pending messages over HTTP and by the client: names, outcomes, history, metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delaymq.client import Client, Message, NoSuchDelayError, NotPendingError, Producer, RefusedError
from delaymq.client.core import broker_delays
from delaymq.message.errors import IllegalMessageError
from delaymq.store.message_store import MessageStore
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.running_server import HOST, run, standalone, until
from prometheus_client.parser import text_string_to_metric_families

HOUR_MS = 3_600_000


async def schedule(api: Asked, **more: object) -> dict[str, Any]:
    body = {"body": "m", "delayMs": HOUR_MS, "delayKey": "order/1 ä", **more}
    sent: dict[str, Any] = await api.post("topics/Orders/messages", body)
    return sent


@pytest.mark.parametrize("name", ["key", "id", "handle"])
def test_every_action_over_http_by_every_name(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            sent = await schedule(api)
            target = {"key": "order/1 ä", "id": sent["messageId"], "handle": sent["recallHandle"]}[name]

            async def change(action: str, **more: object) -> Any:
                return await api.post("delay/changes", {"action": action, "topic": "Orders", name: target, **more})

            moved = await change("move", deliverAt=(datetime.now(UTC) + timedelta(hours=2)).isoformat())
            assert moved["dueMs"] >= sent["dueMs"] + HOUR_MS - 60_000
            assert (await change("touch"))["dueMs"] < moved["dueMs"]
            [found] = (await api.get(f"messages?topic=Orders&key={sent['messageId']}"))["messages"]
            assert found["state"] == "pending"
            assert (await change("fire"))["changed"] == 1
            await until(lambda: api.broker.delivery.pending_total() == 0)
            late = await api.post("delay/changes", {"action": "cancel", "topic": "Orders", name: target}, 409)
            assert late["error"]["code"] == "delivered", late
            details = await api.get(f"messages/{sent['messageId']}?topic=Orders")
            events = [event["event"] for event in details["life"]]
            assert [event for event in events if event in ("moved", "fired", "delivered")] == [
                "moved", "moved", "fired", "delivered"
            ]  # fmt: skip
            assert f"by {HOST}" in next(event["detail"] for event in details["life"] if event["event"] == "fired")

    run(scenario)


def test_change_over_http_and_its_repetition_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=100) as api:
            await schedule(api)
            change = {"action": "cancel", "topic": "Orders", "key": "order/1 ä"}
            with monkeypatch.context() as patched:
                patched.setattr(MessageStore, "flush_task", lambda _: None)
                for _ in range(2):
                    assert (await api.post("delay/changes", change, 503))["error"]["code"] == "not_flushed"
            assert (await api.post("delay/changes", change))["changed"] == 0
            assert api.broker.store.flushed_offset == api.broker.store.end_offset

    run(scenario)


def test_cancelled_replaced_and_expired_messages_are_told_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            replaced = await schedule(api)
            cancelled = await schedule(api)
            kept = await schedule(api, onSameKey="keep")
            assert (kept["kept"], kept["messageId"]) == (True, cancelled["messageId"])
            refused = {"body": "m", "delayMs": HOUR_MS, "delayKey": "order/1 ä", "onSameKey": "refuse"}
            assert (await api.post("topics/Orders/messages", refused, 409))["error"]["code"] == "illegal_operation"
            change = {"action": "cancel", "topic": "Orders", "key": "order/1 ä"}
            assert (await api.post("delay/changes", change))["changed"] == 1
            assert (await api.post("delay/changes", change))["changed"] == 0
            for sent, why in ((replaced, "replaced by a message with the same DELAY_KEY"), (cancelled, "by ")):
                details = await api.get(f"messages/{sent['messageId']}?topic=Orders")
                assert details["state"] == "cancelled"
                end = details["life"][-1]
                assert end["event"] == "cancelled" or details["life"][-2]["event"] == "cancelled"
                assert any(why in event["detail"] for event in details["life"] if event["event"] == "cancelled")
            expiring = await schedule(api, expireMs=0, delayKey="late")
            api.broker.delivery.control.pause()
            await api.post("delay/changes", {"action": "fire", "topic": "Orders", "key": "late"})
            await asyncio.sleep(0.02)
            api.broker.delivery.control.resume()
            api.broker.delivery.wake()
            await until(lambda: api.broker.delivery.pending_total() == 0)
            details = await api.get(f"messages/{expiring['messageId']}?topic=Orders")
            assert (details["state"], details["life"][-1]["event"]) == ("expired", "expired")
            text = await metrics(api)
            assert text["delaymq_delay_expired_total"] == {None: 1.0}
            assert text["delaymq_delay_changed_total"] == {"cancelled": 1.0, "fired": 1.0}

    run(scenario)


async def metrics(api: Asked) -> dict[str, dict[str | None, float]]:
    async with api._session.get(f"http://{HOST}:{api.http_port}/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
    found: dict[str, dict[str | None, float]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels.get("kind")] = sample.value
    return found


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"action": "cancel", "topic": "Orders", "key": "none"}, 404, "no pending message with this name is known"),
        ({"action": "cancel", "topic": "Missing", "key": "k"}, 404, "Missing"),
        ({"action": "cancel", "topic": "Orders"}, 400, "name exactly one of DELAY_KEY, the unique id"),
        (
            {"action": "cancel", "topic": "Orders", "key": "k", "id": "u"},
            400,
            "name exactly one of DELAY_KEY, the unique id",
        ),
        ({"action": "cancel", "topic": "Orders", "key": "x" * 256}, 400, "use 1 to 255 bytes"),
        ({"action": "cancel", "topic": "Orders", "handle": "nonsense"}, 404, "is not a recall handle"),
        ({"action": "delete", "topic": "Orders", "key": "k"}, 400, "delete"),
        ({"action": "move", "topic": "Orders", "key": "k"}, 400, "a move needs one new due time"),
        ({"action": "move", "topic": "Orders", "key": "k", "delayMs": 1, "deliverAtMs": 2}, 400, "needs one new due"),
        ({"action": "fire", "topic": "Orders", "key": "k", "delayMs": 1}, 400, "fire takes no due time"),
        ({"action": "move", "topic": "Orders", "key": "order/1 ä", "delayMs": 1 << 50}, 400, "the maximum is"),
        ({"action": "cancel", "topic": "Orders", "key": "k", "force": True}, 400, "force"),
    ],
)
def test_wrong_change_over_http_is_rejected(
    tmp_path: Path, change: dict[str, object], status: int, reason: str
) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await schedule(api)
            refusal = await api.post("delay/changes", change, status)
            assert reason in refusal["error"]["message"]
            assert api.broker.delivery.pending_total() == 1

    run(scenario)


def test_wrong_properties_of_a_send_over_http_are_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            for wrong, reason in (
                ({"delayKey": "k"}, "need a delay"),
                ({"expireMs": 1}, "need a delay"),
                ({"onSameKey": "keep", "delayMs": 1}, "onSameKey needs delayKey"),
                ({"properties": {"DELAY_ACTION": "cancel"}, "delayMs": 1}, "is reserved"),
            ):
                refusal = await api.post("topics/Orders/messages", {"body": "m", **wrong}, 400)
                assert reason in refusal["error"]["message"]

    run(scenario)


@asynccontextmanager
async def producing(path: Path, **changes: Any) -> AsyncIterator[tuple[Producer, Any]]:
    async with (
        standalone(path, **changes) as server,
        Client(f"{HOST}:{server.namesrv.port}") as client,
        Producer(client, "scheduling") as producer,
    ):
        yield producer, server.broker.broker


MESSAGE = Message(topic="Reminders", body=b"pay")


def test_scheduled_message_is_cancelled_moved_fired_and_touched_by_the_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with producing(tmp_path) as (producer, broker):
            scheduled = await producer.schedule(MESSAGE, after="1h", key="order-1")
            moved = await scheduled.move(after="2h")
            assert moved.due_ms is not None
            assert scheduled.due_ms is not None
            assert moved.due_ms > scheduled.due_ms
            touched = await producer.touch("Reminders", key="order-1")
            assert touched.due_ms is not None
            assert touched.due_ms < moved.due_ms
            again = await producer.schedule(MESSAGE, after="1h", key="order-1", on_same_key="keep")
            assert (again.is_kept, again.result.message_id) == (True, scheduled.result.message_id)
            with pytest.raises(RefusedError, match="a message with DELAY_KEY 'order-1' is pending"):
                await producer.schedule(MESSAGE, after="1h", key="order-1", on_same_key="refuse")
            assert (await scheduled.fire()).messages == 1
            await until(lambda: broker.delivery.pending_total() == 0)
            with pytest.raises(NotPendingError) as late:
                await scheduled.cancel()
            assert late.value.fate == "delivered"
            assert late.value.at_ms is not None
            for number, at in enumerate([datetime.now(UTC) + timedelta(days=400)] * 2):
                other = await producer.schedule(MESSAGE, at=at)
                changed = await producer.cancel("Reminders", message_id=other.result.message_id)
                assert (changed.messages, changed.due_ms, changed.broker_name) == (1, None, "broker-a"), number
                assert (await other.cancel()).messages == 0
            with pytest.raises(NotPendingError) as unknown:
                await producer.cancel("Reminders", key="never")
            assert unknown.value.fate == "unknown"

    run(scenario)


def test_wrong_arguments_of_the_client_are_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with producing(tmp_path) as (producer, broker):
            with pytest.raises(IllegalMessageError, match="a scheduled message needs a due time"):
                await producer.schedule(MESSAGE)
            with pytest.raises(IllegalMessageError, match="on_same_key is 'merge': use replace, keep or refuse"):
                await producer.schedule(MESSAGE, after="1s", key="k", on_same_key="merge")
            with pytest.raises(IllegalMessageError, match="the key is empty"):
                await producer.schedule(MESSAGE, after="1s", key="")
            with pytest.raises(ValueError, match="either key or message_id"):
                await producer.cancel("Reminders")
            with pytest.raises(ValueError, match="either at or after"):
                await producer.move("Reminders", key="k")
            assert broker.store.end_offset == 0

    run(scenario)


def test_broker_that_would_store_a_change_as_a_message_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_delays, "CHANGE_SETTING", "settingOfTheFuture")

    async def scenario() -> None:
        async with producing(tmp_path) as (producer, broker):
            await producer.send(MESSAGE)
            end = broker.store.end_offset
            for attempt in (
                producer.cancel("Reminders", key="k"),
                producer.schedule(MESSAGE, after="1s", key="k"),
                producer.schedule(MESSAGE, after="1s", expire_after="1s"),
            ):
                with pytest.raises(NoSuchDelayError, match="with the setting settingOfTheFuture"):
                    await attempt
            assert broker.store.end_offset == end

    run(scenario)
