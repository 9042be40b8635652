"""Parsing of offset message ids."""

from __future__ import annotations

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.message.ids import parse_offset_message_id


def parse_message_id(message_id: str) -> tuple[str, int, int]:
    """Return the host, port and physical offset of an offset message id; raise CommandError if it is invalid."""
    try:
        return parse_offset_message_id(message_id)
    except ValueError as error:
        raise CommandError(
            f"{message_id[:64]!r} is not an offset message id ({error}): a unique id requires --topic", EXIT_USAGE
        ) from error
