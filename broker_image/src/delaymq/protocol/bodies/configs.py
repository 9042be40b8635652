"""Tables of topics, groups, offsets and settings, for registrations, slaves and configuration files."""

import zlib
from struct import Struct as Layout
from typing import ClassVar, Final, Self

import msgspec

from delaymq.protocol.bodies.base import BYTES_PER_VALUE, MAX_BODY_BYTES, REQUEST_DIALECT_BYTES, Body, bad_body, written
from delaymq.protocol.integers import Int32, Int64

MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a decompressed registration, about 200,000 topics; a few KiB of zlib could fill the memory."""
MAX_SETTINGS: Final = 10_000
"""Maximum number of lines of a properties text; RocketMQ has about 200 settings."""

_LENGTH = Layout(">I")


class DataVersion(Body):
    """Version of a broker's tables: the counter rises with each change, and the time differs after a restart."""

    counter: Int64 = written(int)
    timestamp: Int64 = written(int)


class TopicConfig(Body):
    """One topic of a broker. `perm`: 4 read, 2 write, 1 inherit; `topic_sys_flag`: 1 unit, 2 unit subscription."""

    topic_name: str
    read_queue_nums: Int32 = written(lambda: 16)
    write_queue_nums: Int32 = written(lambda: 16)
    perm: Int32 = written(lambda: 6)
    topic_filter_type: str = written(lambda: "SINGLE_TAG")
    topic_sys_flag: Int32 = written(int)
    order: bool = written(bool)


class TopicTable(Body):
    """Response body of 21, part of 103, and topics.json."""

    data_version: DataVersion = written(DataVersion)
    topic_config_table: dict[str, TopicConfig] = written(dict)


class SubscriptionGroupConfig(Body):
    """One consumer group of a broker. Body of 200."""

    MAX_BYTES: ClassVar[int] = REQUEST_DIALECT_BYTES
    MAX_DIALECT_BYTES: ClassVar[int] = REQUEST_DIALECT_BYTES

    group_name: str
    consume_enable: bool = written(lambda: True)
    consume_from_min_enable: bool = written(lambda: True)
    consume_broadcast_enable: bool = written(lambda: True)
    retry_queue_nums: Int32 = written(lambda: 1)
    retry_max_times: Int32 = written(lambda: 16)
    broker_id: Int64 = written(int)
    which_broker_when_consume_slowly: Int64 = written(lambda: 1)
    notify_consumer_ids_changed_enable: bool = written(lambda: True)


class GroupTable(Body):
    """Response body of 201, and subscriptionGroup.json."""

    data_version: DataVersion = written(DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = written(dict)


class ConsumerOffsets(Body):
    """Response body of 43, and consumerOffset.json: `TOPIC@GROUP` → queue → next offset to consume."""

    offset_table: dict[str, dict[Int32, Int64]] = written(dict)


class DelayOffsets(Body):
    """Response body of 45, and delayOffset.json: level → next offset of its queue."""

    offset_table: dict[Int32, Int64] = written(dict)


class KVTable(Body):
    """Response body of 28 and 219; also a NameServer's ORDER_TOPIC_CONFIG in its response to 103."""

    table: dict[str, str] = written(dict)


class RegisterBody(Body):
    """Request body of 103: topics of the broker. The table may be partial."""

    topic_config_serialize_wrapper: TopicTable = written(TopicTable)
    filter_server_list: list[str] = written(list)

    @classmethod
    def decode_request(cls, data: bytes, *, compressed: bool, crc32: int = 0) -> Self:
        """Decode the body of a request whose header states `compressed` and `crc32` (0: not verified)."""
        if crc32 != 0 and crc32 != body_crc32(data):
            raise bad_body(cls.__name__, "crc32 not match")
        if not compressed:
            return cls.decode(data)
        return cls._decode_compressed(data)

    @classmethod
    def _decode_compressed(cls, data: bytes) -> Self:
        inflater = zlib.decompressobj()
        try:
            text = inflater.decompress(data, MAX_INFLATED_BYTES)
        except zlib.error as error:
            raise bad_body(cls.__name__, error) from error
        if not inflater.eof:
            raise bad_body(cls.__name__, f"its stream is truncated or expands to more than {MAX_INFLATED_BYTES} bytes")
        pieces = _Pieces(text)
        version = DataVersion.decode(pieces.next())
        topics: dict[str, TopicConfig] = {}
        for _ in range(pieces.count()):
            topic = _topic_of_words(pieces.next())
            topics[topic.topic_name] = topic
        return cls(TopicTable(version, topics), _filter_servers(pieces.next()))

    def encode_compressed(self) -> bytes:
        """Return the zlib form, which omits `order` and `topic_sys_flag` of topics."""
        table = self.topic_config_serialize_wrapper
        pieces = [_piece(table.data_version.encode()), _LENGTH.pack(len(table.topic_config_table))]
        pieces += [
            _piece(
                f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} "
                f"{topic.topic_filter_type}".encode()
            )
            for topic in table.topic_config_table.values()
        ]
        pieces.append(_piece(msgspec.json.encode(self.filter_server_list)))
        return zlib.compress(b"".join(pieces))


