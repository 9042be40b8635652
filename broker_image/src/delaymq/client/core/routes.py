"""Routes: the queues of a topic by broker, and a producer's round-robin order."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.client.core.broker_faults import BrokerFaults
from delaymq.message.hashing import java_hash
from delaymq.protocol.bodies import MASTER_ID, MessageQueue, TopicRoute

PERM_READ = 4
PERM_WRITE = 2
MAX_QUEUES = 65_536
"""Maximum number of queues of a topic accepted from a route, so that an invalid response does not fill memory."""


@dataclass(frozen=True, slots=True)
class Route:
    """The queues of a topic, in the order of RocketMQ's clients: by broker, then by number."""

    topic: str
    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    """Broker name → broker id → address; id 0 is the master."""
    writable: tuple[MessageQueue, ...] = ()
    readable: tuple[MessageQueue, ...] = ()

    def master(self, broker_name: str) -> str | None:
        """Return the address of a broker's master."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return an address to read from: that of `broker_id`, else the master, or a slave if there is none."""
        addresses = self.brokers.get(broker_name, {})
        return addresses.get(broker_id) or addresses.get(MASTER_ID) or next(iter(addresses.values()), None)

    def addresses(self) -> list[str]:
        """Return an address of each broker, for requests about groups."""
        return [address for name in sorted(self.brokers) if (address := self.reader(name)) is not None]


def route_of(topic: str, answer: TopicRoute) -> Route:
    """Return the route in a NameServer's response."""
    brokers = {each.broker_name: dict(each.broker_addrs) for each in answer.broker_datas if each.broker_addrs}
    writable: list[MessageQueue] = []
    readable: list[MessageQueue] = []
    for queues in sorted(answer.queue_datas, key=lambda each: each.broker_name):
        name = queues.broker_name
        if name not in brokers:
            continue
        if queues.perm & PERM_WRITE and MASTER_ID in brokers[name]:
            room = MAX_QUEUES - len(writable)
            writable += [MessageQueue(name, number, topic) for number in range(min(queues.write_queue_nums, room))]
        if queues.perm & PERM_READ:
            room = MAX_QUEUES - len(readable)
            readable += [MessageQueue(name, number, topic) for number in range(min(queues.read_queue_nums, room))]
    return Route(topic, brokers, tuple(writable), tuple(readable))


def route_of_new_topic(topic: str, template: TopicRoute, max_queues: int) -> Route:
    """Return the route that `topic` will have once a broker creates it from the template topic at the first send."""
    for queues in template.queue_datas:
        number = min(queues.read_queue_nums, queues.write_queue_nums, max_queues)
        queues.read_queue_nums = queues.write_queue_nums = max(number, 1)
    return route_of(topic, template)


def queue_for_key(queues: tuple[MessageQueue, ...], ordering_key: str) -> MessageQueue:
    """Return the queue of a key, constant while `queues` are unchanged: that of RocketMQ's selector by hash (for
    strings).

    `queues` must not be empty.
    """
    return queues[abs(java_hash(ordering_key)) % len(queues)]


class QueueRound:
    """Round-robin selection of a route's queues; after a failure on a broker, it prefers another broker."""

    __slots__ = ("number",)

    def __init__(self, start: int = 0) -> None:
        self.number = start
        """Number of the next queue, modulo the number of queues."""

    def choose(
        self, queues: tuple[MessageQueue, ...], avoid: str | None = None, faults: BrokerFaults | None = None,
        now_ms: float = 0,
    ) -> MessageQueue:  # fmt: skip
        """Return the next queue, if possible not on broker `avoid` and on one that `faults` considers usable.

        Otherwise, return one on the best available broker. `queues` must not be empty.
        """
        for _ in range(len(queues)):
            queue = self._following(queues)
            if queue.broker_name != avoid and (faults is None or faults.is_usable(queue.broker_name, now_ms)):
                return queue
        if faults is not None:
            brokers = {queue.broker_name for queue in queues}
            best = faults.least_bad(brokers - {avoid} or brokers, now_ms)
            queues = tuple(queue for queue in queues if queue.broker_name == best)
        return self._following(queues)

    def _following(self, queues: tuple[MessageQueue, ...]) -> MessageQueue:
        queue = queues[self.number % len(queues)]
        self.number += 1
        return queue
