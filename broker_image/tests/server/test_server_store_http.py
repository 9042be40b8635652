"""/api/v1/store: remote reads of a running broker's store, and their limits."""

import asyncio
import errno
import json
import socket
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delaymq.message.record import Record, encode_record
from delaymq.server.api.store import endpoints as store_http
from delaymq.server.api.store import segments
from delaymq.server.api.store.segments import RangeError, parse_range
from delaymq.server.standalone import Standalone
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import StoreReader
from delaymq.store.segments import segment_name
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone, until

SEGMENT_BYTES = 64 * 1024
SMALL_SEGMENTS = {"mapped_file_size_commit_log": SEGMENT_BYTES, "max_message_size": 32 * 1024}
HOUR_MS = 3_600_000


async def get(
    server: Standalone, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body, headers."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{HOST}:{server.broker.http_port}{path}", headers=headers) as answer,
    ):
        return answer.status, await answer.read(), dict(answer.headers)


async def get_json(server: Standalone, path: str) -> Any:
    status, body, _ = await get(server, path)
    assert status == 200, body
    return json.loads(body)


def store_of(server: Standalone) -> MessageStore:
    return server.broker.broker.store


def error_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


async def fill(server: Standalone, count: int, body: bytes = b"x" * 2_000) -> None:
    peer = await BrokerPeer.connect(server.broker.port)
    for number in range(count):
        assert (await peer.send("T", body, KEYS=f"k{number}")).code == 0


def on_disk(store: MessageStore, base: int) -> bytes:
    return Path(store.path, "commitlog", segment_name(base)).read_bytes()


def records_of(store: MessageStore) -> dict[int, Record]:
    return {record.physical_offset: record for record in StoreReader(store.path).records()}


def test_listed_segments_cover_the_log_and_its_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, broker_name="b7", file_reserved_time=48, **SMALL_SEGMENTS) as server:
            await fill(server, 100)
            store = store_of(server)
            told = await get_json(server, "/api/v1/store")
            assert (told["formatVersion"], told["minimumReader"]) == (1, 1)
            assert (told["storeId"], told["brokerName"], told["inUse"]) == (store.store_id, "b7", True)
            assert (told["messageDelayLevel"].split()[0], told["fileReservedTimeHours"]) == ("1s", 48)
            assert (told["startOffset"], told["endOffset"]) == (0, store.end_offset)
            segments = told["segments"]
            assert [each["name"] for each in segments] == [segment_name(each["offset"]) for each in segments]
            assert len(segments) == 4
            store.raise_format_version(2)
            raised = await get_json(server, "/api/v1/store")
            assert (raised["formatVersion"], raised["minimumReader"]) == (1, 2)
            assert [each["bytes"] for each in segments[:-1]] == [SEGMENT_BYTES] * 3
            assert segments[-1]["offset"] + segments[-1]["bytes"] == store.end_offset
            for each in segments:
                status, body, headers = await get(server, f"/api/v1/store/segments/{each['name']}")
                assert (status, headers["DelayMQ-Store-Id"]) == (200, store.store_id)
                assert body == on_disk(store, each["offset"])[: each["bytes"]]

    run(scenario)


def test_empty_log_has_no_segments(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            told = await get_json(server, "/api/v1/store")
            assert (told["segments"], told["startOffset"], told["endOffset"]) == ([], 0, 0)
            status, body, _ = await get(server, f"/api/v1/store/segments/{segment_name(0)}")
            assert (status, error_of(body)) == (404, "no_such_segment")

    run(scenario)


def test_unconfirmed_data_is_neither_listed_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, **SMALL_SEGMENTS) as server:
            await fill(server, 50)
            store = store_of(server)
            confirmed = sorted(records_of(store))[5]
            monkeypatch.setattr(MessageStore, "confirmed_offset", property(lambda self: confirmed))
            told = await get_json(server, "/api/v1/store")
            assert told["endOffset"] == confirmed
            assert told["segments"] == [{"name": segment_name(0), "offset": 0, "bytes": confirmed}]
            path = f"/api/v1/store/segments/{segment_name(0)}"
            assert len((await get(server, path))[1]) == confirmed
            assert len((await get(server, path, Range=f"bytes=0-{SEGMENT_BYTES}"))[1]) == confirmed
            assert (await get(server, path, Range=f"bytes={confirmed}-"))[0] == 416
            assert (await get(server, f"/api/v1/store/segments/{segment_name(SEGMENT_BYTES)}"))[0] == 404
            starts = await get_json(server, f"{path}/starts?every=4096")
            assert max(starts["starts"]) < confirmed

    run(scenario)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, None),
        ("lines=1-2", None),
        ("bytes=0-0", (0, 1)),
        ("bytes=10-19", (10, 20)),
        ("Bytes=10-19", (10, 20)),
        ("bytes=90-", (90, 100)),
        ("bytes=99-500", (99, 100)),
        ("bytes=-1", (99, 100)),
        ("bytes=-500", (0, 100)),
        ("bytes=100-", RangeError),
        ("bytes=-0", RangeError),
        ("bytes=20-10", RangeError),
        ("bytes=0-1,5-6", RangeError),
        ("bytes=-", RangeError),
        ("bytes=a-b", RangeError),
        ("bytes=+1-2", RangeError),
        ("bytes=99999999999999999999-", RangeError),
    ],
)
def test_range_is_parsed_or_rejected(header: str | None, found: tuple[int, int] | type[Exception] | None) -> None:
    if found is RangeError:
        with pytest.raises(RangeError):
            parse_range(header, 100)
    else:
        assert parse_range(header, 100) == found


