"""A store that its running broker hands out over HTTP (docs/operations/running.md): no volume is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from delaymq.store.reader import SegmentInfo

from delaymq_spark.store.address import (
    StoreAddress,
    StorePath,
    StorePathError,
    Token,
    check_store_path,
    is_address,
    token_of,
)
from delaymq_spark.store.http_client import AnswerError, BrokerClient, NoAnswerError
from delaymq_spark.store.segment_file import Listing

KNOWN_FORMAT_VERSION: Final = 1
MAX_OFFSET: Final = (1 << 63) - 1
STORE_PATH: Final = "/api/v1/store"
# The first question: a wrong port should be told soon.
FIRST_PATIENCE_S: Final = 10.0
# The driver's questions; a broker restarts in seconds.
ASK_PATIENCE_S: Final = 45.0
# A read that runs for long outlives a broker whose pod moves to another node.
READ_PATIENCE_S: Final = 120.0
# What is fetched when only a few bytes are asked for, as the search for a record behind damage does.
_AHEAD_BYTES: Final = 1 << 18
UNUSABLE: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What comes of JSON that is not what it should be; Python's takes Infinity for a number."""
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, kw_only=True)
class StoreDescription:
    """What a broker says of itself and its store; nothing is known of a folder."""

    broker_name: str | None = None
    store_id: str | None = None
    message_delay_level: str | None = None
    """Its level table."""
    file_reserved_time_hours: int | None = None


@dataclass(frozen=True, kw_only=True)
class BrokersStore:
    """The answer of /api/v1/store, checked."""

    description: StoreDescription
    start: int
    """Physical offset of the log's first byte."""
    end: int
    """Behind the last record that counts as kept: nobody reads further."""
    segments: tuple[RemoteSegment, ...]


@dataclass(frozen=True, slots=True)
class RemoteSegment(SegmentInfo):
    """A segment that a broker hands out; `path` is its address, `file_bytes` what could be read when it was listed."""

    url: str
    store_id: str
    token: Token | None


def describe_store(path: str) -> StoreDescription:
    """What the broker at `path` says of its store. StorePathError, soon, when none answers there."""
    checked = check_store_path(path)
    if not is_address(checked):
        return StoreDescription()
    return ask_store(checked, FIRST_PATIENCE_S).description


def ask_store(path: StorePath, patience_s: float = ASK_PATIENCE_S) -> BrokersStore:
    """What the broker's store holds now. StorePathError."""
    url = str(path)
    answer = ask(path, STORE_PATH, patience_s)
    try:
        return _store(url, path.token if isinstance(path, StoreAddress) else None, answer)
    except StorePathError:
        raise
    except UNUSABLE:
        raise _no_broker(url) from None


def ask(path: StorePath, question: str, patience_s: float = ASK_PATIENCE_S) -> Any:
    """The JSON that the broker answers. StorePathError."""
    url = str(path)
    client = BrokerClient(url, token_of(path), patience_s)
    try:
        return client.get_json(question)
    except NoAnswerError as error:
        raise StorePathError(
            f"{error.strerror}: does the broker run, and is that its HTTP port (httpPort, 8080 unless it was changed)?"
        ) from None
    except AnswerError as error:
        if error.status in (404, 405):
            raise StorePathError(
                f"{url} answers, but has no {question.partition('?')[0]}: it is no broker of DelayMQ, or one that is "
                "too old to hand out its store: upgrade it, or give the store's folder"
            ) from None
        raise StorePathError(str(error.strerror)) from None
    finally:
        client.close()


def list_segments(path: StorePath) -> Listing:
    """The segments that the broker hands out. StorePathError."""
    store = ask_store(path)
    return Listing(tuple(each for each in store.segments if each.file_bytes > 0), (), (), store.end)


