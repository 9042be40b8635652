"""/api/v1: topics, groups, messages with their history, pending messages, dead letters."""

import asyncio
import random
import threading
import zlib
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard
from delaymq.broker.delivery.level_entries import UNKNOWN_TOPIC
from delaymq.message import flags
from delaymq.message.properties import decode_properties
from delaymq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.server.api.routing import MAX_READS
from delaymq.server.log_reader import SHOWN_BODY_BYTES, LogFiles
from delaymq_testing.asked_api import Asked, asked
from delaymq_testing.running_server import BOUND_S, HOST, BrokerPeer, run, standalone, until

PACKERS: dict[int, Callable[[bytes], bytes]] = {
    0: zlib.compress,
    flags.COMPRESSION_ZLIB: zlib.compress,
    flags.COMPRESSION_LZ4: partial(lz4.frame.compress, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    flags.COMPRESSION_ZSTD: zstandard.ZstdCompressor().compress,
}
"""As RocketMQ's clients do it, by the bits of the system flag."""
KEY = "7F00000100002A9F18B4AAC2D1F20001"


def test_topics_are_paged_by_name_with_their_kind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            for name in ("Orders", "orders2", "Bills"):
                await api.peer.send(name)
            await api.peer.send("Orders", DELAY="2")
            first = await api.get("topics?limit=2")
            assert [row["topic"] for row in first["topics"]] == ["Bills", "Orders"]
            assert (first["total"], first["next"]) == (3, "Orders")
            rest = await api.get("topics?limit=2&after=Orders")
            assert [row["topic"] for row in rest["topics"]] == ["orders2"]
            assert rest["next"] is None
            found = (await api.get("topics?contains=ORDERS"))["topics"]
            assert [row["topic"] for row in found] == ["Orders", "orders2"]
            row = found[0]
            assert (row["messages"], row["stored"], row["pending"], row["permission"]) == (1, 2, 1, "rw")
            assert row["lastStoredMs"] == api.broker.store.store_time_of("Orders", 0, 0)
            assert "TBW102" in [row["topic"] for row in (await api.get("topics?kind=system"))["topics"]]
            details = await api.get("topics/Orders")
            assert details["queues"][0] == {
                "queueId": 0,
                "minOffset": 0,
                "maxOffset": 1,
                "lastStoredMs": row["lastStoredMs"],
            }
            assert (await api.get("topics/None", 404))["error"]["code"] == "no_such_topic"

    run(scenario)


def test_group_has_members_lag_and_progress(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            for _ in range(3):
                await api.peer.send("Orders")
            await api.commit("readers", "Orders", 2)
            consumer = ConsumerData(
                group_name="readers",
                consume_type="CONSUME_PASSIVELY",
                message_model="CLUSTERING",
                consume_from_where="CONSUME_FROM_LAST_OFFSET",
                subscription_data_set=[SubscriptionData("Orders", sub_string="a || b")],
                unit_mode=False,
            )
            beat = HeartbeatData(client_id="c1", producer_data_set=[], consumer_data_set=[consumer])
            await api.peer.connection.request(request_command(RequestCode.HEART_BEAT, {}, beat.encode()))
            row = (await api.get("groups?contains=READ"))["groups"][0]
            assert (row["group"], row["members"], row["lag"], row["model"]) == ("readers", 1, 1, "CLUSTERING")
            assert row["topics"] == ["%RETRY%readers", "Orders"] or row["topics"] == ["Orders"]
            group = await api.get("groups/readers")
            assert group["members"][0]["clientId"] == "c1"
            assert group["subscriptions"] == [{"topic": "Orders", "expression": "a || b", "type": "TAG"}]
            progress = next(each for each in group["progress"] if each["topic"] == "Orders")
            assert (progress["consumerOffset"], progress["maxOffset"], progress["lag"]) == (2, 3, 1)
            assert progress["lastConsumedMs"] == api.broker.store.store_time_of("Orders", 0, 1)
            assert (await api.get("topics/Orders"))["groups"] == ["readers"]
            assert (await api.get("groups/nobody", 404))["error"]["code"] == "no_such_group"

    run(scenario)


def test_messages_are_found_by_key_unique_id_and_time_newest_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, mapped_file_size_consume_queue=200) as api:
            for number in range(70):
                await api.peer.send("Orders", b"%d" % number, KEYS=f"all k{number}")
            await api.peer.send("Orders", b"later", KEYS="k3", UNIQ_KEY=KEY, DELAY="2")
            found = await api.get("messages?topic=Orders&key=k3")
            assert [(row["state"], row["keys"]) for row in found["messages"]] == [
                ("pending", ["k3"]),
                ("stored", ["all", "k3"]),
            ]
            assert found["truncated"] is False
            assert (await api.get("messages?topic=Orders&key=all"))["truncated"] is True
            assert [row["messageId"] for row in (await api.get(f"messages?topic=Orders&key={KEY}"))["messages"]] == [
                KEY
            ]
            newest = await api.get("messages?topic=Orders")
            assert [row["queueOffset"] for row in newest["messages"]] == list(range(69, 5, -1))
            assert newest["truncated"] is True
            times = [api.broker.store.store_time_of("Orders", 0, number) or 0 for number in range(70)]
            until_ms = times[20]
            older = await api.get(f"messages?topic=Orders&fromMs={times[10]}&toMs={until_ms}")
            expected = [number for number in range(70) if times[10] <= times[number] <= until_ms]
            assert [row["queueOffset"] for row in older["messages"]] == expected[::-1]
            assert (await api.get("messages?topic=Orders&fromMs=2&toMs=1"))["messages"] == []

    run(scenario)


def test_large_body_is_truncated_and_binary_is_base64(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            large = ("ä" * 100_000).encode()
            for body in (large, b"\xff\x00", "plain ä".encode()):
                await api.peer.send("Orders", body)
            rows = (await api.get("messages?topic=Orders"))["messages"]
            text, raw, cut = [(await api.get(f"messages/{row['offsetMessageId']}"))["body"] for row in rows]
            shown = {"bytes": 8, "truncated": False, "notUnpacked": None}
            assert text == {"text": "plain ä", "base64": None} | shown
            assert raw == {"text": None, "base64": "/wA="} | shown | {"bytes": 2}
            assert (cut["bytes"], cut["truncated"]) == (200_000, True)
            assert cut["text"] == "ä" * (64 * 1024 // 2)
            assert (await api.get("messages/" + "0" * 32, 404))["error"]["code"] == "no_such_message"

    run(scenario)


@pytest.mark.parametrize("kind", PACKERS)
def test_compressed_body_is_returned_inflated(tmp_path: Path, kind: int) -> None:
    pack, sys_flag = PACKERS[kind], flags.COMPRESSED | kind
    noise = random.Random(kind).randbytes(150_000).hex()

    async def scenario() -> None:
        async with asked(tmp_path) as api:

            async def body_of(stored: bytes, kept_flag: int = sys_flag) -> dict[str, Any]:
                await api.peer.send("Orders", stored, sys_flag=kept_flag)
                [row, *_] = (await api.get("messages?topic=Orders"))["messages"]
                found: dict[str, Any] = (await api.get(f"messages/{row['offsetMessageId']}"))["body"]
                return found

            text = "three short words " * 100
            whole = {"base64": None, "truncated": False, "notUnpacked": None}
            assert await body_of(pack(text.encode())) == whole | {"text": text, "bytes": len(text)}
            # It is longer than what is read of a body, and LZ4 packs it as one piece.
            packed = pack(noise.encode())
            assert len(packed) > 100_000
            cut = whole | {"text": noise[:SHOWN_BODY_BYTES], "bytes": len(packed), "truncated": True}
            assert await body_of(packed) == cut
            bomb = await body_of(pack(bytes(50 << 20)))
            assert (len(b64decode(bomb["base64"])), bomb["truncated"]) == (SHOWN_BODY_BYTES, True)
            damaged = await body_of(b"no such stream")
            assert (damaged["text"], damaged["bytes"]) == ("no such stream", 14)
            assert "compressed with" in damaged["notUnpacked"]

    run(scenario)


def test_body_of_unknown_compression_is_returned_as_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await api.peer.send("Orders", b"packed", sys_flag=flags.COMPRESSED | flags.COMPRESSION_MASK)
            [row] = (await api.get("messages?topic=Orders"))["messages"]
            body = (await api.get(f"messages/{row['offsetMessageId']}"))["body"]
            assert (body["text"], body["truncated"]) == ("packed", False)
            assert "unknown compression type" in body["notUnpacked"]

    run(scenario)


def test_message_history_reaches_from_store_to_dead_letter(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await api.post("delay/pause", {}, 202)
            await api.peer.send("Orders", b"x", UNIQ_KEY=KEY, DELAY="1")
            path = f"messages/{KEY}?topic=Orders"
            life = (await api.get(path))["life"]
            assert [event["event"] for event in life] == ["stored", "due", "pending"]
            # The due time is counted from when the message came: that may be a moment before it is stored.
            assert life[0]["atMs"] < life[1]["atMs"] <= life[0]["atMs"] + 1_000
            await api.post("delay/resume", {"overdue": "deliver"}, 202)
            assert (await api.peer.pull("Orders", 0)).code == 0
            await api.commit("readers", "Orders", 1)
            life = (await api.get(path))["life"]
            assert [event["event"] for event in life] == ["stored", "due", "delivered", "consumed"]
            assert life[2]["atMs"] >= life[1]["atMs"]
            assert (life[3]["group"], life[3]["atMs"]) == ("readers", None)
            copy = (await api.get(path))["physicalOffset"]
            await api.send_back("readers", copy, level=1)
            assert (await api.peer.pull("%RETRY%readers", 0)).code == 0
            rows = (await api.get(f"messages?topic={quote('%RETRY%readers')}"))["messages"]
            await api.send_back("readers", rows[0]["physicalOffset"], level=-1)
            life = (await api.get(path))["life"]
            assert [(event["event"], event["group"]) for event in life if event["group"]] == [
                ("consumed", "readers"),
                ("retried", "readers"),
                ("due", "readers"),
                ("delivered", "readers"),
                ("deadLettered", "readers"),
            ]
            times = [event["atMs"] for event in life if event["atMs"] is not None]
            assert times == sorted(times)

    run(scenario)


async def dead_letter(api: Asked, topic: str = "Orders", **properties: Any) -> str:
    """One dead letter of the group readers; its offset message id."""
    await api.peer.send(topic, b"bad", **properties)
    offset = (await api.get(f"messages?topic={topic}"))["messages"][0]["physicalOffset"]
    await api.send_back("readers", offset, level=-1)
    return str((await api.get(f"messages?topic={quote('%DLQ%readers')}"))["messages"][0]["offsetMessageId"])


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("properties", [{"UNIQ_KEY": KEY, "TAGS": "a"}, {}])
def test_dead_letter_is_resent_to_its_group_once(tmp_path: Path, flush: str, properties: dict[str, str]) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, flush_disk_type=flush) as api:
            dead = await dead_letter(api, **properties)
            body = {"messages": [{"offsetMessageId": dead}]}
            # Of two concurrent requests only one is sent.
            answers = await asyncio.gather(*(api.post("deadletters/readers/resend", body) for _ in range(2)))
            assert sorted(len(answer["resent"]) for answer in answers) == [0, 1]
            failed = next(answer["failed"] for answer in answers if answer["failed"])
            assert failed[0]["code"] == "resent_before"
            again = await api.get("messages?topic=" + quote("%RETRY%readers"))
            assert len(again["messages"]) == 1
            row = again["messages"][0]
            assert (row["reconsumeTimes"], row["tags"]) == (0, properties.get("TAGS"))
            assert row["properties"]["RETRY_TOPIC"] == "Orders"
            assert row["properties"]["__DMQ_RESENT"] == dead
            assert "DELAY" not in row["properties"]
            assert api.broker.store.flushed_offset > row["physicalOffset"] or flush == "ASYNC_FLUSH"
            pulled = await api.peer.pull("%RETRY%readers", 0)
            assert pulled.code == 0
            shown = (await api.get(f"messages?topic={quote('%DLQ%readers')}"))["messages"]
            assert shown[0]["resentMs"] == row["storedMs"]
            once_more = await api.post("deadletters/readers/resend", {**body, "again": True})
            assert len(once_more["resent"]) == 1

    run(scenario)


def test_second_dead_letter_of_a_message_may_be_resent_and_its_mark_ends_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            dead = await dead_letter(api, UNIQ_KEY=KEY)
            resent = (await api.post("deadletters/readers/resend", {"messages": [{"offsetMessageId": dead}]}))["resent"]
            offset = int(resent[0]["newOffsetMessageId"][-16:], 16)
            await api.send_back("readers", offset, level=-1)
            rows = (await api.get(f"messages?topic={quote('%DLQ%readers')}"))["messages"]
            assert len(rows) == 2
            assert "__DMQ_RESENT" not in rows[0]["properties"]
            body = {"messages": [{"offsetMessageId": rows[0]["offsetMessageId"]}]}
            assert len((await api.post("deadletters/readers/resend", body))["resent"]) == 1

    run(scenario)


def test_message_that_is_no_dead_letter_of_the_group_is_not_resent_with_a_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            await dead_letter(api)
            plain = (await api.get("messages?topic=Orders"))["messages"][0]["offsetMessageId"]
            body = {"messages": [{"offsetMessageId": plain}, {"offsetMessageId": "0" * 32}]}
            failed = (await api.post("deadletters/readers/resend", body))["failed"]
            assert [each["code"] for each in failed] == ["not_a_dead_letter", "no_such_message"]
            assert (await api.post("deadletters/nobody/resend", body, 404))["error"]["code"] == "no_such_group"
            bad: list[dict[str, Any]] = [
                {"messages": []},
                {"messages": [{"offsetMessageId": "x"}]},
                {},
                {"messages": [{}] * 65},
            ]
            for wrong in bad:
                await api.post("deadletters/readers/resend", wrong, 400)

    run(scenario)


def test_pending_messages_are_counted_by_level_topic_and_due_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1h 2h") as api:
            for topic, level in (("Orders", 1), ("Orders", 2), ("Bills", 2)):
                await api.peer.send(topic, DELAY=str(level))
            by_level = await api.get("delay/pending")
            assert [(row["level"], row["pending"]) for row in by_level["rows"]] == [(1, 1), (2, 2)]
            by_topic = await api.get("delay/pending?by=topic")
            assert [(row["topic"], row["pending"]) for row in by_topic["rows"]] == [("Orders", 2), ("Bills", 1)]
            assert (by_topic["total"], by_topic["complete"], by_topic["truncated"]) == (3, True, False)
            largest = await api.get("delay/pending?by=topic&limit=1")
            assert [len(largest["rows"]), largest["total"], largest["truncated"]] == [1, 3, True]
            assert by_topic["rows"][0]["nextDueMs"] == by_level["rows"][0]["nextDueMs"]
            of_level = await api.get("delay/pending?by=topic&level=2")
            assert [(row["topic"], row["pending"]) for row in of_level["rows"]] == [("Orders", 1), ("Bills", 1)]
            of_topic = await api.get("delay/pending?by=level&topic=Bills")
            assert [(row["level"], row["pending"]) for row in of_topic["rows"]] == [(2, 1)]
            assert of_topic["rows"][0]["nextDueMs"] >= by_level["rows"][1]["nextDueMs"]
            by_due = await api.get("delay/pending?by=due&bucketMs=60000")
            assert [row["pending"] for row in by_due["rows"]] == [1, 2]
            assert all(row["fromMs"] <= row["nextDueMs"] < row["toMs"] for row in by_due["rows"])
            soon = await api.get(f"delay/pending?by=due&untilMs={by_due['rows'][1]['fromMs']}")
            assert soon["total"] == 1
            assert (await api.get("delay/pending?by=due&topic=Bills"))["total"] == 1
            coming = (await api.get("delay/pending/messages"))["messages"]
            assert [(row["topic"], row["delayLevel"]) for row in coming] == [
                ("Orders", 1),
                ("Orders", 2),
                ("Bills", 2),
            ]

    run(scenario)


def test_search_counts_pending_messages_of_the_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1h 2h") as api:
            for topic in ("Orders", "Orders", "Bills"):
                await api.peer.send(topic, DELAY="1", KEYS="k")
            none = await api.get("messages?topic=Orders")
            assert (none["messages"], none["pending"]) == ([], 2)
            by_key = await api.get("messages?topic=Orders&key=k")
            assert ([row["state"] for row in by_key["messages"]], by_key["pending"]) == (["pending"] * 2, 2)
            await api.peer.send("Paid")
            assert (await api.get("messages?topic=Paid"))["pending"] == 0
            partitions = api.broker.delivery.timeline.partitions
            partitions.count(partitions.number(UNKNOWN_TOPIC, level=1), 0, 1, 100)
            assert (await api.get("messages?topic=Orders"))["pending"] is None

    run(scenario)


def test_list_of_pending_messages_respects_topic_and_reports_omissions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path, message_delay_level="1h 2h") as api:
            for _ in range(110):
                await api.peer.send("Orders", DELAY="1")
            for level in (2, 1):
                await api.peer.send("Bills", DELAY=str(level))
            whole = await api.get("delay/pending/messages?limit=200")
            assert [len(whole["messages"]), whole["total"], whole["truncated"], whole["limit"]] == [100, 112, True, 100]
            some = await api.get("delay/pending/messages?limit=5&level=1")
            assert [len(some["messages"]), some["total"], some["truncated"], some["limit"]] == [5, 111, True, 5]
            bills = await api.get("delay/pending/messages?topic=Bills")
            assert [(row["topic"], row["delayLevel"]) for row in bills["messages"]] == [("Bills", 1), ("Bills", 2)]
            assert [bills["total"], bills["truncated"], bills["complete"]] == [2, False, True]
            levels = (await api.get("delay/pending?by=level&topic=Bills"))["rows"]
            assert [row["nextDueMs"] for row in levels] == [row["dueMs"] for row in bills["messages"]]
            none = await api.get("delay/pending/messages?topic=Nobody")
            assert [none["messages"], none["total"], none["truncated"]] == [[], 0, False]

    run(scenario)


def test_pending_messages_from_before_a_start_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            for number in range(300):
                await api.peer.send(f"T{number % 3}", b"x" * 10_000, DELAY="2")
        async with asked(tmp_path) as api:
            await api.peer.send("T0", DELAY="2")
            answer = await api.get("delay/pending?by=topic")
            counts = {row["topic"]: row["pending"] for row in answer["rows"]}
            assert counts == {"T0": 101, "T1": 100, "T2": 100}
            assert answer["complete"] is True

    run(scenario)


def test_wrong_unknown_or_repeated_parameter_is_rejected_clearly(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            for path in ("topics?limit=0", "topics?limit=1001", "topics?lmit=5", "topics?limit=1&limit=2", "messages"):
                error = (await api.get(path, 400))["error"]
                assert error["code"] == "bad_request"
                assert len(error["message"]) > 20

    run(scenario)


def test_cluster_comes_from_a_nameserver_or_is_this_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server, aiohttp.ClientSession() as session:
            url = f"http://{HOST}:{server.broker.http_port}/api/v1/cluster"
            for expected in (True, False):
                async with session.get(url) as answer:
                    told = await answer.json()
                assert [row["brokerName"] for row in told["brokers"]] == ["broker-a"]
                assert told["nameServers"][0]["registered"] is expected
                link = server.broker.registration.links[0]
                link.problem = "it sleeps"
                link.announce(request_command(RequestCode.HEART_BEAT, {}))

    run(scenario)


def test_invalid_utf8_properties_are_shown(tmp_path: Path) -> None:
    assert decode_properties(b"KEYS\x01\xff") == {"KEYS": "\udcff"}
    from delaymq.server.log_reader import clean_text

    assert clean_text("\udcff") == "�"


def test_totals_are_returned_while_history_readers_are_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    reading: list[int] = []

    def waits(files: LogFiles, offsets: list[int]) -> list[None]:
        reading.append(len(offsets))
        let_go.wait(BOUND_S)
        return [None for _ in offsets]

    monkeypatch.setattr(LogFiles, "records", waits)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server, aiohttp.ClientSession() as session:
            url = f"http://{HOST}:{server.broker.http_port}/api/v1"
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            searches = [asyncio.create_task(_status(session, f"{url}/messages?topic=T")) for _ in range(MAX_READS)]
            try:
                await until(lambda: len(reading) == MAX_READS)
                assert await _status(session, f"{url}/totals") == 200
            finally:
                let_go.set()
            assert await asyncio.gather(*searches) == [200] * MAX_READS

    run(scenario)


async def _status(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        return answer.status
