"""Codec for binary headers (serialisation 1). Layout: docs/formats/wire.md, "Binary header"."""

from struct import Struct as Layout
from typing import Final

from delaymq.protocol.errors import ProtocolError

MAX_FIELDS: Final = 512
"""Maximum number of fields of a header in either form. Known requests have fewer than 25."""

_HEAD = Layout(
    ">"
    "h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # bytes of the remark
)
assert _HEAD.size == 17
_LENGTH = Layout(">I")

BinaryHeader = tuple[int, int, int, int, int, str | None, dict[str, str]]
"""Code, language, version, opaque, flag, remark, fields."""


def unpack_header(header: bytes) -> BinaryHeader:
    """Decode a header. ProtocolError for inconsistent lengths, text that is not UTF-8, and too many fields."""
    if len(header) < _HEAD.size + 4:
        raise ProtocolError(f"a binary header of {len(header)} bytes is too short")
    code, language, version, opaque, flag, remark_bytes = _HEAD.unpack_from(header)
    fields_at = _HEAD.size + remark_bytes
    if remark_bytes < 0 or fields_at + 4 > len(header):
        raise ProtocolError(f"the remark of {remark_bytes} bytes extends beyond the end of the binary header")
    (fields_bytes,) = _LENGTH.unpack_from(header, fields_at)
    if fields_at + 4 + fields_bytes != len(header):
        raise ProtocolError(f"the fields of {fields_bytes} bytes do not end where the binary header ends")
    try:
        remark = header[_HEAD.size : fields_at].decode() if remark_bytes else None
        return code, language, version, opaque, flag, remark, _fields(header, fields_at + 4)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the binary header contains text that is not UTF-8: {error}") from error


def _fields(header: bytes, at: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    end = len(header)
    for _ in range(MAX_FIELDS):
        if at == end:
            return fields
        key_end = at + 2 + int.from_bytes(header[at : at + 2], "big")
        value_at = key_end + 4
        if value_at > end:
            raise ProtocolError("a field name extends beyond the end of the binary header")
        value_end = value_at + int.from_bytes(header[key_end:value_at], "big")
        if value_end > end:
            raise ProtocolError("a field value extends beyond the end of the binary header")
        if value_end > value_at:  # an empty value means null, and null means absent
            fields[header[at + 2 : key_end].decode()] = header[value_at:value_end].decode()
        at = value_end
    if at == end:
        return fields
    raise ProtocolError(f"the binary header has too many fields, and the maximum is {MAX_FIELDS}")


def pack_header(
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, fields: dict[str, str]
) -> bytes:
    """Encode a header. ValueError if the code, the version or the name of a field exceeds this form's limits."""
    for what, number in (("code", code), ("version", version)):
        if not -(2**15) <= number < 2**15:
            raise ValueError(f"{what} {number} does not fit in the 16 bits of a binary header")
    # File names in a remark may contain text that UTF-8 cannot represent; the response must still be sent.
    remark_text = (remark or "").encode(errors="replace")
    pairs = bytearray()
    for name, value in fields.items():
        key_text, value_text = name.encode(errors="replace"), value.encode(errors="replace")
        if len(key_text) > 0x7FFF:
            raise ValueError(f"a field name of {len(key_text)} bytes does not fit in a binary header")
        pairs += len(key_text).to_bytes(2, "big") + key_text + len(value_text).to_bytes(4, "big") + value_text
    head = _HEAD.pack(code, language, version, opaque, flag, len(remark_text))
    return b"".join((head, remark_text, _LENGTH.pack(len(pairs)), pairs))
