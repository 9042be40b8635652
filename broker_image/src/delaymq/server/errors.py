"""Error raised when a server cannot start."""


class ServerError(Exception):
    """The server cannot start; the text says what to do."""
