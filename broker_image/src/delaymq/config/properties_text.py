"""Java's properties format, the syntax of broker.conf, and changes of values in such a file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from delaymq.config.errors import ConfigError
from delaymq.config.replacing import changing, replace_file

MAX_FILE_BYTES = 1 << 20
"""Configuration files are short; the limit keeps a wrong path (a log, a device) from being read completely."""
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_SHOWN_CHARACTERS = 100


class Entry(NamedTuple):
    """A key, its value, and their first and last line, counted from 1."""

    key: str
    value: str
    line: int
    last_line: int


def parse_entries(text: str) -> list[Entry]:
    """Parse the entries of a properties text, in order; raise ConfigError with the line of an error.

    `key=value`, `key: value` or `key value`; `#` and `!` start comments, a trailing backslash continues a line.
    """
    return [Entry(*_pair(line, first), first, last) for first, last, line in _logical_lines(text)]


def parse_properties_text(text: str) -> dict[str, str]:
    """Parse a properties text as a dict; the last of several values of a key is used."""
    return {entry.key: entry.value for entry in parse_entries(text)}


def _logical_lines(text: str) -> Iterator[tuple[int, int, str]]:
    waiting, first = "", 0
    number = 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(_BLANK)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            waiting += line[:-1]
            continue
        yield first, number, waiting + line
        waiting, first = "", 0
    if waiting:
        yield first, number, waiting


def _pair(line: str, number: int) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    # Java keeps trailing blanks, which are invisible and unintended.
    return _unescape(line[:end], number), _unescape(rest.rstrip(), number)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    parts = []
    at = 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            parts.append(text[at])
            at += 1
        elif text[at + 1] == "u":
            digits = text[at + 2 : at + 6]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise ConfigError(
                    f"line {number}: {text[at : at + 6]!r} is not a character: use \\u and four hexadecimal digits,"
                    " or \\\\ for a backslash"
                )
            parts.append(chr(int(digits, 16)))
            at += 6
        else:
            parts.append(_ESCAPED.get(text[at + 1], text[at + 1]))
            at += 2
    return "".join(parts)


def read_text(path: Path) -> str:
    """Read a configuration file as UTF-8, or as ISO-8859-1 like Java; raise ConfigError if it is unreadable."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return as_text(path, data)


def as_text(path: Path, data: bytes) -> str:
    """Decode the file content `data`; raise ConfigError if a server could not start with it."""
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} exceeds {MAX_FILE_BYTES} bytes: is it a configuration file?")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or _CONTROL.search(text):
        raise ConfigError(f"{path} is not text in UTF-8 or ISO-8859-1: is it a configuration file?")
    return text


def read_entries(path: Path) -> list[Entry]:
    """Return the entries of a broker.conf; raise ConfigError if it cannot be read."""
    text = read_text(path)
    try:
        return parse_entries(text)
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from error


def read_properties_file(path: Path) -> dict[str, str]:
    """Return the keys and values of a broker.conf; raise ConfigError if it cannot be read."""
    return {entry.key: entry.value for entry in read_entries(path)}


def with_values(text: str, values: dict[str, str]) -> str:
    """Return a properties text with changed values: a key's last line is replaced, new keys are appended.

    Everything else is kept, including comments and blank lines.
    """
    lines = _LINE_END.split(text) if text else []
    ending = "\r\n" if "\r\n" in text else "\n"
    last = {entry.key: entry for entry in parse_entries(text)}
    replaced = {last[key].line: (last[key].last_line, key) for key in values if key in last}
    result = []
    number = 1
    while number <= len(lines):
        if number in replaced:
            end, key = replaced[number]
            result.append(f"{key}={escape(values[key])}")
            number = end + 1
        else:
            result.append(lines[number - 1])
            number += 1
    while result and not result[-1]:
        result.pop()
    result += [f"{key}={escape(value)}" for key, value in values.items() if key not in last]
    return ending.join([*result, ""])


def escape(value: str) -> str:
    """Return a value escaped for a line `key=value`."""
    return value.strip().replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def rewrite(path: Path, values: Mapping[str, str]) -> None:
    """Write values into the file atomically; raise OSError if it cannot be written, ConfigError if it is invalid."""
    target = Path(os.path.realpath(path))
    with changing(target):
        text = with_values(read_text(target), dict(values))
        written = parse_properties_text(text)
        if any(written.get(key) != value for key, value in values.items()):
            raise ConfigError(f"{path}: each value must fit on one line")
        data = text.encode(errors="surrogatepass")
        as_text(target, data)
        replace_file(target, data, mode=stat.S_IMODE(target.stat().st_mode))
