"""The exception of this package."""

from __future__ import annotations


class ReleaseError(Exception):
    """A release cannot be made, or a recorded licence is invalid; the message states what to do."""