def test_range_and_head_requests_follow_http(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            await fill(server, 300)
            path = f"/api/v1/store/segments/{segment_name(0)}"
            status, whole, headers = await get(server, path)
            assert (status, headers["Accept-Ranges"], len(whole)) == (200, "bytes", store_of(server).end_offset)
            # Longer than one chunk.
            status, body, headers = await get(server, path, Range="bytes=1000-500999")
            assert (status, headers["Content-Range"]) == (206, f"bytes 1000-500999/{len(whole)}")
            assert (headers["Content-Length"], body) == ("500000", whole[1000:501000])
            assert (await get(server, path, Range="bytes=-7"))[1] == whole[-7:]
            status, body, headers = await get(server, path, Range=f"bytes={len(whole)}-")
            assert (status, error_of(body)) == (416, "range_not_satisfiable")
            assert headers["Content-Range"] == f"bytes */{len(whole)}"
            status, body, headers = await get(server, path, method="HEAD", Range="bytes=0-1")
            assert (status, body, headers["Content-Length"]) == (200, b"", str(len(whole)))

    run(scenario)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (segment_name(SEGMENT_BYTES * 1000), "no_such_segment"),
        (segment_name(17), "segment_gone"),
        (segment_name(0), "segment_gone"),
        ("0", "no_such_segment"),
        ("state.json", "no_such_segment"),
        ("..%2f..%2flock", "no_such_segment"),
    ],
)
def test_missing_segment_is_a_404_that_states_whether_it_existed(tmp_path: Path, name: str, code: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, **SMALL_SEGMENTS) as server:
            await fill(server, 60)
            store = store_of(server)
            await until(lambda: store.flushed_offset > SEGMENT_BYTES)
            assert store.clean(store.last_store_timestamp_ms + 100 * HOUR_MS, at_any_hour=True)
            for path in (f"/api/v1/store/segments/{name}", f"/api/v1/store/segments/{name}/starts?every=4096"):
                status, body, _ = await get(server, path)
                assert (status, error_of(body)) == (404, code)
            told = await get_json(server, "/api/v1/store")
            assert told["segments"][0]["offset"] == told["startOffset"] == SEGMENT_BYTES

    run(scenario)


def test_segment_deleted_during_a_read_is_sent_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaymq.server.api.store.segments.CHUNK_BYTES", 4_096)
    read_chunk = segments.read_chunk
    reading, may_go_on = threading.Event(), threading.Event()

    def pausing(descriptor: int, position: int, end: int) -> bytes:
        if position >= 8_192 and not reading.is_set():
            reading.set()
            may_go_on.wait(20)
        return read_chunk(descriptor, position, end)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True, **SMALL_SEGMENTS) as server:
            await fill(server, 60)
            store = store_of(server)
            await until(lambda: store.flushed_offset > SEGMENT_BYTES)
            expected = on_disk(store, 0)
            monkeypatch.setattr(store_http, "read_chunk", pausing)
            under_way = asyncio.create_task(get(server, f"/api/v1/store/segments/{segment_name(0)}"))
            await until(reading.is_set)
            assert store.clean(store.last_store_timestamp_ms + 100 * HOUR_MS, at_any_hour=True)
            may_go_on.set()
            assert (await under_way)[:2] == (200, expected)

    run(scenario)


