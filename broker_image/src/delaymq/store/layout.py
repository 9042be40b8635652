"""Identification of a store, its format version and its file sizes, as the first steps of opening it."""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import dataclass, replace
from itertools import pairwise

from delaymq.store.consume_queue import ENTRY_BYTES
from delaymq.store.disk.files import Files
from delaymq.store.errors import NotAStoreError
from delaymq.store.index.index_file import HEADER_BYTES
from delaymq.store.index.key_index import is_index_name
from delaymq.store.model import Correction
from delaymq.store.options import StoreOptions
from delaymq.store.segments import SegmentFolder

_logger = logging.getLogger(__name__)
FORMAT_VERSION = 4
"""Newest version of the format that this program reads and writes."""
BASE_VERSION = 1
"""Version that a new store states, so that older programs can open it while it has no newer content."""
TIMED_VERSION = 2
"""Version of stores with statements of form 2 (docs/formats/store.md). An older program must not open such a store:
it would ignore pending messages."""
CHANGED_VERSION = 3
"""Version of stores in which pending messages were cancelled, moved or replaced. An older program could deliver them
when they were due at first."""
MANAGED_VERSION = 4
"""Version of stores with repeating messages, or with statements about groups and pauses. An older program refuses to
start with the latter, and would end a repeating message with its first run."""
DELETED_TOPICS = "deleted_topics.json"
"""File in delaymq/: topic → log end at its deletion."""
RESTORED = "restored.json"
"""File in delaymq/ of a store that was restored from a backup: what it stores is not in the original's log."""
_STATE = "delaymq/state.json"
_FOLDERS = ("commitlog", "consumequeue", "index", "config", "delaymq")


@dataclass(frozen=True, kw_only=True)
class StoreState:
    """Content of delaymq/state.json, which identifies the store."""

    format_version: int
    epoch: int
    role: str
    store_id: str
    minimum_reader: int = BASE_VERSION
    """Lowest format version of programs that may open the store."""
    unfinished: str = ""
    """Operation that a tool left unfinished; such a store cannot be opened."""
    cut_at: int | None = None
    """Physical offset at which the next start must end the log; see `replica.cutting`."""


def read_state(files: Files, path: str, corrections: list[Correction]) -> StoreState | None:
    """Return the state; None if DelayMQ never opened the store. NotAStoreError for a newer version."""
    data = files.read(f"{path}/{_STATE}")
    if data is None:
        return None
    try:
        state = _decode_state(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        corrections.append(Correction("state-damaged", _STATE, 0, f"cannot be read ({error}): recreated"))
        return None
    if state.minimum_reader > FORMAT_VERSION:
        raise NotAStoreError(
            f"{path} has format version {state.format_version}, which only programs with format version "
            f"{state.minimum_reader} or later can read; this program has format version {FORMAT_VERSION}: use the "
            "version that wrote the store, or a later one"
        )
    if state.unfinished and state.cut_at is None:
        raise NotAStoreError(f"{path} contains {state.unfinished}: run it again and let it finish, or empty the folder")
    return state


def read_state_as_it_is(files: Files, path: str) -> StoreState | None:
    """Return the state without any checks; None if there is no readable one."""
    data = files.read(f"{path}/{_STATE}")
    try:
        return _decode_state(data) if data is not None else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _decode_state(data: bytes) -> StoreState:
    content = json.loads(data)
    format_version = int(content["formatVersion"])
    return StoreState(
        format_version=format_version,
        epoch=int(content["epoch"]),
        role=str(content["role"]),
        store_id=str(content["storeId"]),
        # Without this field, any program that supports the format version may open the store.
        minimum_reader=int(content.get("minimumReader", format_version)),
        unfinished=str(content.get("unfinished", "")),
        cut_at=None if (cut_at := content.get("cutAt")) is None else int(cut_at),
    )


def write_state(files: Files, path: str, state: StoreState) -> None:
    """Replace state.json durably."""
    content: dict[str, int | str] = {
        "formatVersion": state.format_version,
        "epoch": state.epoch,
        "role": state.role,
        "storeId": state.store_id,
        "minimumReader": state.minimum_reader,
    }
    if state.unfinished:
        content["unfinished"] = state.unfinished
    if state.cut_at is not None:
        content["cutAt"] = state.cut_at
    files.write(f"{path}/{_STATE}.tmp", json.dumps(content, separators=(",", ":")).encode() + b"\n")
    files.rename(f"{path}/{_STATE}.tmp", f"{path}/{_STATE}")
    files.sync_folder(f"{path}/delaymq")


def new_state() -> StoreState:
    """Return the state of a store that DelayMQ has not opened before."""
    return StoreState(format_version=BASE_VERSION, epoch=0, role="master", store_id=str(uuid.uuid4()))


def raised(state: StoreState, version: int) -> StoreState:
    """Return the state of a store that only programs with this version of the format may open."""
    return replace(
        state,
        format_version=max(state.format_version, version),
        minimum_reader=max(state.minimum_reader, version),
    )


def make_folders(files: Files, path: str) -> None:
    """Create the store's folders durably."""
    for name in _FOLDERS:
        files.make_folder(f"{path}/{name}")
    files.sync_folder(path)


def sizes_of_existing(files: Files, path: str, options: StoreOptions) -> StoreOptions:
    """Return `options` with the sizes of the existing files."""
    found_log_bytes, found_queue_bytes = sizes_found(files, path)
    log_bytes = found_log_bytes or options.commit_log_file_bytes
    queue_bytes = found_queue_bytes or options.consume_queue_file_bytes
    if (log_bytes, queue_bytes) != (options.commit_log_file_bytes, options.consume_queue_file_bytes):
        _logger.warning(
            "the store's files have %d bytes (log) and %d bytes (queues), not the configured %d and %d: existing sizes"
            " kept",
            log_bytes,
            queue_bytes,
            options.commit_log_file_bytes,
            options.consume_queue_file_bytes,
        )
        options = replace(options, commit_log_file_bytes=log_bytes, consume_queue_file_bytes=queue_bytes)
    index_bytes = HEADER_BYTES + options.index_slots * 4 + options.index_entries * 20
    for name in files.names_in(f"{path}/index"):
        facts = files.facts(f"{path}/index/{name}")
        if is_index_name(name) and facts is not None and facts.file_bytes != index_bytes:
            _logger.warning(
                "index/%s has %d bytes, not the configured %d: existing size kept", name, facts.file_bytes, index_bytes
            )
            break
    return options


def sizes_found(files: Files, path: str) -> tuple[int | None, int | None]:
    """Return the file sizes of log and queues in bytes; None where no file shows it."""
    return SegmentFolder(files, f"{path}/commitlog", "", 0).size_of_existing(), _queue_file_bytes(files, path)


def _queue_file_bytes(files: Files, path: str) -> int | None:
    """Return the size of the first queue files; the largest of a few, because one may be truncated."""
    found = 0
    examined = 0
    for topic in files.names_in(f"{path}/consumequeue"):
        for queue_id in files.names_in(f"{path}/consumequeue/{topic}"):
            folder = f"{path}/consumequeue/{topic}/{queue_id}"
            names = [name for name in files.names_in(folder) if len(name) == 20 and name.isdigit()]
            for name, following in pairwise(names):
                distance = int(following) - int(name)
                if distance % ENTRY_BYTES == 0 and int(name) % distance == 0:
                    return distance
            for name in names:
                facts = files.facts(f"{folder}/{name}")
                if facts is not None and facts.file_bytes % ENTRY_BYTES == 0:
                    found = max(found, facts.file_bytes)
            examined += 1
            if examined >= 20:
                return found or None
    return found or None
