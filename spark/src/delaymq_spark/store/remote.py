"""A store served by its running broker over HTTP (docs/operations/running.md): no volume is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from delaymq.api_types.store import Positions, Starts, Store, Versioned
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
from delaymq_spark.store.broker_client import AnswerError, BrokerClient, NoAnswerError
from delaymq_spark.store.segment_file import KNOWN_FORMAT_VERSION, Listing, of_newer_version

KNOWN_RESPONSE_VERSION: Final = 1
"""Latest format version of a broker's responses that this program supports, which is not that of its store."""
MAX_OFFSET: Final = (1 << 63) - 1
STORE_PATH: Final = "/api/v1/store"
FIRST_PATIENCE_S: Final = 10.0
"""Patience of the first request: a wrong port should be reported soon."""
METADATA_PATIENCE_S: Final = 45.0
"""Patience of the driver's requests: a broker restarts within seconds."""
READ_PATIENCE_S: Final = 120.0
"""Patience of a read: long enough for a broker whose pod moves to another node."""
_AHEAD_BYTES: Final = 1 << 18
"""Bytes fetched at least: the search for a record after damage requests only a few at a time."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RemoteSegment(SegmentInfo):
    """A segment served by a broker; `path` is its address, `file_bytes` its readable size when it was listed."""

    url: str
    store_id: str
    token: Token | None


def describe_store(path: str) -> Store | None:
    """Return what the broker at `path` states; None for a folder. StorePathError, soon, if no broker responds."""
    checked = check_store_path(path)
    return fetch_store(checked, FIRST_PATIENCE_S) if is_address(checked) else None


def fetch_store(path: StorePath, patience_s: float = METADATA_PATIENCE_S) -> Store:
    """Return the current description of the broker's store, with validated segments. StorePathError."""
    data = _get(path, STORE_PATH, patience_s)
    version = _decoded(str(path), data, Versioned).format_version
    if version > KNOWN_RESPONSE_VERSION:
        raise StorePathError(
            f"{path} serves its store in version {version}, but this program supports {KNOWN_RESPONSE_VERSION}: use a "
            "newer delaymq-spark"
        )
    store = _decoded(str(path), data, Store)
    reached = 0
    for each in store.segments:
        # Otherwise records would be counted twice, or beyond the end of the log.
        end = each.offset + each.bytes
        if each.bytes < 0 or not reached <= each.offset <= end <= min(store.end_offset, MAX_OFFSET):
            raise unusable(str(path), f"segment {each.offset}")
        reached = end
    return store


def fetch_positions(path: StorePath) -> Positions:
    """Return the broker's positions. StorePathError."""
    return _decoded(str(path), _get(path, f"{STORE_PATH}/positions"), Positions)


def list_segments(path: StorePath) -> Listing:
    """Return the segments that the broker serves. StorePathError."""
    store = fetch_store(path)
    token = path.token if isinstance(path, StoreAddress) else None
    segments = (
        RemoteSegment(
            each.offset, f"{path}{STORE_PATH}/segments/{each.name}", each.bytes, str(path), store.store_id, token
        )
        for each in store.segments
        if each.bytes > 0
    )
    is_newer = store.minimum_reader > KNOWN_FORMAT_VERSION
    skipped = (of_newer_version(f"{path}{STORE_PATH}", store.minimum_reader),) if is_newer else ()
    return Listing(tuple(segments), skipped, (), store.end_offset)


def record_starts(info: RemoteSegment, every_bytes: int) -> list[int]:
    """Return physical offsets of records in the segment, about `every_bytes` apart. OSError, StorePathError."""
    client = BrokerClient(info.url, _token(info), METADATA_PATIENCE_S)
    try:
        data = client.get(f"{_segment_path(info)}/starts?every={every_bytes}")
    finally:
        client.close()
    return sorted(_decoded(info.url, data, Starts).starts)


def unusable(url: str, reason: str) -> StorePathError:
    """Return the error for a response that no broker sends."""
    return StorePathError(
        f"{url}: the response did not come from a compatible broker ({reason[:200]}): check that this is the HTTP "
        "address of a DelayMQ broker, or upgrade the broker if it is older than this program"
    )


class RemoteSegmentFile:
    """A segment read in ranges over one connection, which is kept until `close`."""

    def __init__(self, info: RemoteSegment) -> None:
        """StorePathError if the environment's token is invalid."""
        self.base = info.base
        self.name = info.path
        self.file_bytes = info.file_bytes
        self._path = _segment_path(info)
        self._store_id = info.store_id
        self._client = BrokerClient(info.url, _token(info), READ_PATIENCE_S)
        self._ahead = b""
        self._ahead_at = 0

    def read_into(self, position: int, buffer: memoryview) -> int:
        """See SegmentFile. SegmentGoneError, another OSError with a sentence, StorePathError."""
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
        """See SegmentFile. Holes are unknown, and there are none below the end that a broker states."""
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


def _get(path: StorePath, question: str, patience_s: float = METADATA_PATIENCE_S) -> bytes:
    """Return the body of the broker's response. StorePathError."""
    url = str(path)
    client = BrokerClient(url, token_of(path), patience_s)
    try:
        return client.get(question)
    except NoAnswerError as error:
        raise StorePathError(
            f"{error.strerror}: is the broker running, and is that its HTTP port (httpPort, by default 8080)?"
        ) from None
    except AnswerError as error:
        if error.status in (404, 405):
            raise StorePathError(
                f"{url} responds, but has no {question}: either it is not a DelayMQ broker, or its version is too old "
                "to serve its store; upgrade the broker, or give the store's directory"
            ) from None
        raise StorePathError(str(error.strerror)) from None
    finally:
        client.close()


def _decoded(url: str, data: bytes, kind: type[_T]) -> _T:
    """Return `data` as `kind`. StorePathError if it is of another type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise unusable(url, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise StorePathError(f"{url}: the response is not JSON: give the HTTP address of a DelayMQ broker") from None
