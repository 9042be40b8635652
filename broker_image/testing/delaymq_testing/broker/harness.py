"""A broker over a real store in a temporary folder, a clock that only the test moves, clients that only note."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from delaymq.broker.broker import Broker
from delaymq.broker.opening import open_broker
from delaymq.broker.requests.results import Deferred, Held, TimeSliced
from delaymq.config import BrokerConfig
from delaymq.message.ids import pack_host
from delaymq.message.properties import format_properties
from delaymq.message.record import Record, decode_record
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response, request_command

from delaymq_testing.step_runner import at_once
from delaymq_testing.store.small_stores import flush

if TYPE_CHECKING:
    from delaymq.broker.quotas.usage import AccountUsage

START_MS = 1_700_000_000_000
_ids = itertools.count(1)


class Clock:
    """The wall clock of a test."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


class FakeSession:
    """A client's connection; notifications from the broker are kept in `notified`."""

    def __init__(self, port: int = 50_000, address: str = "10.0.0.2") -> None:
        self.id = next(_ids)
        self.remote_host = pack_host(address, port)
        self.remote_address = f"{address}:{port}"
        self.client_id: str | None = None
        self.is_private = False
        self.account: str | None = None
        """Whose signature was good."""
        self.usage: AccountUsage | None = None
        self.certificate_name = ""
        self.paused_s: list[float] = []
        """Pauses of reading that the broker asked for."""
        self.shortened_s: list[float] = []
        """Times after which a pause is to end. A test that clears `paused_s` ends the pauses."""
        self.ended = False
        self.notified: list[Command] = []
        self.room: int | None = None
        """How many requests more it takes before it is behind; None: any number."""

    def signed_by(self, account: str) -> None:
        self.account = account

    def pause(self, seconds: float) -> float:
        self.paused_s.append(seconds)
        return seconds

    def shorten_pause(self, seconds: float) -> float | None:
        if not self.paused_s:
            return None
        self.shortened_s.append(seconds)
        return 0.0

    def end(self) -> None:
        self.ended = True

    def notify(self, command: Command) -> bool:
        if self.room is not None:
            if not self.room:
                return False
            self.room -= 1
        self.notified.append(command)
        return True


def broker_config(path: Path, **changes: Any) -> BrokerConfig:
    """A configuration with small files; a stalled test machine causes no rejections."""
    settings: dict[str, Any] = {
        "broker_fast_failure_enable": False,
        "store_path_root_dir": str(path / "store"),
        "mapped_file_size_commit_log": 8 * 1024 * 1024,
        "mapped_file_size_consume_queue": 6_000,
        "max_hash_slot_num": 1_000,
        "max_index_num": 4_000,
        "default_topic_queue_nums": 4,
    }
    return BrokerConfig(**(settings | changes))


class Harness:
    """One broker, one clock, one client."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.clock = Clock()
        self.config = broker_config(path, **changes)
        self.broker = open_broker(self.config, self.clock)
        self.session = FakeSession()

    def restart(self) -> None:
        """A clean stop and a start."""
        self.broker.close()
        self.broker = open_broker(self.config, self.clock)

    def flush(self) -> None:
        """Runs the store's flush to its end, as the server does in a thread."""
        flush(self.broker.store)
        self.broker.announce_arrivals()

    def ask(
        self,
        code: int,
        fields: dict[str, Any] | None = None,
        body: bytes = b"",
        session: FakeSession | None = None,
        **extra: Any,
    ) -> Any:
        """What the broker makes of a request: a Response, Deferred or Held."""
        texts = {name: _text(value) for name, value in (fields or {}).items()}
        command = request_command(code, texts, body)
        for name, value in extra.items():
            setattr(command, name, value)
        return self.broker.handle(session or self.session, command)

    def answer(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", **extra: Any) -> Response:
        """A response that must come immediately, or once a file is written."""
        result = made(self.broker, code, self.ask(code, fields, body, **extra))
        assert isinstance(result, Response), result
        return result

    def send(
        self, topic: str = "Orders", body: bytes = b"hello", properties: dict[str, str] | None = None, **fields: Any
    ) -> Any:
        """A send with code 310."""
        header = send_fields(topic, properties) | fields
        return self.ask(RequestCode.SEND_MESSAGE_V2, header, body)

    def pull(self, topic: str = "Orders", queue_id: int = 0, offset: int = 0, **fields: Any) -> Response | Held:
        """A pull that brings its subscription (`*`) and does not wait, unless `fields` says otherwise."""
        header = {
            "consumerGroup": "readers",
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        result = self.ask(RequestCode.PULL_MESSAGE, header | fields)
        assert isinstance(result, Response | Held)
        return result

    def pulled(self, topic: str = "Orders", queue_id: int = 0, offset: int = 0, **fields: Any) -> list[Record]:
        """The records that a pull finds now."""
        response = self.pull(topic, queue_id, offset, **fields)
        assert isinstance(response, Response)
        return records_of(response.body)


def send_fields(topic: str, properties: dict[str, str] | None = None) -> dict[str, Any]:
    """Fields of a send with code 310 to queue 0."""
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": START_MS,
        "h": 0,
        "i": format_properties(properties or {}),
        "j": 0,
        "k": False,
        "m": False,
    }


def records_of(data: bytes) -> list[Record]:
    """Split a body of consecutive records, as pulls and queries return them."""
    records = []
    at = 0
    while at < len(data):
        record = decode_record(data, at)
        records.append(record)
        at += record.size
    return records


def made(broker: Broker, code: int, result: Any) -> Any:
    """What comes of a change of a file, or of work in turns, done here; other results as they are."""
    if isinstance(result, TimeSliced):
        return broker.guarded(code, lambda: _at_the_end(result))
    return broker.guarded(code, lambda: at_once(result)) if isinstance(result, GeneratorType) else result


def _at_the_end(work: TimeSliced) -> Response | Deferred:
    while True:
        try:
            next(work.steps)
        except StopIteration as end:
            result: Response | Deferred = end.value
            return result


def response_of(result: Any) -> Response:
    """The answer that a client gets in the end when all goes well."""
    if isinstance(result, Deferred):
        return result.response
    assert isinstance(result, Response)
    return result


def _text(value: Any) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)
