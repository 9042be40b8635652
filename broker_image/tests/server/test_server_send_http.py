"""POST /api/v1/topics/{topic}/messages follows the rules of a send over the remoting protocol."""

import asyncio
import threading
from base64 import b64encode
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delaymq.api_types.sends import SendBody
from delaymq.broker.admin.drain import DrainMode
from delaymq.http_client import HttpClient, RefusedError
from delaymq.message import names
from delaymq.message.properties import MAX_PROPERTIES_BYTES
from delaymq.server.api.messages import large_bodies
from delaymq.store.message_store import MessageStore
from delaymq.store.model import DiskState
from delaymq_testing.broker.harness import records_of
from delaymq_testing.http_sender import sender
from delaymq_testing.running_server import HOST, BrokerPeer, run, until

JSON = {"Content-Type": "application/json"}
SYNC: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH"}


def test_message_is_stored_as_sent_and_found_by_its_id_and_keys(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path) as http:
            status, answer = await http.post(
                "Orders",
                {"body": "grün\n", "tags": "paid", "keys": ["k1", "k2"], "properties": {"a": "b c", "ä": "ö"}},
            )
            assert status == 200
            assert (answer["dueMs"], answer["recallHandle"]) == (None, None)
            record = http.record(answer["offsetMessageId"])
            assert (record.topic, record.body) == ("Orders", "grün\n".encode())
            assert (record.queue_id, record.queue_offset) == (answer["queueId"], answer["queueOffset"])
            stored = {"TAGS": "paid", "KEYS": "k1 k2", "a": "b c", "ä": "ö", "CLUSTER": "DefaultCluster"}
            assert record.properties == stored | {"UNIQ_KEY": answer["messageId"]}
            assert record.born_host[:4] == bytes([127, 0, 0, 1])
            for path in (
                f"messages?topic=Orders&key={answer['messageId']}",
                "messages?topic=Orders&key=k2",
            ):
                async with http.session.get(http.url + path) as found:
                    rows = (await found.json())["messages"]
                    assert [row["offsetMessageId"] for row in rows] == [answer["offsetMessageId"]]

    run(scenario)


def test_binary_bodies_queues_and_empty_bodies_are_accepted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path) as http:
            data = bytes(range(256))
            _, answer = await http.post("Orders", {"bodyBase64": b64encode(data).decode(), "queueId": 3})
            assert (answer["queueId"], answer["queueOffset"]) == (3, 0)
            assert http.record(answer["offsetMessageId"]).body == data
            _, answer = await http.post("Orders", {"body": "", "keys": [], "properties": {}, "queueId": 3})
            assert (answer["queueId"], answer["queueOffset"]) == (3, 1)
            assert http.record(answer["offsetMessageId"]).body == b""
            ids = {(await http.post("Orders", {"body": "x"}))[1]["messageId"] for _ in range(20)}
            assert len(ids) == 20

    run(scenario)


def test_held_pull_receives_a_message_sent_over_http(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path) as http:
            assert (await http.post("Orders", {"body": "first", "queueId": 0}))[0] == 200
            peer = await BrokerPeer.connect(http.server.port)
            waiting = peer.pull("Orders", 1)
            await until(lambda: len(http.server.held_pulls) == 1)
            assert (await http.post("Orders", {"body": "second", "queueId": 0}))[0] == 200
            assert [record.body for record in records_of((await waiting).body)] == [b"second"]

    run(scenario)


def test_message_with_a_level_is_delivered_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path, message_delay_level="1s 1h") as http:
            status, answer = await http.post("Orders", {"body": "later", "queueId": 0, "delayLevel": 1})
            assert (status, answer["queueId"]) == (200, 0)
            pending = http.record(answer["offsetMessageId"])
            assert (pending.topic, pending.properties["REAL_TOPIC"]) == (names.SCHEDULE_TOPIC, "Orders")
            peer = await BrokerPeer.connect(http.server.port)
            (delivered,) = records_of((await peer.pull("Orders", 0)).body)
            assert delivered.body == b"later"
            assert delivered.properties["UNIQ_KEY"] == answer["messageId"]
            assert delivered.store_timestamp_ms >= pending.store_timestamp_ms + 1_000

    run(scenario)


