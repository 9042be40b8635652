"""HTTP client of the analytics against failing servers: retries, and errors in one sentence."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from delaymq_spark import StorePathError, read_positions
from delaymq_spark.store import broker_client, remote
from delaymq_spark.store import patience as store_patience
from delaymq_spark.store.address import check_store_path
from delaymq_spark.store.patience import Patience
from delaymq_spark.store.remote import describe_store
from delaymq_spark.store.segments import Skipped
from delaymq_spark_testing.fake_broker import (
    Answer,
    FakeBroker,
    Handler,
    fail,
    fake_broker,
    reset,
    send,
    send_json,
    send_range,
)
from delaymq_spark_testing.running_broker import write_store
from delaymq_spark_testing.store import source_rows

pytestmark = pytest.mark.core

COUNT = 1_200


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("http") / "store"
    write_store(path, COUNT)
    return path


class Clock:
    """Time that only pauses advance, so that a slow machine does not exhaust the patience."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(store_patience, "time", clock)
    monkeypatch.setattr(broker_client, "time", clock)
    return clock


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short patience, in real time."""
    monkeypatch.setattr(broker_client, "time", time)
    monkeypatch.setattr(store_patience, "time", time)
    monkeypatch.setattr(store_patience, "RESPONSE_TIMEOUT_S", 10_000)
    monkeypatch.setattr(remote, "FIRST_PATIENCE_S", 0.3)


@pytest.fixture
def broker(store: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    monkeypatch.delenv("DELAYMQ_HTTP_TOKEN", raising=False)
    with fake_broker(store) as server:
        yield server


def keys_of(broker: FakeBroker, **options: Any) -> tuple[list[str], list[Skipped]]:
    told: list[Skipped] = []
    rows = source_rows(broker.url, told=told, **options)
    return [row["keys"] for row in rows], told


EVERYTHING = [f"k{number}" for number in range(COUNT)]


@pytest.mark.parametrize(
    "script",
    [
        [reset, reset, reset],
        [partial(send_range, missing=1), partial(send_range, missing=700_000)],
        [fail(503, "busy", "others read"), fail(503), fail(502), fail(504), fail(429)],
        [fail(503, "busy", "others read", Retry_After="0"), fail(503, Retry_After="soon")],
        [reset, partial(send_range, missing=100), fail(503), reset],
    ],
)
def test_transient_failures_are_retried(broker: FakeBroker, script: list[object]) -> None:
    broker.script = list(script)  # type: ignore[arg-type]
    assert keys_of(broker) == (EVERYTHING, [])
    assert broker.script == []


def test_bytes_received_before_a_connection_broke_are_not_requested_again(broker: FakeBroker) -> None:
    broker.script = [partial(send_range, missing=300_000)]
    assert keys_of(broker) == (EVERYTHING, [])
    ranges = [headers["Range"] for path, headers in broker.requests if path.endswith(f"{0:020d}")]
    assert ranges == ["bytes=0-1048575", f"bytes={1_048_576 - 300_000}-1048575"]


def test_retry_after_header_is_respected(broker: FakeBroker, clock: Clock) -> None:
    broker.script = [fail(503, "busy", "others read", Retry_After="20")]
    assert keys_of(broker) == (EVERYTHING, [])
    assert [15 <= pause_s <= 25 for pause_s in clock.pauses_s] == [True]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reset, "tried for 120 s"),
        (fail(503, "busy", "others read"), "others read; tried for 120 s"),
        (fail(404, "segment_gone", "the segment was deleted"), "the file was deleted in the meantime"),
        (fail(404, "no_such_segment", "no such"), "the response is 404 (no such)"),
        (fail(500), "the response is 500 (Internal Server Error)"),
        (fail(302, Location="http://127.0.0.1:1/"), "the response is 302"),
        (partial(send_range, store_id="two"), "the first response came from store one, this one from two"),
        (partial(send_range, shift=5), "does not contain the requested range ('bytes 5-"),
        (lambda handler: send(handler, 200, b"all of it"), "the response is 200"),
        (lambda handler: handler.wfile.write(b"220 ready\r\n"), "does not speak HTTP"),
    ],
)
def test_unreadable_segment_is_reported_and_the_rest_is_read(broker: FakeBroker, answer: object, reason: str) -> None:
    normal = Handler.do_GET

    def refuses_the_second(handler: Handler) -> None:
        if handler.path.endswith(f"{1 << 20:020d}"):
            answer(handler)  # type: ignore[operator]
            handler.close_connection = True
        else:
            broker.first = None
            normal(handler)
            broker.first = refuses_the_second

    broker.first = refuses_the_second
    keys, told = keys_of(broker)
    assert len(told) == 1
    assert reason in told[0].reason
    assert told[0].file == f"{broker.url}/api/v1/store/segments/{1 << 20:020d}"
    assert (told[0].position, told[0].offset, told[0].lost_bytes) == (0, 1 << 20, 1 << 20)
    assert 0 < len(keys) < COUNT
    assert [key for key in EVERYTHING if key in set(keys)] == keys
    assert {"k0", EVERYTHING[-1]} <= set(keys)


def test_truncated_log_is_reported(broker: FakeBroker) -> None:
    broker.script = [send_range, send_range, fail(416, "range_not_satisfiable", "no")]
    keys, told = keys_of(broker)
    assert [each.reason for each in told] == ["the file was truncated while it was read"]
    assert set(keys) < set(EVERYTHING)


def html(handler: Handler) -> None:
    send(handler, 200, b"<html>It works!</html>", Content_Type="text/html")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (html, "is not JSON: give the HTTP address of a DelayMQ broker"),
        (lambda handler: send_json(handler, ["x"]), "compatible broker (Expected `object`, got `array`): check"),
        (lambda handler: send_json(handler, {"formatVersion": 1}), "missing required field `asOfMs`): check"),
        (lambda handler: send_json(handler, {"formatVersion": 2}), "in version 2, but this program supports 1"),
        (fail(404), "either it is not a DelayMQ broker, or its version is too old to serve"),
        (fail(401, "unauthorized", "send it"), "requires a token (401): set DELAYMQ_HTTP_TOKEN to its httpToken"),
        (fail(403, "token_not_configured", "set httpToken"), "denies access (403): set httpToken"),
        (fail(301, Location="https://elsewhere/"), "the response is 301 (Moved Permanently)"),
        (fail(503, "busy", "come again"), "come again; tried for 10 s: is the broker running"),
        (reset, "no response (Remote end closed connection"),
        (lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH_9\r\n"), "does not speak HTTP"),
        (lambda handler: send(handler, 200, b'{"x":' + b"[" * 100_000), "is not JSON"),
        (lambda handler: send(handler, 200, b"{}", Content_Length="50"), "ended 48 bytes early"),
    ],
)
def test_invalid_or_rejecting_server_is_reported_in_one_sentence(broker: FakeBroker, answer: object, said: str) -> None:
    def once(handler: Handler) -> None:
        answer(handler)  # type: ignore[operator]
        handler.close_connection = True

    broker.first = once
    with pytest.raises(StorePathError) as caught:
        describe_store(broker.url)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ask", [lambda broker: read_positions(broker.url), keys_of])
def test_server_that_is_not_a_broker_fails_the_whole_read(broker: FakeBroker, ask: object) -> None:
    broker.first = html
    with pytest.raises(StorePathError, match="is not JSON: give the HTTP address of a DelayMQ broker"):
        ask(broker)  # type: ignore[operator]


def test_closed_port_is_reported(broker: FakeBroker) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(StorePathError, match=r"Connection refused.*is that its HTTP port"):
            describe_store(f"http://127.0.0.1:{free.getsockname()[1]}")


def test_server_that_never_responds_times_out(broker: FakeBroker, short_patience: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(StorePathError, match="timed out"):
        describe_store(f"http://127.0.0.1:{silent.getsockname()[1]}")


def begins(handler: Handler) -> None:
    """Send the beginning of a response, and nothing more while the connection is open."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{")
    handler.rfile.read(1)


