"""Codec of the messages between members. Layouts: docs/formats/wire.md, "Messages between members".

A message is the body of a one-way request REPLICATE. A CRC-32 covers everything else in the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct as Layout
from struct import error as StructError  # noqa: N812 - its name is lower case
from typing import Any, Final, NamedTuple
from zlib import crc32

from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import encode_command, request_command
from delaymq.protocol.errors import ProtocolError
from delaymq.replication.history import EpochStart
from delaymq.replication.messages import Accept, Ack, Ask, Begun, Follow, Frame, HandOver, Position
from delaymq.replication.model import Note, NoteKind
from delaymq.server.replication.table_messages import MAX_PART_BYTES, LinkMessage, TableAck, TablePart

OLDEST_VERSION: Final = 1
NEWEST_VERSION: Final = 1
"""Versions of the messages that this program can send and receive. The handshake of a link selects one of them."""
MAX_DATA_BYTES: Final = 1 << 20
"""Maximum number of bytes of the log in a Frame, a multiple of what the core sends at a time."""
MAX_EPOCHS: Final = 16_384
"""Maximum length of a history: a takeover every hour for almost two years."""
MAX_STORE_ID_CHARACTERS: Final = 64
MAX_VERSION_CHARACTERS: Final = 512
MAX_OFFSET: Final = 2**63 - 1
MAX_INCARNATION: Final = 2**31 - 1

_HEAD = Layout(
    ">"
    "B"  # version
    "B"  # kind
    "H"  # 0
    "I"  # CRC-32 of the other bytes
)
_START = Layout(">BBH")
_FOLLOW = Layout(">qqqqB")  # epoch, session, incarnation, note, length of the store id, which follows
_ACCEPT = Layout(">qqqqIB")  # epoch, session, begin, end, number of epochs, length of the store id; store id, epochs
_EPOCH = Layout(">qq")  # epoch, start
_FRAME = Layout(">qqqqB")  # epoch, session, start, confirmed, whether it is counted; bytes of the log
_ACK = Layout(">qqqqq")  # epoch, session, end, acknowledged, expected
_ASK = Layout(">qq")  # epoch, round
_POSITION = Layout(">qqqqBBqqH")
"""Epoch, round, last epoch, end, flags; kind, epoch, serial of the note; length of the version."""
_IS_MASTER: Final = 1
_IS_NOT_ABLE: Final = 2
"""Flags of a Position."""
_HAND_OVER = Layout(">qqq")  # epoch, session, end
_BEGUN = Layout(">q")  # epoch
_TABLE_PART = Layout(">qqqBB")  # epoch, session, serial, table, flags; entries of the table
_TABLE_ACK = Layout(">qqq")  # epoch, session, serial

_NOTE_KINDS: Final = {NoteKind.LOST_TAIL: 1, NoteKind.EMPTY: 2, NoteKind.DETACHED: 3}
_NOTE_KINDS_BY_NUMBER: Final = {number: kind for kind, number in _NOTE_KINDS.items()}
_PRINTABLE: Final = re.compile(r"[!-~]*")
_ONEWAY: Final = encode_command(request_command(RequestCode.REPLICATE, oneway=True))[4:]
"""Frame of the remoting protocol before the body, without its length. One-way requests need no number."""
_LENGTH = Layout(">I")
_NO_DATA: Final = b""
_WITH_DATA: Final = (Frame, TablePart)


class UnsupportedMessageError(Exception):
    """The version of the link has no message of this kind."""


def encode_message(message: LinkMessage, version: int) -> bytes:
    """Return the whole remoting frame of a message.

    ValueError for values out of range, UnsupportedMessageError if links of this version do not carry its kind.
    """
    kind = _KINDS_BY_TYPE[type(message)]
    if version < kind.since:
        raise UnsupportedMessageError(f"{kind.name} needs version {kind.since} of the link, which has {version}")
    try:
        fields = kind.pack(message)
    except StructError as error:
        raise ValueError(f"{kind.name} has a value out of range: {error}") from error
    data = message.data if isinstance(message, _WITH_DATA) else _NO_DATA
    checksum = crc32(data, crc32(fields, crc32(_START.pack(version, kind.number, 0))))
    length = _LENGTH.pack(len(_ONEWAY) + _HEAD.size + len(fields) + len(data))
    return b"".join((length, _ONEWAY, _HEAD.pack(version, kind.number, 0, checksum), fields, data))


def decode_message(body: bytes, version: int) -> LinkMessage:
    """Decode the body of REPLICATE on a link of this version. ProtocolError for anything that no member sends."""
    if len(body) < _HEAD.size:
        raise ProtocolError(f"a message of {len(body)} bytes has no header")
    stated, number, zero, checksum = _HEAD.unpack_from(body)
    if stated != version or zero:
        raise ProtocolError(f"a message of version {stated} arrived on a link of version {version}")
    kind = _KINDS_BY_NUMBER.get(number)
    if kind is None or version < kind.since:
        raise ProtocolError(f"version {version} of the messages has no kind {number}")
    if len(body) > kind.max_bytes:
        raise ProtocolError(f"a message {kind.name} of {len(body)} bytes exceeds the limit of {kind.max_bytes}")
    view = memoryview(body)
    if crc32(view[_HEAD.size :], crc32(view[: _START.size])) != checksum:
        raise ProtocolError(f"the checksum of a message {kind.name} is wrong")
    try:
        return kind.unpack(body)
    except (StructError, ValueError) as error:
        raise ProtocolError(f"a message {kind.name} is invalid: {error}") from error


# Kinds: each pair of functions converts the fields after the header. ValueError, StructError.


def _pack_follow(message: Follow) -> bytes:
    _check_follow(message)
    store_id = _store_id_bytes(message.store_id)
    fields = (message.epoch, message.session, message.incarnation, message.note, len(store_id))
    return _FOLLOW.pack(*fields) + store_id


def _unpack_follow(body: bytes) -> Follow:
    epoch, session, incarnation, note, id_bytes = _FOLLOW.unpack_from(body, _HEAD.size)
    message = Follow(epoch, session, incarnation, _store_id(body[_HEAD.size + _FOLLOW.size :], id_bytes), note)
    _check_follow(message)
    return message


def _check_follow(message: Follow) -> None:
    _check_numbers(message.epoch, message.note)
    _check_session(message.session)
    if not 1 <= message.incarnation <= MAX_INCARNATION:
        raise ValueError(f"the incarnation is {message.incarnation}")


def _pack_accept(message: Accept) -> bytes:
    _check_accept(message)
    store_id = _store_id_bytes(message.store_id)
    fields = (message.epoch, message.session, message.begin, message.end, len(message.history), len(store_id))
    return b"".join((_ACCEPT.pack(*fields), store_id, *(_EPOCH.pack(*each) for each in message.history)))


def _unpack_accept(body: bytes) -> Accept:
    epoch, session, begin, end, count, id_bytes = _ACCEPT.unpack_from(body, _HEAD.size)
    at = _HEAD.size + _ACCEPT.size
    if count > MAX_EPOCHS or len(body) != at + id_bytes + count * _EPOCH.size:
        raise ValueError(f"it does not end after {count} epochs")
    store_id = _store_id(body[at : at + id_bytes], id_bytes)
    history = tuple(map(EpochStart._make, _EPOCH.iter_unpack(body[at + id_bytes :])))
    message = Accept(epoch, session, store_id, history, begin, end)
    _check_accept(message)
    return message


def _check_accept(message: Accept) -> None:
    _check_numbers(message.epoch, message.begin, message.end)
    _check_session(message.session)
    if message.begin > message.end:
        raise ValueError(f"the log begins at {message.begin}, and ends at {message.end}")
    if len(message.history) > MAX_EPOCHS:
        raise ValueError(f"the history has {len(message.history)} epochs (limit: {MAX_EPOCHS})")
    previous = EpochStart(0, 0)
    for entry in message.history:
        if entry.epoch <= previous.epoch or entry.start < previous.start:
            raise ValueError(f"epoch {entry.epoch} from {entry.start} follows epoch {previous.epoch}")
        previous = entry
    if previous.start > message.end or previous.epoch > message.epoch:
        raise ValueError(f"epoch {previous.epoch} starts at {previous.start}, and the log ends at {message.end}")


def _pack_frame(message: Frame) -> bytes:
    _check_frame(message)
    return _FRAME.pack(message.epoch, message.session, message.start, message.confirmed, message.counted)


def _unpack_frame(body: bytes) -> Frame:
    epoch, session, start, confirmed, counted = _FRAME.unpack_from(body, _HEAD.size)
    message = Frame(epoch, session, start, body[_HEAD.size + _FRAME.size :], confirmed, _flag(counted))
    _check_frame(message)
    return message


def _check_frame(message: Frame) -> None:
    _check_numbers(message.epoch, message.start, message.confirmed)
    _check_session(message.session)
    size = len(message.data)
    if size > MAX_DATA_BYTES:
        raise ValueError(f"it has {size} bytes of the log (limit: {MAX_DATA_BYTES})")
    if message.start > MAX_OFFSET - size:
        raise ValueError(f"it ends after the offset {MAX_OFFSET}")


def _check_ack(message: Ack) -> None:
    _check_numbers(*message)
    _check_session(message.session)


def _pack_position(message: Position) -> bytes:
    _check_position(message)
    note = message.note
    of_note = (0, 0, 0) if note is None else (_NOTE_KINDS[note.kind], note.epoch, note.serial)
    version = message.vacant.encode()
    numbers = message.epoch, message.round, message.last_epoch, message.end
    flags = _IS_MASTER * message.is_master + _IS_NOT_ABLE * (not message.is_able)
    return _POSITION.pack(*numbers, flags, *of_note, len(version)) + version


def _unpack_position(body: bytes) -> Position:
    at = _HEAD.size
    epoch, round_, last_epoch, end, flags, kind, note_epoch, serial, size = _POSITION.unpack_from(body, at)
    version = body[at + _POSITION.size :]
    if len(version) != size:
        raise ValueError(f"its version of the register has {len(version)} bytes instead of {size}")
    note = None
    if kind:
        note = Note(_NOTE_KINDS_BY_NUMBER[kind], note_epoch, serial) if kind in _NOTE_KINDS_BY_NUMBER else None
    if (note is None) != (not (kind or note_epoch or serial)):
        raise ValueError(f"the kind of its note is {kind}")
    if flags & ~(_IS_MASTER | _IS_NOT_ABLE):
        raise ValueError(f"its flags are {flags}")
    is_master, is_able = bool(flags & _IS_MASTER), not flags & _IS_NOT_ABLE
    message = Position(epoch, round_, last_epoch, end, note, is_master, version.decode("ascii"), is_able)
    _check_position(message)
    return message


def _check_position(message: Position) -> None:
    _check_numbers(message.epoch, message.round, message.last_epoch, message.end)
    if len(message.vacant) > MAX_VERSION_CHARACTERS or not _PRINTABLE.fullmatch(message.vacant):
        raise ValueError(f"its version of the register, {message.vacant[:MAX_VERSION_CHARACTERS]!r}, is invalid")
    if message.last_epoch > message.epoch:
        raise ValueError(f"its log has epoch {message.last_epoch}, and it knows epoch {message.epoch}")
    if message.note is not None:
        _check_numbers(message.note.epoch, message.note.serial)


def _check_hand_over(message: HandOver) -> None:
    _check_numbers(*message)
    _check_session(message.session)


def _pack_table_part(message: TablePart) -> bytes:
    _check_table_part(message)
    return _TABLE_PART.pack(*message[:5])


def _unpack_table_part(body: bytes) -> TablePart:
    epoch, session, serial, table, flags = _TABLE_PART.unpack_from(body, _HEAD.size)
    message = TablePart(epoch, session, serial, table, flags, body[_HEAD.size + _TABLE_PART.size :])
    _check_table_part(message)
    return message


def _check_table_part(message: TablePart) -> None:
    _check_part(message.epoch, message.session, message.serial)
    if len(message.data) > MAX_PART_BYTES:
        raise ValueError(f"it has {len(message.data)} bytes of a table (limit: {MAX_PART_BYTES})")


def _check_table_ack(message: TableAck) -> None:
    _check_part(message.epoch, message.session, message.serial)


# Values.


def _whole(layout: Layout, body: bytes) -> tuple[Any, ...]:
    if len(body) != _HEAD.size + layout.size:
        raise ValueError(f"it has {len(body)} bytes instead of {_HEAD.size + layout.size}")
    return layout.unpack_from(body, _HEAD.size)


def _check_numbers(*numbers: int) -> None:
    if min(numbers) < 0:
        raise ValueError(f"{min(numbers)} is negative")


def _check_session(session: int) -> None:
    if session < 1:
        raise ValueError(f"the session is {session}")


def _check_part(epoch: int, session: int, serial: int) -> None:
    _check_numbers(epoch)
    _check_session(session)
    if serial < 1:
        raise ValueError(f"the serial is {serial}")


def _flag(number: int) -> bool:
    if number > 1:
        raise ValueError(f"a flag is {number}")
    return number == 1


def _store_id_bytes(store_id: str) -> bytes:
    if len(store_id) > MAX_STORE_ID_CHARACTERS or not _PRINTABLE.fullmatch(store_id):
        raise ValueError(f"the store id {store_id[:MAX_STORE_ID_CHARACTERS]!r} is invalid")
    return store_id.encode()


def _store_id(data: bytes, size: int) -> str:
    text = data.decode("ascii")
    if len(text) != size or size > MAX_STORE_ID_CHARACTERS or not _PRINTABLE.fullmatch(text):
        raise ValueError(f"the store id {text[:MAX_STORE_ID_CHARACTERS]!r} is invalid")
    return text


class _Kind(NamedTuple):
    number: int
    type: type[LinkMessage]
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], LinkMessage]
    max_bytes: int
    since: int = 1
    """First version that has this kind."""

    @property
    def name(self) -> str:
        return self.type.__name__


def _limit(layout: Layout, more: int = 0) -> int:
    return _HEAD.size + layout.size + more


def _fixed(number: int, type_: Any, layout: Layout, check: Callable[[Any], None]) -> _Kind:
    """Return a kind whose fields are those of its layout, all of them numbers."""

    def pack(message: Any) -> bytes:
        check(message)
        return layout.pack(*message)

    def unpack(body: bytes) -> LinkMessage:
        message: LinkMessage = type_._make(_whole(layout, body))
        check(message)
        return message

    return _Kind(number, type_, pack, unpack, _limit(layout))


def _check_all(message: tuple[int, ...]) -> None:
    _check_numbers(*message)


_KINDS: Final = (
    _Kind(1, Follow, _pack_follow, _unpack_follow, _limit(_FOLLOW, MAX_STORE_ID_CHARACTERS)),
    _Kind(
        2,
        Accept,
        _pack_accept,
        _unpack_accept,
        _limit(_ACCEPT, MAX_STORE_ID_CHARACTERS + MAX_EPOCHS * _EPOCH.size),
    ),
    _Kind(3, Frame, _pack_frame, _unpack_frame, _limit(_FRAME, MAX_DATA_BYTES)),
    _fixed(4, Ack, _ACK, _check_ack),
    _fixed(5, Ask, _ASK, _check_all),
    _Kind(6, Position, _pack_position, _unpack_position, _limit(_POSITION, MAX_VERSION_CHARACTERS)),
    _fixed(7, HandOver, _HAND_OVER, _check_hand_over),
    _fixed(8, Begun, _BEGUN, _check_all),
    _Kind(9, TablePart, _pack_table_part, _unpack_table_part, _limit(_TABLE_PART, MAX_PART_BYTES)),
    _fixed(10, TableAck, _TABLE_ACK, _check_table_ack),
)
_KINDS_BY_TYPE: Final[dict[type[LinkMessage], _Kind]] = {kind.type: kind for kind in _KINDS}
_KINDS_BY_NUMBER: Final = {kind.number: kind for kind in _KINDS}
