"""Errors of rule files; peers get RequestErrors (protocol.errors) instead."""


class AccessError(Exception):
    """The rules cannot be read, or cannot be kept; the text says what to do, and holds no secret."""
