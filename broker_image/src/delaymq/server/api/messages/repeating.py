"""Schedules of repeating messages for display."""

from typing import TYPE_CHECKING

from delaymq.api_types.messages import Repeats
from delaymq.broker.delivery.repeating.history import newest_run, stated_run
from delaymq.broker.delivery.repeating.schedules import Missed
from delaymq.broker.delivery.timed.replay import is_schedule
from delaymq.message import names
from delaymq.message.errors import KeysUnknownError
from delaymq.message.record import Record
from delaymq.server.log_reader import clean_text

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker


def repeats_of(broker: "Broker", record: Record, properties: dict[str, str], identity: int) -> Repeats | None:
    """Return the schedule of the message that a record of the timer topic holds; None if it does not repeat."""
    if not is_schedule(properties, record.physical_offset):
        return None
    run: int | None = stated_run(record)
    last_run_ms = None
    try:
        newest = newest_run(broker.delivery.lookup, record, identity)
        if newest is not None:
            run = newest.number
            last_run_ms = _number(newest.copy.properties, names.TIMER_OUT_MS)
    except KeysUnknownError:
        run = None
    cron = properties.get(names.DELAY_CRON)
    return Repeats(
        cron=None if cron is None else clean_text(cron),
        zone=None if cron is None else clean_text(properties.get(names.DELAY_ZONE, "UTC")),
        every_ms=_number(properties, names.DELAY_EVERY_MS),
        until_ms=_number(properties, names.DELAY_UNTIL_MS),
        runs=_number(properties, names.DELAY_RUNS),
        missed=clean_text(properties.get(names.DELAY_MISSED, Missed.LATEST)),
        run=run,
        last_run_ms=last_run_ms,
    )


def _number(properties: dict[str, str], name: str) -> int | None:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None
