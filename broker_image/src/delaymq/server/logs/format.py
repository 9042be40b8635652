"""Log formats: one line per event, as key=value text or a JSON object. Data of peers cannot start a new line."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from delaymq.clock import iso_time
from delaymq.throttled_log import FIELDS_ATTRIBUTE

MAX_EVENT_CHARACTERS: Final = 4_096
MAX_FIELD_CHARACTERS: Final = 1_024
"""Limit of field values, because keys, names and errors of peers may be megabytes long."""
MAX_FIELDS: Final = 32
MAX_FRAMES: Final = 20
"""Maximum frames of a stack; the innermost ones are kept."""
MAX_CAUSES: Final = 4

_RESERVED: Final = frozenset({"time", "level", "logger", "event", "error", "trace"})
_PLAIN: Final = re.compile(r"[!#-<>-\[\]-~]+")
"""Values without quotes: printable ASCII without blanks, quotes and backslashes."""

Pairs = list[tuple[str, object]]


class OneLine(logging.Formatter):
    """Formats a record as one line with `render`, with the name of this process's broker unless it is empty."""

    def __init__(self, render: Callable[[Pairs], str], broker: str = "") -> None:
        super().__init__()
        self._render = render
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line end."""
        return self._render(_pairs(record, self._broker))


def formatter(log_format: str, broker: str = "") -> logging.Formatter:
    """Return the formatter of `text` or `json`."""
    return OneLine(_as_json if log_format == "json" else _as_text, broker)


def _pairs(record: logging.LogRecord, broker: str) -> Pairs:
    try:
        event = record.getMessage()
    except Exception as unfit:  # a wrong number of arguments must not lose the event
        event = f"{record.msg} (invalid arguments: {unfit})"
    pairs: Pairs = [
        ("time", iso_time(int(record.created * 1000))),
        ("level", record.levelname.lower()),
        ("logger", record.name),
        ("event", _cut(event, MAX_EVENT_CHARACTERS)),
    ]
    if broker:
        pairs.insert(2, ("broker", broker))
    stated = getattr(record, FIELDS_ATTRIBUTE, None)
    if isinstance(stated, Mapping):
        for name, value in list(stated.items())[:MAX_FIELDS]:
            if broker and name == "broker" and value == broker:
                continue
            is_taken = name in _RESERVED or (broker and name == "broker")
            pairs.append((f"{name}_" if is_taken else str(name), _field(value)))
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        pairs.append(("error", _cut(f"{type(error).__name__}: {error}", MAX_FIELD_CHARACTERS)))
        pairs.append(("trace", list(_trace(error))))
    return pairs


def _field(value: object) -> object:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        value = value[: MAX_FIELD_CHARACTERS * 4].decode(errors="backslashreplace")
    if isinstance(value, list | tuple | set | frozenset):
        value = " ".join(str(each)[:MAX_FIELD_CHARACTERS] for each in list(value)[:MAX_FIELDS])
    return _cut(str(value), MAX_FIELD_CHARACTERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def _trace(error: BaseException) -> Iterator[str]:
    """Yield the calls that led to an error, outermost first, and those of its causes."""
    cause: BaseException | None = error
    for number in range(MAX_CAUSES):
        if cause is None:
            return
        if number:
            yield _cut(f"caused by {type(cause).__name__}: {cause}", MAX_FIELD_CHARACTERS)
        for frame in traceback.extract_tb(cause.__traceback__)[-MAX_FRAMES:]:
            yield f"{_short(frame.filename)}:{frame.lineno} {frame.name}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _short(path: str) -> str:
    """Return the path starting at the package."""
    parts = path.replace("\\", "/").split("/")
    return "/".join(parts[parts.index("delaymq") :] if "delaymq" in parts else parts[-2:])


def _as_json(pairs: Pairs) -> str:
    line = json.dumps(dict(pairs), ensure_ascii=False)
    if line.isprintable():
        return line
    # JSON escapes control characters; other characters also end lines in some readers, or reverse the text direction.
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def _as_text(pairs: Pairs) -> str:
    return " ".join(f"{_name(name)}={_text(value)}" for name, value in pairs)


def _name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64]


def _text(value: object) -> str:
    if isinstance(value, list):
        value = " < ".join(reversed([str(each) for each in value]))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character) or character.encode("unicode_escape").decode()
