"""Texts of audit lines: bounded, on one line, and without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

MAX_NAME_CHARACTERS: Final = 255
MAX_REFUSED_NAME_CHARACTERS: Final = 64
"""The same in refused attempts, whose names anybody can invent, so that they do not displace changes."""
MAX_REMARK_CHARACTERS: Final = 200
MAX_TARGETS: Final = 8
HIDDEN: Final = "***"
MIN_SECRET_CHARACTERS: Final = 4
"""Shorter values are not searched for in remarks: they would hide ordinary words."""
MAX_SECRETS: Final = 64

MAX_QUOTED_CHARACTERS: Final = 16
"""Beginning of a longer secret that is searched for, because remarks may repeat a part of a value."""
_EXAMINED_CHARACTERS: Final = 1_000
_BEFORE_USER: Final = re.compile(r"[\s/\"'=,;]")


def name(text: object, most: int = MAX_NAME_CHARACTERS) -> str:
    """Return a name for a line: limited, valid UTF-8, without user name and password of an address."""
    return _cut(_without_user_info(_valid(str(text)[: 2 * MAX_NAME_CHARACTERS])), most)


def targets(named: Mapping[str, object], most: int = MAX_NAME_CHARACTERS) -> dict[str, str]:
    """Return the names of what a request changes; empty ones are omitted."""
    shown = {kind: name(value, most) for kind, value in named.items() if value not in (None, "")}
    return dict(list(shown.items())[:MAX_TARGETS])


def remark(text: str | None, secrets: Iterable[str] = ()) -> str:
    """Return the reason of a refusal, in which values of the request that may be secrets are hidden."""
    if not text:
        return ""
    long_enough = {each for each in islice(secrets, MAX_SECRETS) if len(each) >= MIN_SECRET_CHARACTERS}
    forms = {form for each in long_enough for form in _forms(each)}
    shown = _without(forms, text[:_EXAMINED_CHARACTERS])
    if len(text) > _EXAMINED_CHARACTERS:
        shown = shown[:-MAX_QUOTED_CHARACTERS]  # perhaps the beginning of a secret
    return _cut(_without_user_info(_valid(shown)), MAX_REMARK_CHARACTERS)


def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret unchanged, and as error messages may escape it."""
    escaped = repr(secret)[1:-1]
    # Python escapes a quote only if the text, which may be truncated, contains both kinds.
    return secret, escaped, escaped.replace("\\'", "'"), json.dumps(secret)[1:-1]


def _without(secrets: Iterable[str], text: str) -> str:
    """Hide secrets, and parts of long ones from their start, which a remark with limited values may contain."""
    spans: list[tuple[int, int]] = []
    for secret in secrets:
        head = secret[:MAX_QUOTED_CHARACTERS]
        at = text.find(head)
        while at >= 0:
            end = at + _common_characters(text, at, secret)
            spans.append((at, end))
            at = text.find(head, end)
    shown, done = "", 0
    for start, end in sorted(spans):
        if start > done or not shown:
            shown += text[done:start] + HIDDEN
        done = max(done, end)
    return shown + text[done:]


def _common_characters(text: str, at: int, secret: str) -> int:
    count = 0
    for one, other in zip(islice(text, at, None), secret, strict=False):
        if one != other:
            break
        count += 1
    return count


def _without_user_info(text: str) -> str:
    """Hide user name and password before the host of each address."""
    if "@" not in text:
        return text
    *befores, last = text.split("@")
    shown = ""
    for before in befores:
        start = max((found.end() for found in _BEFORE_USER.finditer(before)), default=0)
        shown += f"{before[:start]}{HIDDEN}@" if ":" in before[start:] else f"{before}@"
    return shown + last


def as_line(data: bytes) -> bytes:
    """Return the JSON of a line in printable ASCII, with its line end. All other characters are escaped."""
    if not data.isascii() or b"\x7f" in data:
        text = data.decode()
        data = "".join(each if " " <= each <= "~" else json.dumps(each)[1:-1] for each in text).encode()
        data = data.replace(b"\x7f", b"\\u007f")
    return data + b"\n"


def _valid(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
