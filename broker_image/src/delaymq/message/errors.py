"""Errors of records, delay levels and messages."""


class RecordError(ValueError):
    """The bytes at a position of the log are not a complete, valid record."""


class LevelTableError(ValueError):
    """A delay level table (`messageDelayLevel`) is invalid; the message names the level and the reason."""


class IllegalMessageError(ValueError):
    """The store format cannot represent a message; the error says what to change."""


class NewerFormError(ValueError):
    """A sound statement in a record has a form that only a newer program knows."""


class KeysUnknownError(IllegalMessageError):
    """The index of keys cannot tell which messages have a key; the text says what to do."""
