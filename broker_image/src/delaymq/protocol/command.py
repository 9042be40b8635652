"""Codec of commands: the header and body of one frame. Layouts: docs/formats/wire.md, "Frame" and "Header".

All messages pass through this module, so a prepared decoder reads the usual JSON header directly into `Command`. Only
headers that it rejects are read by the tolerant decoder.
"""

from struct import Struct as Layout
from typing import Any, ClassVar, Final

import msgspec
from msgspec import field

from delaymq.protocol.binary_header import MAX_FIELDS, pack_header, unpack_header
from delaymq.protocol.codes import LANGUAGE_NAMES, LANGUAGE_NUMBERS, VERSION, LanguageCode
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.integers import Int32

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Maximum frame size including the length field; RocketMQ's broker disconnects a peer that exceeds it."""
MAX_HEADER_BYTES: Final = 1024 * 1024
"""Maximum header size: properties have at most 32 KiB, and parsing a header of 16 MiB would block the event loop."""
CHECKED_HEADER_BYTES: Final = 64 * 1024
"""JSON headers above this size are checked for their number of strings before they are parsed."""

JSON_HEADER: Final = 0
BINARY_HEADER: Final = 1


class Command(msgspec.Struct, gc=False):
    """One request or response. `fields` are the header's named strings; `binary` is the form of the header."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    language: str = "PYTHON"
    version: Int32 = VERSION
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict, name="extFields")
    body: bytes = b""
    binary: bool = False

    keeps_result: ClassVar[bool] = False
    """Whether a broker returns the result even if the request is one-way."""

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0


class Response(msgspec.Struct, gc=False):
    """Content of a response; `encode_response` adds the values that come from the request."""

    code: int = 0
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class _TolerantHeader(msgspec.Struct):
    """A header as clients in other languages may write it: with nulls, and with numbers in place of strings."""

    code: Int32
    opaque: Int32 | None = None
    flag: Int32 | None = None
    language: str | int | None = None
    version: Int32 | None = None
    remark: str | None = None
    extFields: dict[str, str | int | float | bool | None] | None = None  # noqa: N815 - the wire's name


class _WrittenHeader(msgspec.Struct, gc=False, omit_defaults=True):
    """The JSON header as DelayMQ writes it; only a missing remark is omitted."""

    code: int
    extFields: dict[str, str]  # noqa: N815 - the wire's name
    flag: int
    language: str
    opaque: int
    version: int
    serializeTypeCurrentRPC: str  # noqa: N815 - the wire's name
    remark: str | None = None


_LENGTH = Layout(">I")
_LENGTHS = Layout(">II")  # frame length · serialisation (top byte) and header length
FRAME_LENGTHS_BYTES: Final = _LENGTHS.size
"""Size of the two lengths before the header of a frame."""

_decode_json = msgspec.json.Decoder(Command).decode
_decode_tolerant = msgspec.json.Decoder(_TolerantHeader).decode
_encode_json = msgspec.json.Encoder().encode
_unpack_length = _LENGTH.unpack_from
_pack_lengths = _LENGTHS.pack


def decode_command(frame: bytes | bytearray | memoryview) -> Command:
    """Decode a frame without its four length bytes; the result holds no reference to `frame`.

    ProtocolError if the bytes are not a frame.
    """
    if len(frame) < 4:
        raise ProtocolError(f"a frame of {len(frame)} bytes has no header length")
    (word,) = _unpack_length(frame)
    end = 4 + (word & 0xFFFFFF)
    if end > MAX_HEADER_BYTES:
        raise too_long_header(end - 4)
    if end > len(frame):
        raise ProtocolError(f"the header length {end - 4} exceeds the frame of {len(frame)} bytes")
    header = frame[4:end]
    if word <= 0xFFFFFF:
        if end > CHECKED_HEADER_BYTES:
            _refuse_many_strings(bytes(header))
        try:
            command = _decode_json(header)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            command = _tolerant_command(header)
        if len(command.fields) > MAX_FIELDS:
            raise ProtocolError(f"the header has {len(command.fields)} fields, and the maximum is {MAX_FIELDS}")
        command.binary = False
    elif word >> 24 == BINARY_HEADER:
        command = _binary_command(bytes(header))
    else:
        raise ProtocolError(f"unknown header serialisation {word >> 24}: use 0 (JSON) or 1 (binary)")
    command.body = bytes(frame[end:])
    return command


def too_long_header(header_bytes: int) -> ProtocolError:
    """Return the error for a header whose stated length exceeds MAX_HEADER_BYTES."""
    return ProtocolError(f"a header of {header_bytes} bytes exceeds the limit of {MAX_HEADER_BYTES}: use the body")


def _refuse_many_strings(header: bytes) -> None:
    # A string starts with a quote without a backslash, so this counts each string at least once; a field has two.
    if header.count(b'"') - header.count(b'\\"') > 4 * MAX_FIELDS + 64:
        raise ProtocolError(f"the header has too many fields, and the maximum is {MAX_FIELDS}")


def _tolerant_command(header: bytes | bytearray | memoryview) -> Command:
    try:
        read = _decode_tolerant(header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the JSON header cannot be read: {error}") from error
    language = read.language
    if isinstance(language, int):
        language = LANGUAGE_NAMES.get(language)
    named = read.extFields or {}
    return Command(
        code=read.code,
        opaque=read.opaque or 0,
        flag=read.flag or 0,
        language=language or "OTHER",
        version=read.version or 0,
        remark=read.remark,
        fields={name: _text(value) for name, value in named.items() if value is not None},
    )


def _text(value: str | int | float | bool) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ProtocolError("a number in the header's fields has more than 64 bits")
    return str(value)


def _binary_command(header: bytes) -> Command:
    code, language, version, opaque, flag, remark, fields = unpack_header(header)
    return Command(
        code, opaque, flag, LANGUAGE_NAMES.get(language, "OTHER"), version, remark, fields=fields, binary=True
    )


def encode_command(command: Command) -> bytes:
    """Return the whole frame, including its length.

    ValueError above MAX_FRAME_BYTES, and for a code that exceeds the 16 bits of a binary header.
    """
    if command.binary:
        return _binary_frame(command)
    return _json_frame(
        _WrittenHeader(
            command.code,
            command.fields,
            command.flag,
            command.language,
            command.opaque,
            command.version,
            "JSON",
            command.remark,
        ),
        command.body,
    )


def encode_response(request: Command, response: Response) -> bytes:
    """Return the whole response frame, with the opaque and the serialisation of `request`."""
    if request.binary:
        return _binary_frame(
            Command(
                response.code,
                request.opaque,
                FLAG_RESPONSE,
                remark=response.remark,
                fields=response.fields,
                body=response.body,
                binary=True,
            )
        )
    return _json_frame(
        _WrittenHeader(
            response.code, response.fields, FLAG_RESPONSE, "PYTHON", request.opaque, VERSION, "JSON", response.remark
        ),
        response.body,
    )


def request_command(
    code: int, fields: dict[str, str] | None = None, body: bytes = b"", *, oneway: bool = False
) -> Command:
    """Build a request; its opaque is 0 until the transport numbers it."""
    return Command(code, 0, FLAG_ONEWAY if oneway else 0, fields={} if fields is None else fields, body=body)


def _json_frame(written: _WrittenHeader, body: bytes) -> bytes:
    try:
        header = _encode_json(written)
    except UnicodeEncodeError:
        header = _encode_json(_replace_surrogates(written))
    return json_frame(header, body)


def _replace_surrogates(written: _WrittenHeader) -> _WrittenHeader:
    # Lone surrogates, as in file names in a remark, have no UTF-8 form; the response must still be sent.
    def clean(text: str) -> str:
        return text.encode(errors="replace").decode()

    changed: dict[str, Any] = {name: clean(value) for name, value in written.extFields.items()}
    remark = None if written.remark is None else clean(written.remark)
    return msgspec.structs.replace(written, extFields=changed, remark=remark)


def _binary_frame(command: Command) -> bytes:
    header = pack_header(
        command.code,
        LANGUAGE_NUMBERS.get(command.language, LanguageCode.OTHER),
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        command.fields,
    )
    return _frame(BINARY_HEADER, header, command.body)


def json_frame(header: bytes, body: bytes) -> bytes:
    """Return the whole frame of an encoded JSON header and a body. ValueError above MAX_FRAME_BYTES."""
    return _frame(JSON_HEADER, header, body)


def _frame(serialisation: int, header: bytes, body: bytes) -> bytes:
    header_bytes = len(header)
    frame_bytes = header_bytes + 4 + len(body)
    if frame_bytes > MAX_FRAME_BYTES - 4:
        raise ValueError(f"a frame of {frame_bytes + 4} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    # A sum would copy the body twice.
    return b"".join((_pack_lengths(frame_bytes, serialisation << 24 | header_bytes), header, body))
