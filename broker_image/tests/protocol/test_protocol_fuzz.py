"""Random and mutated bytes raise only ProtocolError and RequestError, in bounded time and memory.

DELAYMQ_FUZZ_INPUTS sets the inputs for each target, DELAYMQ_SEED another sequence of them; a failure names its input.
"""

import json
import random
import resource
import time
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from delaymq.protocol import bodies, headers
from delaymq.protocol.batch import decode_batch, encode_batch
from delaymq.protocol.bodies import Body, RegisterBody, decode_settings, encode_settings
from delaymq.protocol.command import decode_command, encode_command
from delaymq.protocol.errors import FastJsonError, ProtocolError, RequestError
from delaymq.protocol.fastjson import dumps, loads
from delaymq.protocol.frame import TRUSTED_BUFFER_BYTES, FrameReceiver
from delaymq_testing.repetitions import FUZZ_INPUTS as INPUTS
from delaymq_testing.repetitions import SEED

MAX_INPUT_SECONDS = 2.0
"""An input of a few KiB takes microseconds; this leaves room for a machine that is busy with something else."""
MAX_GROWTH_BYTES = 256 * 1024 * 1024
MAX_SEED_BYTES = 4096

pytestmark = pytest.mark.timeout(120 + INPUTS // 100)

TOKENS = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"-", b"0", b"1e9", b"\\ud800", b"\\u0000"),
    *(b"{{", b"}:", b"{0:", b"9" * 30, b"[" * 70, b"\xff", b"\xc3", b"\0", b"\x16\x03\x01", b"=", b"\n", b"#", b" "),
]
INTEGERS = [
    0,
    1,
    2,
    4,
    20,
    21,
    22,
    127,
    128,
    255,
    2**15 - 1,
    2**15,
    2**16 - 1,
    2**24 - 1,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
]

ALL_BODIES: list[type[Body]] = [
    body
    for body in (getattr(bodies, name) for name in bodies.__all__)
    if isinstance(body, type) and issubclass(body, Body) and body is not Body
]
ALL_HEADERS: list[type[headers.Header]] = [
    getattr(headers, name) for name in headers.__all__ if name not in ("Header", "send_request_header")
]
FASTJSON_TEXTS = [
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"lastUpdateTimestamp":5,"maxOffset":9,"minOffset":0}}}',
    b'{"offsetTable":{"T@G":{0:12,1:9},"%RETRY%G@G":{0:-1}}}',
    b'{"consumerTable":{"ID":{{"topic":"t","queueId":3,"brokerName":"b"}:5}},"messageQueueTable":{}}',
    b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a","cluster":"C"}},"clusterAddrTable":{}}',
    b'{1:[true,false,null,-1.5e3,"\\u00e9\\n"],{{"a":1}:{"b":[]}}:"nested"}',
]


class Mutator:
    """Makes inputs from seeds: small damage mostly, sometimes bytes out of nothing."""

    def __init__(self, seeds: list[bytes], target: str) -> None:
        self.random = random.Random(f"{SEED} {target}")
        self.seeds = [seed[:MAX_SEED_BYTES] for seed in seeds]

    def next(self) -> bytes:
        if self.random.random() < 0.05:
            return self.random.randbytes(self.random.randint(0, 200))
        data = bytearray(self.random.choice(self.seeds))
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3, 8))):
            self._damage(data)
        return bytes(data)

    def _damage(self, data: bytearray) -> None:
        chooser = self.random
        at = chooser.randint(0, len(data))
        until = min(len(data), at + chooser.choice((1, 1, 2, 4, 8, 50)))
        match chooser.randrange(7):
            case 0:
                data[at:until] = chooser.randbytes(until - at)
            case 1:
                del data[at:until]
            case 2:
                data[at:at] = data[at:until] * chooser.choice((1, 2, 20))
            case 3:
                data[at:at] = chooser.choice(TOKENS)
            case 4:
                width = chooser.choice((1, 2, 4))
                number = chooser.choice(INTEGERS) % 256**width
                data[at : at + width] = number.to_bytes(width, "big")
            case 5:
                other = chooser.choice(self.seeds)
                data[at:] = other[chooser.randint(0, len(other)) :]
            case 6:
                del data[at:]


def run(mutator: Mutator, target: Callable[[bytes], None]) -> None:
    """Gives each input to `target`, which raises for what must not happen and counts what went well."""
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for number in range(INPUTS):
        data = mutator.next()
        started = time.perf_counter()
        try:
            target(data)
        except Exception as error:
            raise AssertionError(f"input {number}: {data!r}") from error
        taken = time.perf_counter() - started
        assert taken < MAX_INPUT_SECONDS, f"input {number} took {taken:.1f} s: {data!r}"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes < MAX_GROWTH_BYTES


def check_refusal(error: RequestError, code: int = 1) -> None:
    """A remark goes into an answer: the peer's bytes must not decide its size."""
    assert error.code == code
    assert len(error.remark) < 1000


def test_streams_of_frames(golden_frames: list[Any]) -> None:
    binary = []
    for golden in golden_frames[::5]:
        command = golden.command
        command.binary = True
        binary.append(encode_command(command))
    mutator = Mutator([golden.frame for golden in golden_frames] + binary, "streams")
    outcomes = {"command": 0, "error": 0}

    def target(data: bytes) -> None:
        receiver = FrameReceiver()
        stream = mutator.random.choice(mutator.seeds) + data
        at = 0
        try:
            while at < len(stream):
                n = mutator.random.choice((1, 7, 500, len(stream)))
                outcomes["command"] += len(receiver.feed(stream[at : at + n]))
                at += n
        except ProtocolError:
            outcomes["error"] += 1
            assert receiver.error is not None
        assert receiver.buffer_bytes <= TRUSTED_BUFFER_BYTES

    run(mutator, target)
    assert min(outcomes.values()) > INPUTS // 20


