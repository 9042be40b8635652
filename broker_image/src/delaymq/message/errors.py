"""Errors of records, delay levels and messages."""


class RecordError(ValueError):
    """The bytes at a place of the log are not a whole, sound record."""


class LevelTableError(ValueError):
    """A delay level table (`messageDelayLevel`) that cannot be used; the text says which level and why."""


class IllegalMessageError(ValueError):
    """A message that the store format cannot hold; the text says what to change."""
