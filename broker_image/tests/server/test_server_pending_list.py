"""Pages of pending messages: filters, tokens, limits, against a list of what was sent."""

import random
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from delaymq.schedule.timeline import Pending
from delaymq.server.api.messages import pending_list
from delaymq.server.api.messages.selection import Selection
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.repetitions import SEED
from delaymq_testing.running_server import run

HOUR_MS = 3_600_000
LEVELS = "1h 2h"


class Sent(NamedTuple):
    """A message as the test sent it."""

    due_ms: int
    unique_id: str
    topic: str
    level: int
    tag: str
    keys: list[str]
    delay_key: str


async def send_many(api: Asked, count: int, rng: random.Random) -> list[Sent]:
    """Send messages with a level, timed ones, and some without any of the properties."""
    sent = []
    now_ms = api.broker.now_ms()
    for number in range(count):
        topic, tag, level = rng.choice(("Orders", "Bills")), rng.choice(("red", "blue", "")), rng.choice((0, 0, 1, 2))
        keys = rng.sample(["customer-1", "customer-2", "ä"], rng.randrange(3))
        body: dict[str, object] = {"body": "m", "keys": keys}
        if tag:
            body["tags"] = tag
        delay_key = ""
        if level:
            body["delayLevel"] = level
        else:
            # Few due times, so that pages end between messages that are due together.
            body["deliverAtMs"] = now_ms + HOUR_MS + rng.randrange(20) * 60_000
            if rng.random() < 0.5:
                delay_key = body["delayKey"] = f"key-{number}"
        answer = await api.post(f"topics/{topic}/messages", body)
        [row] = (await api.get(f"messages?topic={topic}&key={answer['messageId']}"))["messages"]
        sent.append(Sent(row["dueMs"], answer["messageId"], topic, level, tag, keys, delay_key))
    return sent


