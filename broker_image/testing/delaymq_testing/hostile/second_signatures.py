"""Which requests of a broker's connections carry a signature that counts, written from docs/formats/wire.md alone.

Nothing here is the server's: a mistake of its signatures would otherwise be one of the judge, too.
"""

from __future__ import annotations

import hmac
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from delaymq_testing.hostile.frames import Request, signature, text_of

MAX_COUNTER = 2**63 - 1


class Read(Protocol):
    """A request as its receiver reads it."""

    code: int
    opaque: int
    flag: int
    version: int
    language: str
    remark: str | None
    fields: dict[str, str]
    body: bytes


@dataclass
class Reading:
    """`Read`, worked out from a request that was made here."""

    code: int
    opaque: int
    flag: int
    version: int
    language: str
    remark: str | None
    fields: dict[str, str]
    body: bytes


def reading(request: Request) -> Reading:
    """What a server reads of a request: null is absent, and so is an empty value in a binary header."""
    read = [(name, text) for name, value in request.fields if (text := text_of(value)) is not None]
    remark, language = request.remark, request.language
    if request.is_binary:
        read, language = [pair for pair in read if pair[1]], "JAVA"
        remark = remark or None
    if not isinstance(language, str):
        language = "ERLANG" if language == 5 else "OTHER"
    text = remark.decode(errors="replace") if isinstance(remark, bytes) else remark
    members = (request.code, request.opaque, request.flag, request.version, language, text)
    return Reading(*members, dict(read), request.body)


@dataclass
class Owner:
    """An account."""

    secret: str
    requires_second: bool = False


@dataclass
class Challenge:
    """What a server told a connection, and the last counter that it accepted since."""

    value: bytes
    nonce: bytes
    server: str
    counter: int = 0
    used_at: float = 0.0


def packed(value: Any) -> bytes:
    """MessagePack, each value in its shortest form."""
    if value is None:
        return b"\xc0"
    if isinstance(value, int):
        if -32 <= value < 128:
            return struct.pack(">b", value)
        tag, letters = (0xCC, "BHIQ") if value > 0 else (0xD0, "bhiq")
        size = next(n for n in range(4) if -(2 ** (8 * 2**n - 1)) <= value < 2 ** (8 * 2**n))
        return struct.pack(f">B{letters[size]}", tag + size, value)
    if isinstance(value, bytes):
        return _headed(value, len(value), 0, 0, (0xC4, 0xC5, 0xC6))
    if isinstance(value, str):
        text = value.encode()
        return _headed(text, len(text), 32, 0xA0, (0xD9, 0xDA, 0xDB))
    items = b"".join(packed(each) for each in value)
    return _headed(items, len(value), 16, 0x90, (None, 0xDC, 0xDD))


def _headed(data: bytes, count: int, below: int, short_tag: int, tags: tuple[int | None, int, int]) -> bytes:
    if count < below:
        return bytes((short_tag | count,)) + data
    for tag, letter, size in zip(tags, "BHI", (1, 2, 4), strict=True):
        if tag is not None and count < 256**size:
            return struct.pack(f">B{letter}", tag, count) + data
    raise ValueError("too long")


def second_signature(challenge: Challenge, access_key: str, secret: str, counter: int, read: Read) -> str:
    """UnicodeEncodeError for lone surrogates."""
    context = ["DelayMQ connection", 1, challenge.value, challenge.nonce, challenge.server, access_key]
    key = hmac.digest(secret.encode(), packed(context), "sha256")
    fields = sorted((name, value) for name, value in read.fields.items() if name != "DmqSignature")
    members = [counter, read.code, read.flag, read.opaque, read.version, read.language, read.remark]
    covered = packed([*members, [text for pair in fields for text in pair], len(read.body)])
    return b64encode(hmac.digest(key, covered + read.body, "sha256")).decode()


class Rule:
    """The rule of acceptance: accounts, and the challenge of each connection."""

    def __init__(
        self, owners: Mapping[str, Owner], max_silence_s: float = 1e9, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.owners = owners
        self.challenges: dict[int, Challenge] = {}
        self._given: set[bytes] = set()
        self._max_silence_s = max_silence_s
        self._clock = clock

    def challenged(self, connection: int, nonce: bytes, value: bytes, server: str) -> None:
        """The server answered a question for a challenge, with one that nobody had before."""
        assert value not in self._given
        self._given.add(value)
        self.challenges[connection] = Challenge(value, nonce, server, used_at=self._clock())

    def accepts(self, connection: int, read: Read) -> bool:
        """Whether a signature counts that a server got now; call it once for each request, in the server's order."""
        fields = read.fields
        access_key = fields.get("AccessKey")
        if access_key is None:
            is_challenge = read.code == 101 and (fields.get("namespace"), fields.get("key")) == ("DELAYMQ", "challenge")
            return is_challenge or read.code in (30_002, 30_003, 30_004)  # links of replicas, which are proven
        owner = self.owners.get(access_key)
        if owner is None:
            return False
        if "DmqSignature" in fields:
            return self._accepts_second(connection, access_key, owner.secret, read)
        return not owner.requires_second and _has_rocketmqs(owner.secret, read)

    def _accepts_second(self, connection: int, access_key: str, secret: str, read: Read) -> bool:
        challenge = self.challenges.get(connection)
        if challenge is None or self._clock() - challenge.used_at > self._max_silence_s:
            return False
        text = read.fields.get("DmqCounter", "")
        if "Signature" in read.fields or not re.fullmatch("[1-9][0-9]{0,18}", text):
            return False
        counter = int(text)
        if not challenge.counter < counter <= MAX_COUNTER:
            return False
        try:
            expected = second_signature(challenge, access_key, secret, counter, read)
        except UnicodeEncodeError:
            return False
        if read.fields["DmqSignature"] != expected:
            return False
        challenge.counter, challenge.used_at = counter, self._clock()
        return True


def _has_rocketmqs(secret: str, read: Read) -> bool:
    """RocketMQ's broker leaves `_UNIQUE_KEY_QUERY` out of what it checks; its clients sign it."""
    pairs = list(read.fields.items())
    without = [pair for pair in pairs if pair[0] != "_UNIQUE_KEY_QUERY"]
    return read.fields.get("Signature") in (signature(secret, pairs, read.body), signature(secret, without, read.body))
