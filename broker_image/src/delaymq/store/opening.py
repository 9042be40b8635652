"""Steps for opening a store."""

from __future__ import annotations

import errno
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from delaymq.message.errors import NewerFormError
from delaymq.message.levels import DelayLevels
from delaymq.store import layout
from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ConsumeQueues
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files, is_full, is_shortage
from delaymq.store.disk.own_folder import OwnFolder, UsesFolder
from delaymq.store.disk.store_lock import StoreLock
from delaymq.store.dispatch import Dispatcher
from delaymq.store.errors import NotAStoreError, StoreOpenError
from delaymq.store.index.key_index import KeyIndex
from delaymq.store.model import Correction, DispatchObserver, RecoveryReport
from delaymq.store.options import StoreOptions
from delaymq.store.recovery.recovery import Recovery
from delaymq.store.replica.cutting import deletions_before, finish_cut
from delaymq.store.segments import SegmentFolder

_logger = logging.getLogger(__name__)
Store = TypeVar("Store")


def open_store(
    store_class: Callable[..., Store],
    path: str,
    options: StoreOptions,
    now_ms: Callable[[], int],
    levels: DelayLevels,
    files: Files,
    observers: Sequence[DispatchObserver],
    *,
    end_at_damage: bool = False,
) -> Store:
    """Open and recover a store; see `MessageStore.open`."""
    try:
        return _open_store(store_class, path, options, now_ms, levels, files, observers, end_at_damage)
    except NewerFormError as error:
        raise NotAStoreError(f"{path} cannot be opened: {error}") from error
    except OSError as error:
        raise StoreOpenError(f"{path} cannot be opened ({error}): {_remedy(error)}") from error


def _open_store(
    store_class: Callable[..., Store],
    path: str,
    options: StoreOptions,
    now_ms: Callable[[], int],
    levels: DelayLevels,
    files: Files,
    observers: Sequence[DispatchObserver],
    end_at_damage: bool,
) -> Store:
    started_ns = time.monotonic_ns()
    path = path.rstrip("/")
    report = RecoveryReport()
    if not files.is_folder(path) and not files.make_folder(path):
        raise NotAStoreError(f"{path} is not a directory: specify another --store-path")
    aside = AsideFolder(files, path)
    state = layout.read_state(files, path, report.corrections)
    lock = StoreLock(files, f"{path}/lock")
    try:
        layout.make_folders(files, path)
        if state is None:
            aside.keep_file(f"{path}/delaymq/state.json")
            state = layout.new_state()
            layout.write_state(files, path, state)
        report.clean = files.facts(f"{path}/abort") is None
        if report.clean:
            files.write(f"{path}/abort", b"")
            files.sync_folder(path)
        options = layout.sizes_of_existing(files, path, options)
        folder = SegmentFolder(files, f"{path}/commitlog", f"{path}/delaymq", options.commit_log_file_bytes)
        folder.discard_unfinished()
        log = CommitLog(files, folder, folder.load(report.corrections, aside))
        queues = ConsumeQueues(files, f"{path}/consumequeue", options.consume_queue_file_bytes, aside)
        index = (
            KeyIndex(files, f"{path}/index", options.index_slots, options.index_entries, aside, now_ms)
            if options.index_enable
            else None
        )
        for observer in observers:
            if isinstance(observer, UsesFolder):
                observer.use_folder(OwnFolder(files, f"{path}/delaymq/{observer.folder_name}"), log.file_bytes)
        dispatcher = Dispatcher(queues, index, observers, levels)
        dispatcher.deleted_topics = _deleted_topics(files, path, report, aside)
        if state.cut_at is not None:
            dispatcher.deleted_topics = deletions_before(files, path, dispatcher.deleted_topics, state.cut_at)
        Recovery(
            files=files,
            store_path=path,
            log=log,
            queues=queues,
            index=index,
            observers=observers,
            dispatcher=dispatcher,
            check_crc=options.check_crc_on_recover,
            report=report,
            aside=aside,
            now_ms=now_ms,
            limit=state.cut_at,
            end_at_damage=end_at_damage,
        ).run()
        if state.cut_at is not None:
            state = finish_cut(files, path, state, log.end_offset)
        report.duration_ms = (time.monotonic_ns() - started_ns) // 1_000_000
        _log_report(path, report)
        return store_class(path, state, files, options, log, queues, index, dispatcher, observers, lock, report, now_ms)
    except BaseException:
        lock.release()
        raise
    finally:
        aside.close()


def _remedy(error: OSError) -> str:
    if is_shortage(error):
        return "give the process more memory or descriptors (ulimit -n): a store needs one descriptor per segment"
    if is_full(error):
        return "free space, or enlarge the volume"
    if error.errno == errno.EROFS:
        return "the file system is read-only; set readOnly=true to inspect the store"
    return "check the folder, its permissions and its disk"


def _deleted_topics(files: Files, path: str, report: RecoveryReport, aside: AsideFolder) -> dict[str, int]:
    try:
        content = json.loads(files.read(f"{path}/delaymq/{layout.DELETED_TOPICS}") or b"{}")
        return {str(topic): int(end) for topic, end in content.items()}
    except (ValueError, AttributeError, TypeError) as error:
        detail = f"cannot be read ({error}): old entries of deleted topics may reappear"
        report.corrections.append(Correction("config-damaged", f"delaymq/{layout.DELETED_TOPICS}", 0, detail))
        try:
            aside.keep_file(f"{path}/delaymq/{layout.DELETED_TOPICS}")
            # Replace the file so that only this start reports the damage.
            files.write(f"{path}/delaymq/{layout.DELETED_TOPICS}", b"{}")
        except OSError as failure:
            if not is_full(failure):
                raise
        return {}


def _log_report(path: str, report: RecoveryReport) -> None:
    for correction in report.corrections:
        _logger.warning("%s at %d: %s", correction.file, correction.offset, correction.detail)
    _logger.info(
        "%s opened in %d ms after %s stop, %s a snapshot: %d records (%d bytes) replayed, %d corrections",
        path,
        report.duration_ms,
        "a clean" if report.clean else "an unclean",
        "with" if report.snapshot_used else "without",
        report.replayed_records,
        report.replayed_bytes,
        len(report.corrections),
    )
