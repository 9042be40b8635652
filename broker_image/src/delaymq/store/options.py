"""Options of a store: sizes of its files, flushing, retention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options of one store. File sizes apply to new stores; an existing store keeps its own."""

    commit_log_file_bytes: int = 1 << 30
    """Size of a log segment (mappedFileSizeCommitLog)."""
    consume_queue_file_bytes: int = 6_000_000
    """Size of a consume-queue file, a multiple of 20 (mappedFileSizeConsumeQueue)."""
    index_slots: int = 5_000_000
    """Hash slots of an index file (maxHashSlotNum)."""
    index_entries: int = 20_000_000
    """Entries of an index file, including the unused first one (maxIndexNum)."""
    index_enable: bool = True
    """Whether keys are indexed (messageIndexEnable)."""
    check_crc_on_recover: bool = True
    """Whether recovery checks each body's checksum (checkCRCOnRecover)."""
    sync_flush: bool = False
    """Whether a record counts as confirmed only when it is flushed (flushDiskType SYNC_FLUSH)."""
    file_reserved_hours: int = 72
    """Retention time of segments (fileReservedTime)."""
    delete_when: tuple[int, ...] = (4,)
    """Local hours of the day at which old segments are deleted (deleteWhen)."""
    disk_max_used_ratio: float = 0.75
    """Disk usage above which old segments are deleted at any hour (diskMaxUsedSpaceRatio)."""
    disk_clean_ratio: float = 0.85
    """Disk usage above which segments are deleted regardless of age (diskSpaceCleanForciblyRatio)."""
    disk_write_refused_ratio: float = 0.90
    """Disk usage above which messages are rejected (diskSpaceWarningLevelRatio)."""
    snapshot_interval_bytes: int = 32 << 20
    """Maximum amount of log that recovery has to replay."""
    max_record_bytes: int = (4 << 20) + (64 << 10)
    """Size of the largest record (maxMessageSize + 64 KiB)."""
