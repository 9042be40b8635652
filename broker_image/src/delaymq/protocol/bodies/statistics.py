"""Offsets and statistics of topics and groups; most are tables with a MessageQueue as key."""

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
    """Answer to 202."""

    offset_table: dict[MessageQueue, TopicOffset] = written(dict)


class ConsumeOffset(Body):
    """One queue in ConsumeStats. `last_timestamp`: when the last consumed message was stored, 0 if none was."""

    broker_offset: Int64 = written(int)
    consumer_offset: Int64 = written(int)
    last_timestamp: Int64 = written(int)


class ConsumeStats(Body):
    """Answer to 208."""

    offset_table: dict[MessageQueue, ConsumeOffset] = written(dict)
    consume_tps: float = written(float)


class ConsumeStatsList(Body):
    """Answer to 317: for each group its statistics, a topic each."""

    broker_addr: str = written(str)
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = written(list)
    total_diff: Int64 = written(int)


class ResetOffset(Body):
    """Answer to 222, and body of 220 to clients: where consumers are to go on."""

    offset_table: dict[MessageQueue, Int64] = written(dict)

    def encode_as_list(self) -> bytes:
        """The form that clients in C++ understand, which read no objects as keys."""
        entries = [
            {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
            for queue, offset in self.offset_table.items()
        ]
        return msgspec.json.encode({"offsetTable": entries})


class ConsumerStatus(Body):
    """Answer to 221 (a client fills `message_queue_table`) and 223 (client id → queue → offset)."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = written(dict)
    message_queue_table: dict[MessageQueue, Int64] = written(dict)


class CorrectionOffsets(Body):
    """Answer to 308: queue → offset."""

    correction_offsets: dict[Int32, Int64] = written(dict)


class QueueTimeSpan(Body):
    """One queue in TimeSpans: store times of its first, last and last consumed message, and how far behind that is."""

    message_queue: MessageQueue
    min_time_stamp: Int64 = written(int)
    max_time_stamp: Int64 = written(int)
    consume_time_stamp: Int64 = written(int)
    delay_time: Int64 = written(int)


class TimeSpans(Body):
    """Answer to 303."""

    consume_time_span_set: list[QueueTimeSpan] = written(list)


class QueueEntry(Body):
    """One consume-queue entry in QueueData. `eval`: does the group's subscription take it?"""

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    eval: bool = written(bool)
    ext_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


class QueueData(Body):
    """Answer to 321: a stretch of a consume queue."""

    min_queue_index: Int64 = written(int)
    max_queue_index: Int64 = written(int)
    queue_data: list[QueueEntry] = written(list)
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class StatisticsFigures(Body):
    """One window in BrokerStatistics: sum, per second, and on average each time."""

    sum: Int64 = written(int)
    tps: float = written(float)
    avgpt: float = written(float)


class BrokerStatistics(Body):
    """Answer to 315: the last minute, hour and day of one key."""

    stats_minute: StatisticsFigures = written(StatisticsFigures)
    stats_hour: StatisticsFigures = written(StatisticsFigures)
    stats_day: StatisticsFigures = written(StatisticsFigures)