async def pages(api: Asked, after: str | None = None, **query: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the unique ids on all pages after a token, and the pages."""
    found = []
    ids: list[str] = []
    while True:
        given = {name: value for name, value in {**query, "after": after}.items() if value is not None}
        page = await api.get(f"delay/pending/messages?{urlencode(given)}")
        found.append(page)
        ids += [row["messageId"] for row in page["messages"]]
        after = page["next"]
        assert page["truncated"] == (after is not None)
        if after is None:
            return ids, found


def matches(message: Sent, query: dict[str, Any]) -> bool:
    names = (message.unique_id, message.delay_key, *message.keys)
    return (
        query["topic"] in (None, message.topic)
        and (query["kind"] is None or (query["kind"] == "level") == bool(message.level))
        and query["tag"] in (None, message.tag)
        and (query["key"] is None or query["key"] in names)
        and (query["fromMs"] is None or message.due_ms >= query["fromMs"])
        and (query["untilMs"] is None or message.due_ms < query["untilMs"])
    )


@pytest.mark.parametrize("read", ["index", "messages"])
def test_pages_with_every_combination_of_filters_are_those_of_a_list(
    tmp_path: Path, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Keys with too many records are searched for by reading the messages, and each request reads few.
    if read == "messages":
        monkeypatch.setattr(pending_list, "_MAX_WITH_KEY", 1)
        monkeypatch.setattr(pending_list, "_READ_AT_ONCE", 7)
        monkeypatch.setattr(pending_list, "MAX_READ", 20)

    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level=LEVELS) as api:
            sent = await send_many(api, 120, random.Random(SEED))
            middle_ms = sorted(each.due_ms for each in sent)[60]
            of_key = next(each for each in sent if each.delay_key)
            choices = {
                "topic": (None, of_key.topic),
                "kind": (None, "level", "timed"),
                "tag": (None, "red"),
                "key": (None, "customer-1", "ä", of_key.delay_key, of_key.unique_id, "none"),
                "fromMs": (None, middle_ms),
                "untilMs": (None, middle_ms, middle_ms + 300_000),
            }
            for values in product(*choices.values()):
                query: dict[str, Any] = dict(zip(choices, values, strict=True))
                if query["key"] is not None and query["topic"] is None:
                    continue
                expected = [each for each in sent if matches(each, query)]
                ids, found = await pages(api, limit=9, **query)
                assert sorted(ids) == sorted(each.unique_id for each in expected), query
                dues = {each.unique_id: each.due_ms for each in sent}
                assert [dues[each] for each in ids] == sorted(dues[each] for each in ids), query
                for page in found:
                    assert page["total"] in (None, len(expected)), query
                    assert {row["state"] for row in page["messages"]} <= {"pending"}
                if query["tag"] is None and query["key"] is None:
                    assert found[0]["total"] == len(expected)
                    assert [len(page["messages"]) for page in found[:-1]] == [9] * (len(found) - 1)

    run(scenario)


def test_token_survives_changes_and_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        rng = random.Random(SEED)
        async with asked(tmp_path, message_delay_level=LEVELS) as api:
            sent = sorted(await send_many(api, 60, rng))
            first = await api.get("delay/pending/messages?limit=20")
        async with asked(tmp_path, message_delay_level=LEVELS) as api:
            changed = rng.sample(sent, 20)
            for number, each in enumerate(changed):
                change = {"topic": each.topic, "id": each.unique_id}
                kind = {"action": "cancel"} if number % 2 else {"action": "move", "delayMs": 10 * HOUR_MS}
                await api.post("delay/changes", {**change, **kind})
            await api.post("topics/Orders/messages", {"body": "earlier", "delayMs": HOUR_MS // 2})
            ids, _ = await pages(api, limit=7, after=first["next"])
        gone = {each.unique_id for each in changed}
        assert len(first["messages"]) == 20
        shown = {row["messageId"] for row in first["messages"]}
        unchanged = {each.unique_id for each in sent} - shown - gone
        assert sorted(each for each in ids if each not in gone) == sorted(unchanged)

    run(scenario)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("after=next", "send the value of next"),
        ("after=1.2", "send the value of next"),
        ("after=1.-2.00000000", "send the value of next"),
        ("after=1.2.00000000", "send the same filters with each page"),
        ("after=" + "9" * 70, "after"),
        ("key=k", "key requires topic"),
        ("topic=Orders&key=", "key"),
        ("tag=", "tag"),
        ("fromMs=-1", "fromMs"),
        ("limit=0", "limit"),
        ("level=1&kind=timed", "timed messages have no level"),
    ],
)
def test_wrong_parameters_are_rejected(tmp_path: Path, query: str, reason: str) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            refusal = await api.get(f"delay/pending/messages?{query}", 400)
            assert reason in refusal["error"]["message"]

    run(scenario)


def test_token_out_of_range_is_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await send_many(api, 3, random.Random(SEED))
            check = (await api.get("delay/pending/messages?limit=1"))["next"].split(".")[2]
            page = await api.get(f"delay/pending/messages?after={'9' * 25}.{'9' * 25}.{check}")
            assert (page["messages"], page["next"], page["total"]) == ([], None, 3)


@pytest.mark.parametrize("other", ["level=1", "kind=level", "topic=Orders", "tag=red", "fromMs=1", "untilMs=1"])
def test_token_of_another_list_is_rejected(tmp_path: Path, other: str) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await send_many(api, 3, random.Random(SEED))
            token = (await api.get("delay/pending/messages?limit=1"))["next"]
            assert len((await api.get(f"delay/pending/messages?limit=2&after={token}"))["messages"]) == 2
            refusal = await api.get(f"delay/pending/messages?limit=1&after={token}&{other}", 400)
            assert "from a list with other filters" in refusal["error"]["message"]

    run(scenario)


def test_message_is_found_by_its_delay_key_while_pending_and_afterwards(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            sent = await api.post("topics/Orders/messages", {"body": "m", "delayMs": HOUR_MS, "delayKey": "order 1"})
            for action, state in (("touch", "pending"), ("cancel", "cancelled")):
                await api.post("delay/changes", {"action": action, "topic": "Orders", "key": "order 1"})
                [row] = (await api.get("messages?topic=Orders&key=order%201"))["messages"]
                assert (row["messageId"], row["state"]) == (sent["messageId"], state)
                details = await api.get(f"messages/{row['offsetMessageId']}")
                assert details["life"][-1]["event"] == {"pending": "pending", "cancelled": "cancelled"}[state]

    run(scenario)


@pytest.mark.parametrize("delay", [{"delayMs": HOUR_MS}, {"delayLevel": 1}], ids=["timed", "level"])
def test_changed_message_is_found_with_its_body_and_keys(tmp_path: Path, delay: dict[str, int]) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level=LEVELS) as api:
            body = {"body": "the body", "keys": ["customer-1"], **delay}
            sent = await api.post("topics/Orders/messages", body)
            name = {"topic": "Orders", "id": sent["messageId"]}
            for action, state in (("move", "pending"), ("touch", "pending"), ("cancel", "cancelled")):
                change = {"action": action, **name, **({"delayMs": 3 * HOUR_MS} if action == "move" else {})}
                due_ms = (await api.post("delay/changes", change))["dueMs"]
                for key in (sent["messageId"], "customer-1"):
                    rows = (await api.get(f"messages?topic=Orders&key={key}"))["messages"]
                    [row] = rows
                    assert (row["messageId"], row["keys"], row["state"]) == (sent["messageId"], ["customer-1"], state)
                    assert due_ms in (None, row["dueMs"])
                details = await api.get(f"messages/{sent['messageId']}?topic=Orders")
                assert (details["state"], details["body"]["text"], details["keys"]) == (
                    state, "the body", ["customer-1"]
                )  # fmt: skip
                assert due_ms in (None, details["dueMs"])
                # As the console does, which links to the first record.
                by_offset = await api.get(f"messages/{sent['offsetMessageId']}")
                assert (by_offset["state"], by_offset["dueMs"]) == (details["state"], details["dueMs"])

    run(scenario)


def test_cancelled_message_with_a_level_is_shown_as_cancelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level=LEVELS) as api:
            sent = await api.post("topics/Orders/messages", {"body": "the body", "keys": ["k"], "delayLevel": 1})
            await api.post("delay/changes", {"action": "cancel", "topic": "Orders", "id": sent["messageId"]})
            for key in ("k", sent["messageId"]):
                [row] = (await api.get(f"messages?topic=Orders&key={key}"))["messages"]
                assert (row["state"], row["keys"], row["bytes"]) == ("cancelled", ["k"], 8)
            details = await api.get(f"messages/{sent['messageId']}?topic=Orders")
            assert (details["state"], details["body"]["text"]) == ("cancelled", "the body")

    run(scenario)


def test_tag_is_compared_with_properties_only_and_also_in_large_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level=LEVELS) as api:
            bodies = [("red", "m"), ("red", "m" * 200_000), ("reddish", "m"), ("", "TAGS\x01red\x02"), ("röt", "m")]
            for tag, body in bodies:
                tags = {"tags": tag} if tag else {}
                await api.post("topics/Orders/messages", {"body": body, "delayLevel": 1, **tags})
            for tag, expected in (("red", [1, 200_000]), ("reddish", [1]), ("röt", [1]), ("r", []), ("red\x02", [])):
                _, [page] = await pages(api, tag=tag)
                assert [row["bytes"] for row in page["messages"]] == expected, tag

    run(scenario)


@pytest.mark.parametrize("tag", [None, "red"])
def test_message_that_is_carried_forward_meanwhile_is_listed(
    tmp_path: Path, tag: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Selection.first

    async def with_former_records(*arguments: Any) -> list[Pending]:
        # As if the segments of the records had been deleted before they are read.
        return [entry._replace(record=-1) for entry in await first(*arguments)]

    monkeypatch.setattr(Selection, "first", with_former_records)

    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level=LEVELS) as api:
            for number in range(6):
                body = {"body": "m", "delayLevel": 1, "keys": [f"{number}"], "tags": ("red", "blue")[number % 2]}
                await api.post("topics/Orders/messages", body)
            query = {} if tag is None else {"tag": tag}
            _, [page] = await pages(api, **query)
            expected = range(6) if tag is None else range(0, 6, 2)
            assert [row["keys"] for row in page["messages"]] == [[f"{number}"] for number in expected]

    run(scenario)
