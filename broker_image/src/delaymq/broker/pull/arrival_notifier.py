"""Notification of held pulls about new messages: after the request that stored them, and once they are confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container
from typing import NamedTuple

from delaymq.message.properties import encode_properties
from delaymq.store.consume_queue import ENTRY
from delaymq.store.model import Dispatched
from delaymq.store.plain_runs import PlainRun

Arrival = tuple[int, str, int, int, int, bytes | None]
"""End in the log, topic, queue id, queue offset, tags code, and raw properties if a held pull needs them."""


class Run(NamedTuple):
    """Arrivals of consecutive messages of a queue."""

    end: int
    """End of the first one in the log."""
    topic: str
    queue_id: int
    queue_offset: int
    """Queue offset of the first one."""
    entries: bytes
    """Their entries of the consume queue."""


OnArrival = Callable[[str, int, int, int, bytes | None], None]


class ArrivalNotifier:
    """Dispatch observer that collects stored records. `announce` reports those that consumers may see.

    An append runs in the middle of a request, where a held pull must not resume. `dispatch` therefore calls nothing.
    """

    name = "arrivals"

    def __init__(self) -> None:
        self.waiting: deque[Arrival | Run] = deque()
        self.on_arrival: OnArrival | None = None
        """Called with topic, queue id, queue offset, tags code, properties. While it is None, nothing is collected."""
        self.interest: Container[tuple[str, int]] | None = None
        """Queues with held pulls; None: any queue may have one. Must be None if records are confirmed later than they
        are stored: a pull that is held in between would miss them."""
        self.held: Container[tuple[str, int]] | None = None
        """Queues with held pulls when arrivals are announced; the others' runs are skipped. None: none is skipped."""
        self.property_interest: Collection[tuple[str, int]] = ()
        """Queues with pulls that are held for messages with certain properties. Only their properties are collected."""

    def restore(self, state: object | None) -> None:
        """Restore nothing: there is no state."""

    def state(self) -> None:
        """Return None: there is no state."""

    concerned_topics = concerned_properties = ()

    def dispatch(self, record: Dispatched) -> None:
        """Collect a record."""
        interest = self.interest
        if interest is not None and (record.topic, record.queue_id) not in interest:
            return
        if self.on_arrival is not None:
            end = record.physical_offset + record.size
            properties = None
            if self.property_interest and (record.topic, record.queue_id) in self.property_interest:
                properties = encode_properties(record.properties)
            self.waiting.append((end, record.topic, record.queue_id, record.queue_offset, record.tags_code, properties))

    def dispatch_run(self, run: PlainRun) -> None:
        """Collect the records of a run."""
        place, interest = (run.topic, run.queue_id), self.interest
        if self.on_arrival is None or (interest is not None and place not in interest):
            return
        if self.property_interest and place in self.property_interest:
            for record in run.dispatched():
                self.dispatch(record)
            return
        offset, size, _ = ENTRY.unpack_from(run.entries)
        self.waiting.append(Run(offset + size, run.topic, run.queue_id, run.queue_offset, run.entries))

    def announce(self, confirmed_offset: int) -> None:
        """Call `on_arrival` for each record up to `confirmed_offset`."""
        waiting = self.waiting
        on_arrival = self.on_arrival
        while waiting and waiting[0][0] <= confirmed_offset:
            arrival = waiting.popleft()
            if on_arrival is None:
                continue
            if isinstance(arrival, Run):
                self._announce_run(on_arrival, arrival, confirmed_offset)
                continue
            _, topic, queue_id, queue_offset, tags_code, properties = arrival
            on_arrival(topic, queue_id, queue_offset, tags_code, properties)

    def _announce_run(self, on_arrival: OnArrival, run: Run, confirmed_offset: int) -> None:
        """Announce the messages of a run up to `confirmed_offset`; the others remain first among those that wait."""
        _, topic, queue_id, first, entries = run
        offset, size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY.size)
        is_held = self.held is None or (topic, queue_id) in self.held
        if not is_held and offset + size <= confirmed_offset:
            return
        for number, (offset, size, code) in enumerate(ENTRY.iter_unpack(entries)):
            if offset + size > confirmed_offset:
                rest = entries[number * ENTRY.size :]
                self.waiting.appendleft(Run(offset + size, topic, queue_id, first + number, rest))
                return
            if is_held:
                on_arrival(topic, queue_id, first + number, code, None)