def body_crc32(data: bytes) -> int:
    """Return `bodyCrc32` of a registration: the CRC-32 of the body as sent, without its sign bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


def _piece(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


class _Pieces:
    """Sequential reader of length-prefixed pieces."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self) -> int:
        if len(self._data) - self._at < 4:
            raise bad_body(RegisterBody.__name__, "it ends in the middle of a length field")
        (number,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += 4
        if number > len(self._data) - self._at:  # a piece has more than one byte, so this also limits their number
            raise bad_body(RegisterBody.__name__, f"a length field states {number}, which exceeds the rest of the body")
        return int(number)

    def next(self) -> bytes:
        length = self.count()
        piece = self._data[self._at : self._at + length]
        self._at += length
        return piece


def _topic_of_words(words: bytes) -> TopicConfig:
    try:
        name, read_queues, write_queues, perm, filter_type = words.decode().split(" ")
        fields = {
            "topicName": name,
            "readQueueNums": read_queues,
            "writeQueueNums": write_queues,
            "perm": perm,
            "topicFilterType": filter_type,
        }
        return msgspec.convert(fields, TopicConfig, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise bad_body(RegisterBody.__name__, f"{words[:80]!r} is not a topic: {error}") from error


def _filter_servers(data: bytes) -> list[str]:
    if len(data) > MAX_BODY_BYTES or data.count(b",") > MAX_BODY_BYTES // BYTES_PER_VALUE:
        raise bad_body(RegisterBody.__name__, "its list of filter servers is too long")
    try:
        return msgspec.json.decode(data, type=list[str])
    except (msgspec.MsgspecError, ValueError) as error:
        raise bad_body(RegisterBody.__name__, f"its list of filter servers cannot be read: {error}") from error


def decode_settings(data: bytes) -> dict[str, str]:
    """Parse a properties text (25, 26, 318, 319): lines `key=value`, blank lines, and comments that start with #.

    RequestError for text that is not UTF-8, has a line without `=`, or has too many lines.
    """
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise bad_body("properties text", error) from error
    if len(lines) > MAX_SETTINGS:
        raise bad_body("properties text", f"it has {len(lines)} lines, and the maximum is {MAX_SETTINGS}")
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals or not key:
            raise bad_body("properties text", f"line {number} is not key=value: {line[:80]!r}")
        settings[key] = value.strip()
    return settings


def encode_settings(settings: dict[str, str]) -> bytes:
    """Return the properties text of `settings`; a line break in a value becomes a space."""
    return "".join(f"{key}={' '.join(value.splitlines())}\n" for key, value in settings.items()).encode()


class AccountInfo(Body):
    """One account of a broker's rules, without its secret key."""

    access_key: str
    admin: bool = written(bool)
    quotas: dict[str, int | str] = written(dict)
    """Quotas in force by their key in rule files; `unlimited` overrides a default."""
    role: str = written(str)
    """Role on HTTP; empty: none."""
    certificate_only: bool = written(bool)
    """Whether only a client certificate admits the account."""


class AccountList(Body):
    """Response body of 52, which only DelayMQ has, if `accounts` is requested."""

    accounts: list[AccountInfo] = written(list)
