"""Tells held pulls about new messages: after the request that stored them, and not before they are confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container

from delaymq.message.properties import encode_properties
from delaymq.store.model import Dispatched

Arrival = tuple[int, str, int, int, int, bytes | None]
"""End in the log, topic, queue id, queue offset, tags code, raw properties where somebody waits for such."""

OnArrival = Callable[[str, int, int, int, bytes | None], None]


class ArrivalNotifier:
    """A dispatch observer that collects what was stored; `announce` passes on what consumers may see by now.

    An append runs in the middle of a request, where a held pull must not be run; so nothing is called from `dispatch`.
    """

    name = "arrivals"

    def __init__(self) -> None:
        self.waiting: deque[Arrival] = deque()
        self.on_arrival: OnArrival | None = None
        """topic, queue id, queue offset, tags code, properties. While it is None nothing is collected."""
        self.interest: Container[tuple[str, int]] | None = None
        """The queues for which somebody waits; None: any may be. To be left None where records are confirmed later
        than they are stored: whoever begins to wait in between would miss them."""
        self.property_interest: Collection[tuple[str, int]] = ()
        """The queues in which somebody waits for messages with certain properties: only theirs are kept."""

    def restore(self, state: object | None) -> None:
        """There is no state."""

    def state(self) -> None:
        """There is no state."""

    def dispatch(self, record: Dispatched) -> None:
        """Notes a record."""
        interest = self.interest
        if interest is not None and (record.topic, record.queue_id) not in interest:
            return
        if self.on_arrival is not None:
            end = record.physical_offset + record.size
            properties = None
            if self.property_interest and (record.topic, record.queue_id) in self.property_interest:
                properties = encode_properties(record.properties)
            self.waiting.append((end, record.topic, record.queue_id, record.queue_offset, record.tags_code, properties))

    def announce(self, confirmed_offset: int) -> None:
        """Calls `on_arrival` for each record up to `confirmed_offset`."""
        waiting = self.waiting
        on_arrival = self.on_arrival
        while waiting and waiting[0][0] <= confirmed_offset:
            _, topic, queue_id, queue_offset, tags_code, properties = waiting.popleft()
            if on_arrival is not None:
                on_arrival(topic, queue_id, queue_offset, tags_code, properties)
