"""Errors of rule files; peers receive RequestErrors (protocol.errors) instead."""


class AccessError(Exception):
    """Rules cannot be read or written; the text says what to do, and contains no secret."""
