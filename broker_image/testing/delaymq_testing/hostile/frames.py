"""Frames as a hostile client may write them: made here byte by byte, so that no limit of our own encoder holds.

Layouts: docs/formats/wire.md. Fields are pairs rather than a dictionary: a name may occur twice, and in a JSON header a
value may be a number, a boolean or null.
"""

from __future__ import annotations

import hmac
import json
import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

Value = str | int | float | bool | None
Fields = Sequence[tuple[str, Value]]

JSON, BINARY = 0, 1
RESPONSE, ONEWAY = 1, 2
JAVA = 0
"""LanguageCode.JAVA in a binary header."""


def text_of(value: Value) -> str | None:
    """What a receiver makes of a value: None for null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def signature(secret: str, fields: Fields, body: bytes) -> str:
    """RocketMQ's: HMAC-SHA1 over the values in the order of their names, then the body."""
    known = {name: text for name, value in fields if (text := text_of(value)) is not None and name != "Signature"}
    values = "".join(known[name] for name in sorted(known)).encode(errors="replace")
    return b64encode(hmac.digest(secret.encode(), values + body, "sha1")).decode()


def signed(access_key: str, secret: str, fields: Fields, body: bytes) -> list[tuple[str, Value]]:
    """The fields with `AccessKey` and `Signature`."""
    pairs = [*fields, ("AccessKey", access_key)]
    return [*pairs, ("Signature", signature(secret, pairs, body))]


def json_header(code: int, fields: Fields, opaque: int = 0, flag: int = 0, **others: Value) -> bytes:
    """A JSON header; `others` are further members of its object, as `language`, `version`, `remark`."""
    pairs = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields)
    members = [f'"code":{code}', f'"opaque":{opaque}', f'"flag":{flag}', f'"extFields":{{{pairs}}}']
    members += [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in others.items()]
    return ("{" + ",".join(members) + "}").encode(errors="replace")


def binary_header(
    code: int, fields: Fields, opaque: int = 0, flag: int = 0, version: int = 407, remark: bytes = b""
) -> bytes:
    """The binary form. Numbers that do not fit lose their upper bits."""
    pairs = b""
    for name, value in fields:
        key, text = name.encode(errors="replace"), (text_of(value) or "").encode(errors="replace")
        pairs += struct.pack(">H", len(key) & 0xFFFF) + key + struct.pack(">I", len(text)) + text
    head = struct.pack(">HBHII", code & 0xFFFF, JAVA, version & 0xFFFF, opaque & 0xFFFFFFFF, flag & 0xFFFFFFFF)
    return head + struct.pack(">I", len(remark)) + remark + struct.pack(">I", len(pairs)) + pairs


def framed(header: bytes, body: bytes = b"", serialisation: int = JSON) -> bytes:
    """The whole frame, with its length."""
    return struct.pack(">II", 4 + len(header) + len(body), serialisation << 24 | len(header)) + header + body


@dataclass
class Request:
    """A request before it is written: all that a signature may cover, and the form of the header."""

    code: int
    fields: list[tuple[str, Value]]
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    version: int = 407
    language: Value = "JAVA"
    """Of a JSON header; a binary one always says JAVA."""
    remark: str | bytes | None = None
    """In bytes only for a binary header."""
    is_binary: bool = False

    def frame(self) -> bytes:
        """The whole frame, with its length."""
        if self.is_binary:
            remark = self.remark.encode() if isinstance(self.remark, str) else self.remark or b""
            header = binary_header(self.code, self.fields, self.opaque, self.flag, self.version, remark)
            return framed(header, self.body, BINARY)
        others: dict[str, Value] = {"language": self.language, "version": self.version}
        if isinstance(self.remark, str):
            others["remark"] = self.remark
        return framed(json_header(self.code, self.fields, self.opaque, self.flag, **others), self.body)


def request(code: int, fields: Fields = (), body: bytes = b"", *, opaque: int = 0, flag: int = 0) -> bytes:
    """A plain request with a JSON header."""
    return framed(json_header(code, fields, opaque, flag, language="JAVA", version=407), body)


def batch_entry(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    """One message of a batch (320)."""
    rest = struct.pack(">iiiI", 0, 0, flag, len(body)) + body + struct.pack(">H", len(properties)) + properties
    return struct.pack(">I", 4 + len(rest)) + rest


def frames_of(data: bytes) -> list[tuple[int, int, dict[str, str], bytes]]:
    """Opaque, code, fields and body of responses with JSON headers; a partial frame at the end is omitted."""
    found = []
    at = 0
    while at + 8 <= len(data):
        length, header_bytes = struct.unpack_from(">II", data, at)
        if at + 4 + length > len(data):
            break
        header = json.loads(data[at + 8 : at + 8 + (header_bytes & 0xFFFFFF)])
        body = data[at + 8 + (header_bytes & 0xFFFFFF) : at + 4 + length]
        found.append((header["opaque"], header["code"], header.get("extFields") or {}, body))
        at += 4 + length
    return found