def test_starts_are_records_at_regular_distances(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, **SMALL_SEGMENTS) as server:
            await fill(server, 60)
            for base in (0, SEGMENT_BYTES):
                path = f"/api/v1/store/segments/{segment_name(base)}/starts"
                starts = (await get_json(server, f"{path}?every=10000"))["starts"]
                assert starts[0] == base
                assert set(starts) <= set(records_of(store_of(server)))
                gaps = [after - before for before, after in pairwise(starts)]
                assert len(gaps) >= 4
                assert all(10_000 <= gap < 13_000 for gap in gaps)
            for stated in ("", "0", "-4096", "4095", "many", "9" * 30, "4096.5"):
                status, body, _ = await get(server, f"{path}?every={stated}")
                assert (status, error_of(body)) == (400, "bad_request")

    run(scenario)


def test_body_resembling_a_record_is_no_start(tmp_path: Path) -> None:
    def forged(at: int) -> bytes:
        return encode_record(
            topic=b"T", queue_id=0, queue_offset=0, physical_offset=at, flag=0, sys_flag=0, born_timestamp_ms=1,
            born_host=bytes(8), store_timestamp_ms=2, store_host=bytes(8), reconsume_times=0,
            prepared_transaction_offset=0, body=b"forged", properties=b"",
        )  # fmt: skip

    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            # Wherever the body will stand, at one place of it the forged record states where it is.
            await fill(server, 3)
            store = store_of(server)
            size = len(forged(0))
            body_at = store.end_offset + 88
            body = b"".join(forged(body_at + number * size) for number in range(100))
            await fill(server, 1, body)
            await fill(server, 3)
            found = records_of(store)
            big = next(record for record in found.values() if record.body == body)
            segment = on_disk(store, 0)
            assert segment[body_at : body_at + size] == forged(body_at)
            starts = (await get_json(server, f"/api/v1/store/segments/{segment_name(0)}/starts?every=4096"))["starts"]
            assert set(starts) <= set(found)
            assert any(start > big.physical_offset for start in starts)

    run(scenario)


def test_positions_equal_the_brokers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, message_delay_level="1s 1h") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            broker = server.broker.broker
            await peer.send("T")
            await peer.send("T", DELAY="1")
            await peer.send("T", DELAY="2")
            await peer.send("Ü")
            await peer.send("Gone")
            await until(lambda: broker.delivery.delay_offsets().get(1) == 1)
            broker.store.delete_topic("Gone")
            broker.offsets.commit("T", "G", 0, 1)
            broker.offsets.commit("T", 'a"b\\', 0, 2, own=True)
            told = await get_json(server, "/api/v1/store/positions")
            assert told["delayOffsets"] == {"1": 1, "2": 0}
            assert told["consumerOffsets"] == {"T@G": {"0": 1}, 'T@a"b\\': {"0": 2}}
            assert told["deletedTopics"] == dict(broker.store.deleted_topics)
            assert set(told["deletedTopics"]) == {"Gone"}
            assert {(topic, queue): (low, high) for topic, queue, low, high in told["queues"]} == {
                key: broker.store.queue_bounds(*key) for key in broker.store.queues()
            }
            assert ["T", 0, 0, 2] in told["queues"]
            assert (told["storeId"], told["endOffset"]) == (broker.store.store_id, broker.store.end_offset)

    run(scenario)


@pytest.mark.parametrize("what", ["positions", "files"])
def test_positions_and_files_of_thousands_of_queues_yield_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            broker = server.broker.broker
            for number in range(3_000):
                broker.offsets.commit(f"Tópic{number}", "G", number, number)
            slices = 0
            sleep = asyncio.sleep

            async def counted(seconds: float) -> None:
                nonlocal slices
                slices += seconds == 0
                await sleep(seconds)

            monkeypatch.setattr(store_http, "SLICE_BYTES", 1_000)
            monkeypatch.setattr(store_http, "QUOTED_AT_ONCE", 1_000)
            monkeypatch.setattr(asyncio, "sleep", counted)
            told = await get_json(server, f"/api/v1/store/{what}")
            if what == "files":
                assert json.loads(told["files"]["config/consumerOffset.json"]) == {
                    "offsetTable": {
                        key: {str(queue): offset for queue, offset in queues.items()}
                        for key, queues in broker.offsets.table.items()
                    }
                }
                assert told["logEndOffset"] == broker.store.end_offset
            else:
                assert len(told["consumerOffsets"]) == 3_000
            assert slices > 30

    run(scenario)