def test_rejections_have_the_brokers_reason_and_store_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path, max_message_size=1_000, message_delay_level="1h") as http:
            assert (await http.post("Orders", {"body": "x" * 1_000}))[0] == 200
            refused = http.broker.stats.refused
            for topic, body, status, code, hint in (
                ("Orders", {"body": "x" * 1_001}, 413, "message_too_large", "exceeds maxMessageSize=1000"),
                ("Orders", {"body": "x", "queueId": 4}, 404, "no_such_queue", "request queueId[4] is illegal"),
                (names.SCHEDULE_TOPIC, {"body": "x"}, 403, "no_permission", "is forbidden"),
                (names.HALF_TOPIC, {"body": "x"}, 403, "no_permission", "is forbidden"),
                (names.MARKS_TOPIC, {"body": "x"}, 404, "no_such_topic", "not exist"),
                ("%RETRY%" + "g" * 200, {"body": "x"}, 400, "bad_request", "longer than topic max length"),
                (
                    *("Orders", {"body": "x", "properties": {"n": "v" * MAX_PROPERTIES_BYTES}}),
                    *(400, "message_illegal", "the properties have"),
                ),
                (
                    *("Orders", {"body": "x", "delayLevel": 1, "properties": {"n": "v" * (MAX_PROPERTIES_BYTES - 99)}}),
                    *(400, "message_illegal", "propert"),
                ),
            ):
                before = sum(refused.values())
                got = await http.refused(topic, body)
                assert got[:2] == (status, code), got
                assert hint in got[2]
                # Rejections by the broker are counted like those of other sends.
                assert sum(refused.values()) - before == (code != "bad_request")
            for text in ("a b", "Ord\x00ers", "ö"):
                assert (await http.refused(text, {"body": "x"}))[:2] == (400, "bad_request")
            async with http.session.post(f"{http.url}topics/Orders/messages?delayMs=1", json={"body": "x"}) as answer:
                assert answer.status == 400

    run(scenario)


def test_topics_are_created_within_the_limits_of_one_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path, auto_create_max_per_connection=2) as http:
            assert (await http.post("A", {"body": "x"}))[0] == 200
            assert http.broker.topics.table["A"].write_queue_nums == 4
            async with aiohttp.ClientSession() as other:
                http.session = other
                assert (await http.post("B", {"body": "x"}))[0] == 200
                status, code, message = await http.refused("C", {"body": "x"})
                assert (status, code) == (404, "no_such_topic")
                assert "autoCreateMaxPerConnection" in message
                assert (await http.post("A", {"body": "x"}))[0] == 200
        async with sender(tmp_path, auto_create_topic_enable=False) as http:
            assert (await http.refused("C", {"body": "x"}))[:2] == (404, "no_such_topic")
            assert "C" not in http.broker.topics.table

    run(scenario)


def test_drained_full_and_read_only_brokers_reject_sends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path) as http:
            assert (await http.post("Orders", {"body": "x"}))[0] == 200
            http.broker.set_drain(DrainMode.REFUSE, 60_000)
            assert (await http.refused("Orders", {"body": "x"}))[:2] == (503, "service_not_available")
            http.broker.set_drain(DrainMode.NONE)
            http.broker.store._retention.disk = DiskState(0.99, writes_refused=True)
            status, code, message = await http.refused("Orders", {"body": "x"})
            assert (status, code) == (503, "service_not_available")
            assert "free space" in message
        async with sender(tmp_path, read_only=True) as http:
            assert (await http.refused("Orders", {"body": "x"}))[:2] == (409, "read_only")

    run(scenario)


def test_token_is_required_and_sufficient_with_access_control(tmp_path: Path) -> None:
    async def scenario() -> None:
        rules = tmp_path / "plain_acl.yml"
        rules.write_text("accounts:\n- {accessKey: someone, secretKey: something, topicPerms: [Orders=DENY]}\n")
        settings = {"acl_enable": True, "acl_config_path": str(rules), "http_token": "t0ken"}
        async with sender(tmp_path, **settings) as http:
            end = http.broker.store.end_offset
            for authorization, code in (("", "sign_in_needed"), ("Bearer other", "unauthorized")):
                header = {"Authorization": authorization} if authorization else {}
                status, answer = await http.post("Orders", {"body": "x"}, **header)
                assert (status, answer["error"]["code"]) == (401, code)
            assert http.broker.store.end_offset == end
            assert (await http.post("Orders", {"body": "x"}, Authorization="Bearer t0ken"))[0] == 200

    run(scenario)


def test_pages_of_other_sites_cannot_send(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path) as http:
            url = http.url + "topics/Orders/messages"
            for headers, status in (
                ({"Content-Type": "text/plain"}, 415),
                (JSON | {"Origin": "http://attacker.example"}, 403),
                (JSON | {"Host": "attacker.example"}, 403),
            ):
                async with http.session.post(url, data=b'{"body":"x"}', headers=headers) as answer:
                    assert answer.status == status
            assert "Orders" not in http.broker.topics.table

    run(scenario)


class HeldSync:
    """A sync that lasts until the test permits its end."""

    def __init__(self, task: Any, may_end: threading.Event) -> None:
        self._task = task
        self._may_end = may_end

    def run(self) -> None:
        self._may_end.wait(30)
        self._task.run()

    def finish(self) -> Any:
        return self._task.finish()


