"""Key-value configuration, stored in RocketMQ's kvConfig.json: `{"configTable":{NAMESPACE:{KEY:VALUE}}}`."""

import contextlib
import logging
import os
from functools import partial
from pathlib import Path
from typing import Final

from delaymq.blocking_steps import BlockingSteps
from delaymq.namesrv.errors import NamesrvError
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import FastJsonError, RequestError
from delaymq.protocol.fastjson import dumps, loads

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the brokers and queue numbers of ordered topics; brokers receive it with each registration."""

MAX_ENTRIES: Final = 10_000
"""Limit of entries, because every change rewrites the file, and a peer must not let it grow indefinitely."""
MAX_ENTRY_CHARACTERS: Final = 65_536
"""Limit of an entry: namespace, key and value."""
MAX_CHARACTERS: Final = 16 << 20
"""Limit of all entries, small enough to be rewritten frequently."""
MAX_FILE_BYTES: Final = 16 << 20
"""Limit of the file at startup. A character takes up to 6 bytes in it."""
UNREADABLE: Final = ".unreadable"
"""Suffix of an unreadable file that was renamed."""

_logger = logging.getLogger(__name__)


class KVSettings:
    """Settings in memory; each change is written to disk first. Changes must not overlap. `path` None: no file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._tables: dict[str, dict[str, str]] = {}
        if path is not None:
            self._tables = _load(path)

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value, or None."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str] | None:
        """Return all keys of a namespace; None if there is no such namespace."""
        return self._tables.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> BlockingSteps[None]:
        """Set a value; raise RequestError if that would exceed a limit or cannot be written."""
        if len(namespace) + len(key) + len(value) > MAX_ENTRY_CHARACTERS:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the entry exceeds {MAX_ENTRY_CHARACTERS} characters: shorten it"
            )
        known = self.get(namespace, key)
        if known is None and sum(map(len, self._tables.values())) >= MAX_ENTRIES:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"there are {MAX_ENTRIES} settings already: delete some")
        more = len(value) - len(known) if known is not None else len(namespace) + len(key) + len(value)
        if more > 0 and self._characters() + more > MAX_CHARACTERS:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"all settings together would exceed {MAX_CHARACTERS} characters: delete some",
            )
        # As in RocketMQ, a namespace remains when its last key is deleted, but only until the next value is set.
        tables = {name: dict(table) for name, table in self._tables.items() if table}
        tables.setdefault(namespace, {})[key] = value
        yield from self._change(tables)

    def delete(self, namespace: str, key: str) -> BlockingSteps[None]:
        """Remove a value if it exists."""
        if self.get(namespace, key) is None:
            return
        tables = {name: dict(table) for name, table in self._tables.items()}
        del tables[namespace][key]
        yield from self._change(tables)

    def _characters(self) -> int:
        return sum(
            len(name) * len(table) + sum(map(len, table)) + sum(map(len, table.values()))
            for name, table in self._tables.items()
        )

    def _change(self, tables: dict[str, dict[str, str]]) -> BlockingSteps[None]:
        if self._path is not None:
            data = dumps({"configTable": tables})
            if len(data) > MAX_FILE_BYTES:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the settings file would have {len(data)} bytes, more than the limit of {MAX_FILE_BYTES}:"
                    " delete some settings",
                )
            try:
                yield partial(_save, self._path, data)
            except OSError as error:
                _logger.error("cannot write the settings to %s: %s", self._path, error)
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"cannot write the settings ({error.strerror}): nothing was changed"
                ) from error
        self._tables = tables


def _load(path: Path) -> dict[str, dict[str, str]]:
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            with candidate.open("rb") as file:
                return _parse(file.read(MAX_FILE_BYTES + 1))
        except FileNotFoundError:
            continue
        except (FastJsonError, ValueError) as error:
            _logger.warning("%s is unreadable and is renamed: %s", candidate, error)
            _rename_unreadable(candidate)
        except OSError as error:
            raise NamesrvError(f"cannot read {candidate}: {error.strerror}: make it readable") from error
    return {}


def _parse(data: bytes) -> dict[str, dict[str, str]]:
    tree = loads(data, max_bytes=MAX_FILE_BYTES)
    tables = tree.get("configTable") if isinstance(tree, dict) else None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError("it contains no configTable of namespaces")
    return {str(name): {str(key): str(value) for key, value in table.items()} for name, table in tables.items()}


def _rename_unreadable(path: Path) -> None:
    """Rename an unreadable file, so that it does not replace a valid backup."""
    kept, number = path.with_name(path.name + UNREADABLE), 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}{UNREADABLE}.{number}")
    try:
        path.rename(kept)
    except OSError as error:
        _logger.error("cannot rename %s: %s", path, error)


def _save(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    backup = path.with_name(path.name + ".bak")
    if path.exists():
        with contextlib.suppress(FileNotFoundError):
            backup.unlink()
        os.link(path, backup)
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