def test_excess_readers_get_retry_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_http, "MAX_WAIT_S", 0.05)
    read_chunk, may_go_on = segments.read_chunk, threading.Event()
    at_once, most = 0, 0
    lock = threading.Lock()

    def pausing(descriptor: int, position: int, end: int) -> bytes:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        may_go_on.wait(20)
        with lock:
            at_once -= 1
        return read_chunk(descriptor, position, end)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            await fill(server, 5)
            monkeypatch.setattr(store_http, "read_chunk", pausing)
            path = f"/api/v1/store/segments/{segment_name(0)}"
            readers = [asyncio.create_task(get(server, path)) for _ in range(store_http.MAX_READS)]
            await until(lambda: at_once == store_http.MAX_READS)
            for refused in (path, f"{path}/starts?every=4096", "/api/v1/store/positions"):
                status, body, headers = await get(server, refused)
                assert (status, error_of(body), headers["Retry-After"]) == (503, "busy", "1")
            # What costs nothing is answered, and so are producers.
            assert (await get(server, "/api/v1/store"))[0] == 200
            await fill(server, 1)
            may_go_on.set()
            assert [(await reader)[0] for reader in readers] == [200] * store_http.MAX_READS
            assert most == store_http.MAX_READS
            assert (await get(server, path))[0] == 200

    run(scenario)


def test_failing_disk_aborts_the_response_which_contains_only_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_chunk = segments.read_chunk

    def failing(descriptor: int, position: int, end: int) -> bytes:
        if position > 0:
            raise OSError(errno.EIO, "Input/output error")
        return read_chunk(descriptor, position, end)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            await fill(server, 300)
            monkeypatch.setattr(store_http, "read_chunk", failing)
            head, body, ended = await received(server, "GET", f"/api/v1/store/segments/{segment_name(0)}")
            assert head.startswith("HTTP/1.1 200")
            assert on_disk(store_of(server), 0).startswith(body)
            assert 0 < len(body) < store_of(server).end_offset
            assert ended

    run(scenario)


def test_head_of_positions_has_no_body(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            await fill(server, 1)
            head, body, _ = await received(server, "HEAD", "/api/v1/store/positions", Connection="close")
            assert (head[:15], body) == ("HTTP/1.1 200 OK", b"")

    run(scenario)


async def received(server: Standalone, method: str, path: str, **headers: str) -> tuple[str, bytes, bool]:
    """Head, all bytes behind it, and whether the connection ended."""
    reader, writer = await asyncio.open_connection(HOST, server.broker.http_port)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    data = bytearray()
    ended = True
    try:
        async with asyncio.timeout(5):
            while piece := await reader.read(1 << 16):
                data += piece
    except TimeoutError:
        ended = False
    except ConnectionResetError:
        pass
    writer.close()
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    return head.decode(), body, ended


def test_slow_reader_is_disconnected_and_its_slot_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_http, "RECEIVE_GRACE_S", 0.2)
    monkeypatch.setattr(store_http, "MIN_BYTES_PER_S", 1 << 40)
    monkeypatch.setattr(store_http, "MAX_READS", 1)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True, mapped_file_size_commit_log=32 << 20) as server:
            await fill(server, 14, b"x" * (1 << 20))
            path = f"/api/v1/store/segments/{segment_name(0)}"
            with socket.socket() as idle:
                idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                idle.connect((HOST, server.broker.http_port or 0))
                idle.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
                status, body, _ = await get(server, path, Range="bytes=0-99")
                assert (status, len(body)) == (206, 100)
                idle.settimeout(20)
                received = 0
                with suppress(ConnectionResetError):
                    while data := await asyncio.to_thread(idle.recv, 1 << 20):
                        received += len(data)
                assert received < 14 << 20

    run(scenario)


def test_disconnected_reader_leaves_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_http, "MAX_READS", 1)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True, mapped_file_size_commit_log=32 << 20) as server:
            await fill(server, 14, b"x" * (1 << 20))
            path = f"/api/v1/store/segments/{segment_name(0)}"
            for _ in range(3):
                with socket.socket() as gone:
                    gone.connect((HOST, server.broker.http_port or 0))
                    gone.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
                    await asyncio.to_thread(gone.recv, 100)
            assert len((await get(server, path))[1]) == store_of(server).end_offset
            assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []

    run(scenario)


def test_store_requires_the_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_token="secret") as server:
            for path in (
                "",
                "/positions",
                f"/segments/{segment_name(0)}",
                f"/segments/{segment_name(0)}/starts?every=1",
            ):
                status, body, _ = await get(server, f"/api/v1/store{path}")
                assert (status, error_of(body)) == (401, "unauthorized")
            assert (await get(server, "/api/v1/store", Authorization="Bearer secret"))[0] == 200

    run(scenario)
