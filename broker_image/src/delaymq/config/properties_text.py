"""Java's properties text, the syntax of broker.conf."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from delaymq.config.errors import ConfigError

# A configuration file is a page or two; this keeps a wrong path (a log, a device) from being read whole.
MAX_FILE_BYTES = 1 << 20


def parse_properties_text(text: str) -> dict[str, str]:
    """The keys and values of a Java properties text: `key=value` or `key: value`, `#` and `!` begin comments."""
    pairs = {}
    for line in _logical_lines(text):
        end = min((at for at in (line.find("="), line.find(":")) if at >= 0), default=-1)
        key, value = (line, "") if end < 0 else (line[:end], line[end + 1 :])
        pairs[_unescape(key.strip())] = _unescape(value.strip())
    return pairs


def _logical_lines(text: str) -> Iterable[str]:
    waiting = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not waiting and (not line or line[0] in "#!"):
            continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            waiting += line[:-1]
            continue
        yield waiting + line
        waiting = ""
    if waiting:
        yield waiting


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
    parts = []
    at = 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            parts.append(text[at])
            at += 1
        elif text[at + 1] == "u" and len(text) >= at + 6:
            try:
                parts.append(chr(int(text[at + 2 : at + 6], 16)))
            except ValueError:
                parts.append(text[at : at + 6])
            at += 6
        else:
            parts.append(plain.get(text[at + 1], text[at + 1]))
            at += 2
    return "".join(parts)


def read_properties_file(path: Path) -> dict[str, str]:
    """The keys and values of a broker.conf; ConfigError when it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: has more than {MAX_FILE_BYTES} bytes: is it a configuration file?")
    try:
        return parse_properties_text(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}): is it a configuration file?") from error
