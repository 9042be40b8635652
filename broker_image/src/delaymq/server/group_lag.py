"""Consumer lag of a group for API and metrics, computed from the broker's tables in time slices."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delaymq.message import names
from delaymq.protocol.bodies import TopicConfig
from delaymq.server.time_slices import TimeSlices

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

BROADCASTING: Final = "BROADCASTING"


async def topics_and_lag(
    broker: "Broker",
    name: str,
    offset_topics: list[str],
    slices: TimeSlices,
    is_shown: Callable[[str], bool] = lambda topic: True,
) -> tuple[list[str], int]:
    """Return the topics that a group consumes, and its lag in all of them; only those for which `is_shown` is true."""
    connected = broker.clients.group(name, broker.now_ms())
    wanted = set(connected.subscriptions) if connected is not None else set()
    topics = []
    lag = 0
    for topic in sorted({*offset_topics, *wanted}):
        await slices.yield_if_due()
        # The topics of a connected group are its subscriptions; otherwise, its offsets.
        gone = wanted and topic not in wanted and topic != names.retry_topic(name)
        if topic not in broker.topics.table or gone or not is_shown(topic):
            continue
        topics.append(topic)
        if connected is None or connected.message_model != BROADCASTING:
            lag += await _lag(broker, topic, name, slices)
    return topics, lag


async def lag_of(broker: "Broker", name: str, offset_topics: list[str], slices: TimeSlices) -> int:
    """Return the lag of a group in all its topics."""
    return (await topics_and_lag(broker, name, offset_topics, slices))[1]


def queue_count(topic: TopicConfig) -> int:
    """Return the number of queues that may contain messages."""
    return max(topic.read_queue_nums, topic.write_queue_nums)


async def _lag(broker: "Broker", topic: str, name: str, slices: TimeSlices) -> int:
    """Return the group's lag in a topic; queues without a consumer offset count completely, as in RocketMQ."""
    lag = 0
    offsets = broker.offsets.queues_of(topic, name)
    config = broker.topics.table.get(topic)
    for queue_id in range(queue_count(config) if config is not None else 0):
        await slices.yield_if_due()
        low, high = broker.store.queue_bounds(topic, queue_id)
        lag += max(high - max(low, offsets.get(queue_id, 0)), 0)
    return lag
