"""Errors of the store. Each message states a remedy."""


class StoreError(Exception):
    """Base class of the store's errors."""


class NotAStoreError(StoreError):
    """The folder holds no store, or a store that this version must not open."""


class StoreOpenError(StoreError):
    """A system call that is needed to open the store failed."""


class UnreadableTableError(StoreError):
    """Neither a table's file nor its backup can be read. `paths`: retained files, relative to the store."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(f"neither the table nor its backup can be read: {', '.join(paths)}")
        self.paths = paths


class StoreLockedError(StoreError):
    """Another process has locked the store."""


class StoreClosedError(StoreError):
    """The store is closed."""


class StoreReadOnlyError(StoreError):
    """The store is open read-only."""


class StoreFollowingError(StoreError):
    """The store receives the log of another broker, and accepts no other records."""


class StoreFailedError(StoreError):
    """The disk failed to store written data; nothing more is accepted until a restart."""


class StoreFullError(StoreError):
    """Out of space for messages. Reading continues, and writing resumes when space is available."""


class RecordTooLargeError(StoreError):
    """A message larger than `max_record_bytes` or than a segment."""


class SegmentCreateError(StoreError):
    """A log segment could not be created, for a reason other than space."""


class WrongOffsetError(StoreError):
    """Bytes of another broker's log do not continue this one."""


class DamagedRecordError(StoreError):
    """Bytes of another broker's log that are not a valid record."""


class CutError(StoreError):
    """The log cannot be cut at the given offset."""


class ShortageError(OSError):
    """A call failed because file descriptors or memory ran out. No data was lost; retry the call."""


class BackupError(StoreError):
    """A backup cannot be made, read or restored."""


class WrongFolderError(BackupError):
    """The given folder cannot be used: it holds no store or no backup, or is not empty."""


class NewerBackupError(BackupError):
    """The backup was made by a later version; this one neither reads nor overwrites it."""


class SegmentGoneError(StoreError):
    """Retention deleted a log segment while it was copied; read the state of the source again."""