@pytest.fixture
def may_sync(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Syncs of the log end only while it is set, as it is at first."""
    may_end = threading.Event()
    may_end.set()
    flush_task = MessageStore.flush_task

    def held(store: MessageStore) -> Any:
        task = flush_task(store)
        return None if task is None else HeldSync(task, may_end)

    monkeypatch.setattr(MessageStore, "flush_task", held)
    return may_end


def test_response_of_a_sync_flush_broker_waits_for_the_disk(tmp_path: Path, may_sync: threading.Event) -> None:
    async def scenario() -> None:
        async with sender(tmp_path, **SYNC) as http:
            store = http.broker.store
            may_sync.clear()
            try:
                waiting = asyncio.ensure_future(http.post("Orders", {"body": "x"}))
                await until(lambda: http.server.flushing.waiting == 1)
                await asyncio.sleep(0.01)
                assert not waiting.done()
                assert store.flushed_offset < store.end_offset
            finally:
                may_sync.set()
            assert (await waiting)[0] == 200
            assert store.flushed_offset == store.end_offset

    run(scenario)


def test_late_flush_is_reported_with_the_id_of_the_stored_message(tmp_path: Path, may_sync: threading.Event) -> None:
    async def scenario() -> None:
        async with sender(tmp_path, sync_flush_timeout=100, **SYNC) as http:
            may_sync.clear()
            try:
                status, answer = await http.post("Orders", {"body": "x", "queueId": 0})
            finally:
                may_sync.set()
            assert (status, answer["error"]["code"]) == (503, "not_flushed")
            peer = await BrokerPeer.connect(http.server.port)
            (record,) = records_of((await peer.pull("Orders", 0)).body)
            assert f"the message {record.properties['UNIQ_KEY']} is stored" in answer["error"]["message"]

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "remark"),
    [
        ({"os_page_cache_busy_time_out_mills": 1}, "[REJECTREQUEST]"),
        ({"send_thread_pool_queue_capacity": 1}, "[OVERLOAD]"),
    ],
)
def test_sends_are_rejected_while_the_disk_hangs(
    tmp_path: Path, may_sync: threading.Event, settings: dict[str, Any], remark: str
) -> None:
    async def scenario() -> None:
        async with sender(tmp_path, sync_flush_timeout=60_000, **SYNC, **settings) as http:
            may_sync.clear()
            try:
                waiting = asyncio.ensure_future(http.post("Orders", {"body": "x"}))
                await until(lambda: http.server.flushing.waiting == 1)
                await asyncio.sleep(0.01)  # the disk counts as busy after a millisecond
                status, code, message = await http.refused("Orders", {"body": "x"})
                assert (status, code) == (503, "busy")
                assert message.startswith(remark)
            finally:
                may_sync.set()
            assert (await waiting)[0] == 200

    run(scenario)


def test_largest_message_is_accepted_in_base64_and_larger_requests_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path) as http:
            data = bytes(range(256)) * (http.broker.max_message_size // 256)
            status, answer = await http.post("Orders", {"bodyBase64": b64encode(data).decode()})
            assert status == 200
            assert http.record(answer["offsetMessageId"]).body == data
            status, code, _ = await http.refused("Orders", {"body": "x" * large_bodies.MAX_BODY_BYTES})
            assert (status, code) == (413, "request_entity_too_large")

    run(scenario)


def test_total_size_of_concurrent_requests_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "MAX_TOTAL_BYTES", 100_000)

    async def scenario() -> None:
        async with sender(tmp_path) as http:
            _, held = await asyncio.open_connection(HOST, http.server.http_port)
            head = f"POST /api/v1/topics/T/messages HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            held.write(f"{head}Content-Length: 90000\r\n\r\n".encode() + b'{"body":"' + b"x" * 80_000)
            large = {"body": "x" * 50_000}
            # The first part of the other body arrives after some time.
            assert await http.until_status(503, large) == "busy"
            assert (await http.post("Orders", {"body": "small"}))[0] == 200
            held.close()
            await http.until_status(200, large)

    run(scenario)


def test_late_and_wrongly_encoded_bodies_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from delaymq.server.http import http_server

    async def scenario() -> None:
        async with sender(tmp_path) as http:
            url = http.url + "topics/Orders/messages"
            headers = JSON | {"Content-Encoding": "gzip"}
            async with http.session.post(url, data=b"no gzip", headers=headers, compress=None) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad_request")
            monkeypatch.setattr(http_server, "BODY_TIMEOUT_S", 0.2)
            reader, writer = await asyncio.open_connection(HOST, http.server.http_port)
            head = f"POST /api/v1/topics/T/messages HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: 50\r\n\r\n{{".encode())
            assert (await reader.readuntil(b"\r\n")).split()[1] == b"408"
            writer.close()

    run(scenario)


def test_client_sends_and_reports_rejections(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sender(tmp_path, message_delay_level="1h") as http:
            client = HttpClient(http.url.removesuffix("/api/v1/"), timeout_s=20, max_answer_bytes=1 << 16)
            message = SendBody(body_base64=b"\xff", keys=["k"], properties={"a": "b"}, delay_level=1)
            answer = await asyncio.to_thread(client.send_message, "%RETRY%G", SendBody(body="x"))
            assert http.record(answer.offset_message_id).topic == "%RETRY%G"
            answer = await asyncio.to_thread(client.send_message, "Orders", message)
            record = http.record(answer.offset_message_id)
            assert (record.body, record.properties["DELAY"], record.properties["a"]) == (b"\xff", "1", "b")
            with pytest.raises(RefusedError, match="queueId") as refused:
                await asyncio.to_thread(client.send_message, "Orders", SendBody(body="x", queue_id=16_383))
            assert (refused.value.reply.status, refused.value.reply.problem.code) == (404, "no_such_queue")

    run(scenario)