def test_headers_of_frames(golden_frames: list[Any]) -> None:
    seeds = []
    for golden in golden_frames:
        command = golden.command
        command.body = b""
        seeds.append(encode_command(command)[8:])
        command.binary = True
        seeds.append(b"\x01" + encode_command(command)[8:])
    mutator = Mutator(seeds, "headers")
    outcomes = {"command": 0, "error": 0}

    def target(data: bytes) -> None:
        serialisation, header = (1, data[1:]) if data[:1] == b"\x01" else (0, data)
        try:
            command = decode_command((serialisation << 24 | len(header)).to_bytes(4, "big") + header + b"body")
        except ProtocolError:
            outcomes["error"] += 1
            return
        assert decode_command(encode_command(command)[4:]) == command
        outcomes["command"] += 1

    run(mutator, target)
    assert min(outcomes.values()) > INPUTS // 20


def test_typed_headers(golden_frames: list[Any]) -> None:
    seeds = [json.dumps(golden.command.fields).encode() for golden in golden_frames if golden.command.fields]
    mutator = Mutator(seeds, "typed headers")
    outcomes = {"header": 0, "error": 0}

    def target(data: bytes) -> None:
        try:
            fields = msgspec.json.decode(data, type=dict[str, str])
        except (msgspec.MsgspecError, ValueError):
            return
        for header in mutator.random.sample(ALL_HEADERS, 8):
            try:
                read = header.from_fields(fields)
                assert header.from_fields(read.to_fields()) == read
                outcomes["header"] += 1
            except RequestError as error:
                check_refusal(error)
                outcomes["error"] += 1

    run(mutator, target)
    assert min(outcomes.values()) > INPUTS // 20


def test_bodies(golden_frames: list[Any]) -> None:
    seeds = [golden.command.body for golden in golden_frames if golden.command.body[:1] == b"{"] + FASTJSON_TEXTS * 10
    mutator = Mutator(seeds, "bodies")
    outcomes = {"body": 0, "error": 0}

    def target(data: bytes) -> None:
        for body in mutator.random.sample(ALL_BODIES, 3):
            try:
                read = body.decode(data)
            except RequestError as error:
                check_refusal(error)
                outcomes["error"] += 1
            else:
                assert body.decode(read.encode()) == read
                outcomes["body"] += 1

    run(mutator, target)
    assert min(outcomes.values()) > INPUTS // 20


def test_fastjson(golden_frames: list[Any]) -> None:
    bodies_seen = [golden.command.body for golden in golden_frames if golden.command.body[:1] == b"{"]
    mutator = Mutator(bodies_seen[:20] + FASTJSON_TEXTS * 10, "fastjson")
    outcomes = {"value": 0, "error": 0}

    def target(data: bytes) -> None:
        try:
            read = loads(data)
        except FastJsonError:
            outcomes["error"] += 1
            return
        # Integer keys come back as text, so equality holds from the second writing on.
        again = loads(dumps(read))
        assert loads(dumps(again)) == again
        outcomes["value"] += 1

    run(mutator, target)
    assert min(outcomes.values()) > INPUTS // 20


def test_compressed_registrations(golden_frames: list[Any]) -> None:
    texts, streams = [], []
    for golden in golden_frames:
        if golden.code == 103 and golden.command.body:
            compressed = RegisterBody.decode(golden.command.body).encode_compressed()
            streams.append(compressed)
            texts.append(zlib.decompress(compressed))
    mutator = Mutator(texts, "registrations")
    stream_mutator = Mutator(streams, "streams of registrations")
    outcomes = {"body": 0, "error": 0}

    def target(data: bytes) -> None:
        damaged_stream = mutator.random.random() < 0.3
        try:
            body = RegisterBody.decode_request(
                stream_mutator.next() if damaged_stream else zlib.compress(data, 1), compressed=True
            )
        except RequestError:
            outcomes["error"] += 1
            return
        assert body.topic_config_serialize_wrapper.encode()
        outcomes["body"] += 1

    run(mutator, target)
    assert min(outcomes.values()) > INPUTS // 20


def test_batches(golden_frames: list[Any]) -> None:
    seeds = [golden.command.body for golden in golden_frames if golden.code == 320]
    seeds += [seed[:139] for seed in seeds] + [encode_batch(decode_batch(seeds[0])[:3])]
    mutator = Mutator(seeds, "batches")
    outcomes = {"batch": 0, "error": 0}

    def target(data: bytes) -> None:
        try:
            messages = decode_batch(data)
        except RequestError as error:
            check_refusal(error, code=13)
            outcomes["error"] += 1
            return
        assert decode_batch(encode_batch(messages)) == messages
        outcomes["batch"] += 1

    run(mutator, target)
    assert min(outcomes.values()) > INPUTS // 20


def test_settings() -> None:
    mutator = Mutator([b"brokerName=broker-a\nlistenPort = 10911\n# comment\n\nurl=a=b\r\n"], "settings")
    outcomes = {"settings": 0, "error": 0}

    def target(data: bytes) -> None:
        try:
            settings = decode_settings(data)
        except RequestError as error:
            check_refusal(error)
            outcomes["error"] += 1
            return
        assert decode_settings(encode_settings(settings)).keys() <= settings.keys()
        outcomes["settings"] += 1

    run(mutator, target)
    assert min(outcomes.values()) > INPUTS // 20
