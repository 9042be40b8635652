"""Offset message ids as they are typed."""

from __future__ import annotations

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.message.ids import parse_offset_message_id


def place_of(message_id: str) -> tuple[str, int, int]:
    """Host, port and log offset that an offset message id names. CommandError if it is not one."""
    try:
        return parse_offset_message_id(message_id)
    except ValueError as error:
        raise CommandError(
            f"{message_id[:64]!r} is no offset message id ({error}): a unique id needs its --topic", EXIT_USAGE
        ) from error
