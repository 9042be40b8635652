"""The error that keeps a server from starting."""


class ServerError(Exception):
    """A server that cannot start; the text says what to do."""
