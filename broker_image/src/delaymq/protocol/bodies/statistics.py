"""Offsets and statistics of topics and groups; most are tables with MessageQueues as keys."""

import msgspec

from delaymq.protocol.bodies.base import Body, MessageQueue, written
from delaymq.protocol.bodies.clients import SubscriptionData
from delaymq.protocol.integers import Int32, Int64


class TopicOffset(Body):
    """One queue in TopicStats."""

    min_offset: Int64 = written(int)
    max_offset: Int64 = written(int)
    last_update_timestamp: Int64 = written(int)


class TopicStats(Body):
    """Response body of 202."""

    offset_table: dict[MessageQueue, TopicOffset] = written(dict)


class ConsumeOffset(Body):
    """One queue in ConsumeStats. `last_timestamp`: store time of the last consumed message; 0 if there is none."""

    broker_offset: Int64 = written(int)
    consumer_offset: Int64 = written(int)
    last_timestamp: Int64 = written(int)


class ConsumeStats(Body):
    """Response body of 208."""

    offset_table: dict[MessageQueue, ConsumeOffset] = written(dict)
    consume_tps: float = written(float)


class ConsumeStatsList(Body):
    """Response body of 317: for each group, its statistics by topic."""

    broker_addr: str = written(str)
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = written(list)
    total_diff: Int64 = written(int)


class ResetOffset(Body):
    """Response body of 222, and request body of 220 to clients: offsets from which consumers continue."""

    offset_table: dict[MessageQueue, Int64] = written(dict)

    def encode_as_list(self) -> bytes:
        """Return the form for C++ clients, which cannot read objects as keys."""
        entries = [
            {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
            for queue, offset in self.offset_table.items()
        ]
        return msgspec.json.encode({"offsetTable": entries})


class ConsumerStatus(Body):
    """Response body of 221 (a client fills `message_queue_table`) and 223 (client id → queue → offset)."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = written(dict)
    message_queue_table: dict[MessageQueue, Int64] = written(dict)


class CorrectionOffsets(Body):
    """Response body of 308: queue → offset."""

    correction_offsets: dict[Int32, Int64] = written(dict)


class QueueTimeSpan(Body):
    """One queue in TimeSpans: store times of its first, last and last consumed message, and the consumer's delay."""

    message_queue: MessageQueue
    min_time_stamp: Int64 = written(int)
    max_time_stamp: Int64 = written(int)
    consume_time_stamp: Int64 = written(int)
    delay_time: Int64 = written(int)


class TimeSpans(Body):
    """Response body of 303."""

    consume_time_span_set: list[QueueTimeSpan] = written(list)


class QueueEntry(Body):
    """One consume queue entry in QueueData. `eval`: whether the group's subscription matches it."""

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    eval: bool = written(bool)
    ext_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


class QueueData(Body):
    """Response body of 321: a range of a consume queue."""

    min_queue_index: Int64 = written(int)
    max_queue_index: Int64 = written(int)
    queue_data: list[QueueEntry] = written(list)
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class StatisticsFigures(Body):
    """One window in BrokerStatistics: sum, rate per second, and average per call."""

    sum: Int64 = written(int)
    tps: float = written(float)
    avgpt: float = written(float)


class BrokerStatistics(Body):
    """Response body of 315: the last minute, hour and day of one key."""

    stats_minute: StatisticsFigures = written(StatisticsFigures)
    stats_hour: StatisticsFigures = written(StatisticsFigures)
    stats_day: StatisticsFigures = written(StatisticsFigures)
