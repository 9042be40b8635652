"""HTTP client of the analytics against false, slow and truncated responses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from delaymq.api_types.store import Positions
from delaymq_spark import StorePathError, read_positions
from delaymq_spark.store import broker_client
from delaymq_spark.store import patience as store_patience
from delaymq_spark.store.broker_client import BrokerClient, NoAnswerError
from delaymq_spark.store.remote import describe_store, fetch_store
from delaymq_spark.store.segments import list_segments
from delaymq_spark_testing.fake_broker import FakeBroker, Handler, fake_broker, send, send_json, send_range
from delaymq_spark_testing.running_broker import write_store

pytestmark = pytest.mark.core

SEGMENT = "/api/v1/store/segments/00000000000000000000"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lies") / "store"
    write_store(path, 300)
    return path


@pytest.fixture
def broker(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    monkeypatch.delenv("DELAYMQ_HTTP_TOKEN", raising=False)
    monkeypatch.setattr(broker_client, "_FIRST_PAUSE_S", 0.01)
    with fake_broker(store) as server:
        yield server


def read(client: BrokerClient, position: int, count: int) -> bytes:
    buffer = bytearray(count)
    with memoryview(buffer) as view:
        return bytes(buffer[: client.read_into(SEGMENT, position, view, "one")])


def expected(broker: FakeBroker, position: int, count: int) -> bytes:
    return Path(broker.reader.path, "commitlog", "0" * 20).read_bytes()[position : position + count]


def test_silent_kept_connection_is_replaced(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_patience, "RESPONSE_TIMEOUT_S", 0.3)
    over = threading.Event()

    def stay_silent(handler: Handler) -> None:
        over.wait(20)

    broker.script = [send_range, stay_silent]
    client = BrokerClient(broker.url, None, 60)
    try:
        assert read(client, 0, 1_000) == expected(broker, 0, 1_000)
        assert read(client, 1_000, 1_000) == expected(broker, 1_000, 1_000)
    finally:
        over.set()
        client.close()


def test_slowly_sent_bytes_end_in_a_timeout(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_patience, "RESPONSE_TIMEOUT_S", 0.3)
    over = threading.Event()

    def trickle(handler: Handler) -> None:
        first, _, last = handler.headers["Range"].removeprefix("bytes=").partition("-")
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {first}-{last}/*")
        handler.send_header("Content-Length", str(int(last) + 1 - int(first)))
        handler.end_headers()
        handler.close_connection = True
        # The response ends eventually, so that a defect fails the test instead of hanging it.
        for _ in range(200):
            handler.wfile.write(b"x")
            if over.wait(0.05):
                break

    broker.first = trickle
    client = BrokerClient(broker.url, None, 1)
    try:
        with pytest.raises(NoAnswerError, match=r"timed out\); tried for 1 s"):
            read(client, 0, 4_000)
    finally:
        over.set()
        client.close()
    assert len(broker.requests) < 5


def test_one_byte_per_attempt_does_not_count_as_progress(broker: FakeBroker) -> None:
    def one_byte(handler: Handler) -> None:
        send_range(handler, missing=999 - len(broker.requests))

    broker.first = one_byte
    client = BrokerClient(broker.url, None, 0.5)
    with pytest.raises(NoAnswerError, match=r"(bytes early|timed out\)); tried for"):
        read(client, 0, 1_000)
    client.close()
    assert len(broker.requests) < 100


def test_end_of_a_chunked_response_is_not_read_as_the_next_response(broker: FakeBroker) -> None:
    def chunked(handler: Handler) -> None:
        data = expected(broker, 0, 1_000)
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 0-999/*")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))

    broker.script = [chunked]
    client = BrokerClient(broker.url, None, 60)
    assert read(client, 0, 1_000) == expected(broker, 0, 1_000)
    assert read(client, 1_000, 1_000) == expected(broker, 1_000, 1_000)
    client.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told | {"endOffset": told["endOffset"] - 1},
        lambda told: told | {"segments": [*told["segments"], told["segments"][0]]},
        lambda told: told | {"segments": [told["segments"][0] | {"bytes": -1}]},
        lambda told: told | {"segments": [told["segments"][0] | {"offset": -(1 << 20)}]},
        lambda told: told | {"endOffset": 1 << 70, "segments": [told["segments"][0] | {"bytes": 1 << 70}]},
    ],
)
def test_inconsistent_segments_are_rejected(broker: FakeBroker, change: object) -> None:
    told = broker.about()
    broker.first = lambda handler: send_json(handler, change(told))  # type: ignore[operator]
    with pytest.raises(StorePathError, match="did not come from a compatible broker"):
        fetch_store(broker.url)


def test_store_that_requires_a_newer_program_is_reported(broker: FakeBroker) -> None:
    assert list_segments(broker.url).skipped == ()
    broker.minimum_reader = 5
    (told,) = list_segments(broker.url).skipped
    assert str(told).startswith(f"{broker.url}/api/v1/store, byte 0: 0 bytes skipped: the store has format version 5, ")


@pytest.mark.parametrize("number", ["1e999", str(1 << 70), "-Infinity"])
def test_numbers_out_of_range_are_rejected(broker: FakeBroker, tmp_path: Path, number: str) -> None:
    positions = Positions(
        format_version=1, as_of_ms=0, store_id="one", in_use=True, start_offset=0, end_offset=broker.end,
        log_end_offset=broker.end, delay_offsets={"1": 4_711}, consumer_offsets={}, deleted_topics={}, queues=[],
    )  # fmt: skip
    body = msgspec.json.encode(positions)
    broker.script = [
        lambda handler: send(handler, 200, body),
        lambda handler: send(handler, 200, body.replace(b"4711", number.encode())),
    ]
    assert read_positions(broker.url).delay_offsets == {1: 4_711}
    with pytest.raises(StorePathError, match=r"the response (is not JSON|did not come from a compatible broker)"):
        read_positions(broker.url)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "delaymq").mkdir()
    (tmp_path / "config/delayOffset.json").write_text(f'{{"offsetTable":{{1:{number}}}}}')
    (tmp_path / "delaymq/state.json").write_text(f'{{"storeId":"x","formatVersion":{number}}}')
    found = read_positions(tmp_path)
    assert found.delay_offsets == {}
    assert {Path(each.file).name for each in found.skipped} == {"delayOffset.json", "state.json"}


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_invalid_host_name_is_reported(host: str) -> None:
    with pytest.raises(StorePathError, match=r"the host name is invalid: give http://HOST:PORT"):
        describe_store(f"http://{host}:80")


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("http://[::1]", ("::1", 80)),
        ("https://[fe80::abcd]", ("fe80::abcd", 443)),
        ("http://[::1]:8080", ("::1", 8080)),
        ("http://broker", ("broker", 80)),
    ],
)
def test_missing_port_defaults_to_that_of_the_scheme(
    address: str, asked: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_client, "_FIRST_PAUSE_S", 10_000)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [object()])
    tried: list[object] = []

    def refuse(place: object, *_: object, **__: object) -> socket.socket:
        tried.append(place)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(StorePathError, match="Connection refused"):
        describe_store(address)
    assert tried[0] == asked
