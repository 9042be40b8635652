"""Notification of held pulls about new messages: after the request that stored them, and once they are confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container

from delaymq.message.properties import encode_properties
from delaymq.store.consume_queue import ENTRY
from delaymq.store.model import Dispatched
from delaymq.store.plain_runs import PlainRun

Arrival = tuple[int, str, int, int, int, bytes | None]
"""End in the log, topic, queue id, queue offset, tags code, and raw properties if a held pull needs them."""

OnArrival = Callable[[str, int, int, int, bytes | None], None]


class ArrivalNotifier:
    """Dispatch observer that collects stored records. `announce` reports those that consumers may see.

    An append runs in the middle of a request, where a held pull must not resume. `dispatch` therefore calls nothing.
    """

    name = "arrivals"

    def __init__(self) -> None:
        self.waiting: deque[Arrival] = deque()
        self.on_arrival: OnArrival | None = None
        """Called with topic, queue id, queue offset, tags code, properties. While it is None, nothing is collected."""
        self.interest: Container[tuple[str, int]] | None = None
        """Queues with held pulls; None: any queue may have one. Must be None if records are confirmed later than they
        are stored: a pull that is held in between would miss them."""
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
        for queue_offset, (offset, size, code) in enumerate(ENTRY.iter_unpack(run.entries), run.queue_offset):
            self.waiting.append((offset + size, run.topic, run.queue_id, queue_offset, code, None))

    def announce(self, confirmed_offset: int) -> None:
        """Call `on_arrival` for each record up to `confirmed_offset`."""
        waiting = self.waiting
        on_arrival = self.on_arrival
        while waiting and waiting[0][0] <= confirmed_offset:
            _, topic, queue_id, queue_offset, tags_code, properties = waiting.popleft()
            if on_arrival is not None:
                on_arrival(topic, queue_id, queue_offset, tags_code, properties)