@pytest.mark.parametrize("answer", [lambda handler: handler.rfile.read(1), begins])
def test_server_that_falls_silent_times_out_when_the_patience_of_the_request_ends(
    broker: FakeBroker, short_patience: None, answer: Answer
) -> None:
    broker.first = answer
    with pytest.raises(StorePathError, match=r"timed out\)?; tried for 0 s"):
        describe_store(broker.url)


def test_kept_connection_that_falls_silent_times_out(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = broker_client.BrokerClient(broker.url, None, 100)
    assert b"brokerName" in client.get("/api/v1/store")

    def read_a_byte(handler: Handler) -> None:
        handler.rfile.read(1)

    broker.first = read_a_byte
    monkeypatch.setattr(store_patience, "time", time)
    monkeypatch.setattr(store_patience, "RESPONSE_TIMEOUT_S", 10_000)
    client._patience.seconds = 0.3
    with pytest.raises(broker_client.NoAnswerError, match="timed out"):
        client.get("/api/v1/store")


def test_all_addresses_of_a_host_name_share_one_patience(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address] * 3)
    waits: list[float] = []

    def connect(address: object, timeout: float, source_address: object) -> socket.socket:
        waits.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(StorePathError, match="timed out"):
        describe_store("http://three.example:8080")
    assert waits
    assert max(waits) <= remote.FIRST_PATIENCE_S / 3


