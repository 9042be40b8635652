"""Errors of the store. Each text says what to do."""


class StoreError(Exception):
    """Base of this layer's errors."""


class NotAStoreError(StoreError):
    """The folder does not hold a store, or one that this version must not touch."""


class StoreOpenError(StoreError):
    """The system refused a call that is needed to open the store."""


class UnreadableTableError(StoreError):
    """A table whose file and backup cannot be read; `paths`, below the store, of what is kept of them."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(f"neither the table nor its backup can be read: {', '.join(paths)}")
        self.paths = paths


class StoreLockedError(StoreError):
    """Another process has the store."""


class StoreClosedError(StoreError):
    """The store was closed."""


class StoreReadOnlyError(StoreError):
    """The store was opened to be looked at."""


class StoreFailedError(StoreError):
    """The disk refused to keep what was written: nothing more is accepted until a restart."""


class StoreFullError(StoreError):
    """No space for more messages; reading goes on, and writing resumes when there is space."""


class RecordTooLargeError(StoreError):
    """A message larger than `max_record_bytes` or than a segment."""


class SegmentCreateError(StoreError):
    """A new log segment could not be created for another reason than space."""


class ShortageError(OSError):
    """A call failed because descriptors or memory ran out: nothing was lost, repeat the call."""


class BackupError(StoreError):
    """A backup that cannot be made, read or restored."""


class WrongFolderError(BackupError):
    """A folder that was named cannot serve: it is no store, no backup, or not empty."""


class NewerBackupError(BackupError):
    """A backup of a later version, which this one neither reads nor overwrites."""


class SegmentGoneError(StoreError):
    """The log was deleted up to somewhere while it was being copied: look at the source anew."""