def record_starts(info: RemoteSegment, every_bytes: int) -> list[int]:
    """Physical offsets in the segment at which records begin, about `every_bytes` apart. OSError, StorePathError."""
    client = BrokerClient(info.url, _token(info), ASK_PATIENCE_S)
    try:
        answer = client.get_json(f"{_segment_path(info)}/starts?every={every_bytes}")
        return sorted(int(offset) for offset in answer["starts"])
    except StorePathError:
        raise
    except UNUSABLE:
        raise _no_broker(info.url) from None
    finally:
        client.close()


def ask_positions(path: StorePath, parse: Callable[[Any], _Parsed]) -> _Parsed:
    """What `parse` makes of the broker's positions. StorePathError."""
    answer = ask(path, f"{STORE_PATH}/positions")
    try:
        return parse(answer)
    except UNUSABLE:
        raise _no_broker(str(path)) from None


class RemoteSegmentFile:
    """A segment read with ranges, over one connection that is kept until `close`."""

    def __init__(self, info: RemoteSegment) -> None:
        """StorePathError when the environment's token cannot be one."""
        self.base = info.base
        self.name = info.path
        self.file_bytes = info.file_bytes
        self._path = _segment_path(info)
        self._store_id = info.store_id
        self._client = BrokerClient(info.url, _token(info), READ_PATIENCE_S)
        self._ahead = b""
        self._ahead_at = 0

    def read_into(self, position: int, buffer: memoryview) -> int:
        """As SegmentFile has it. SegmentGoneError, another OSError with a sentence, StorePathError."""
        wanted = min(len(buffer), self.file_bytes - position)
        if wanted <= 0:
            return 0
        if wanted > _AHEAD_BYTES // 2:
            return self._fetch(position, buffer[:wanted])
        if not self._ahead_at <= position <= position + wanted <= self._ahead_at + len(self._ahead):
            ahead = bytearray(min(_AHEAD_BYTES, self.file_bytes - position))
            count = self._fetch(position, memoryview(ahead))
            self._ahead, self._ahead_at = bytes(ahead[:count]), position
        found = self._ahead[position - self._ahead_at : position - self._ahead_at + wanted]
        buffer[: len(found)] = found
        return len(found)

    def next_data(self, position: int) -> int:
        """Nothing is known of holes, and there are none below the end that a broker states."""
        return min(position, self.file_bytes)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _fetch(self, position: int, buffer: memoryview) -> int:
        return self._client.read_into(self._path, position, buffer, self._store_id)


def _segment_path(info: RemoteSegment) -> str:
    return info.path.removeprefix(info.url)


def _token(info: RemoteSegment) -> Token | None:
    return info.token if info.token is not None else token_of(info.url)


def _store(url: str, token: Token | None, answer: Any) -> BrokersStore:
    version = int(answer["formatVersion"])
    if version > KNOWN_FORMAT_VERSION:
        raise StorePathError(
            f"{url} hands out its store in version {version}, this program knows {KNOWN_FORMAT_VERSION}: use a newer "
            "delaymq-spark"
        )
    store_id = str(answer["storeId"])
    segments = tuple(
        RemoteSegment(
            int(each["offset"]), f"{url}{STORE_PATH}/segments/{each['name']}", int(each["bytes"]), url, store_id, token
        )
        for each in answer["segments"]
    )
    start, end = int(answer["startOffset"]), int(answer["endOffset"])
    reached = 0
    for each in segments:
        # Else records would be counted twice, or beyond what is kept.
        if each.file_bytes < 0 or not reached <= each.base <= each.end <= min(end, MAX_OFFSET):
            raise ValueError(f"segment {each.base}")
        reached = each.end
    description = StoreDescription(
        broker_name=str(answer["brokerName"]),
        store_id=store_id,
        message_delay_level=str(answer["messageDelayLevel"]),
        file_reserved_time_hours=int(answer["fileReservedTimeHours"]),
    )
    return BrokersStore(description=description, start=start, end=end, segments=segments)


def _no_broker(url: str) -> StorePathError:
    return StorePathError(
        f"{url}: the answer to {STORE_PATH} is not a broker's: give the HTTP address of a DelayMQ broker"
    )