def test_large_response_may_exceed_the_patience_while_it_makes_progress(clock: Clock) -> None:
    patience = Patience(10)
    patience.begin_try()
    for _ in range(5):
        clock.sleep(8)
        patience.note_bytes(store_patience.PROGRESS_BYTES)
        assert patience.wait_s() == 10
    assert patience.left_s() < 0, "there is no other try"
    patience.note_bytes(store_patience.PROGRESS_BYTES - 1)
    clock.sleep(10)
    with pytest.raises(TimeoutError):
        patience.wait_s()


def test_server_that_trickles_bytes_times_out(broker: FakeBroker, short_patience: None) -> None:
    given_up = threading.Event()

    def trickle(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not given_up.wait(0.02):
            handler.wfile.write(b" ")

    broker.first = trickle
    try:
        with pytest.raises(StorePathError, match="timed out"):
            describe_store(broker.url)
    finally:
        given_up.set()


def test_endless_response_is_rejected(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_client, "MAX_RESPONSE_BYTES", 1_000)
    broker.first = lambda handler: send(handler, 200, b" " * 100_000)
    with pytest.raises(StorePathError, match="the response exceeds 1000 bytes"):
        describe_store(broker.url)


def test_https_request_to_an_http_port_is_reported(broker: FakeBroker) -> None:
    with pytest.raises(StorePathError, match=r"the TLS handshake failed .*: give http:// if"):
        describe_store(broker.url.replace("http:", "https:"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("http://", "is not a broker's address: give http://HOST:PORT"),
        ("http:///store", "is not a broker's address"),
        ("http://host:99999", "is malformed"),
        ("http://host:0", "is not a broker's address"),
        ("http://ho st:80", "is not a broker's address"),
        ("http://host:80/?token=hush", "an address cannot contain ? or #"),
        ("http://someone:hush@host:80", "cannot contain a user name or password"),
        ("https:host", "is not a broker's address"),
    ],
)
def test_invalid_address_is_reported_without_its_secrets(path: str, said: str) -> None:
    with pytest.raises(StorePathError) as caught:
        describe_store(path)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("HTTP://Host:80/", "http://host:80"),
        ("https://[::1]:8443/brokers/a/", "https://[::1]:8443/brokers/a"),
        (" http://h ", "http://h"),
        ("file:///a/b/", "/a/b"),
    ],
)
def test_address_is_normalised(given: str, normal: str) -> None:
    assert check_store_path(given) == normal


def test_token_is_sent_and_never_shown(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("DELAYMQ_HTTP_TOKEN", " hush-environment\n")
    broker.script = [reset, fail(503)]
    assert keys_of(broker)[0] == EVERYTHING
    assert {headers["Authorization"] for _, headers in broker.requests} == {"Bearer hush-environment"}
    broker.requests.clear()
    assert keys_of(broker, token="hush-option")[0] == EVERYTHING
    assert {headers["Authorization"] for _, headers in broker.requests} == {"Bearer hush-option"}
    broker.first = fail(401, "unauthorized", "send it")
    with pytest.raises(StorePathError, match=r"rejects the token \(401\)") as caught:
        keys_of(broker, token="hush-option")
    assert "hush" not in str(caught.value) + caplog.text


@pytest.mark.parametrize("token", ["a b", "a\nb", "ä", "x" * 5_000])
def test_invalid_token_is_rejected_and_not_shown(broker: FakeBroker, token: str) -> None:
    with pytest.raises(StorePathError, match="the option `token` is not a valid token") as caught:
        keys_of(broker, token=token)
    assert token not in str(caught.value)


def test_executors_without_the_token_fail_instead_of_skipping_everything(broker: FakeBroker) -> None:
    broker.script = [fail(401, "unauthorized", "send it")]
    with pytest.raises(StorePathError, match="for the driver and all executors"):
        keys_of(broker)
