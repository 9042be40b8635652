"""Timed messages for display: what their records state, and whether they are pending."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from delaymq.broker.delivery.changes.fates import FateKind, fate_of
from delaymq.message.errors import KeysUnknownError, NewerFormError
from delaymq.message.record import Record
from delaymq.schedule.timeline import Pending
from delaymq.server.api.routing import ApiError
from delaymq.store.dispatch import recorded_due_ms

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker


def due_ms_of_timed(record: Record, properties: dict[str, str]) -> int | None:
    """Return the due time of a record of the timer topic; None if it states none."""
    try:
        return recorded_due_ms(properties, record.physical_offset)
    except NewerFormError:
        return None


def pending_timed(broker: "Broker", record: Record) -> Pending | None:
    """Return the pending message that a record of the timer topic holds. ApiError if the index cannot be read."""
    with reading_index():
        return broker.delivery.lookup.pending_in(record)


def fate_of_timed(broker: "Broker", record: Record) -> FateKind:
    """Return the end of a message that is not pending. ApiError if the index of keys cannot be read."""
    with reading_index():
        fate = fate_of(broker.delivery.lookup, record)
    return FateKind.DELIVERED if fate.kind is FateKind.UNKNOWN else fate.kind


@contextmanager
def reading_index() -> Iterator[None]:
    """Turn errors of the index of pending messages into an ApiError."""
    try:
        yield
    except KeysUnknownError as error:
        raise ApiError(503, "keys_unknown", str(error)) from None
    except OSError as error:
        raise ApiError(
            503,
            "timeline_unreadable",
            f"the index of pending messages cannot be read ({error}): restart the broker, which builds it again"
            " from the log if it is damaged",
        ) from None
